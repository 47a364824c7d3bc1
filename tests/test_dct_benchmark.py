"""benchmarks/dct.py: ratios of bytes, intervals over paired seeds, shares of time, as its docstrings say."""

import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrec.data.reader import DataSet
from hpcrec.dense.dct_choose import choose
from hpcrec.dense.dct_parts import Part, Segment
from hpcrec.dense.residuals import Piece

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]
from dct_parts import (  # noqa: E402 - of the benchmark, which is no package
    ablated,
    clicks,
    quality_part,
    ranks_part,
    real_part,
    runs,
    time_part,
)

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


def test_ratios_on_more_ranks() -> None:
    exchange = {"pooled": 8000.0, "auto": 2000.0, "reduce_scatter": 200.0, "allgather": 200.0}
    dense = {"pooled": 600.0, "auto": 600.0, "reduce_scatter": 4.0, "allgather": 8.0}
    rows = [{"ranks": 4, "run": run, "exchange_bytes": exchange[run], "dense_bytes": dense[run]} for run in dense]
    found = {c["id"].removeprefix("dct."): c["value"] for c in ranks_part.claims(rows)}
    assert found.pop("exchange_ratio_auto.4") == 10
    assert found == {"dense_ratio.4": 150, "exchange_ratio.4": 40, "dense_ratio_allgather.4": 75}


def test_formula_of_dense_bytes() -> None:
    """As the table of docs/dct.md has it, for 0.005 as fp16."""
    whole = 1e6
    for ranks, run, ratio in ((8, "reduce_scatter", 234), (2, "allgather", 234), (4, "allgather", 117)):
        assert ranks_part.formula(whole, ranks, run, 0.005) == pytest.approx(whole / ratio, rel=0.005)
    assert ranks_part.formula(whole, 4, "pooled", 1.0) is None


def test_sets_that_are_not_there_have_no_claims() -> None:
    rows, claims = real_part.measure(None, quick=True)
    assert [row["run"] for row in rows] == ["skipped", "skipped"] and not claims


def test_what_is_taken_out() -> None:
    def part() -> tuple[Part, Piece]:
        return Part(0, 8, (Segment("w", 0, 8),)), Piece(0, np.array([0, 0, 5, 0, 0, 0, 0, 1.0]))

    of, piece = part()
    random = ablated.AtRandom()
    seen = set()
    for _ in range(50):
        chosen = random(of, np.arange(8.0), lambda _: piece, density=0.25, due=False)
        assert len(chosen.positions) == 2
        assert np.array_equal(
            chosen.left + np.bincount(chosen.positions, chosen.values, 8), np.arange(8.0) + piece.left
        )
        seen |= set(chosen.positions.tolist())
    assert seen == set(range(8))
    chosen = choose(of, np.arange(8.0), lambda _: piece, density=0.25, due=True)
    ablated.forget(chosen)
    assert piece.tau == 7 and np.array_equal(piece.left, [0, 0, 5, 0, 0, 0, 0, 1])
