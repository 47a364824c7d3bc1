"""benchmarks/dct.py: ratios of bytes, intervals over paired seeds, shares of time, as its docstrings say."""

import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrec.data.reader import DataSet

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]
from dct_parts import clicks, quality_part, runs, time_part  # noqa: E402 - of the benchmark, which is no package

del sys.path[:1]


def row(run: str, seed: int, found: float, exchange: float = 100.0, dense: float = 1000.0) -> runs.Row:
    return {
        "model": "dlrm", "run": run, "seed": seed, "auc": found, "exchange_bytes": exchange, "dense_bytes": dense,
    }  # fmt: skip


def test_claims_are_of_pairs() -> None:
    wholes = [row("whole", seed, 0.8 + 0.01 * seed) for seed in (1, 2, 3)]
    losses = {1: 1e-4, 2: 0.0, 3: 2e-4}
    thresholded = [row("thresholded", seed, 0.8 + 0.01 * seed - loss, 4, 5) for seed, loss in losses.items()]
    other = [row("narrow", 1, 0.5)]
    found = {c["id"]: c for c in quality_part.claims([*wholes, *other, *thresholded], ["dlrm"])}
    assert found["dct.exchange_ratio"]["value"] == 25
    assert found["dct.dense_ratio"]["value"] == 200
    assert found["dct.auc_difference.synthetic.dlrm"]["value"] == pytest.approx(-1e-4)
    # Student's t of 2 degrees at 0.975 is 4.3027; the differences have a standard deviation of 1e-4
    assert found["dct.auc_interval.synthetic.dlrm"]["value"] == pytest.approx(-1e-4 - 4.3027 * 1e-4 / 3**0.5, rel=1e-4)
    assert all(found[name]["holds"] for name in ("dct.exchange_ratio", "dct.dense_ratio"))
    assert found["dct.auc_interval.synthetic.dlrm"]["holds"] is True


def test_bytes_of_a_step_leave_ids_out() -> None:
    hosts = {"values": (10, 20), "gradients": (20, 40), "control": (30, 60), "ids": (7, 0), "dense": (5, 5)}
    summary = {
        "steps": 10,
        "wire_bytes": {tag: dict(zip(("same_host", "cross_host"), n, strict=True)) for tag, n in hosts.items()},
        "exchange_thresholds": {"density": 0.08, "drift": 0},
        "dense_compression": {},
        "throughput": {"step_ms": {"p50": 3.0}},
    }
    found = runs._bytes(summary)
    assert (found["exchange_bytes"], found["id_bytes"], found["dense_bytes"]) == (18, 0.7, 1)
    assert (found["exchange_density"], found["dense_density"]) == (0.08, 1)


def test_time_saved_and_cost() -> None:
    rows = [
        {"link": link, "run": run, "step_ms": ms, "compression_ms": 2.0}
        for link, times in (("1gbit", (100.0, 50.0)), ("100mbit", (800.0, 60.0)))
        for run, ms in zip(time_part.RUNS, times, strict=True)
    ]
    found = {c["id"]: c["value"] for c in time_part.claims(rows)}
    assert found == {"dct.time_saved.1gbit": 0.5, "dct.time_saved.100mbit": 0.925, "dct.cost_share": 0.04}
    medians = time_part.medians([{"step_s": s, "run": n} for n, s in enumerate((1.0, 10.0, 3.0, 30.0, 2.0, 20.0))])
    assert [m["step_s"] for m in medians] == [2.0, 20.0]


def test_clicks_for_the_test_follow_those_for_training(tmp_path: Path) -> None:
    folder = clicks.prepare(1, tmp_path, test_blocks=1)
    assert clicks.prepare(1, tmp_path, test_blocks=1) == folder
    with DataSet(folder / "train.h5") as train, DataSet(folder / "test.h5") as test:
        assert train.samples == test.samples == 65536
        assert not np.array_equal(train.read(0, 100).label, test.read(0, 100).label)
        assert 0.8 < float(test.attributes["attainable_auc"]) < 0.9
