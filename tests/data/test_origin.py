"""Data sets whose columns agree and whose ids mean other values are told apart, before ranks start."""

import json
from pathlib import Path
from typing import Any

import pytest

import hpcrec
from hpcrec.build.datasets import open_datasets, refuse_other_columns
from hpcrec.config import validate
from hpcrec.data.carried import FOLDER, MAP, VOCABULARY, carry
from hpcrec.data.origin import other_origin
from hpcrec.errors import ConfigError

BY_COUNT = {"ids": "vocabulary"}


def prepared(folder: Path, sites: list[str], **more: Any) -> Path:
    table = folder.with_suffix(".csv")
    table.write_text("click,age,site\n" + "".join(f"{n % 2},{n / 4},{sites[n % len(sites)]}\n" for n in range(40)))
    options = {"labels": "click", "dense": {"age": {}}, "sparse": {"site": BY_COUNT}, **more}
    hpcrec.prepare(table, folder, split="order:0.7,0,0.3", **options)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("origin")
    prepared(made / "one", ["a", "b", "b", "c"])
    prepared(made / "same", ["a", "b", "b", "c"])
    prepared(made / "other", ["a", "b", "b", "d"])
    prepared(made / "scaled", ["a", "b", "b", "c"], dense={"age": {"transform": "log1p"}})
    prepared(made / "hashed", ["a", "b", "b", "c"], sparse={"site": {"ids": "hash", "rows": 5}})
    return made


@pytest.mark.parametrize(
    ("name", "mine", "theirs"),
    [
        ("one", None, None),
        ("same", None, None),
        ("other", "feature 'site' with the vocabulary of 3 values ", "feature 'site' with the vocabulary of 3 values "),
        ("scaled", "dense input 'age' with transform 'log1p'", "dense input 'age' with transform 'none'"),
        ("hashed", "feature 'site' with ids 'hash'", "feature 'site' with ids 'vocabulary'"),
        ("not there", None, None),
    ],
)
def test_the_first_input_that_became_ids_otherwise(
    name: str, mine: str | None, theirs: str | None, folder: Path
) -> None:
    found = other_origin(folder / name, folder / "one")
    if mine is None or theirs is None:
        assert found is None
    else:
        assert found is not None and found[0].startswith(mine) and found[1].startswith(theirs) and found[0] != found[1]


def test_a_map_that_is_none_says_nothing(folder: Path, tmp_path: Path) -> None:
    for said in ("{", "[]", json.dumps({"identity": {"table": {"sparse": [], "dense": {}}}})):
        (tmp_path / MAP).write_text(said)
        assert other_origin(tmp_path, folder / "one") is None


def test_a_vocabulary_that_is_damaged_stops_no_run(folder: Path, tmp_path: Path) -> None:
    for name in (MAP, VOCABULARY):
        (tmp_path / name).write_bytes((folder / "other" / name).read_bytes()[: -100 if name == VOCABULARY else None])
    assert other_origin(tmp_path, folder / "one") is None


def test_they_are_refused_where_columns_agree(folder: Path, tmp_path: Path) -> None:
    def config(validation: str, run: Path = tmp_path / "run") -> Any:
        data = {"train": str(folder / "one/train.h5"), "validation": str(folder / validation / "test.h5")}
        return validate({"data": data, "model": {"name": "lr"}, "run": {"folder": str(run)}}, "test")

    for data in open_datasets(config("same")).values():
        data.close()
    with pytest.raises(ConfigError, match=r"data.validation .* has feature 'site' with the vocabulary .*in one go"):
        open_datasets(config("other"))
    refuse_other_columns(config("same"), str(folder / "same/test.h5"))
    with pytest.raises(ConfigError, match=r"--data .* has feature 'site' with the vocabulary of 3 .* was trained on"):
        refuse_other_columns(config("same"), str(folder / "other/test.h5"))
    carry(folder / "other", tmp_path / "run" / FOLDER)  # what the run was trained with
    refuse_other_columns(config("same"), str(folder / "other/test.h5"))
