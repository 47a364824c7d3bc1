"""A cache of rows in a device's memory, over rows of the host: which are there, and how they come and go.

Rows of the step to come are loaded beside the step under way. A step's rows that find no slot, however small the cache
is, are loaded behind the slots for that step alone, and written back after it, so that results do not depend on the
size. Slots are found by a ``SlotMap``; a row that has to go is written to the host if it may have changed. Knows rows
by number; knows no ids, and not what a step does. Source: [MTrainS], whose caches are filled by known ids too.

``admit`` is for any step, perhaps while another is loaded, and on another thread, but for no step after one that waits
to change its rows; then ``load``, the step, and ``finish`` if it has changed its rows; or ``drop``. All else is for
between steps. One call at a time: others wait.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.errors import HpcrecError
from hpcrec.types import Floats, Ints

BLOCK_ROWS = 1 << 16  # rows that are copied at once: bounds the memory beside them
_NONE = np.zeros(0, np.int64)


@dataclass(eq=False)
class Held:
    """The rows of one step, and where they are; the host's arrays. Its rows keep their slots.

    Attributes
    ----------
    rows : int64 [U]
        Distinct.
    slots : int64 [U]
        Of the cache's rows; those of ``behind`` are there after ``load``.
    changes : bool
        Whether the step will change them.
    behind : int64 [B]
        Places in ``rows`` of those that found no slot.
    late : int64 [L]
        Places of those that a step under way changes behind the slots: they are loaded after it.
    """

    rows: Ints
    slots: Ints
    changes: bool
    behind: Ints
    late: Ints = field(default_factory=lambda: _NONE)


@dataclass
class CacheCounts:
    """Distinct rows that steps asked for, those of them that were in the cache, and those that found no slot."""

    asked: int = 0
    found: int = 0
    behind: int = 0

    def figures(self) -> dict[str, float]:
        """What summary.json says of one owner: shares of the distinct rows of steps, each counted once a step."""
        asked = max(self.asked, 1)
        return {"cache_hits": self.found / asked, "cache_behind": self.behind / asked}

    def __add__(self, other: "CacheCounts") -> "CacheCounts":
        return CacheCounts(self.asked + other.asked, self.found + other.found, self.behind + other.behind)


class RowCache:
    """Of one arena.

    Parameters
    ----------
    device : Device
    rows : float [N, D]
        The host's.
    states : dict of str to float [N, D] or [N]
        The host's.
    slots : int
        Rows that have a place; a multiple of 32.

    Attributes
    ----------
    counts : CacheCounts
    will_change : callable
        Told which of the host's rows [U] are about to be written.
    """

    def __init__(self, device: kernels.Device, rows: Floats, states: dict[str, Floats], slots: int) -> None:
        self.counts = CacheCounts()
        self.will_change: Callable[[Ints], None] = _nobody_told
        self._device = device
        self._host = {"": rows, **states}
        self._n_slots = slots
        self._map = kernels.SlotMap(slots, evict="lru", seed=0, device=device)
        self._dirty = np.zeros(slots, bool)
        self._there = {name: device.empty((slots, *a.shape[1:]), a.dtype) for name, a in self._host.items()}
        self._clock = 0
        self._loaded: Held | None = None  # and not finished
        self._waiting: list[Held] = []  # admitted, and not loaded
        self._lock = RLock()
        self._broken = False
        device.wait()

    @property
    def rows(self) -> Any:
        """Float [slots + ..., D], of the device: behind the slots what found none."""
        return self._there[""]

    @property
    def states(self) -> dict[str, Any]:
        """Likewise, by name."""
        return {name: array for name, array in self._there.items() if name}

    @property
    def n_bytes(self) -> int:
        """Of the device's memory."""
        return self._map.n_bytes + sum(array.nbytes for array in self._there.values())

    # Steps.

    def admit(self, rows: Any, *, changes: bool) -> Held:
        """Gives slots to a step's distinct rows [U], of the device, and loads what can be had by now."""
        with self._whole():
            return self._admit(rows, changes=changes)

    def _admit(self, rows: Any, *, changes: bool) -> Held:
        self._clock += 1
        before = self._loaded
        for other in (*self._waiting, *(() if before is None else (before,))):  # theirs stay, and no others
            self._map.touch(other.slots[(other.slots >= 0) & (other.slots < self._n_slots)], self._clock)
        had = np.asarray(self._map.find(rows))
        placed = self._map.admit(rows, self._clock)
        try:
            return self._take_in(rows, placed, had, before, changes=changes)
        except BaseException:
            self._broken = True  # slots are given, and not filled
            raise

    def _take_in(self, rows: Any, placed: kernels.Placed, had: Ints, before: Held | None, *, changes: bool) -> Held:
        """Writes back what has to go, and loads what has come."""
        numbers, slots, evicted = np.asarray(rows), np.asarray(placed.slots), np.asarray(placed.evicted)
        held = Held(numbers, slots, changes, np.flatnonzero(slots < 0))
        gone, new = np.flatnonzero(evicted != kernels.NO_ID), np.flatnonzero((had < 0) & (slots >= 0))
        gone = gone[self._dirty[slots[gone]]]
        self._store(evicted[gone], slots[gone])
        self._dirty[slots[new]] = False
        if before is not None and before.changes and len(before.behind):
            late = np.isin(numbers[new], before.rows[before.behind])
            held.late, new = new[late], new[~late]
        self._load(numbers[new], slots[new])
        self._waiting.append(held)
        self.counts.asked += len(slots)
        self.counts.behind += len(held.behind)
        self.counts.found += int((had >= 0).sum())
        return held

    def load(self, held: Held) -> None:
        """Loads the rest: every row of the step is at its slot now. A step before it that was not finished is over."""
        with self._whole():
            self._end()
            self._waiting.remove(held)
            self._fit(self._n_slots + len(held.behind))
            if held.changes:
                self._dirty[held.slots[held.slots >= 0]] = True
            assert len(held.behind) == (held.slots < 0).sum(), "the others have slots"
            held.slots[held.behind] = self._n_slots + np.arange(len(held.behind))
            self._load(held.rows[held.behind], held.slots[held.behind])
            if held.changes and len(held.behind):  # an evaluation may have given them slots that would not change
                self._map.remove(held.rows[held.behind])
            self._loaded = held

    def finish(self) -> None:
        """The step has changed its rows: those behind the slots go back to the host."""
        with self._whole():
            held = self._loaded
            if held is not None and held.changes:
                self._store(held.rows[held.behind], held.slots[held.behind])
            self._end()

    def drop(self, held: Held) -> None:
        """A step that was admitted will not come."""
        with self._lock:
            if held in self._waiting:
                self._waiting.remove(held)
                self._map.remove(held.rows[held.late])  # nothing is at their slots

    def waits(self, held: Held) -> bool:
        """Whether a step that was admitted may be loaded: the rows may have been cleared since."""
        return held in self._waiting

    def _end(self) -> None:
        """No step is loaded: what others wait for is on the host."""
        self._loaded = None
        for held in self._waiting:
            self._load(held.rows[held.late], held.slots[held.late])
            held.late = _NONE

    # The host's rows.

    def flush(self) -> None:
        """Writes to the host what it has not: then its rows are as they should be."""
        with self._whole():
            numbers, slots = (np.asarray(a) for a in self._map.items())
            dirty = self._dirty[slots]
            self._store(numbers[dirty], slots[dirty])
            self._dirty[:] = False

    def forget(self, rows: Ints) -> None:
        """Takes rows out as they are: the host's will be set anew."""
        with self._lock:
            self._map.remove(np.ascontiguousarray(rows))

    def clear(self) -> None:
        """Takes all rows out as they are, those too that were admitted for steps to come."""
        with self._lock:
            self._map.clear()
            self._waiting.clear()
            self._device.wait()  # others go on in streams of their own
            self._broken = False

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """One call at a time; none where rows are not what the map says."""
        with self._lock:
            if self._broken:
                raise HpcrecError(
                    "rows could not be brought into the GPU's cache (see the first error), so those that are there "
                    "are not known any more. Go on from the last checkpoint."
                )
            yield

    # Copies.

    def _load(self, numbers: Ints, slots: Ints) -> None:
        for name, some in self._blocks(numbers):
            host, width = self._host[name], _width(self._host[name])
            room = np.empty((some.stop - some.start, *host.shape[1:]), host.dtype)
            kernels.copy_vectors(host.reshape(-1), room.reshape(-1), width, source_start=numbers[some] * width)
            self._there[name][slots[some]] = room

    def _store(self, numbers: Ints, slots: Ints) -> None:
        self.will_change(numbers)
        for name, some in self._blocks(numbers):
            host, width = self._host[name], _width(self._host[name])
            found = np.asarray(self._there[name][slots[some]]).reshape(-1)
            kernels.copy_vectors(found, host.reshape(-1), width, target_start=numbers[some] * width)

    def _blocks(self, numbers: Ints) -> Iterator[tuple[str, slice]]:
        for start in range(0, len(numbers), BLOCK_ROWS):
            for name in self._host:
                yield name, slice(start, min(start + BLOCK_ROWS, len(numbers)))

    def _fit(self, n_rows: int) -> None:
        """Room for so many rows: what is behind the slots is nothing between steps."""
        if n_rows <= len(self.rows):
            return
        n_rows += (n_rows - self._n_slots) // 4  # the next step's are not quite as many
        self.flush()
        numbers, slots = (np.asarray(a) for a in self._map.items())
        for name, host in self._host.items():
            del self._there[name]  # a copy beside it would be twice the cache
            self._there[name] = self._device.empty((n_rows, *host.shape[1:]), host.dtype)
        self._load(numbers, slots)


def _nobody_told(rows: Ints) -> None:
    del rows


def _width(array: Floats) -> int:
    return int(array.shape[1]) if array.ndim == 2 else 1
