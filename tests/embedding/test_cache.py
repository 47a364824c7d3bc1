"""The cache of rows: any sequence of steps leaves what the rows below alone would have, whatever the cache's size."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import pytest

from hpcrec.embedding.blocks import Block
from hpcrec.embedding.held_rows import HeldRows
from hpcrec.embedding.stores import cache
from hpcrec.embedding.stores.cache import Cache
from hpcrec.embedding.stores.cached import HeldBacking
from hpcrec.errors import HpcrecError
from hpcrec.types import OptimizerSpec
from tests.devices import device_or_skip

WHERE = ["emulated", "cuda", "host"]


class Steps:
    """Random steps on rows of a cache, and on a copy of those below."""

    def __init__(self, name: str, n_rows: int, slots: int, seed: int = 0) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.device, self.n_rows = None if name == "host" else device_or_skip(name), n_rows
        self.host, self.state = rng.normal(size=(n_rows, 3)), rng.normal(size=n_rows)
        self.wanted = self.host.copy(), self.state.copy()
        block = Block(width=3, total_width=3, spec=OptimizerSpec(), kind="", parts=())
        held = HeldRows(block, self.host, {"accumulator": self.state})
        self.cache = Cache(self.device, HeldBacking([held]), {0: (n_rows, slots)})
        self.rows: dict[int, np.ndarray] = {}
        self.numbers = count()

    def rows_of(self, most: int) -> np.ndarray:
        n = int(self.rng.integers(0, most + 1))
        hot = self.rng.zipf(1.3, 4 * n) % self.n_rows
        return np.unique(np.r_[hot[: n // 2], self.rng.integers(0, self.n_rows, n - n // 2)]).astype(np.int64)

    def admit(self, rows: np.ndarray, *, keeps: bool = True) -> int:
        step = next(self.numbers)
        self.rows[step] = rows
        there = rows if self.device is None else self.device.array(rows)
        self.cache.admit(step, {0: there}, step + 1 if keeps else None)
        return step

    def work(self, step: int, *, changes: bool = True) -> None:
        """What a step does: reads its rows at their places, and changes them."""
        cache, rows, places = self.cache, self.rows[step], self.cache.places(step, 0)
        assert len(np.unique(places)) == len(places) and (places >= 0).all()
        if changes:
            cache.changes(step, 0)
        for there, wanted in ((cache.rows(0), self.wanted[0]), (cache.states(0)["accumulator"], self.wanted[1])):
            found = np.asarray(there[places])
            np.testing.assert_array_equal(found, wanted[rows])
            if changes:
                there[places] = found * 1.5 + 1
                wanted[rows] = found * 1.5 + 1

    def whole(self, rows: np.ndarray, *, changes: bool = True, keeps: bool = True) -> None:
        """A step from its first to its last call."""
        step = self.admit(rows, keeps=keeps)
        self.cache.load(step)
        self.work(step, changes=changes)
        self.cache.release(step)

    def same(self) -> None:
        self.cache.flush(0)
        np.testing.assert_array_equal(self.host, self.wanted[0])
        np.testing.assert_array_equal(self.state, self.wanted[1])


@pytest.mark.parametrize("name", WHERE)
@pytest.mark.parametrize("slots", [32, 64, 320])
@pytest.mark.parametrize("most", [5, 60, 250])
def test_steps_leave_what_main_memory_would_have(slots: int, most: int, name: str) -> None:
    s = Steps(name, 300, slots)
    coming = s.admit(s.rows_of(most))
    for _ in range(40):
        step, evaluates = coming, bool(s.rng.random() < 0.2)
        s.cache.load(step)
        coming = s.admit(s.rows_of(most))  # beside the step
        if s.rng.random() < 0.9:  # else it is left out
            s.work(step, changes=not evaluates)
        s.cache.release(step)
        if s.rng.random() < 0.3:  # an evaluation comes before the step that waits
            s.whole(s.rows_of(most), changes=False)
    s.cache.load(coming)
    s.same()
    counts = s.cache.counts
    assert counts.asked > counts.found > 0
    assert counts.behind > 0 or most < 2 * slots, "rows that find no slot are tested where a cache is small"


def test_rows_that_no_step_has_are_written_early_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_EARLY_ROWS", 7)
    s = Steps("host", 300, 320)
    s.whole(np.arange(100))
    step = s.admit(np.arange(50, 60))
    s.cache.load(step)
    before = s.host.copy()
    early = s.cache.flush_idle()
    next(early)
    assert (s.host != before).any(axis=1).sum() == 7
    s.whole(np.arange(90, 120))  # changed after they were found to be, and some anew
    list(early)
    free = np.r_[0:50, 60:100]
    np.testing.assert_array_equal(s.host[free], s.wanted[0][free])
    np.testing.assert_array_equal(s.state[free], s.wanted[1][free])
    for rows in (slice(50, 60), slice(100, 300)):  # of a step under way, or not among them
        np.testing.assert_array_equal(s.host[rows], before[rows])
    assert sorted(s.cache._plans[0].changed().rows) == [*range(50, 60), *range(100, 120)]
    s.work(step)
    s.cache.release(step)
    s.same()


@pytest.mark.parametrize("slots", [32, 320])
def test_rows_are_written_early_beside_steps(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_EARLY_ROWS", 5)
    s, over, rows = Steps("host", 300, slots, seed=3), threading.Event(), [0]

    def write() -> None:
        while not over.is_set():
            for n in s.cache.flush_idle():
                rows[0] += n

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        try:
            until_s = time.monotonic() + 60
            while next(s.numbers) < 500 or (rows[0] < 500 and time.monotonic() < until_s):
                steps = [s.admit(s.rows_of(80)), s.admit(s.rows_of(80))]
                for step in steps:
                    s.cache.load(step)
                    s.work(step, changes=bool(s.rng.random() < 0.8))
                    s.cache.release(step)
        finally:
            over.set()
        written.result()
    assert rows[0] >= 500
    s.same()


@pytest.mark.parametrize("name", WHERE)
@pytest.mark.parametrize("slots", [32, 320])
@pytest.mark.parametrize("under_way", [2, 3])
def test_several_steps_are_under_way(slots: int, under_way: int, name: str) -> None:
    """Each reads its rows before those before it have changed theirs, and finds them in its turn where they are."""
    s = Steps(name, 300, slots)
    steps: list[int] = []
    for _ in range(40):
        steps.append(s.admit(s.rows_of(120)))
        s.cache.load(steps[-1])
        s.work(steps[-1], changes=False)
        if len(steps) == under_way:
            step = steps.pop(0)
            if s.rng.random() < 0.9:
                s.work(step)
            s.cache.release(step)
        if s.rng.random() < 0.2:
            s.whole(s.rows_of(60), changes=False)
    for step in steps:
        s.work(step)
        s.cache.release(step)
    s.same()
    assert s.cache.counts.behind > 0 or slots == 320


@pytest.mark.parametrize("name", WHERE)
def test_hot_rows_stay(name: str) -> None:
    s = Steps(name, 1000, 320)
    for _ in range(30):
        s.whole(s.rows_of(100), changes=False)
    counts = s.cache.counts
    assert 0.25 < counts.found / counts.asked < 0.7
    assert s.cache.n_bytes >= 320 * (12 + 32)


@pytest.mark.parametrize("name", WHERE)
@pytest.mark.parametrize("slots", [32, 64])
def test_rows_may_be_set_anew_below(name: str, slots: int) -> None:
    """Where they are in a slot, where a step under way has them behind the slots, and where they are in no cache."""
    s = Steps(name, 100, slots)
    s.whole(np.arange(40))
    under_way = s.admit(np.arange(1, 60))
    s.cache.load(under_way)
    some = np.array([3, 7, 45, 59, 99])
    s.host[some] = s.wanted[0][some] = 5.0
    s.state[some] = s.wanted[1][some] = 6.0
    s.cache.refresh(0, some)  # what is there is not written back later, over what is set now
    s.work(under_way)
    s.cache.release(under_way)
    s.whole(np.arange(0, 100, 3))
    s.same()
    s.cache.clear(0)
    s.host[:] = s.wanted[0][:] = 1.0
    s.whole(np.arange(50), changes=False)


@pytest.mark.parametrize("name", WHERE)
def test_what_was_only_read_is_not_written(name: str) -> None:
    s = Steps(name, 500, 32)
    s.host.flags.writeable = s.state.flags.writeable = False
    for _ in range(10):
        s.whole(s.rows_of(60), changes=False)
    s.same()  # after a flush, to memory that cannot be written
    assert s.cache.counts.asked > s.cache.counts.found, "rows have come and gone"


def test_a_step_that_waits_keeps_its_own_rows_alone() -> None:
    """Evaluations come between: what they leave behind goes as ever."""
    hits = []
    for waits in (False, True):
        s = Steps("emulated", 4000, 256, seed=3)
        first = s.admit(np.arange(30)) if waits else None
        for batch in range(40):
            s.whole(40 * (batch // 4) + np.arange(100), changes=False)  # drifts
        if first is not None:
            s.cache.load(first)
            s.work(first)
            s.cache.release(first)
            s.same()
        hits.append((s.cache.counts.found / s.cache.counts.asked, s.cache.counts.behind))
    assert hits[0][0] - hits[1][0] < 0.1, hits
    assert hits[1][1] < 0.05 * s.cache.counts.asked


def test_room_behind_the_slots_is_had_without_a_copy_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Steps("emulated", 300, 32)
    s.whole(np.arange(32))
    alive: list[int] = []
    empty = s.device.empty

    def counted(shape, dtype):
        alive.append(sum(name in s.cache._there[0] for name in ("", "accumulator")))
        return empty(shape, dtype)

    monkeypatch.setattr(s.device, "empty", counted)
    step = s.admit(np.arange(200))
    alive.clear()
    s.cache.load(step)
    assert max(alive[:2]) == 1, "an array is let go before the one in its place is had"
    s.work(step)
    s.cache.release(step)
    s.same()


def test_places_behind_the_slots_are_used_again() -> None:
    s = Steps("emulated", 300, 32)
    for _ in range(20):
        s.whole(np.arange(200))
    assert len(s.cache.rows(0)) < 32 + 1.5 * 200
    s.same()


@pytest.mark.parametrize("name", WHERE)
def test_a_step_that_is_only_read_takes_no_slots(name: str) -> None:
    s = Steps(name, 300, 64)
    s.whole(np.arange(20, 250), changes=False, keeps=False)  # there is room for so many behind the slots
    s.whole(np.arange(50))
    s.host.flags.writeable = s.state.flags.writeable = False  # nothing is written back for it
    s.whole(np.arange(20, 250), changes=False, keeps=False)
    s.host.flags.writeable = s.state.flags.writeable = True
    counts = s.cache.counts
    asked, found = counts.asked, counts.found
    assert counts.found == 30
    s.whole(np.arange(50))
    assert (s.cache.counts.asked - asked, s.cache.counts.found - found) == (50, 50), "all are still there"
    s.same()


def test_rows_that_could_not_be_brought_are_not_taken_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Steps("emulated", 300, 64)
    s.whole(np.arange(60))

    def fails(*_: object) -> None:
        raise MemoryError("no more")

    with monkeypatch.context() as patched:
        patched.setattr(s.cache, "_load", fails)
        with pytest.raises(MemoryError, match="no more"):
            s.admit(np.arange(100, 160))
    with pytest.raises(HpcrecError, match="could not be brought into a cache"):
        s.cache.flush(0)
    with pytest.raises(HpcrecError, match="Go on from the last checkpoint"):
        s.admit(np.arange(3))
    s.cache.clear(0)
    s.host[:], s.state[:] = s.wanted  # as a checkpoint would
    s.whole(np.arange(50))
    s.same()


class Slow(HeldBacking):
    """Takes its time, by chance; counts calls, and how many blocks each is of."""

    def __init__(self, held: list[HeldRows], rng: np.random.Generator) -> None:
        super().__init__(held)
        self.rng, self.calls, self.at_once = rng, list[int](), 0

    def fetch(self, moved: dict[int, Any]) -> None:
        self.at_once += 1
        assert self.at_once == 1, "rows are read by one call at a time"
        self.calls.append(len(moved))
        time.sleep(self.rng.random() * 2e-3)
        super().fetch(moved)
        time.sleep(self.rng.random() * 2e-3)
        self.at_once -= 1

    def write_back(self, moved: dict[int, Any]) -> None:
        time.sleep(self.rng.random() * 1e-3)
        super().write_back(moved)


def test_rows_that_are_set_and_find_no_place_are_written_before_they_can_be_read() -> None:
    block = Block(width=3, total_width=3, spec=OptimizerSpec(name="sgd"), kind="", parts=())
    held = [HeldRows(block, np.zeros((400, 3)), {})]
    seen = []

    class Looking(HeldBacking):
        def write_back(self, moved: dict[int, Any]) -> None:
            with ThreadPoolExecutor(1) as other:
                seen.append(other.submit(cache._planning.acquire, blocking=False).result())
            super().write_back(moved)

    cache = Cache(None, Looking(held), {0: (400, 64)})
    cache.admit(0, {0: np.arange(200)}, 1)  # has all places
    cache.load(0)
    rows = np.arange(250, 300)
    cache.put(0, rows, {"": np.full((50, 3), 7.0)})
    assert seen and not any(seen), "another thread might decide to read them meanwhile"
    np.testing.assert_array_equal(held[0].rows[rows], 7.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("slots", [32, 320])
def test_another_thread_brings_rows_steps_ahead(slots: int, ahead: int, seed: int) -> None:
    """Steps, two of them under way at once, and evaluations between; copies take their time."""
    rng = np.random.default_rng(seed)
    n_rows = (500, 200)
    block = Block(width=3, total_width=3, spec=OptimizerSpec(name="sgd"), kind="", parts=())
    held = [HeldRows(block, rng.normal(size=(n, 3)), {}) for n in n_rows]
    wanted = [of.rows.copy() for of in held]
    backing = Slow(held, np.random.default_rng(seed))
    cache = Cache(None, backing, {b: (n, slots) for b, n in enumerate(n_rows)})
    rows = [
        {b: np.unique(rng.zipf(1.3, rng.integers(0, 90)) % n).astype(np.int64) for b, n in enumerate(n_rows)}
        for _ in range(60)
    ]

    def work(step: int, *, changes: bool) -> None:
        for b, mine in (rows[step] if step >= 0 else beside).items():
            if changes:
                cache.changes(step, b)
            places = cache.places(step, b)
            np.testing.assert_array_equal(cache.rows(b)[places], wanted[b][mine])
            if changes:
                cache.rows(b)[places] = wanted[b][mine] = wanted[b][mine] * 1.5 + 1

    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(cache.admit, step, rows[step], step + 1) for step in range(ahead)]
        for step in range(len(rows)):
            coming[step].result()
            cache.load(step)
            work(step, changes=False)
            if step + ahead < len(rows):
                coming.append(pool.submit(cache.admit, step + ahead, rows[step + ahead], step + ahead + 1))
            if rng.random() < 0.2:
                beside = {b: np.unique(rng.integers(0, n, 40)) for b, n in enumerate(n_rows)}
                cache.admit(-1, beside, None)
                cache.load(-1)
                work(-1, changes=False)
                cache.release(-1)
            if step:
                work(step - 1, changes=step % 9 != 4)  # one in nine is left out
                cache.release(step - 1)
    for b, mine in enumerate(wanted):
        cache.flush(b)
        np.testing.assert_array_equal(held[b].rows, mine)
    assert max(backing.calls) == 2, "all blocks in one call"
    assert cache.counts.found > 0 and (cache.counts.behind > 0 or slots == 320)


def test_another_thread_admits_beside_a_step() -> None:
    s = Steps("emulated", 500, 64, seed=9)
    with ThreadPoolExecutor(1) as pool:
        coming = s.admit(s.rows_of(120))
        for _ in range(25):
            step = coming
            s.cache.load(step)
            rows = s.rows_of(120)
            later = pool.submit(s.admit, rows)
            s.work(step)
            coming = later.result()
            s.cache.release(step)
    s.cache.load(coming)
    s.same()
    assert s.cache.counts.behind > 0 and s.cache.counts.found > 0
