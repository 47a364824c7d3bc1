"""`hpcrec data inspect`: figures held to NumPy over the whole columns; ids counted in bounded memory."""

import json
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import cut, make_columns, write

from hpcrec.cli.data import data as command
from hpcrec.data import inspect as module
from hpcrec.data.counts import IdCounts
from hpcrec.data.inspect import inspect
from hpcrec.preparation.schema import Columns, write_index


def run(*arguments: str) -> str:
    return CliRunner().invoke(command, ["inspect", *arguments], catch_exceptions=False).stdout


def test_figures_are_those_of_the_columns(
    samples: Columns, data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK", 300)  # several blocks, and bags in several pieces
    parts = [write(tmp_path / f"{i}.h5", cut(samples, *ab)) for i, ab in enumerate([(0, 900), (900, 2357)])]
    write_index(tmp_path / "all.index.json", parts)
    for path in (data_file, tmp_path / "all.index.json"):
        found = inspect(path)
        assert (found["samples"], found["inspected"], found["checksums"]) == (2357, 2357, "all")
        assert found["labels"][0]["mean"] == pytest.approx(samples.label.mean(dtype=np.float64), rel=1e-12)
        assert [c["max"] for c in found["dense"]] == samples.dense.max(axis=0).tolist()
        assert found["optional"]["time"]["max"] == 7 * 2356
        for feature in found["features"]:
            column = samples.sparse[feature["name"]]
            ids, counts = np.unique(column.ids, return_counts=True)
            lengths = np.ones(2357, int) if column.offsets is None else np.diff(column.offsets)
            order = np.argsort(-counts, kind="stable")
            assert (feature["distinct"], feature["exact"], feature["ids"]) == (len(ids), True, len(column.ids))
            assert (feature["mean_ids"], feature["max_ids"]) == (lengths.mean(), lengths.max())
            assert feature["empty_share"] == np.mean(lengths == 0)
            assert feature["id_0_share"] == np.mean(column.ids == 0)
            wanted = [{"id": int(ids[i]), "share": counts[i] / len(column.ids)} for i in order[:5]]
            assert feature["top"] == wanted
            head = counts[order[: -(-len(ids) // 100)]]
            assert feature["top_1_percent_share"] == head.sum() / len(column.ids)


def test_only_the_first_samples(samples: Columns, data_file: Path, tmp_path: Path) -> None:
    whole = inspect(write(tmp_path / "head.h5", cut(samples, 0, 700), origin="made by hand"))
    part = inspect(data_file, samples=700)
    assert part["inspected"] == 700 and part["samples"] == 2357
    assert (part["features"], part["dense"]) == (whole["features"], whole["dense"])


def test_wrong_values_are_counted_not_refused(data_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.h5"
    path.write_bytes(data_file.read_bytes())
    with h5py.File(path, "r+") as file:
        file["dense"][:, 1] = np.nan
        file["dense"][5, 0] = -np.inf
        file["sparse/user/ids"][3] = 10**9
    found = json.loads(run("--json", str(path)))
    assert found["dense"][1] == {"min": None, "mean": None, "max": None, "nan": 2357, "inf": 0}
    assert (found["dense"][0]["inf"], found["dense"][0]["min"]) == (1, 0.0)
    assert found["features"][0]["outside"] == 1
    page = run(str(path))
    assert "user (1 ids outside)" in page and "2,357" in page


def test_page_has_every_feature_and_column(data_file: Path) -> None:
    page = run(str(data_file), "--top", "1")
    lines = {line.split()[0]: line.split() for line in page.splitlines() if line.strip()}
    assert lines["tags"][1:3] == ["50", "50"] and lines["user"][1] == "1,000"
    assert "terms (weighted)" in page and page.count("dense ") == 3
    assert "checksums recorded: all" in page and "origin: made by hand" in page


def test_no_samples_and_no_features(tmp_path: Path) -> None:
    found = inspect(write(tmp_path / "none.h5", make_columns(0)))
    assert found["samples"] == 0 and found["labels"][0]["mean"] is None
    assert found["features"][0]["distinct"] == 0 and found["features"][0]["zipf_exponent"] is None
    assert "none.h5: 0 samples" in run(str(tmp_path / "none.h5"))


@pytest.mark.parametrize("exponent", [0.8, 1.2])
def test_zipf_exponent_is_found(exponent: float) -> None:
    ranks = np.arange(1, 20_001)
    p = ranks**-exponent
    counts = IdCounts()
    counts.add(np.random.default_rng(1).choice(ranks, 400_000, p=p / p.sum()))
    found = counts.describe()
    assert found["zipf_exponent"] == pytest.approx(exponent, abs=0.05)
    assert found["top"][0]["id"] == 1


def test_counts_are_bounded_and_then_near() -> None:
    rng = np.random.default_rng(2)
    counts, true = IdCounts(limit=20_000), np.zeros(1_000_000, np.int64)
    tracemalloc.start()
    for _ in range(20):
        ids = np.concatenate([rng.integers(0, 1_000_000, 30_000), rng.integers(0, 100, 10_000)])
        true += np.bincount(ids, minlength=1_000_000)
        counts.add(ids)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found = counts.describe(top=100)
    assert not found["exact"] and found["distinct"] == pytest.approx(np.count_nonzero(true), rel=0.03)
    assert sorted(top["id"] for top in found["top"]) == list(range(100))
    for top in found["top"]:
        assert top["share"] == pytest.approx(true[top["id"]] / 800_000, rel=0.02)
    assert peak < 40e6
