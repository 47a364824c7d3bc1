"""A cache of one block's rows over those that it holds elsewhere: which are there, how they come and go.

Rows have places: *slots*, which a ``SlotMap`` gives and takes, and places behind them, for rows of steps under way that
find no slot however small the cache is. A row has one place at a time, whatever steps want it, and keeps it from
``load`` until the last of them is released; so results depend neither on the size of the cache nor on how many steps
are under way. A row that has to go is written back if it has changed. Knows rows by number; knows no ids, and not what
a step does. Source: [MTRAINS], whose caches are filled by known ids too.

``admit`` is for a step to come, perhaps on another thread than the rest: it gives slots, and loads what finds one. Then
``load``, with which every row of the step is there; ``changes`` before the step changes them; ``release``. One call at
a time: others wait.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Protocol

import numpy as np

from hpcrec import kernels
from hpcrec.errors import HpcrecError
from hpcrec.types import Floats, Ints

PIECE_ROWS = 1 << 16  # rows that are copied at once: bounds the memory beside them
_NONE = np.zeros(0, np.int64)


class Backing(Protocol):
    """What a cache lies over: rows by number, in any order, the host's arrays."""

    @property
    def columns(self) -> Mapping[str, Floats]:
        """Rows, under "", and states: their types and shapes count."""

    def fetch(self, numbers: Ints) -> dict[str, Floats]:
        """Copies of rows and states [U, ...]."""

    def write_back(self, numbers: Ints, columns: Mapping[str, Floats]) -> None:
        """Takes rows and states [U, ...] that have changed."""


@dataclass(eq=False)
class Pinned:
    """The rows of one step, and their places; the host's arrays.

    Attributes
    ----------
    rows : int64 [U]
        Distinct.
    places : int64 [U]
        -1 where a row has none yet: none has after ``load``.
    """

    rows: Ints
    places: Ints


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


@dataclass
class _Behind:
    """Rows that have places behind the slots: which, and how many steps want each."""

    place_of: dict[int, int] = field(default_factory=dict)
    wanted_by: dict[int, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    def find(self, rows: Ints) -> Ints:
        """Places [U], -1 where a row has none."""
        return np.fromiter((self.place_of.get(row, -1) for row in rows.tolist()), np.int64, len(rows))


class RowCache:
    """Of one block.

    Parameters
    ----------
    device : Device or None
        Where the cached rows are; None: in the host's memory.
    backing : Backing
    slots : int
        Rows that have a place whatever steps are under way; a multiple of 32.

    Attributes
    ----------
    counts : CacheCounts
    """

    def __init__(self, device: kernels.Device | None, backing: Backing, slots: int) -> None:
        self.counts = CacheCounts()
        self._device = device
        self._backing = backing
        self._n_slots = slots
        self._map = kernels.SlotMap(slots, evict="lru", seed=0, device=device)
        self._behind = _Behind()
        self._dirty = np.zeros(slots, bool)  # by place
        self._there = {name: self._empty(slots, a) for name, a in backing.columns.items()}
        self._clock = 0
        self._pinned: dict[int, Pinned] = {}  # steps that were admitted and not released
        self._lock = RLock()
        self._broken = False
        self._wait()

    def _empty(self, n: int, like: Floats) -> Any:
        shape = (n, *like.shape[1:])
        return np.empty(shape, like.dtype) if self._device is None else self._device.empty(shape, like.dtype)

    def _wait(self) -> None:
        if self._device is not None:
            self._device.wait()  # others go on in streams of their own

    @property
    def rows(self) -> Any:
        """Float [places, D]."""
        return self._there[""]

    @property
    def states(self) -> dict[str, Any]:
        """Likewise, by name."""
        return {name: array for name, array in self._there.items() if name}

    @property
    def n_bytes(self) -> int:
        """Of the memory that has the cached rows."""
        return self._map.n_bytes + sum(array.nbytes for array in self._there.values())

    # Steps.

    def admit(self, step: int, rows: Any) -> None:
        """Gives slots to a step's distinct rows [U], and loads what can be had by now."""
        with self._whole():
            self._clock += 1
            for other in self._pinned.values():  # theirs stay, and no others
                self._map.touch(other.places[(other.places >= 0) & (other.places < self._n_slots)], self._clock)
            numbers = np.asarray(rows)
            places = self._behind.find(numbers) if self._behind.place_of else np.full(len(numbers), -1, np.int64)
            had = places >= 0
            wanted = np.flatnonzero(~had)
            asked = rows if len(wanted) == len(numbers) else numbers[wanted]
            before = np.asarray(self._map.find(asked))
            try:
                places[wanted] = self._given(asked, numbers[wanted], before)
            except BaseException:
                self._broken = True  # slots are given, and not filled
                raise
            places[had] = -1  # they may be gone by then: ``load`` finds them
            self._pinned[step] = Pinned(numbers, places)
            self.counts.asked += len(numbers)
            self.counts.behind += int((places < 0).sum())
            self.counts.found += int((before >= 0).sum()) + int(had.sum())

    def _given(self, asked: Any, numbers: Ints, before: Ints) -> Ints:
        """Slots of rows that have no place behind, -1 where one finds none; loaded, and written back who had to go."""
        placed = self._map.admit(asked, self._clock)
        slots, evicted = np.asarray(placed.slots), np.asarray(placed.evicted)
        gone = np.flatnonzero(evicted != kernels.NO_ID)
        gone = gone[self._dirty[slots[gone]]]
        self._store(evicted[gone], slots[gone])
        new = np.flatnonzero((before < 0) & (slots >= 0))
        self._dirty[slots[new]] = False
        self._load(numbers[new], slots[new])
        return slots

    def load(self, step: int) -> None:
        """Loads the rest: every row of the step is at its place now."""
        with self._whole():
            pinned, behind = self._pinned[step], self._behind
            late = np.flatnonzero(pinned.places < 0)
            if len(late):
                rows = pinned.rows[late]
                places = np.asarray(self._map.find(rows))  # a step in between may have been given slots for them
                for i in np.flatnonzero(places < 0).tolist():
                    row = int(rows[i])
                    places[i] = behind.place_of.get(row, -1)
                    behind.wanted_by[row] = behind.wanted_by.get(row, 0) + 1
                new = np.flatnonzero(places < 0)
                places[new] = self._places_behind(rows[new])
                self._load(rows[new], places[new])
                pinned.places[late] = places

    def _places_behind(self, rows: Ints) -> Ints:
        behind = self._behind
        missing = len(rows) - len(behind.free)
        if missing > 0:
            self._grow(len(self._dirty) + missing)
        for row in rows.tolist():
            behind.place_of[row] = behind.free.pop()
        return behind.find(rows)

    def changes(self, step: int) -> None:
        """The step is about to change its rows."""
        with self._lock:
            self._dirty[self._pinned[step].places] = True

    def release(self, step: int) -> None:
        """The step is over, or will not come: rows behind the slots that nobody wants any more go back."""
        with self._lock:
            if step not in self._pinned:  # cleared meanwhile
                return
            pinned, behind = self._pinned.pop(step), self._behind
            over = []
            for row in pinned.rows[pinned.places >= self._n_slots].tolist():
                behind.wanted_by[row] -= 1
                if not behind.wanted_by[row]:
                    del behind.wanted_by[row]
                    over.append(row)
            if over:
                rows = np.array(over, np.int64)
                places = behind.find(rows)
                changed = self._dirty[places]
                self._store(rows[changed], places[changed])
                self._dirty[places] = False
                for row, place in zip(over, places.tolist(), strict=True):
                    del behind.place_of[row]
                    behind.free.append(place)

    def places(self, step: int) -> Ints:
        """Of the step's rows [U], once it was loaded."""
        return self._pinned[step].places

    def waits(self, step: int) -> bool:
        """Whether a step that was admitted may be loaded: the rows may have been cleared since."""
        return step in self._pinned

    # The backing's rows.

    def flush(self) -> None:
        """Writes back what has changed: then the backing's rows are as they should be."""
        with self._whole():
            numbers, places = self._items()
            dirty = self._dirty[places]
            self._store(numbers[dirty], places[dirty])
            self._dirty[:] = False

    def _items(self) -> tuple[Ints, Ints]:
        """Rows that have a place, and their places."""
        numbers, slots = (np.asarray(a) for a in self._map.items())
        behind = self._behind.place_of
        more = np.fromiter(behind, np.int64, len(behind)), np.fromiter(behind.values(), np.int64, len(behind))
        return np.concatenate([numbers, more[0]]), np.concatenate([slots, more[1]])

    def refresh(self, rows: Ints) -> None:
        """The backing's rows were set anew: those that have a place are read again."""
        with self._lock:
            places = np.asarray(self._map.find(np.ascontiguousarray(rows)))
            if self._behind.place_of:
                places = np.where(places < 0, self._behind.find(rows), places)
            here = places >= 0
            if here.any():
                self._dirty[places[here]] = False
                self._load(rows[here], places[here])

    def clear(self) -> None:
        """Takes all rows out as they are, those too that were admitted for steps to come."""
        with self._lock:
            self._map.clear()
            self._behind = _Behind(free=list(range(self._n_slots, len(self._dirty))))
            self._dirty[:] = False
            self._pinned.clear()
            self._wait()
            self._broken = False

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """One call at a time; none where rows are not what the map says."""
        with self._lock:
            if self._broken:
                raise HpcrecError(
                    "rows could not be brought into the cache of store.memory_bytes (see the first error), so those "
                    "that are there are not known any more. Go on from the last checkpoint."
                )
            yield

    # Copies.

    def _load(self, numbers: Ints, places: Ints) -> None:
        for start in range(0, len(numbers), PIECE_ROWS):
            some = slice(start, start + PIECE_ROWS)
            for name, columns in self._backing.fetch(numbers[some]).items():
                self._there[name][places[some]] = columns

    def _store(self, numbers: Ints, places: Ints) -> None:
        for start in range(0, len(numbers), PIECE_ROWS):
            some = slice(start, start + PIECE_ROWS)
            columns = {name: np.asarray(array[places[some]]) for name, array in self._there.items()}
            self._backing.write_back(numbers[some], columns)

    def _grow(self, n_places: int) -> None:
        """Room for so many places. No step's rows are worked on meanwhile."""
        n_places += (n_places - self._n_slots) // 4  # the next step's are not quite as many
        numbers, places = self._items()
        dirty = self._dirty[places]
        self._store(numbers[dirty], places[dirty])
        for name, like in self._backing.columns.items():
            del self._there[name]  # a copy beside it would be twice the cache
            self._there[name] = self._empty(n_places, like)
        self._load(numbers, places)
        old = len(self._dirty)
        self._dirty = np.zeros(n_places, bool)
        self._behind.free += range(old, n_places)
