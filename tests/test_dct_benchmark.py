"""benchmarks/dct.py: ratios of bytes, intervals over paired seeds, shares of time, as its docstrings say."""

import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrec.data.reader import DataSet
from hpcrec.dense.dct_choose import choose
from hpcrec.dense.dct_parts import Part, Segment
from hpcrec.dense.residuals import Piece
from hpcrec.types import Floats
from tests.training.runs import write_data

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]
from dct_parts import (  # noqa: E402 - of the benchmark, which is no package
    ablated,
    clicks,
    codistill_part,
    quality_part,
    ranks_part,
    real_part,
    runs,
    time_part,
)
from on_ranks import launch  # noqa: E402

del sys.path[:1]

CONFIG = """
[model]
name = "dlrm"
width = 6
options = { bottom = [12], top = [10] }

[dense]
reducer = "mpi"

[dense.codistillation]
groups = 2
burn_in_steps = 0

[train]
batch_size = 12
steps = 6

[run]
folder = "unused"
"""


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
        {"link": link, "run": run, "step_ms": ms, "turns_ms": [ms] * 3, "compression_ms": 2.0}
        for link, times in (("1gbit", (100.0, 80.0, 50.0)), ("100mbit", (800.0, 75.0, 60.0)))
        for run, ms in zip(time_part.RUNS, times, strict=True)
    ]
    found = {c["id"].removeprefix("dct."): c["value"] for c in time_part.claims(rows)}
    assert found.pop("time_saved_auto.100mbit") == pytest.approx(0.2)
    assert found.pop("time_saved_auto.1gbit") == pytest.approx(0.375)
    assert found == {"time_saved.1gbit": 0.5, "time_saved.100mbit": 0.925, "cost_share": 0.04}
    timed = [
        {"step_s": s, "run": n, "clocked_s": dict.fromkeys(("gather", "expand"), s / 10)}
        for n, s in enumerate((1.0, 10.0, 5.0, 3.0, 30.0, 6.0, 2.0, 20.0, 7.0))
    ]
    medians = time_part.medians(timed)
    assert [m["step_s"] for m in medians] == [2.0, 20.0, 6.0]
    assert medians[1]["turns_ms"] == [1e4, 3e4, 2e4]
    assert [set(m["clocked_s"].values()) for m in medians] == [{0.2}, {2.0}, {0.6}]
    assert time_part.told({"gather": 0.0021, "expand": 0.004, "scatter_add": 0.0}) == "expand 4.00, gather 2.10"


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


def test_steps_are_counted_to_the_first_time_along_lines() -> None:
    steps, losses = [10, 20, 30, 40], [0.6, 0.5, 0.52, 0.4]
    found = [codistill_part.reached(steps, losses, target) for target in (0.7, 0.6, 0.55, 0.51, 0.46, 0.4, 0.3)]
    assert found == pytest.approx([10, 10, 15, 19, 35, 40, None])


def codistilled(
    single_steps: int, with_groups: dict[str, list[list[float]]]
) -> tuple[list[runs.Row], dict[codistill_part.Key, Floats]]:
    """Rows of ``curve`` for four seeds, each group's curve as given; and predictions of two samples."""
    rows, predicted = [], {}
    for seed, apart in ((1, 0.0), (2, 0.2), (3, 0.0), (4, 0.4)):
        curves = {(None, "single"): [[0.6, 0.5]], **{("shared", run): found for run, found in with_groups.items()}}
        for (of, run), by_group in curves.items():
            losses = [list(values) for values in zip(*by_group, strict=True)]
            steps = [single_steps // 2 * (n + 1) for n in range(len(losses))]
            rows.append({"tables": of, "run": run, "seed": seed, "steps": steps, "logloss": losses})
            share = {"single": 1.0, "codistilled": 0.75 if seed < 3 else 0.5, "weight_0": 1.0}[run]
            predicted[seed, of, run] = np.array([0.1, 0.1 + share * apart], np.float32)
    return rows, predicted


def test_codistillation_is_compared_with_the_single_group_of_the_seed() -> None:
    taught, untaught = [[0.6, 0.4, 0.3], [0.6, 0.55, 0.45]], [[0.7, 0.6, 0.5], [0.7, 0.6, 0.6]]
    rows, predicted = codistilled(20, {"codistilled": taught, "weight_0": untaught})
    regime = codistill_part.Regime(batch=64, steps=20, longer=30, every=10, seeds=(1, 2, 3, 4))
    told = codistill_part.table(rows, predicted, regime)
    assert told[0]["steps"] == 20 and told[0]["second_steps"] is None and told[0]["logloss_20"] == told[0]["target"]
    assert told[1]["steps"] == pytest.approx(15) and told[1]["second_steps"] == pytest.approx(25)
    assert (told[1]["logloss_20"], told[1]["second_logloss_20"], told[1]["logloss_30"]) == (0.4, 0.55, 0.3)
    assert (told[2]["steps"], told[2]["second_steps"], told[2]["end"]) == (30, None, 30)
    # of pairs (1, 2) and (3, 4), kept with the first seed of each: the mean over both samples
    assert [row["churn"] for row in told if row["run"] == "single"] == pytest.approx([0.1, None, 0.2, None])
    found = {c["id"]: c for c in codistill_part.claims(told, ["shared"])}
    assert found["codistill.steps_ratio"]["value"] == pytest.approx(20 / 15)
    assert found["codistill.steps_ratio_interval"]["holds"] is True
    assert found["codistill.steps_ratio.second"]["value"] == pytest.approx(20 / 25)
    # where the second group never is as good, the end of its run counts, and that is said
    assert found["codistill.steps_ratio.second.weight_0"]["value"] == pytest.approx(20 / 30)
    assert "4 not reached" in found["codistill.steps_ratio.second.weight_0"]["unit"]
    # ratios 0.75 and 0.5; Student's t of 1 degree at 0.975 is 12.706, their standard error 0.125
    assert found["codistill.churn_ratio"]["value"] == pytest.approx(0.625) and found["codistill.churn_ratio"]["holds"]
    assert found["codistill.churn_ratio_interval"]["value"] == pytest.approx(0.625 + 12.706 * 0.125, rel=1e-4)
    assert found["codistill.churn_ratio_interval"]["holds"] is False
    assert found["codistill.churn_ratio.weight_0"]["value"] == pytest.approx(1)
    assert found["codistill.steps_ratio.to_weight_0"]["value"] == pytest.approx(30 / 15)
    assert found["codistill.churn_ratio.to_weight_0"]["value"] == pytest.approx(0.625)
    assert [c["goal"] for name, c in found.items() if name.endswith("weight_0")] == [None] * 12


def test_only_codistilling_runs_have_groups() -> None:
    regime = codistill_part.Regime(batch=64, steps=20, longer=30, every=10, seeds=(1, 2))
    given = (Path("data"), Path("p.npy"), regime, 1)
    of = {run: codistill_part.job(*given, *kind) for run, kind in {
        "single": (None, "single"), "shared": ("shared", "codistilled"), "own": ("own", "codistilled"),
        "weight_0": ("shared", "weight_0"),
    }.items()}  # fmt: skip
    beside = {run: set(job["settings"]) - set(of["single"]["settings"]) for run, job in of.items()}
    steps = "train.steps=30"
    assert beside["weight_0"] == {
        "dense.codistillation.groups=2", "dense.codistillation.weight=0.0", steps,
    }  # fmt: skip
    assert beside["own"] - beside["shared"] == {"dense.codistillation.share_embeddings=false"}
    assert {job["predict_at"] for job in of.values()} == {20}


def test_predictions_are_of_the_first_group_in_the_order_of_samples(tmp_path: Path) -> None:
    write_data(tmp_path / "train.h5", weighted=False)
    write_data(tmp_path / "test.h5", weighted=False, seed=6)
    (tmp_path / "config.toml").write_text(CONFIG)
    files = [f'data.{split}="{tmp_path}/{split}.h5"' for split in ("train", "test")]
    job = {
        "kind": "curve", "config": str(tmp_path / "config.toml"), "settings": files,
        "every": 2, "predict_at": 4, "predictions": str(tmp_path / "p.npy"),
    }  # fmt: skip
    (found,) = launch.local([job], ranks=2)
    assert found["steps"] == [2, 4, 6] and [len(losses) for losses in found["logloss"]] == [2, 2, 2]
    with DataSet(tmp_path / "test.h5") as test:
        label = test.read(0, test.samples).label
    predicted = np.load(tmp_path / "p.npy").astype(np.float64)
    loss = -np.mean(label * np.log(predicted) + (1 - label) * np.log(1 - predicted))
    assert loss == pytest.approx(found["logloss"][1][0], abs=1e-6)
    assert abs(loss - found["logloss"][1][1]) > 1e-4
