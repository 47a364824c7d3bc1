"""What is where in the cache of one block: which row has which place, which steps want it, who has to go.

Rows have places: *slots*, which a ``SlotMap`` gives and takes, and places behind them, for rows of steps under way that
find no slot however small the cache is. A row has one place at a time, whatever steps want it, and keeps it until the
last of them is released. A step that is only read takes no slot from others: what it does not find has places behind.
Knows rows by number; moves none: what has to be copied it says. Source: [MTRAINS].
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.types import Ints

_NONE = np.zeros(0, np.int64)
_SEEN = 0.92  # of the slots that no step uses now: beyond, rows that come late are as good as those that come soon


@dataclass(frozen=True)
class Some:
    """Rows of a block and their places, int64 [U]."""

    rows: Ints
    places: Ints

    def __len__(self) -> int:
        return len(self.rows)


NOTHING = Some(_NONE, _NONE)


@dataclass(eq=False)
class Pinned:
    """The rows of one step, and their places; the host's arrays.

    Attributes
    ----------
    rows : int64 [U]
        Distinct.
    places : int64 [U]
        -1 where a row has none yet: none has after ``late``.
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
        if not self.place_of:
            return np.full(len(rows), -1, np.int64)
        return np.fromiter((self.place_of.get(row, -1) for row in rows.tolist()), np.int64, len(rows))


class CachePlan:
    """Of one block. One call at a time, but that ``changes`` and ``places`` may come beside the others.

    Parameters
    ----------
    slots : int
        A multiple of 32.
    device : Device or None
        Where the map is.

    Attributes
    ----------
    counts : CacheCounts
    n_slots, n_places : int
        Slots; and with the places behind that there have been at once.
    """

    def __init__(self, slots: int, device: kernels.Device | None) -> None:
        self.counts = CacheCounts()
        self.n_slots = self.n_places = slots
        self._map = kernels.SlotMap(slots, evict="lru" if device else "lfu_aging", seed=0, device=device)
        self._behind = _Behind()
        self._dirty = np.zeros(slots, bool)  # by place
        self._clock = 0
        self._pinned: dict[int, Pinned] = {}  # steps that were admitted and not released

    @property
    def map_bytes(self) -> int:
        """Of the map."""
        return self._map.n_bytes

    # Steps.

    def look(self, rows: Ints, clock: int) -> None:
        """Rows [K] that will be admitted at a clock to come, in rising order; they may repeat."""
        if clock > self._clock:  # else it has come meanwhile
            self._map.foresee(rows, clock)

    def sees_little(self) -> bool:
        """Whether to look at more of them would help to choose who goes."""
        return self._map.foreseen < _SEEN

    def admit(self, step: int, rows: Any, clock: int | None, on_host: Ints | None = None) -> tuple[Some, Some]:
        """Gives slots to a step's distinct rows [U]; only finds them where it has no clock.

        Clocks rise; one that was given before may come again. ``on_host``: a copy of rows in a device's memory.

        Returns
        -------
        gone, new : Some
            Rows that have changed and have lost their slots: they are copied from there first. Then those that are to
            be copied to their slots.
        """
        self._clock = max(self._clock, clock or 0)
        self._touch()
        numbers = np.asarray(rows) if on_host is None else on_host
        had = self._behind.find(numbers) >= 0
        asked = numbers[~had] if had.any() else rows
        before = np.asarray(self._map.find(asked))
        places = np.full(len(numbers), -1, np.int64)  # who has one behind may have lost it by then: ``late`` finds it
        gone, new = NOTHING, NOTHING
        if clock is not None:
            gone, new, places[~had] = self._given(asked, numbers[~had], before)
        else:
            places[~had] = before
        self._pinned[step] = Pinned(numbers, places)
        self.counts.asked += len(numbers)
        self.counts.behind += int((places < 0).sum())
        self.counts.found += int((before >= 0).sum()) + int(had.sum())
        return gone, new

    def _touch(self) -> None:
        """Rows of steps under way stay, and no others but those of this clock."""
        for other in list(self._pinned.values()):
            self._map.touch(other.places[(other.places >= 0) & (other.places < self.n_slots)], self._clock)

    def _given(self, asked: Any, numbers: Ints, before: Ints) -> tuple[Some, Some, Ints]:
        """Slots of rows that have no place behind, -1 where one finds none."""
        placed = self._map.admit(asked, self._clock)
        slots, evicted = np.asarray(placed.slots), np.asarray(placed.evicted)
        gone = np.flatnonzero(evicted != kernels.NO_ID)
        gone = gone[self._dirty[slots[gone]]]
        new = np.flatnonzero((before < 0) & (slots >= 0))
        self._dirty[slots[new]] = False
        return Some(evicted[gone], slots[gone]), Some(numbers[new], slots[new]), slots

    def lacks(self, step: int) -> bool:
        """Whether a step has rows without a place."""
        return bool((self._pinned[step].places < 0).any())

    def late(self, step: int) -> Some:
        """Gives places to the rest of a step's rows; returns those that are to be copied there."""
        pinned, behind = self._pinned[step], self._behind
        late = np.flatnonzero(pinned.places < 0)
        if not len(late):
            return NOTHING
        rows = pinned.rows[late]
        places = np.asarray(self._map.find(rows))  # a step in between may have been given slots for them
        for i in np.flatnonzero(places < 0).tolist():
            row = int(rows[i])
            places[i] = behind.place_of.get(row, -1)
            behind.wanted_by[row] = behind.wanted_by.get(row, 0) + 1
        new = np.flatnonzero(places < 0)
        places[new] = self._places_behind(rows[new])
        pinned.places[late] = places
        return Some(rows[new], places[new])

    def _places_behind(self, rows: Ints) -> Ints:
        behind = self._behind
        missing = len(rows) - len(behind.free)
        if missing > 0:
            first = self.n_places
            self.n_places += missing
            self._dirty = np.concatenate([self._dirty, np.zeros(missing, bool)])
            behind.free += reversed(range(first, self.n_places))
        for row in rows.tolist():
            behind.place_of[row] = behind.free.pop()
        return behind.find(rows)

    def changes(self, step: int) -> None:
        """The step is about to change its rows."""
        self._dirty[self._pinned[step].places] = True

    def has_behind(self, step: int) -> bool:
        """Whether any of a step's rows has its place behind the slots."""
        pinned = self._pinned.get(step)
        return pinned is not None and bool((pinned.places >= self.n_slots).any())

    def release(self, step: int) -> tuple[Some, Some]:
        """The step is over, or will not come: rows behind the slots that nobody wants any more go.

        Returns
        -------
        gone, over : Some
            Those of them that have changed, to be copied from there; and all, whose places are to be given back then.
        """
        pinned, behind = self._pinned.pop(step, None), self._behind
        if pinned is None:  # cleared meanwhile
            return NOTHING, NOTHING
        over = []
        for row in pinned.rows[pinned.places >= self.n_slots].tolist():
            behind.wanted_by[row] -= 1
            if not behind.wanted_by[row]:
                del behind.wanted_by[row]
                over.append(row)
        rows = np.array(over, np.int64)
        places = behind.find(rows)
        for row in over:
            del behind.place_of[row]
        changed = self._dirty[places]
        return Some(rows[changed], places[changed]), Some(rows, places)

    def give_back(self, over: Some) -> None:
        """Places behind the slots may be given to others."""
        self._dirty[over.places] = False
        self._behind.free += over.places.tolist()

    def places(self, step: int) -> Ints:
        """Of the step's rows [U], once all have one."""
        return self._pinned[step].places

    def waits(self, step: int) -> bool:
        """Whether a step that was admitted still has places: the rows may have been cleared since."""
        return step in self._pinned

    # All rows.

    def items(self) -> Some:
        """Rows that have a place, and their places."""
        numbers, slots = (np.asarray(a) for a in self._map.items())
        behind = self._behind.place_of
        more = np.fromiter(behind, np.int64, len(behind)), np.fromiter(behind.values(), np.int64, len(behind))
        return Some(np.concatenate([numbers, more[0]]), np.concatenate([slots, more[1]]))

    def changed(self) -> Some:
        """Of these, those that have changed."""
        if not self._dirty.any():  # looked at twice for a checkpoint
            return NOTHING
        there = self.items()
        dirty = self._dirty[there.places]
        return Some(there.rows[dirty], there.places[dirty])

    def settled(self, some: Some | None = None) -> None:
        """What has changed was copied; or some of it."""
        self._dirty[slice(None) if some is None else some.places] = False

    def idle(self, some: Some | None = None) -> Some:
        """Rows that have changed and that no step under way has: nobody changes them while nothing is decided.

        Of all; or of some that were, those that still are, where they were.
        """
        some = self.changed() if some is None else some
        has = np.zeros(self.n_places, bool)
        for other in list(self._pinned.values()):
            has[other.places[other.places >= 0]] = True
        still = self._dirty[some.places] & ~has[some.places] & (self.where(some.rows) == some.places)
        return Some(some.rows[still], some.places[still])

    def put(self, rows: Ints) -> tuple[Some, Ints]:
        """Gives slots to distinct rows [U] that are set anew, and so have changed.

        Returns
        -------
        Some, int64 [U]
            Who has to be copied from there first, as ``admit``; and places, -1 where a row finds none.
        """
        self._touch()
        places = self._behind.find(rows)
        slotless = np.flatnonzero(places < 0)
        asked = np.ascontiguousarray(rows[slotless])
        gone, _, places[slotless] = self._given(asked, asked, np.asarray(self._map.find(asked)))
        self._dirty[places[places >= 0]] = True
        return gone, places

    def where(self, rows: Ints) -> Ints:
        """Places of distinct rows [U], -1 where a row has none."""
        places = np.asarray(self._map.find(np.ascontiguousarray(rows)))
        return np.where(places < 0, self._behind.find(rows), places)

    def rewritten(self, rows: Ints) -> Ints:
        """The same of rows that are set anew where they have a place, and so have changed."""
        places = self.where(rows)
        self._dirty[places[places >= 0]] = True
        return places

    def find(self, rows: Ints) -> Some:
        """Those of these rows that have a place; they are taken to have not changed."""
        places = self.where(rows)
        here = places >= 0
        self._dirty[places[here]] = False
        return Some(rows[here], places[here])

    def clear(self) -> None:
        """No row has a place any more, those neither that were admitted for steps to come."""
        self._map.clear()
        self._behind = _Behind(free=list(reversed(range(self.n_slots, self.n_places))))
        self._dirty[:] = False
        self._pinned.clear()
