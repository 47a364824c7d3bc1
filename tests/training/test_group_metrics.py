"""Metrics by group, average precision, RMSE, calibration by parts: by scikit-learn or by hand, on any ranks."""

import itertools

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi.parallel_assert import parallel_assert
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.errors import HpcrecError
from hpcrec.training import calibration
from hpcrec.training.calibration import Values
from hpcrec.training.measures import Measures
from hpcrec.training.metrics import Beside, evaluate

BY_GROUP = ("gauc", "ndcg@1", "ndcg@4", "ndcg@500", "recall@1", "recall@3", "mrr")
N = 1500


@pytest.fixture
def comm():
    world = MPI.COMM_WORLD
    made = Collectives(world.Dup(), range(world.size), Ledger(world.rank, [0] * world.size))
    yield made
    made.close()


def close(found, wanted):
    if found is None or wanted is None:
        return found is None and wanted is None
    return abs(found - wanted) <= 1e-12


def samples(kind):
    """Logits, labels, weights and groups; groups of 1 to some hundred samples, some of one class, ids of any sign."""
    rng = np.random.default_rng(11)
    group = np.minimum(rng.zipf(1.3, N), 120) * (-1) ** rng.integers(0, 2, N) * 7_000_000_019
    logit = rng.standard_normal(N)
    if "ties" in kind:
        logit = np.round(logit * 2) / 2
    if "float32" in kind:
        logit = logit.astype(np.float32)
    if "constant" in kind:
        logit = np.zeros(N)
    label = (rng.random(N) < 0.25).astype(np.float32)
    if "soft" in kind:
        label = rng.choice([0.0, 0.0, 0.25, 0.5, 1.0], N)
    weight = rng.choice([0.0, 0.5, 1.0, 1.7], N) if "weighted" in kind else None
    return logit, label, weight, group


def part(comm, how):
    """This rank's samples: dealt out, contiguous, or all on one rank."""
    if how == "dealt":
        return slice(comm.rank, N, comm.size)
    if how == "contiguous":
        return slice(comm.rank * N // comm.size, (comm.rank + 1) * N // comm.size)
    return slice(0, N if comm.rank == comm.size // 2 else 0)


def groups_of(logit, label, weight, group):
    """(logits, labels, weights) of each group, without samples of weight 0."""
    weight = np.ones(N) if weight is None else weight
    for one in np.unique(group[weight > 0]):
        here = (group == one) & (weight > 0)
        yield logit[here].astype(np.float64), label[here].astype(np.float64), weight[here]


def auc_by_hand(s, y, w):
    above = (s[:, None] > s[None, :]) + 0.5 * (s[:, None] == s[None, :])
    positive, negative = w * y, w * (1 - y)
    both = positive.sum() * negative.sum()
    return None if both == 0 else float(positive @ above @ negative / both)


def places(s):
    """(probability, order) of each place of the samples: as a matrix, the chance of sample i at place j."""
    order = np.argsort(-s, kind="stable")
    chance = np.zeros((len(s), len(s)))
    at = 0
    for _, tied in itertools.groupby(order, key=lambda i: s[i]):
        tied = list(tied)
        chance[np.ix_(tied, range(at, at + len(tied)))] = 1 / len(tied)
        at += len(tied)
    return chance


def ndcg_by_hand(s, y, k):
    discount = np.where(np.arange(len(s)) < k, 1 / np.log2(np.arange(len(s)) + 2), 0)
    best = np.sort(y)[::-1] @ discount
    return None if best == 0 else float(y @ places(s) @ discount / best)


def recall_by_hand(s, y, k):
    return None if not y.sum() else float(y @ places(s)[:, :k].sum(axis=1) / y.sum())


def mrr_by_hand(s, y):
    hits = y > 0
    if not hits.any():
        return None
    best = s[hits].max()
    start, n, m = int((s > best).sum()), int((s == best).sum()), int((hits & (s == best)).sum())
    none_yet, value = 1.0, 0.0
    for j in range(n - m + 1):
        value += none_yet * m / (n - j) / (start + j + 1)
        none_yet *= 1 - m / (n - j)
    return value


def mean(values, weights):
    told = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    weight = sum(w for _, w in told)
    return sum(v * w for v, w in told) / weight if told else None, 1 - weight / sum(weights)


def by_hand(given):
    found, groups = {}, list(groups_of(*given))
    sums, means = [w.sum() for _, _, w in groups], [w.mean() for _, _, w in groups]
    found["gauc"] = mean([auc_by_hand(*one) for one in groups], sums)
    for k in (1, 4, 500):
        found[f"ndcg@{k}"] = mean([ndcg_by_hand(s, y, k) for s, y, _ in groups], means)
    for k in (1, 3):
        found[f"recall@{k}"] = mean([recall_by_hand(s, y, k) for s, y, _ in groups], means)
    found["mrr"] = mean([mrr_by_hand(s, y) for s, y, _ in groups], means)
    return found


def measured(comm, given, mine, names=BY_GROUP):
    logit, label, weight, group = given
    w = None if weight is None else weight[mine]
    return evaluate(
        logit[mine], label[mine], w, comm, measures=Measures(metrics=names), beside=Beside(group=group[mine])
    )


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize(
    "kind", ["distinct", "ties", "float32 ties", "constant", "weighted ties", "soft float32 ties", "soft weighted"]
)
def test_metrics_by_group_are_those_by_hand_and_have_the_same_bits_on_any_ranks(comm, kind):
    given = samples(kind)
    wanted = by_hand(given)
    alone = measured(None, given, slice(None))
    for how in ("dealt", "contiguous", "one rank"):
        found = measured(comm, given, part(comm, how))
        parallel_assert(found == alone, f"{found} and alone {alone}")
    for name, (value, left_out) in wanted.items():
        parallel_assert(close(alone[name], value), f"{name} is {alone[name]}, by hand {value}")
        parallel_assert(close(alone[f"{name}_left_out"], left_out), f"{name}: {alone[f'{name}_left_out']}, {left_out}")
    parallel_assert(0 < alone["gauc_left_out"] < 1)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["distinct", "ties", "float32 ties", "weighted ties", "constant"])
def test_average_precision_and_rmse_are_scikit_learns(comm, kind):
    logit, label, weight, _ = given = samples(kind)
    for how in ("dealt", "contiguous", "one rank"):
        found = measured(comm, given, part(comm, how), ("pr_auc", "rmse"))
        wanted = average_precision_score(label, logit, sample_weight=weight)
        parallel_assert(close(found["pr_auc"], wanted), f"{found['pr_auc']}, {wanted}")
        p = 1 / (1 + np.exp(-logit.astype(np.float64)))
        parallel_assert(close(found["rmse"], np.sqrt(np.average((p - label) ** 2, weights=weight))))


def test_groups_are_scikit_learns():
    logit, label, _, group = samples("ties")
    for one in np.unique(group):
        here = group == one
        s, y = logit[here], label[here]
        found = evaluate(s, y, measures=Measures(metrics=BY_GROUP), beside=Beside(group=group[here]))
        if 0 < y.sum() < len(y):
            assert found["gauc"] == pytest.approx(roc_auc_score(y, s), abs=1e-12)
        if len(y) > 1 and y.sum():
            for k in (1, 4):
                assert found[f"ndcg@{k}"] == pytest.approx(ndcg_score([y], [s], k=k), abs=1e-12)


def test_the_mean_reciprocal_rank_of_ties_is_that_over_all_orders():
    s, y = np.array([3.0, 1, 1, 1, 1, 0]), np.array([0.0, 1, 0, 1, 0, 1])
    values = []
    for order in itertools.permutations(range(1, 5)):
        ranked = [y[0], *y[list(order)], y[5]]
        values.append(1 / (1 + next(i for i, label in enumerate(ranked) if label)))
    found = evaluate(s, y, measures=Measures(metrics=("mrr",)), beside=Beside(group=np.zeros(6, np.int64)))
    assert found["mrr"] == pytest.approx(np.mean(values), abs=1e-15)


@pytest.mark.parallel([1, 2, 3])
def test_groups_of_one_class_alone_have_no_value(comm):
    mine = {"measures": Measures(metrics=BY_GROUP), "beside": Beside(group=np.arange(4) + 4 * comm.rank)}
    found = evaluate(np.arange(4.0), np.zeros(4), None, comm, **mine)
    for name in BY_GROUP:
        parallel_assert(found[name] is None and found[f"{name}_left_out"] == 1.0, str(found))
    found = evaluate(np.arange(4.0), np.ones(4), None, comm, **mine)
    parallel_assert(found["gauc"] is None and found["mrr"] == 1.0 and found["mrr_left_out"] == 0.0, str(found))


@pytest.mark.parallel([2, 4])
def test_no_rank_gets_more_than_its_share_of_groups(comm, monkeypatch):
    received, alltoallv = [], comm.alltoallv

    def spy(send, send_bytes_R, recv_bytes_R, tag):
        received.append(int(recv_bytes_R.sum()) // 32)
        return alltoallv(send, send_bytes_R, recv_bytes_R, tag)

    monkeypatch.setattr(comm, "alltoallv", spy)
    rng, n = np.random.default_rng(comm.rank), 20_000
    beside = Beside(group=rng.integers(0, 3000, n))
    evaluate(
        rng.standard_normal(n), rng.integers(0, 2, n), None, comm, measures=Measures(metrics=BY_GROUP), beside=beside
    )
    parallel_assert(len(received) == 1 and received[0] < 1.2 * n, str(received))
    parallel_assert(sum(comm.allgather(received[0])) >= n * comm.size)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["distinct", "weighted ties", "constant"])
def test_calibration_by_decile(comm, kind):
    logit, label, weight, _ = given = samples(kind)
    w = np.ones(N) if weight is None else weight
    p = 1 / (1 + np.exp(-logit.astype(np.float64)))
    counts = w > 0
    first = np.searchsorted(np.sort(logit[counts]), logit)  # samples below
    decile = 10 * first // counts.sum()
    for how in ("dealt", "one rank"):
        found = measured(comm, given, part(comm, how), ("calibration",))["calibration_by_decile"]
        parallel_assert(len(found) == 10 and sum(one["samples"] for one in found) == counts.sum())
        for d, one in enumerate(found):
            here = counts & (decile == d)
            parallel_assert(one["samples"] == here.sum(), f"{d}: {one}")
            if here.any():
                parallel_assert(close(one["predicted"], np.average(p[here], weights=w[here])))
                parallel_assert(close(one["label"], np.average(label[here], weights=w[here])))
                parallel_assert(close(one["calibration"], (w * p)[here].sum() / (w * label)[here].sum()))
            else:
                parallel_assert(one["predicted"] is one["label"] is one["calibration"] is None)


@pytest.mark.parallel([1, 2, 3, 4])
def test_calibration_by_the_values_of_a_feature(comm, monkeypatch):
    monkeypatch.setattr(calibration, "MOST_VALUES", 5)
    logit, label, weight, _ = samples("weighted ties")
    rng = np.random.default_rng(3)
    bags = [rng.choice([5, -(2**62), 9, 9, 3, 4, 8, 1, 2**40], rng.integers(0, 4)) for _ in range(N)]
    p = 1 / (1 + np.exp(-logit))
    numbers = np.arange(N)[part(comm, "contiguous")]
    ids = np.concatenate([np.empty(0, np.int64), *(bags[i] for i in numbers)]).astype(np.int64)
    values = Values(ids, np.repeat(np.arange(len(numbers)), [len(bags[i]) for i in numbers]))
    found = evaluate(
        logit[numbers],
        label[numbers],
        weight[numbers],
        comm,
        measures=Measures(metrics=("auc",), by=("f",)),
        beside=Beside(values={"f": values}),
    )["calibration_by"]["f"]
    having = {v: [i for i in range(N) if v in bags[i] and weight[i]] for v in {int(v) for bag in bags for v in bag}}
    order = sorted(having, key=lambda v: (-len(having[v]), v))
    none = [i for i in range(N) if not len(bags[i]) and weight[i]]
    others = [i for v in order[5:] for i in having[v]]
    wanted = [*((v, having[v]) for v in order[:5]), ("others", others), ("none", none)]
    parallel_assert([one["value"] for one in found] == [v for v, _ in wanted], str(found))
    for one, (_, here) in zip(found, wanted, strict=True):
        parallel_assert(one["samples"] == len(here))
        parallel_assert(close(one["predicted"], np.average(p[here], weights=weight[here])))
        parallel_assert(close(one["calibration"], (weight * p)[here].sum() / (weight * label)[here].sum()))


def accuracy(predictions, total):
    right = (predictions.probability > 0.5) == (predictions.label > 0.5)
    hits, weight = total([float(predictions.weight @ right), predictions.weight.sum()])
    return hits / weight


def groups(predictions, total):
    return total([len(predictions.group_start)])[0]


@pytest.mark.parallel([1, 3])
def test_a_metric_of_the_users_own(comm):
    logit, label, weight, group = samples("weighted")
    mine = part(comm, "dealt")
    measures = Measures(metrics=("m:accuracy", "m:groups"), own={"m:accuracy": accuracy, "m:groups": groups})
    found = evaluate(logit[mine], label[mine], weight[mine], comm, measures=measures, beside=Beside(group=group[mine]))
    parallel_assert(close(found["m:accuracy"], np.average((logit > 0) == (label > 0.5), weights=weight)))
    parallel_assert(found["m:groups"] == len(np.unique(group[weight > 0])))


@pytest.mark.parallel([2])
def test_a_metric_of_the_users_own_that_is_of_one_rank_is_refused_on_all(comm):
    for own, said in ((lambda p, _: len(p.logit), "0 on dense rank 0 and 1500"), (lambda p, _: "x", "returned str")):
        measures = Measures(metrics=("m:f",), own={"m:f": own})
        logit, label, _, _ = samples("distinct")
        mine = part(comm, "one rank")
        with pytest.raises(HpcrecError, match=f"metric m:f .*{said}" if "rank" in said else f"metric m:f {said}"):
            evaluate(logit[mine], label[mine], None, comm, measures=measures)


def test_several_labels_have_lists_and_tables_only_there():
    logit, label, _, group = samples("distinct")
    both = np.stack([label, 1 - label], axis=1)
    measures = Measures(metrics=("gauc", "calibration"))
    found = evaluate(np.stack([logit, logit], axis=1), both, measures=measures, beside=Beside(group=group))
    assert found["gauc"] == pytest.approx(np.mean(found["per_label"]["gauc"]))
    assert len(found["per_label"]["calibration_by_decile"]) == 2
    assert "calibration_by_decile" not in found
