"""What is expected of counts that age, against the product's own map: laws, sizes, epochs, tables in one memory."""

from dataclasses import replace

import numpy as np
import pytest

from hpcrec import kernels
from hpcrec.data.reuse import ReuseTimes
from hpcrec.kernels import reference_slots_aging
from hpcrec.plan import aging
from hpcrec.plan.aging import kept
from hpcrec.plan.curves import Curve
from hpcrec.types import Floats, Ints

STEPS = 120


def ranks_of(rows: int, law: float, ids: int, seed: int, steps: int) -> Ints:
    """By a power law, [steps, ids]."""
    chance = np.cumsum(np.arange(1, rows + 1) ** -law)
    return np.searchsorted(chance, np.random.default_rng(seed).random((steps, ids)) * chance[-1])


def trace(rows: int, law: float, ids: int, seed: int, steps: int = STEPS) -> Ints:
    """Ids [steps, ids]."""
    return np.random.default_rng(seed + 1000).permutation(rows)[ranks_of(rows, law, ids, seed, steps)]


def curve_of(ids: Ints) -> Curve:
    times = ReuseTimes(len(ids))
    times.add(np.repeat(np.arange(len(ids)), ids.shape[1]), ids.ravel())
    return times.curve()


def counted(tables: list[Ints], slots: int, epochs: int) -> Floats:
    """Rows a step of each table that were asked for before and have no slot."""
    cache = kernels.SlotMap(slots, evict="lfu_aging", seed=0, device=None)
    reads, seen, clock = np.zeros(len(tables)), np.zeros((len(tables), 10**6), bool), 0
    for step in list(range(len(tables[0]))) * epochs:
        clock += 1
        rows = [np.unique(ids[step]) for ids in tables]
        wanted = np.concatenate([rows_of * len(tables) + t for t, rows_of in enumerate(rows)])
        missing = wanted[cache.find(wanted) < 0]
        cache.admit(wanted, clock)
        for t, rows_of in enumerate(rows):
            mine = missing[missing % len(tables) == t] // len(tables)
            reads[t] += seen[t, mine].sum()
            seen[t, rows_of] = True
    return reads / clock


@pytest.mark.parametrize("part", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("rows", "law", "ids"), [(50_000, 1.05, 1000), (100_000, 1.2, 1000), (40_000, 0.7, 800), (8_000, 0.1, 800)]
)
def test_reads_are_those_of_the_map(rows: int, law: float, ids: int, part: int) -> None:
    """First epochs, in which most of what is not held is not read, and later ones."""
    asked = trace(rows, law, ids, seed=rows)
    curve = curve_of(asked)
    slots = int(curve.distinct / part) // kernels.WAYS * kernels.WAYS
    for epochs in (1, 3):
        wanted = counted([asked], slots, epochs)[0]
        found = kept([curve.later(1 - 1 / epochs)], slots)
        assert found.reads[0] == pytest.approx(wanted, rel=0.08, abs=0.5), (epochs, curve.reads(slots))
        assert found.held[0] == pytest.approx(slots, rel=0.01)


@pytest.mark.parametrize("steps", [2, 6, 20])
@pytest.mark.parametrize(("rows", "law", "ids"), [(50_000, 1.05, 1000), (40_000, 0.7, 800)])
def test_how_long_ago_rows_went_that_come_back(rows: int, law: float, ids: int, steps: int) -> None:
    """Of a second epoch in another order: those of what is read that went a few steps before; of many, too many."""
    first, second = trace(rows, law, ids, seed=rows), trace(rows, law, ids, seed=rows)
    second = second[np.random.default_rng(3).permutation(len(second))]
    curve = curve_of(first)
    slots = int(curve.distinct / 8) // kernels.WAYS * kernels.WAYS
    cache, went = kernels.SlotMap(slots, evict="lfu_aging", seed=0, device=None), np.full(rows, -(10**6))
    reads, soon = 0, 0
    for clock, asked in enumerate((*first, *second), start=1):
        wanted = np.unique(asked)
        missing = wanted[cache.find(wanted) < 0]
        if clock > len(first):
            reads, soon = reads + len(missing), soon + int((clock - went[missing] <= steps).sum())
        gone = cache.admit(wanted, clock).evicted
        went[gone[gone >= 0]] = clock
    both, once = kept([curve.later(0.5)], slots), kept([curve], slots)
    share = (2 * both.soon(steps)[0] - once.soon(steps)[0]) / (2 * both.reads[0] - once.reads[0])
    assert -0.04 < share - soon / reads < (0.04 if steps < 10 else 0.1), (share, soon / reads)


def test_tables_share_by_how_often_rows_are_asked_for() -> None:
    """One of few frequent rows, one of many: the first keeps more of its rows."""
    tables = [trace(2_000, 0.8, 500, seed=4), trace(60_000, 1.0, 300, seed=5)]
    curves = [curve_of(ids) for ids in tables]
    for slots in (640, 1_920, 6_400):
        wanted, found = counted(tables, slots, 1), kept(curves, slots)
        assert sum(found.reads) == pytest.approx(wanted.sum(), rel=0.08)
        assert found.reads == pytest.approx(wanted, rel=0.25, abs=1.0)
        assert found.held[0] / 2_000 > 5 * found.held[1] / 60_000
    assert kept(curves, 70_000).reads == (0.0, 0.0)
    assert kept([], 32).reads == ()


@pytest.mark.parametrize("part", [4, 8, 16])
def test_rows_that_come_in_waves(part: int) -> None:
    """Four times other rows are frequent; or ever new ones are: between what came most often and what came last."""
    waves = np.concatenate([trace(40_000, 1.05, 800, seed, steps=50) for seed in range(4)])
    new = np.arange(200)[:, None] * 40 + 40_000 - ranks_of(40_000, 1.0, 800, 9, steps=200)
    for asked in (waves, new):
        curve = curve_of(asked)
        slots = int(curve.distinct / part) // kernels.WAYS * kernels.WAYS
        wanted, found = counted([asked], slots, 1)[0], kept([curve], slots).reads[0]
        assert found == pytest.approx(wanted, rel=0.2), curve.reads(slots)
        without = kept([replace(curve, lru=curve.lru * 10)], slots).reads[0]
        assert found < 0.95 * without, "of steps in any order it is more"


def test_rows_brought_ahead_take_places() -> None:
    """More of them, more reads of a flat law in little memory; never more than half of the places are theirs."""
    curve = curve_of(trace(60_000, 0.9, 800, seed=6))
    reads = [kept([curve], 3_200, ahead).reads[0] for ahead in (0, 1, 2, 4, 8)]
    assert reads[0] < reads[1] < reads[2] <= reads[3] == reads[4]


def test_counts_are_halved_as_the_map_does() -> None:
    assert aging.AGE_AFTER == reference_slots_aging.AGE_AFTER
