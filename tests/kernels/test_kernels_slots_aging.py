"""The slot map's rule ``lfu_aging``: its definition and native kernels against a model of plain Python; what it keeps.

The model shares nothing with the definition: lists and integers of any size, one id after the other.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from all_backends import assert_same_bits
from test_kernels_slots import NONE, WORD, ints, mixed

from hpcrec import kernels
from hpcrec.kernels import NO_ID, SlotMap
from hpcrec.kernels.slots import MOST_AHEAD, WAYS

HERE = ("reference", "native")
LARGEST = 2**16 - 1  # count


def aging(where: str, capacity: int, seed: int = 7) -> SlotMap:
    kernels.use(where)  # type: ignore[arg-type]
    made = SlotMap(capacity, evict="lfu_aging", seed=seed, device=None)
    kernels.use("native")
    return made


@dataclass
class Slot:
    id: int
    count: int
    clock: int
    last: int  # clock that is foreseen
    kept: bool = False  # the use at the clock does not count yet

    def rank(self, now: int) -> tuple[bool, int, int]:
        if self.last <= now:
            return False, self.count, self.clock
        return True, -math.floor(np.float32(self.last - now) / np.float32(max(self.count, 1)) * 2**14), self.clock


@dataclass
class Ghost:
    tag: int
    count: int
    last: int

    def rank(self, now: int) -> tuple[bool, int]:
        return self.last > now, self.count


class Model:
    def __init__(self, capacity: int, seed: int) -> None:
        self.n_sets, self.seed = capacity // WAYS, seed
        self.slots: list[Slot | None] = [None] * capacity
        self.ghosts: list[list[Ghost]] = [[] for _ in range(self.n_sets)]
        self.now = self.given = 0

    def hashed(self, id_: int, n: int, more: int) -> int:
        return mixed((id_ & WORD) ^ mixed((self.seed + more) & WORD)) * n >> 64

    def places(self, id_: int) -> list[int]:
        return [WAYS * self.hashed(id_, self.n_sets, more) + way for more in (0, 2) for way in range(WAYS)]

    def find(self, ids: np.ndarray) -> list[int]:
        def of(id_: int) -> int:
            return next((p for p in self.places(id_) if (s := self.slots[p]) and s.id == id_), -1)

        return [of(id_) for id_ in ids.tolist()]

    def its_ghost(self, id_: int) -> Ghost | None:
        tag = self.hashed(id_, 4096, 1)
        its_set = self.ghosts[self.hashed(id_, self.n_sets, 0)]
        return next((g for g in its_set if g.tag == tag and (g.count or g.last > self.now)), None)

    def add_ghost(self, id_: int, count: int, last: int) -> None:
        its_set, new = self.ghosts[self.hashed(id_, self.n_sets, 0)], Ghost(self.hashed(id_, 4096, 1), count, last)
        rank = new.rank(self.now)
        if rank == (False, 0):
            return
        its_set[:] = [g for g in its_set if g.rank(self.now) != (False, 0)]
        if len(its_set) == WAYS:
            out = min(its_set, key=lambda g: g.rank(self.now))
            if rank < out.rank(self.now) or (rank[0] and rank == out.rank(self.now)):
                return
            its_set[:] = [g for g in its_set if g is not out]
        its_set.append(new)

    def foresee(self, ids: np.ndarray, clock: int) -> None:
        for id_, place in zip(ids.tolist(), self.find(ids), strict=True):
            if place >= 0:
                slot = self.slots[place]
                slot.last = min(max(slot.last, clock), slot.clock + MOST_AHEAD)
            elif (ghost := self.its_ghost(id_)) is not None:
                ghost.last = max(ghost.last, clock)
            else:
                self.add_ghost(id_, 0, clock)

    def touch(self, slots: np.ndarray, clock: int) -> None:
        for place in slots.tolist():
            slot = self.slots[place]
            if slot.clock < clock:
                slot.clock, slot.kept = clock, True

    def admit(self, ids: np.ndarray, clock: int, keep_from: int) -> tuple[list[int], list[int], int]:
        self.now = max(self.now, clock)
        found, evicted, n_new = self.find(ids), [NO_ID] * len(ids), 0
        for place in found:
            slot = self.slots[place]
            if place >= 0 and (slot.clock < clock or (slot.clock == clock and slot.kept)):
                slot.count, slot.clock, slot.kept = min(slot.count + 1, LARGEST), clock, False
        for at, id_ in enumerate(ids.tolist()):
            if found[at] >= 0 or (place := self.find(ids[at : at + 1])[0]) >= 0:
                found[at] = max(found[at], place if found[at] < 0 else -1)
                continue
            places = self.places(id_)
            empty = [p for p in places if self.slots[p] is None]
            old = [p for p in places if (s := self.slots[p]) and s.clock < keep_from]
            if not empty and not old:
                continue
            place = empty[0] if empty else min(old, key=lambda p: self.slots[p].rank(self.now))
            new, ghost = Slot(id_, 1, clock, 0), self.its_ghost(id_)
            if ghost is not None:
                new.count += ghost.count
                new.last = ghost.last if ghost.last > self.now else 0
                ghost.count = ghost.last = 0
            if (gone := self.slots[place]) is not None:
                evicted[at] = gone.id
                self.add_ghost(gone.id, min(gone.count, 15), gone.last)
            self.slots[place], found[at] = new, place
            n_new += 1
        self.given += n_new
        if self.given >= 10 * len(self.slots):
            self.given = 0
            for each in (*(s for s in self.slots if s), *(g for its_set in self.ghosts for g in its_set)):
                each.count //= 2
        return found, evicted, n_new

    def remove(self, ids: np.ndarray) -> list[int]:
        found = self.find(ids)
        for place in found:
            if place >= 0:
                self.slots[place] = None
        return found


@pytest.mark.parametrize("capacity", [32, 96])
def test_definition_and_kernels_do_what_the_model_does(capacity: int) -> None:
    """With ids of a power law, clocks that jump as far as they are foreseen and farther, and earlier ones."""
    rng, model = np.random.default_rng(capacity), Model(capacity, 7)
    maps = [aging(where, capacity) for where in HERE]
    kernels.set_threads(2)
    universe = rng.integers(-(2**62), 2**62, 3 * capacity)
    clock = n_evicted = n_foreseen = 0

    def some(n: int) -> np.ndarray:
        return universe[(rng.zipf(1.1, n) - 1) % universe.size]

    for step in range(90):
        clock += int(rng.choice([0, 1, 2, 500, 9000, 20000], p=[0.1, 0.6, 0.15, 0.08, 0.05, 0.02]))
        for _ in range(2):
            ids, ahead = some(capacity // 3), int(rng.integers(1, 6 if rng.random() < 0.9 else MOST_AHEAD + 1))
            for m in (model, *maps):
                m.foresee(ids, (m if m is model else m._map).now + ahead)
        held = np.array([p for p, s in enumerate(model.slots) if s], np.int64)
        kept = rng.choice(held, held.size // 5) if held.size else NONE
        ids, keep_from = some(int(rng.integers(0, capacity))), max(0, clock - int(rng.integers(0, 3)))
        model.touch(kept, clock - step % 2)
        wanted = model.admit(ids, clock, keep_from)
        idle = [s for s in model.slots if s is None or s.clock < model.now]
        foreseen = sum(1 for s in idle if s and s.last > model.now)
        for m in maps:
            m.touch(np.r_[-1, kept], max(clock - step % 2, 0))
            slots, evicted, n_new = m.admit(ids, clock, keep_from)
            assert (slots.tolist(), evicted.tolist(), n_new) == wanted
            assert m.foreseen == (foreseen / len(idle) if idle else 1.0)
            assert m.find(universe).tolist() == model.find(universe)
        n_evicted += sum(gone != NO_ID for gone in wanted[1])
        n_foreseen += foreseen
        if step % 9 == 8:
            ids = some(5)
            gone = model.remove(ids)
            assert [m.remove(ids).tolist() for m in maps] == [gone, gone]
        if step == 20:
            for m in maps:
                m.clear()
                assert len(m) == m.foreseen == 0.0
            now, model = model.now, Model(capacity, 7)
            model.now = now
        wanted, found = ({name: getattr(m._map, name) for name in ("ids", "uses", "ghosts", "numbers")} for m in maps)
        assert_same_bits(found, wanted)
    assert n_evicted > 10 * capacity
    assert n_foreseen > 10 * capacity


@pytest.mark.parametrize("where", HERE)
def test_counts_outlive_a_slot(where: str) -> None:
    m = aging(where, 32)
    for clock in (1, 2, 3):
        m.admit(ints(7), clock)
    m.admit(np.arange(100, 131), 4)
    for clock in range(5, 9):  # all others are used more often
        m.admit(np.arange(100, 131), clock)
    assert m.admit(ints(200), 9).evicted.tolist() == [7]
    assert m.admit(ints(7), 10).evicted.tolist() == [200]  # which was used once
    assert m.admit(ints(300), 11).evicted.tolist() == [7]  # 4 times; the others 5
    assert m.admit(ints(7), 12).evicted.tolist() == [300]
    assert m.admit(ints(301), 13).evicted.tolist() == [100]  # 7 has 5 too, and was used later


@pytest.mark.parametrize("where", HERE)
def test_counts_age(where: str) -> None:
    """Halved when 320 ids were given slots: an id that was used 40 times goes before one of 25 later uses."""
    m = aging(where, 32)
    for clock in range(1, 41):
        m.admit(ints(1), clock)
    n_given, clock = 1, 40
    for id_ in range(1000, 1319):
        clock += 1
        n_given += m.admit(ints(id_), clock).n_new
    uses = np.array(m._map.uses)[m.find(ints(1))] >> 32
    assert (n_given, uses.tolist(), m._map.numbers.tolist()) == (320, [20], [clock, 0, 0])
    m.admit(ints(2), clock + 1)
    assert (m._map.uses[m.find(ints(2))] >> 32).tolist() == [1]


@pytest.mark.parametrize("where", HERE)
def test_what_is_foreseen_goes_last(where: str) -> None:
    m = aging(where, 32)
    for clock in (1, 2):
        m.admit(np.arange(1, 32), clock)  # used twice
    m.admit(ints(50), 3)
    m.foresee(ints(50, 50, 60), 6)
    assert m.foreseen == 0.0  # all but 50
    assert m.admit(ints(60), 4).evicted.tolist() == [1]  # not 50, which was used once
    assert m.foreseen == 1 / 31  # 50; 60, which was foreseen while it had no slot, is in use
    assert m.admit(ints(70), 5).evicted.tolist() == [2]
    assert m.foreseen == 2 / 31
    assert m.admit(ints(71), 6).evicted.tolist() == [50]  # it did not come, and is as all others: used once, before 60
    assert m.foreseen == 0.0
    m.foresee(m.items()[0], 9)
    assert m.foreseen == 1.0
    assert m.admit(ints(72), 7).evicted.tolist() == [60]  # one of them has to


@pytest.mark.parametrize("where", HERE)
def test_slots_that_are_kept_never_go_and_count_no_use(where: str) -> None:
    m = aging(where, 64)
    m.admit(np.arange(300), 1)
    ids, slots = m.items()
    assert len(ids) == 64
    for clock in range(2, 9):
        m.touch(slots[:40], clock)
        m.foresee(np.arange(1000, 1100), clock + 1)
        placed = m.admit(np.arange(1000, 1100), clock)
        assert np.array_equal(m.find(ids[:40]), slots[:40])
        assert (placed.slots >= 0).sum() == 24
    assert set((m._map.uses[slots[:40]] >> 32 & LARGEST).tolist()) == {1}
    m.admit(ids[:40], 8)  # the clock at which they are kept: a use all the same
    m.admit(ids[:40], 8)
    assert set((m._map.uses[slots[:40]] >> 32 & LARGEST).tolist()) == {2}


@pytest.mark.parametrize("where", HERE)
def test_calls_that_are_refused_change_nothing(where: str) -> None:
    m = aging(where, 32)
    m.admit(np.arange(20), 5)
    before = {name: np.array(getattr(m._map, name)) for name in ("ids", "uses", "ghosts", "numbers")}
    with pytest.raises(ValueError, match=r"ids\[1\] is -2\^63"):
        m.foresee(ints(3, NO_ID), 6)
    for clock in (5, 5 + MOST_AHEAD + 1):
        with pytest.raises(ValueError, match=f"clock is {clock}; allowed are 6 to {5 + MOST_AHEAD}"):
            m.foresee(ints(3), clock)
    with pytest.raises(ValueError, match=r"slots\[0\] is 32"):
        m.touch(ints(32), 6)
    m.foresee(NONE, 6)
    assert_same_bits({name: np.array(getattr(m._map, name)) for name in before}, before)
    assert (m.n_bytes, m.capacity) == (20 * 32, 32)


def test_other_maps_have_no_future() -> None:
    for evict in ("lru", "lfu"):
        m = SlotMap(32, evict=evict, seed=0, device=None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"foresee: evict is '{evict}'; only lfu_aging"):
            m.foresee(ints(1), 1)
        with pytest.raises(ValueError, match=f"foreseen: evict is '{evict}'; only lfu_aging"):
            _ = m.foreseen
    with pytest.raises(ValueError, match="on a device allowed are lru and lfu"):
        SlotMap(32, evict="lfu_aging", seed=0, device=kernels.device("emulated"))


def test_reads_by_a_power_law() -> None:
    """20,000 rows, an eighth of which has slots; about 170 distinct ones a step: beside the best fixed set."""
    n_rows, capacity, n_steps, from_step = 20_000, 2_496, 2_600, 1_600
    chances = np.arange(1, n_rows + 1) ** -1.05
    chances /= chances.sum()
    rng = np.random.default_rng(1)
    ends = np.cumsum(chances)
    steps = [np.unique(np.searchsorted(ends, rng.random(256) * ends[-1])) for _ in range(n_steps)]
    best = sum(int((ids >= capacity).sum()) for ids in steps[from_step:])

    def reads(evict: Any, window: int) -> float:
        m, n, told = SlotMap(capacity, evict=evict, seed=0, device=None), 0, 0
        for now, ids in enumerate(steps, 1):
            while told < min(now + window, n_steps) and window:
                told += 1
                if told > now - 1:
                    m.foresee(steps[told - 1], told)
            n += m.admit(ids, now).n_new * (now > from_step)
        return n / best

    assert reads("lru", 0) > 1.4
    assert reads("lfu_aging", 0) < 1.1
    assert 0.7 < reads("lfu_aging", 150) < 0.9
