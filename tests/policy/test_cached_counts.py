"""What benchmarks/cached.py counts: decisions are the product's own, bytes the ledger's, caches that are drawn full."""

import sys
from pathlib import Path

import numpy as np
import pytest
from pytest_mpi import parallel_assert

from hpcrec.embedding.shards import Family
from hpcrec.exchange.forms.cached import Cached, Clocks, PooledCopies
from hpcrec.exchange.forms.conditional import Asked, Keeping
from hpcrec.types import TableSpec

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "on_ranks")]
import rank as rank_of_benchmarks  # noqa: E402 - of the benchmark, which is no package
from cached_parts import check, runs, settled, wire  # noqa: E402
from cached_parts.decided import Cache, Ranks  # noqa: E402
from cached_parts.placed import Placed, Popularity  # noqa: E402

del sys.path[:2]
ROWS, RANKS, STEPS = 60, 3, 40


@pytest.mark.parametrize("rule", ["lru", "lfu"])
@pytest.mark.parametrize("capacity", [5, 20, ROWS])
def test_decisions_are_the_products(rule: str, capacity: int) -> None:
    stalenesses = (0, 1, 4)
    rng = np.random.default_rng(capacity)
    chance = (np.arange(ROWS) + 1.0) ** -1.0
    asked = [
        [np.sort(rng.choice(ROWS, 12, replace=False, p=chance / chance.sum())) for _ in range(RANKS)]
        for _ in range(STEPS)
    ]
    caches = [Cache.empty(capacity, rule, len(stalenesses)) for _ in range(RANKS)]
    owner = np.arange(ROWS, dtype=np.uint8) % RANKS
    found = Ranks(owner, caches, stalenesses).run(asked, drained=True)
    for i, staleness in enumerate(stalenesses):
        sent, pushed = _by_product(asked, staleness, capacity, rule)
        for name, own, other in (("sent", found.sent, sent), ("pushed", found.pushed, pushed)):
            by_owner = [[np.bincount(owner[rows], minlength=RANKS) for rows in of_ranks] for of_ranks in other]
            np.testing.assert_array_equal(own[..., i], by_owner, err_msg=f"{name} at a staleness of {staleness}")


def _by_product(
    asked: list[list[np.ndarray]], staleness: int, capacity: int, rule: str
) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
    """Rows that owners send, and that dense ranks push, by step and rank."""
    family = Family(name="t", rows=ROWS, hashed=False, tables=("t",), features=("f",), kind="table", holders=(0,))
    table = TableSpec(name="t", rows=ROWS, width=1)
    keeping = Keeping(staleness=staleness, capacity=capacity, evict=rule, dense=RANKS, tables={"t": table})
    clocks = Clocks(ROWS, keeping)
    copies = [PooledCopies([Cached(family, ("f",))], [("t",)], keeping) for _ in range(RANKS)]
    sent: list[list[np.ndarray]] = []
    pushed: list[list[np.ndarray]] = []
    for t, of_ranks in enumerate(asked):
        want = [Asked(rows, np.zeros_like(rows)) for rows in of_ranks]
        known = [own.known([of])[0] for own, of in zip(copies, want, strict=True)]
        answers = [clocks.answer(of.rows, k) for of, k in zip(want, known, strict=True)]
        sent.append([of.rows[answer >= 0] for of, answer in zip(want, answers, strict=True)])
        pushes = []
        for own, of, answer in zip(copies, want, answers, strict=True):
            values = {"t": np.zeros((len(of.rows), 1), np.float32)}
            own.read([of], [answer], [values])
            pushes += own.push([of], [values], drain=t == len(asked) - 1, lr_scale=1.0)
        pushed.append([push.asked.rows for push in pushes])
        for push in pushes:
            clocks.learned(push.asked.rows, push.ticks)
    return sent, pushed


@pytest.mark.parallel([4])
@pytest.mark.parametrize("arm", [None, (10, "lfu", 200), (300, "lru", 0.1)])
def test_count_is_the_ledgers(folder: Path, arm: tuple[int, str, float] | None) -> None:
    batch, steps = 32, 6
    data = runs.prepared(folder, runs.RANKS * batch * steps)
    own = ["exchange.form=rows"] if arm is None else runs.cached(*arm)
    job = runs.job(data, batch, check.WIDTH, steps, [steps], ["embedding.tables.f2.shard=row", *own])
    assert job.pop("kind") == "counted"
    found = rank_of_benchmarks.counted(**job)
    placed = Placed(runs.ROWS, runs.RANKS, check.WIDTH, [2])
    counted = wire.by_tag(check.messages(placed, check.asked(placed, batch, steps), arm))
    for tag, bytes_RR in counted.items():
        np.fill_diagonal(bytes_RR, 0)
        told = np.array(found["bytes_MTRR"][0])[found["tags"].index(tag)]
        parallel_assert(np.array_equal(bytes_RR, told), msg=f"{tag}: {bytes_RR.tolist()} {told.tolist()}")


@pytest.mark.parametrize("rule", ["lru", "lfu", "known"])
def test_drawn_caches_are_settled(rule: str) -> None:
    placed = Placed((300, 3000, 7), 4, 16)
    popular = Popularity(placed, 1.05, 1)
    rng = np.random.default_rng(2)
    batch, capacity, stalenesses = 8, 400, (1, 10)
    past = settled.past(popular, "lfu", [capacity], 4, rng, samples=20_000, batch=batch)
    drawn = settled.Settled(popular, batch, 4, rng).caches(rule, capacity, stalenesses, past)
    assert all(len(cache.row) == len(np.unique(cache.row)) == capacity for cache in drawn)
    ranks = Ranks(placed.owner, drawn, stalenesses, settled.CLOCK)
    moved = []
    for _ in range(3):
        steps = [[popular.distinct(batch, rng) for _ in range(4)] for _ in range(400)]
        asked = sum(len(rows) for of_ranks in steps for rows in of_ranks)
        found = ranks.run(steps)
        moved.append(np.concatenate([of.sum(axis=(0, 1, 2)) / asked for of in (found.sent, found.pushed)]))
    assert np.ptp(moved, axis=0).max() < 0.02, moved
