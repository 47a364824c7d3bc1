"""Metrics against scikit-learn, however the samples lie on the ranks."""

import math
import sys
import warnings

import numpy as np
import pytest
from mpi4py import MPI
from sklearn.metrics import log_loss, roc_auc_score

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.errors import DataError, HpcrecError
from hpcrec.training.metrics import RunningMetrics, auc, evaluate, flat, named_by_label


@pytest.fixture
def comm():
    world = MPI.COMM_WORLD
    made = Collectives(world.Dup(), range(world.size), Ledger(world.rank, [0] * world.size))
    yield made
    made.close()


def samples(kind, n=5000):
    rng = np.random.default_rng(7)
    logits = {
        "distinct": rng.standard_normal(n),
        "ties": rng.integers(-3, 4, n).astype(float),
        "mostly one value": np.where(rng.random(n) < 0.9, 0.25, rng.standard_normal(n)),
        "extreme": rng.standard_normal(n) * 300,
        "float32": rng.standard_normal(n).astype(np.float32),
    }[kind]
    labels = (rng.random(n) < 1 / (1 + np.exp(-np.clip(logits, -30, 30) - rng.standard_normal(n)))).astype(np.float32)
    return logits, labels, rng.random(n) * 3


def part(comm, n, how):
    """This rank's samples: contiguous, dealt out, or all but rank 1 without any."""
    if how == "contiguous":
        return slice(comm.rank * n // comm.size, (comm.rank + 1) * n // comm.size)
    if how == "dealt":
        return slice(comm.rank, n, comm.size)
    return slice(0, n if comm.rank == comm.size // 2 else 0)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("how", ["contiguous", "dealt", "one rank"])
@pytest.mark.parametrize("weighted", [False, True])
def test_all_metrics_match_scikit_learn(comm, how, weighted):
    for kind in ("distinct", "ties", "mostly one value", "extreme", "float32"):
        logits, labels, weights = samples(kind)
        mine = part(comm, len(logits), how)
        found = evaluate(logits[mine], labels[mine], weights[mine] if weighted else None, comm)
        w = weights if weighted else None
        assert found["samples"] == 5000
        assert found["auc"] == pytest.approx(roc_auc_score(labels, logits, sample_weight=w), abs=1e-12)
        x = logits.astype(np.float64)
        loss = np.average(np.maximum(x, 0) - x * labels + np.log1p(np.exp(-np.abs(x))), weights=w)
        assert found["logloss"] == pytest.approx(loss, rel=1e-12)
        rate = np.average(labels.astype(np.float64), weights=w)
        entropy = log_loss(labels, np.full(len(labels), rate), sample_weight=w)
        assert found["normalized_entropy"] == pytest.approx(loss / entropy, rel=1e-9)
        predicted = np.average(1 / (1 + np.exp(-np.clip(x, -700, 700))), weights=w)
        assert found["calibration"] == pytest.approx(predicted / rate, rel=1e-9)
        assert all(other == found for other in comm.allgather(found))


@pytest.mark.parallel([1, 2, 3, 4])
def test_ties_count_half_exactly(comm):
    rng = np.random.default_rng(1)
    labels = (rng.random(4001) < 0.3).astype(np.float32)
    weights = rng.random(4001)
    mine = part(comm, 4001, "dealt")
    assert auc(np.full(4001, 0.3)[mine], labels[mine], None, comm) == 0.5
    assert auc(np.full(4001, 0.3)[mine], labels[mine], weights[mine], comm) == 0.5
    assert auc(np.where(labels > 0, 2.0, -2.0)[mine], labels[mine], None, comm) == 1.0
    assert auc(np.where(labels > 0, -2.0, 2.0)[mine], labels[mine], None, comm) == 0.0
    zeros = np.where(np.arange(4001) % 2, 0.0, -0.0)
    assert auc(zeros[mine], labels[mine], None, comm) == 0.5
    # four samples by hand: positive above one negative, tied with another
    scores, y = np.array([1.0, 1.0, 0.0, 2.0]), np.array([1.0, 0.0, 0.0, 1.0])
    mine = part(comm, 4, "contiguous")
    assert auc(scores[mine], y[mine], None, comm) == 3.5 / 4


@pytest.mark.parallel([1, 3])
def test_one_class_has_no_auc(comm):
    logits = np.array([0.5, -1.0])
    for label in (0.0, 1.0):
        found = evaluate(logits, np.full(2, label), None, comm)
        assert found["auc"] is None
        assert found["normalized_entropy"] is None
        assert (found["calibration"] is None) == (label == 0.0)
        assert found["logloss"] > 0
        assert found["samples"] == 2 * comm.size


@pytest.mark.parallel([1, 2, 3])
def test_bad_values_on_one_rank_are_an_error_on_all(comm):
    logits, labels, weights = np.zeros(4), np.array([0.0, 1, 0, 1]), np.ones(4)
    last = comm.rank == comm.size - 1

    def spoilt(values, value):
        return np.where([last, False, False, False], value, values)

    total = 4 * comm.size
    for value in (np.nan, np.inf):
        with pytest.raises(HpcrecError, match=f"1 of {total} logits are not finite: the model has diverged"):
            evaluate(spoilt(logits, value), labels, weights, comm)
    with pytest.raises(DataError, match=rf"1 of {total} labels are outside \[0, 1\]"):
        evaluate(logits, spoilt(labels, 2.0), weights, comm)
    with pytest.raises(DataError, match=f"1 of {total} sample weights are negative"):
        evaluate(logits, labels, spoilt(weights, -1.0), comm)
    with pytest.raises(HpcrecError, match="nothing to evaluate: 0 samples"):
        evaluate(logits[:0], labels[:0], None, comm)
    with pytest.raises(HpcrecError, match=f"{total} samples, none with a weight above 0"):
        evaluate(logits, labels, np.zeros(4), comm)


@pytest.mark.parallel([1, 2])
def test_several_labels_have_lists_and_a_mean_of_what_is_defined(comm):
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((600, 3))
    labels = (rng.random((600, 3)) < 0.4).astype(np.float32)
    labels[:, 2] = 0
    mine = part(comm, 600, "contiguous")
    found = evaluate(logits[mine], labels[mine], None, comm)
    single = [evaluate(logits[mine, k], labels[mine, k], None, comm) for k in range(3)]
    assert found["per_label"]["auc"] == [s["auc"] for s in single]
    assert found["per_label"]["auc"][2] is None
    assert found["auc"] == pytest.approx((single[0]["auc"] + single[1]["auc"]) / 2, abs=1e-15)
    assert found["logloss"] == pytest.approx(np.mean([s["logloss"] for s in single]), rel=1e-14)
    assert found["samples"] == 600
    column = evaluate(logits[mine, :1], labels[mine, :1], None, comm)
    assert column == single[0]
    named = named_by_label(found, ("click", "buy", "none"))
    assert "per_label" not in named and named["auc"] == found["auc"]
    assert named["by_label"]["buy"] == {name: value for name, value in single[1].items() if name != "samples"}
    assert flat(named)["buy_auc"] == single[1]["auc"] and flat(named)["none_auc"] is None
    assert named_by_label(column, ("click",)) == flat(column) == column


@pytest.mark.parallel([2, 4])
def test_no_rank_holds_everything(comm, monkeypatch):
    received = []
    alltoallv = comm.alltoallv

    def spy(send, send_bytes_R, recv_bytes_R, tag):
        received.append(int(recv_bytes_R.sum()) // 24)
        return alltoallv(send, send_bytes_R, recv_bytes_R, tag)

    monkeypatch.setattr(comm, "alltoallv", spy)
    rng = np.random.default_rng(comm.rank)
    n = 20_000
    auc(rng.standard_normal(n) * 3 + comm.rank, (rng.random(n) < 0.5).astype(float), None, comm)
    assert len(received) == 1
    assert received[0] < 1.2 * n
    assert sum(comm.allgather(received[0])) >= n * comm.size


def test_soft_labels_split_a_sample():
    logits = np.array([0.3, -0.2, 0.3])
    soft = evaluate(logits, np.array([0.25, 1.0, 0.0]))
    hard = evaluate(np.array([0.3, 0.3, -0.2, 0.3]), np.array([1.0, 0, 1, 0]), np.array([0.25, 0.75, 1, 1]))
    for name in ("auc", "logloss", "normalized_entropy", "calibration"):
        assert soft[name] == pytest.approx(hard[name], rel=1e-14)


def test_base_rate_predictor_has_normalized_entropy_and_calibration_one():
    labels = np.array([1.0] * 30 + [0.0] * 70)
    found = evaluate(np.full(100, math.log(0.3 / 0.7)), labels)
    assert found["normalized_entropy"] == pytest.approx(1.0, rel=1e-14)
    assert found["calibration"] == pytest.approx(1.0, rel=1e-14)
    assert found["auc"] == 0.5


def test_extreme_logits_neither_overflow_nor_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate(np.array([1e4, -1e4]), np.array([0.0, 0.0]))
    assert found["logloss"] == 5e3


def test_running_metrics_look_back_on_a_window():
    running = RunningMetrics(window=100)
    assert running.read() == {"auc": None, "logloss": None}
    running.update(np.full(200, 5.0), np.zeros(200))
    assert running.read() == {"auc": None, "logloss": pytest.approx(5.0067, abs=1e-3)}
    for _ in range(3):
        running.update(np.tile([1.0, -1.0], 25), np.tile([1.0, 0.0], 25))
    assert running.read() == {"auc": 1.0, "logloss": pytest.approx(math.log1p(math.exp(-1)), rel=1e-12)}
    running.update(np.array([np.nan]), np.array([1.0]), np.array([1.0]))
    assert running.read() == {"auc": None, "logloss": None}


def test_metrics_need_no_mpi_of_their_own():
    import hpcrec.training.metrics as module

    assert "mpi4py" not in vars(module)
    assert not {"MPI", "Collectives", "torch"} & set(vars(module))
    assert module.__name__ in sys.modules
