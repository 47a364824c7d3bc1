"""The cache of rows: any sequence of steps leaves what main memory alone would have, whatever the cache's size."""

import numpy as np
import pytest

from hpcrec.embedding.cache import RowCache
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
    s.cache.flush()
