"""The file of predictions: the same columns in every format, in the order of samples, in pieces, whole or absent."""

import csv
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pyarrow import parquet

from hpcrec.data import predictions as module
from hpcrec.data.layout import Column, Columns
from hpcrec.data.predictions import asked_columns, format_of, predictions
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature

SAMPLES, BATCH, PIECE = 53, 5, 7
NAMES = {"hdf5": "out.h5", "parquet": "out.parquet", "csv": "out.csv"}
ROOT = Path(__file__).resolve().parents[2]


def write_data(path: Path, labels: Sequence[str] | None = ("click", "buy"), n_labels: int = 2) -> Columns:
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 4, SAMPLES)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    weights = rng.uniform(0.5, 2, offsets[-1]).astype(np.float32)
    sparse = {
        "user": Column(rng.integers(0, 2**40, SAMPLES)),
        "tag": Column(rng.integers(0, 9, offsets[-1]), offsets, weights),
    }
    label = rng.integers(0, 2, (SAMPLES, n_labels)[: 1 + (n_labels > 1)]).astype(np.float32)
    columns = Columns(
        label, np.zeros((SAMPLES, 0), np.float32), sparse, weight=rng.uniform(0.5, 2, SAMPLES).astype(np.float32)
    )
    features = (Feature(name="user", cardinality=0), Feature(name="tag", cardinality=9, mean_ids=2.0, weighted=True))
    attributes = {} if labels is None else {"label_names": list(labels)}
    with Writer(
        path,
        features,
        n_dense=0,
        n_labels=n_labels,
        jagged=("tag",),
        optional=("weight",),
        attributes=attributes,
    ) as writer:
        writer.append(columns)
    return columns


def read(path: Path) -> dict[str, list[Any]]:
    """Columns of a file of any format, as numbers or lists of numbers."""
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return {name: [one.tolist() for one in data[()]] for name, data in file.items()}
    if path.suffix == ".parquet":
        return dict(parquet.read_table(path).to_pydict())
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    cells: dict[str, list[Any]] = {
        name: list(column) for name, column in zip(header, zip(*lines, strict=True), strict=True)
    }
    for name, column in cells.items():
        number = int if name in ("user", "tag") else float
        bags = name.startswith("tag")
        cells[name] = [[number(x) for x in cell.split()] if bags else number(cell) for cell in column]
    return cells


@pytest.mark.parametrize("kind", NAMES)
def test_every_format_has_predictions_by_label_and_the_columns_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(module, "PIECE", PIECE)
    data = write_data(tmp_path / "data.h5")
    found = np.random.default_rng(4).uniform(0, 1, (SAMPLES, 2)).astype(np.float32)
    out, most = tmp_path / NAMES[kind], [0]
    with DataSet(tmp_path / "data.h5") as dataset:
        real = dataset.read_ranges

        def noted(ranges: Any, *given: Any) -> Columns:
            most[0] = max(most[0], *(stop - start for start, stop in ranges))
            return real(ranges, *given)

        monkeypatch.setattr(dataset, "read_ranges", noted)
        asked = asked_columns(dataset, ("user", "tag", "label", "weight"))
        with predictions(out, format_of(out), dataset, asked, step=12) as output:
            for first in range(0, SAMPLES, BATCH):
                output.write(first, found[first : first + BATCH])
                assert not out.exists()
    got = read(out)
    if kind != "hdf5":  # whose columns have no order
        wanted = "prediction_click prediction_buy user tag tag.weights click buy weight"
        assert list(got) == wanted.split()
    assert most == [PIECE], "what is read at once is bounded"
    for i, name in enumerate(("click", "buy")):
        assert np.array_equal(np.array(got[f"prediction_{name}"], np.float32), found[:, i])
        assert np.array_equal(got[name], data.label[:, i])
    assert got["user"] == data.sparse["user"].ids.tolist()
    assert np.array_equal(np.array(got["weight"], np.float32), data.weight)
    offsets = data.sparse["tag"].offsets
    assert offsets is not None and [len(bag) for bag in got["tag"]] == np.diff(offsets).tolist()
    assert list(chain(*got["tag"])) == data.sparse["tag"].ids.tolist()
    assert np.array_equal(np.array(list(chain(*got["tag.weights"])), np.float32), data.sparse["tag"].weights)
    assert [p.name for p in tmp_path.iterdir() if p.name != "data.h5"] == [out.name]


def test_the_file_says_of_what_it_is(tmp_path: Path) -> None:
    write_data(tmp_path / "data.h5", labels=None, n_labels=1)
    with DataSet(tmp_path / "data.h5") as dataset:
        for kind, name in NAMES.items():
            with predictions(tmp_path / name, kind, dataset, step=12) as output:
                output.write(0, np.full(SAMPLES, 0.1, np.float32))
    with h5py.File(tmp_path / "out.h5") as file:
        assert (list(file), file["prediction"].shape) == (["prediction"], (SAMPLES,))
        assert (file.attrs["step"], file.attrs["data"]) == (12, str(tmp_path / "data.h5"))
    schema = parquet.read_schema(tmp_path / "out.parquet")
    assert schema.names == ["prediction"] and schema.metadata[b"step"] == b"12"
    assert (tmp_path / "out.csv").read_text().splitlines() == ["prediction", *["0.1"] * SAMPLES]


@pytest.mark.parametrize(
    ("labels", "n_labels", "wanted"),
    [
        (None, 1, ["prediction"]),
        (None, 2, ["prediction_0", "prediction_1"]),
        (("click",), 1, ["prediction_click"]),
    ],
)
def test_names_of_labels(tmp_path: Path, labels: Sequence[str] | None, n_labels: int, wanted: list[str]) -> None:
    write_data(tmp_path / "data.h5", labels=labels, n_labels=n_labels)
    with DataSet(tmp_path / "data.h5") as dataset:
        assert [field.name for field in module.prediction_fields(dataset)] == wanted


def test_a_column_that_is_not_there_or_comes_twice_is_refused(tmp_path: Path) -> None:
    write_data(tmp_path / "data.h5")
    with DataSet(tmp_path / "data.h5") as dataset:
        with pytest.raises(ConfigError) as caught:
            asked_columns(dataset, ("user", "usr"))
        said = (
            f"predict: --columns has 'usr'; {tmp_path / 'data.h5'} has user, tag, label, click, buy, weight. Name some"
        )
        assert str(caught.value).startswith(said)
        with pytest.raises(ConfigError, match="--columns would write click more than once"):
            asked_columns(dataset, ("label", "click"))
        assert [column.field.name for column in asked_columns(dataset, ("buy",))] == ["buy"]


def test_the_format_is_known_by_the_end_of_the_name_or_as_it_is_given() -> None:
    names = {"a.h5": "hdf5", "a.hdf5": "hdf5", "a.PARQUET": "parquet", "a.csv": "csv"}
    assert {name: format_of(Path(name)) for name in names} == names
    assert format_of(Path("a.dat"), "csv") == "csv"
    for name, said in (("a.tsv", r"--out a.tsv ends with '.tsv'"), ("out", "--out out has no ending")):
        with pytest.raises(ConfigError, match=f"{said}. Allowed: .h5, .hdf5, .parquet, .csv. .*--format"):
            format_of(Path(name))
    with pytest.raises(ConfigError, match=r"--format is 'xml'. Allowed: hdf5, parquet, csv"):
        format_of(Path("a.csv"), "xml")


@pytest.mark.parametrize("kind", NAMES)
def test_killed_half_way_it_leaves_nothing_under_its_name(tmp_path: Path, kind: str) -> None:
    write_data(tmp_path / "data.h5")
    code = f"""
import os, signal, sys
from pathlib import Path
import numpy as np
from hpcrec.data import predictions as module
from hpcrec.data.reader import DataSet
module.PIECE = {PIECE}
folder = Path(sys.argv[1])
with DataSet(folder / "data.h5") as dataset:
    with module.predictions(folder / "{NAMES[kind]}", "{kind}", dataset, step=1) as output:
        for first in range(0, {SAMPLES}, {BATCH}):
            output.write(first, np.zeros((min({BATCH}, {SAMPLES} - first), 2), np.float32))
            if first > {SAMPLES} // 2:
                print("half", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (-9, "half\n"), done.stderr
    assert not (tmp_path / NAMES[kind]).exists()


@pytest.mark.parametrize("kind", NAMES)
def test_an_error_half_way_leaves_nothing_at_all(tmp_path: Path, kind: str) -> None:
    write_data(tmp_path / "data.h5")

    def fail_half_way(dataset: DataSet) -> None:
        with predictions(tmp_path / NAMES[kind], kind, dataset, step=1) as output:
            output.write(0, np.zeros((BATCH, 2), np.float32))
            raise KeyError("the model")

    with DataSet(tmp_path / "data.h5") as dataset, pytest.raises(KeyError, match="the model"):
        fail_half_way(dataset)
    assert [p.name for p in tmp_path.iterdir()] == ["data.h5"]
