"""The cache of rows: any sequence of steps leaves what main memory alone would have, whatever the cache's size."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hpcrec.embedding.cache import RowCache
from hpcrec.errors import HpcrecError
from tests.devices import device_or_skip


class Steps:
    """Random steps on rows of a cache, and on a copy of the host's."""

    def __init__(self, name: str, n_rows: int, slots: int, seed: int = 0) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.device, self.n_rows = device_or_skip(name), n_rows
        self.host, self.state = rng.normal(size=(n_rows, 3)), rng.normal(size=n_rows)
        self.wanted = self.host.copy(), self.state.copy()
        self.cache = RowCache(self.device, self.host, {"accumulator": self.state}, slots)

    def rows_of(self, most: int) -> np.ndarray:
        n = int(self.rng.integers(0, most + 1))
        hot = self.rng.zipf(1.3, 4 * n) % self.n_rows
        return np.unique(np.r_[hot[: n // 2], self.rng.integers(0, self.n_rows, n - n // 2)]).astype(np.int64)

    def admit(self, rows: np.ndarray, *, changes: bool = True):
        return self.cache.admit(self.device.array(rows), changes=changes)

    def work(self, held, *, changes: bool = True) -> None:
        """What a step does: reads its rows at their slots, and changes them."""
        cache, slots = self.cache, held.slots
        assert len(np.unique(slots)) == len(slots) and (slots >= 0).all()
        for there, wanted in ((cache.rows, self.wanted[0]), (cache.states["accumulator"], self.wanted[1])):
            found = np.asarray(there[slots])
            np.testing.assert_array_equal(found, wanted[held.rows])
            if changes:
                there[slots] = found * 1.5 + 1
                wanted[held.rows] = found * 1.5 + 1

    def same(self) -> None:
        self.cache.flush()
        np.testing.assert_array_equal(self.host, self.wanted[0])
        np.testing.assert_array_equal(self.state, self.wanted[1])


@pytest.mark.parametrize("name", ["emulated", "cuda"])
@pytest.mark.parametrize("slots", [32, 64, 320])
@pytest.mark.parametrize("most", [5, 60, 250])
def test_steps_leave_what_main_memory_would_have(slots: int, most: int, name: str) -> None:
    s = Steps(name, 300, slots)
    coming = s.admit(s.rows_of(most))
    for _ in range(40):
        held, evaluates = coming, not coming.changes
        s.cache.load(held)
        coming = s.admit(s.rows_of(most), changes=bool(s.rng.random() < 0.8))  # beside the step
        if s.rng.random() < 0.1:
            continue  # left out
        s.work(held, changes=not evaluates)
        s.cache.finish()
        if s.rng.random() < 0.3:  # an evaluation comes before the step that waits
            between = s.admit(s.rows_of(most), changes=False)
            s.cache.load(between)
            s.work(between, changes=False)
    s.cache.load(coming)
    s.same()
    counts = s.cache.counts
    assert counts.asked > counts.found > 0
    assert counts.behind > 0 or most < 2 * slots, "rows that find no slot are tested where a cache is small"


@pytest.mark.parametrize("name", ["emulated", "cuda"])
def test_hot_rows_stay(name: str) -> None:
    s = Steps(name, 1000, 320)
    for _ in range(30):
        s.cache.load(s.admit(s.rows_of(100)))
        s.cache.finish()
    counts = s.cache.counts
    assert 0.25 < counts.found / counts.asked < 0.7
    assert s.cache.n_bytes >= 320 * (12 + 32)


@pytest.mark.parametrize("name", ["emulated", "cuda"])
def test_the_host_may_set_rows_between_steps(name: str) -> None:
    s = Steps(name, 100, 64)
    held = s.admit(np.arange(40))
    s.cache.load(held)
    s.work(held)
    s.cache.finish()
    some = np.array([3, 7, 99])
    s.cache.forget(some)  # not written back later, over what is set now
    s.host[some] = s.wanted[0][some] = 5.0
    s.state[some] = s.wanted[1][some] = 6.0
    held = s.admit(np.arange(0, 100, 3))
    s.cache.load(held)
    s.work(held)
    s.cache.finish()
    s.same()
    s.cache.clear()
    s.host[:] = s.wanted[0][:] = 1.0
    held = s.admit(np.arange(50))
    s.cache.load(held)
    np.testing.assert_array_equal(np.asarray(s.cache.rows[held.slots]), 1.0)


@pytest.mark.parametrize("name", ["emulated", "cuda"])
def test_what_was_only_read_is_not_written(name: str) -> None:
    s = Steps(name, 500, 32)
    s.host.flags.writeable = s.state.flags.writeable = False
    for _ in range(10):
        s.cache.load(s.admit(s.rows_of(60), changes=False))
        s.cache.finish()
    s.same()  # after a flush, to memory that cannot be written
    assert s.cache.counts.asked > s.cache.counts.found, "rows have come and gone"


def test_a_step_that_waits_keeps_its_own_rows_alone() -> None:
    """Evaluations come between: what they leave behind goes as ever."""
    hits = []
    for waits in (False, True):
        s = Steps("emulated", 4000, 256, seed=3)
        first = s.admit(np.arange(30)) if waits else None
        for batch in range(40):
            hot = 40 * (batch // 4) + np.arange(100)  # drifts
            s.cache.load(s.admit(hot, changes=False))
        if first is not None:
            s.cache.load(first)
            s.work(first)
            s.cache.finish()
            s.same()
        hits.append((s.cache.counts.found / s.cache.counts.asked, s.cache.counts.behind))
    assert hits[0][0] - hits[1][0] < 0.1, hits
    assert hits[1][1] < 0.05 * s.cache.counts.asked


def test_room_behind_the_slots_is_had_without_a_copy_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Steps("emulated", 300, 32)
    held = s.admit(np.arange(32))
    s.cache.load(held)
    s.work(held)
    s.cache.finish()
    alive: list[int] = []
    empty = s.device.empty

    def counted(shape, dtype):
        alive.append(sum(name in s.cache._there for name in ("", "accumulator")))
        return empty(shape, dtype)

    monkeypatch.setattr(s.device, "empty", counted)
    held = s.admit(np.arange(200))
    alive.clear()
    s.cache.load(held)
    assert max(alive[:2]) == 1, "an array is let go before the one in its place is had"
    s.work(held)
    s.cache.finish()
    s.same()


def test_rows_that_could_not_be_brought_are_not_taken_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Steps("emulated", 300, 64)
    held = s.admit(np.arange(60))
    s.cache.load(held)
    s.work(held)
    s.cache.finish()

    def fails(*_: object) -> None:
        raise MemoryError("no more")

    with monkeypatch.context() as patched:
        patched.setattr(s.cache, "_load", fails)
        with pytest.raises(MemoryError, match="no more"):
            s.admit(np.arange(100, 160))
    with pytest.raises(HpcrecError, match="could not be brought into the GPU's cache"):
        s.cache.flush()
    with pytest.raises(HpcrecError, match="Go on from the last checkpoint"):
        s.admit(np.arange(3))
    s.cache.clear()
    s.host[:], s.state[:] = s.wanted  # as a checkpoint would
    held = s.admit(np.arange(50))
    s.cache.load(held)
    s.work(held)
    s.cache.finish()
    s.same()


def test_another_thread_admits_beside_a_step() -> None:
    s = Steps("emulated", 500, 64, seed=9)
    with ThreadPoolExecutor(1) as pool:
        coming = s.admit(s.rows_of(120))
        for _ in range(25):
            held = coming
            s.cache.load(held)
            rows = s.rows_of(120)
            later = pool.submit(s.admit, rows)
            s.work(held)
            coming = later.result()
            s.cache.finish()
    s.cache.load(coming)
    s.same()
    assert s.cache.counts.behind > 0 and s.cache.counts.found > 0
