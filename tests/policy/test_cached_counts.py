"""What benchmarks/cached.py counts: decisions are the product's own, bytes the ledger's, caches that are drawn full."""

import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "on_ranks")]
import rank as rank_of_benchmarks  # noqa: E402 - of the benchmark, which is no package
from cached_parts import check, known_part, runs, settled, wire  # noqa: E402
from cached_parts.decided import Cache, Ranks  # noqa: E402
from cached_parts.placed import Placed, Popularity  # noqa: E402

del sys.path[:2]
ROWS, RANKS, STEPS = 60, 3, 40


@pytest.mark.parametrize("clocks", ["sum", "max"])
@pytest.mark.parametrize("rule", ["lru", "lfu"])
@pytest.mark.parametrize("capacity", [5, 20, ROWS])
def test_decisions_are_those_of_the_definition(rule: str, capacity: int, clocks: str) -> None:
    stalenesses = (0, 1, 4)
    rng = np.random.default_rng(capacity)
    chance = (np.arange(ROWS) + 1.0) ** -1.0
    asked = [
        [np.sort(rng.choice(ROWS, 12, replace=False, p=chance / chance.sum())) for _ in range(RANKS)]
        for _ in range(STEPS)
    ]
    caches = [Cache.empty(capacity, rule, len(stalenesses)) for _ in range(RANKS)]
    owner = np.arange(ROWS, dtype=np.uint8) % RANKS
    found = Ranks(owner, caches, stalenesses, rule=clocks).run(asked, drained=True)
    for i, staleness in enumerate(stalenesses):
        sent, pushed = _by_definition(asked, staleness, capacity, rule, clocks)
        for name, own, other in (("sent", found.sent, sent), ("pushed", found.pushed, pushed)):
            by_owner = [[np.bincount(owner[rows], minlength=RANKS) for rows in of_ranks] for of_ranks in other]
            np.testing.assert_array_equal(own[..., i], by_owner, err_msg=f"{name} at a staleness of {staleness}")


def test_who_knows_more_steps_finds_more() -> None:
    """Than every rule that looks back, and the most by a window of all steps; each step is foreseen once."""
    rng, capacity = np.random.default_rng(4), 12
    chance = (np.arange(ROWS) + 1.0) ** -1.0
    asked = [[np.sort(rng.choice(ROWS, 8, replace=False, p=chance / chance.sum()))] for _ in range(200)]
    mine = [of[0] for of in asked]
    missed = []
    for window in (1, 5, len(asked)):
        cache = Cache.of(known_part.Foreseeing(mine, capacity, window), capacity, 1)
        missed.append(int(Ranks(np.zeros(ROWS, np.uint8), [cache], (3,)).run(asked).misses.sum()))
    assert missed == sorted(missed, reverse=True) and missed[-1] < missed[0]
    for rule in ("lru", "lfu", "lightlfu"):
        found = Ranks(np.zeros(ROWS, np.uint8), [Cache.empty(capacity, rule, 1)], (3,)).run(asked)
        assert missed[-1] < 0.95 * int(found.misses.sum()), rule


def _by_definition(
    asked: list[list[np.ndarray]], staleness: int, capacity: int, rule: str, clocks: str
) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
    """Rows that owners send, and that dense ranks push, by step and rank: row after row."""
    clock = [0] * ROWS
    copies: list[dict[int, dict[str, int]]] = [{} for _ in range(RANKS)]
    sent: list[list[list[int]]] = []
    pushed: list[list[list[int]]] = []
    learned: list[tuple[int, int, int]] = []
    turn = 0

    def push(rank: int, row: int, n: int, known: int) -> None:
        pushed[-1][rank].append(row)
        learned.append((row, n, known))

    for t, of_ranks in enumerate(asked):
        sent.append([[] for _ in copies])
        pushed.append([[] for _ in copies])
        learned.clear()
        for rank, (rows, mine) in enumerate(zip(of_ranks, copies, strict=True)):
            for row in rows.tolist():
                if row in mine:
                    turn += 1
                    mine[row] |= {"used": t, "turn": turn, "count": mine[row]["count"] + 1}
            for row in rows.tolist():
                if row in mine:
                    continue
                free = [other for other, copy in mine.items() if copy["used"] != t]
                if len(mine) == capacity and free:
                    first = min(free, key=lambda o: (mine[o]["count"] if rule == "lfu" else 0, mine[o]["turn"]))
                    if mine[first]["n"]:
                        push(rank, first, mine[first]["n"], mine[first]["known"])
                    del mine[first]
                if len(mine) < capacity:
                    turn += 1
                    mine[row] = {"used": t, "turn": turn, "count": 1, "known": -1, "n": 0}
            for row in rows.tolist():
                copy = mine.get(row, {"known": -1, "n": 0, "alone": 1})
                if copy["known"] < 0 or clock[row] - copy["known"] > staleness:
                    sent[-1][rank].append(row)
                    copy["known"] = clock[row]
                copy["n"] += 1
                if copy["n"] > staleness or "alone" in copy:
                    push(rank, row, copy["n"], copy["known"])
                    copy["known"] = -1 if staleness == 0 or clocks == "max" else copy["known"] + copy["n"]
                    copy["n"] = 0
            for row, copy in mine.items() if t == len(asked) - 1 else ():
                if copy["n"]:
                    push(rank, row, copy["n"], copy["known"])
        for row, n, known in learned:
            clock[row] = clock[row] + n if clocks == "sum" else max(clock[row], known + n)
    return sent, pushed


@pytest.mark.parallel([4])
@pytest.mark.parametrize("arm", [None, (10, "lfu", 200), (300, "lru", 0.1)])
def test_count_is_the_ledgers(folder: Path, arm: tuple[int, str, float] | None) -> None:
    batch, steps = 32, 6
    if MPI.COMM_WORLD.rank == 0:  # several ranks that make one file at once take it from under each other
        runs.prepared(folder, runs.RANKS * batch * steps)
    MPI.COMM_WORLD.Barrier()
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


@pytest.mark.parametrize("rule", ["lru", "lfu", "lightlfu", "frequent"])
def test_drawn_caches_are_settled(rule: str) -> None:
    placed = Placed((300, 3000, 7), 4, 16, (0, 1, 2))
    popular = Popularity(placed, 1.05, 1)
    rng = np.random.default_rng(2)
    batch, capacity, stalenesses = 8, 400, (1, 10)
    past = settled.Past(popular, 4, rng, samples=20_000, batch=batch)
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
