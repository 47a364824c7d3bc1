"""A budget of bytes a day: bursts pass, the rest waits, by a clock that nobody has to wait for."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from hpcrec.disk.tier import BlockRows, Settings, Tier, Wanted
from hpcrec.embedding.stores.cache import Moved
from hpcrec.embedding.stores.disk import DiskRows, TierBacking
from hpcrec.embedding.stores.write_budget import BURST_S, WriteBudget

DAY = 86_400


class Clock:
    """Seconds that pass when told, or slept through."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def budget_of(a_second: int) -> tuple[WriteBudget, Clock]:
    clock = Clock()
    return WriteBudget(a_second * DAY, now=clock, sleep=clock.sleep), clock


def test_a_burst_passes_and_what_is_more_waits() -> None:
    budget, clock = budget_of(1000)
    assert BURST_S == 300
    budget.spend(300_000)
    assert clock.slept == [] and budget.waited_s == 0
    with pytest.warns(UserWarning, match=r"store.daily_bytes = 86400000 is used up: .* 1,000 bytes a second"):
        budget.spend(2_500)
    assert clock.slept == [0.5] * 5 and budget.waited_s == pytest.approx(2.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        budget.spend(500)
        clock.now += 2
        budget.spend(1_500)
    assert sum(clock.slept) == pytest.approx(3) and budget.waited_s == pytest.approx(3)
    clock.now += 10_000  # a bucket holds no more than it does
    budget.spend(300_000)
    assert sum(clock.slept) == pytest.approx(3)
    budget.spend(100)
    assert sum(clock.slept) == pytest.approx(3.1)


@pytest.mark.filterwarnings("ignore:store.daily_bytes")
def test_who_waits_is_let_go_where_steps_stand_still() -> None:
    budget, clock = budget_of(1000)
    budget.spend(300_000)
    budget.spend(1_000_000, waits=lambda: clock.now < 1010)
    assert sum(clock.slept) == pytest.approx(10) == budget.waited_s
    budget.spend(0)  # the next one waits for the rest
    assert sum(clock.slept) == pytest.approx(1000)


@pytest.mark.filterwarnings("ignore:store.daily_bytes")
def test_a_day_has_the_budget_and_one_bucket() -> None:
    budget, clock = budget_of(50)
    random, began, written = np.random.default_rng(1), clock.now, 0
    while clock.now - began < DAY:
        n = int(random.integers(0, 20_000))
        clock.now += random.random() * 200
        budget.spend(n)
        written += n
    passed = clock.now - began
    assert 0.95 * 50 * passed < written <= 50 * (passed + BURST_S) + 1
    assert budget.waited_s == pytest.approx(sum(clock.slept)) and budget.waited_s > 0.3 * DAY


@pytest.mark.filterwarnings("ignore:store.daily_bytes")
def test_what_the_disk_has_written_is_paid_for_once_rows_are_safe(tmp_path: Path) -> None:
    """All of it, cleaning too, by whoever writes rows back; rows are as without."""
    with Tier(tmp_path / "rows", [BlockRows(4_000, {"": (np.dtype("f4"), (16,))})], Settings(io="threads")) as tier:
        held = DiskRows.__new__(DiskRows)  # what a backing asks of it
        held.number, held.will_change, held.note = 0, lambda rows: None, lambda *_: None  # type: ignore[method-assign]
        budget, clock = budget_of(10_000)
        backing = TierBacking(tier, {7: held}, budget)
        values = np.random.default_rng(2).random((4_000, 16)).astype("f4")
        rows = np.arange(4_000)
        for _ in range(40):
            backing.write_back({7: Moved(rows, rows, {"": values})})
        spent = tier.counts.written_bytes
        assert spent > 8_000_000
        assert budget.waited_s == pytest.approx(spent / 10_000 - BURST_S, abs=0.01)
        assert budget.waited_s == pytest.approx(sum(clock.slept))
        found = np.zeros_like(values)
        backing.fetch({7: Moved(rows, rows, {"": found})})
        np.testing.assert_array_equal(found, values)
        assert backing.fetched == 4_000
        waited_s = budget.waited_s
        with backing.free():  # rows of a checkpoint, and those that they drive out
            tier.write({0: Wanted(rows, {"": values})})
            backing.write_back({7: Moved(rows, rows, {"": values})})
        backing.write_back({7: Moved(rows[:0], rows[:0], {"": values})})
        assert budget.waited_s == waited_s
