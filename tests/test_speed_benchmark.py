"""What benchmarks/speed.py compares: all contenders get the same batches; claims are computed as its docstring says."""

import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrec.data.loader import Loader
from hpcrec.data.order import GlobalOrder
from hpcrec.data.reader import DataSet

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def speed():
    sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "speed_parts")]
    import speed

    yield speed
    del sys.path[:2]


@pytest.fixture
def toy(speed, monkeypatch):
    from speed_parts import workload

    w = workload.Workload(rows=(50, 1000, 3), width=4, ids=5, batch=64, n_batches=3, bottom=(8, 4), top=(8, 1))
    monkeypatch.setitem(workload.WORKLOADS, "toy", w)
    return w


def test_hpcrec_reads_the_peers_batches(speed, toy, tmp_path):
    from speed_parts import hpcrec_data, workload

    with DataSet(hpcrec_data.prepare("toy", tmp_path)) as data:
        order = GlobalOrder(data.samples, toy.batch, chunk=toy.batch, window=1, shuffle=False)
        parts = [list(Loader(data, order, part=r, parts=2, prefetch=0).batches(n=4)) for r in range(2)]
    for rank, batches in enumerate(parts):
        ids, dense, label = workload.load("toy", tmp_path, rank, 2)
        assert ids.shape == (3, 3, 32, 5)
        for number, batch in enumerate(batches):  # the fourth is the first again
            np.testing.assert_array_equal(batch.bags.ids, ids[number % 3].reshape(-1))
            np.testing.assert_array_equal(batch.bags.offsets, np.arange(0, 3 * 32 * 5 + 1, 5))
            np.testing.assert_array_equal(batch.dense, dense[number % 3])
            np.testing.assert_array_equal(batch.label, label[number % 3])


def test_ids_are_zipf_in_a_seeded_order(toy, tmp_path):
    from speed_parts import workload

    workload.generate("toy", tmp_path)
    ids = np.load(tmp_path / "toy-ids.npy")
    assert ids.dtype == np.int32
    for table, rows in enumerate(toy.rows):
        weights = np.arange(1, rows + 1) ** -1.05
        counts = np.sort(np.bincount(ids[:, table].ravel(), minlength=rows))[::-1]
        drawn = 3 * 64 * 5
        sigma = (drawn * weights[0] / weights.sum()) ** 0.5
        assert abs(counts[0] - drawn * weights[0] / weights.sum()) < 4 * sigma
    first = np.random.default_rng([20260101, 1])
    row_of, u = first.permutation(1000), first.random(64 * 5)
    shares = np.cumsum(np.arange(1, 1001) ** -1.05)
    np.testing.assert_array_equal(ids[0, 1].ravel(), row_of[np.searchsorted(shares / shares[-1], u)])


def rows_of(contender, speeds, **more):
    row = {"workload": "w1", "ranks": 2, "contender": contender, "step_ms": {"mean": 1.0, "p50": 1.0}, **more}
    return [{**row, "samples_per_s": s, "cpu_ms": 1.0, "peak_rss_mb": 1.0, "loss_first": 0.7} for s in speeds]


def test_claims_are_ratios_within_rounds(speed):
    raw = [
        *rows_of("hpcrec-fused", [10.0, 30.0, 20.0], loss_last=0.500),
        *rows_of("hpcrec-split", [15.0, 15.0, 15.0], loss_last=0.501),
        *rows_of("tbe", [10.0, 10.0, 20.0], loss_last=0.503),
        *rows_of("ddp", [90.0, 1.0, 1.0], loss_last=0.504),
        {"workload": "w1", "ranks": 2, "contender": "torchrec", "result": "skipped: no Python"},
    ]
    rows = speed.summed_up(raw)
    (claim,) = speed.speed_claims(raw, rows, ["w1"], [2])
    assert claim == {
        "id": "speed.w1.2ranks",
        "value": 1.0,
        "unit": "hpcrec-fused / tbe (1 to 3)",
        "goal": ">= 1.4",
        "holds": False,
    }
    assert rows[-1]["ratios"] == "1.000 3.000 1.000"
    (parity,) = speed.parity_claims(rows, ["w1"])
    assert parity["value"] == pytest.approx(0.004) and parity["holds"]
    assert {r["contender"]: r.get("samples_per_s") for r in rows[:5]}["torchrec"] is None


def test_no_claim_without_peers(speed):
    raw = [*rows_of("hpcrec-fused", [10.0], loss_last=0.5), {**rows_of("tbe", [1.0])[0], "result": "failed: x"}]
    del raw[1]["samples_per_s"]
    (claim,) = speed.speed_claims(raw, speed.summed_up(raw), ["w1"], [2])
    assert claim["value"] is None and claim["holds"] is None


def test_absent_peers_are_skipped_with_a_reason(speed, tmp_path):
    from speed_parts import launch

    place = launch.Place(peers=tmp_path / "python", data=tmp_path, warmup=1, steps=1)
    assert launch.launch(place, "tbe", "w1", 2)["result"].startswith(
        f"skipped: no {tmp_path / 'python'}: tools/peers.sh"
    )
    assert launch.launch(place, "hpcrec-split", "w1", 1)["result"] == "skipped: one rank cannot be split"
    assert launch.launch(place, "torchrec", "w3", 2)["result"] == "skipped: trains DLRMs only"


def test_a_step_of_few_samples_counts_without_the_dense_phases(speed):
    row = {
        "step_ms": {"mean": 9.0},
        "phase_ms": {"owner": {"update": 5.0}, "dense": {"dense_reduce": 2.0, "dense_update": 0.5}},
    }
    assert speed.fixed_ms(row) == 6.5
