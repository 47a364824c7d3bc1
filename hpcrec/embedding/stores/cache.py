"""A cache of rows over those that are held elsewhere: all blocks of a store, and many steps at once.

What is where is each block's ``CachePlan``; here rows are copied, those of all blocks in one call of who holds them.
Results depend neither on the size of the cache nor on how many steps are under way. Rows that have to go are written
back if they have changed, before anyone may ask for them again. Knows rows by block and number; knows no ids, and not
what a step does. Source: [MTRAINS], whose caches are filled by known ids too.

``admit`` is for steps to come, perhaps on another thread than the rest: it gives slots, and reads what finds one. Then
``load``, with which every row of the step is there; ``changes`` before the step changes them; ``release``. What is
where is decided by one call at a time, and rows are read by one at a time, in the same order; so steps may be decided
on while rows of one before are read, and whoever has read its rows knows that those before it have.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock, RLock
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.stores.cache_plan import NOTHING, CacheCounts, CachePlan, Some
from hpcrec.errors import HpcrecError
from hpcrec.types import Floats, Ints

Columns = Mapping[str, Any]  # rows, under "", and states, by place
NO_COPIES: Mapping[int, Ints] = MappingProxyType({})
PIECE_ROWS = 1 << 16  # rows that are copied at once: bounds the memory beside them
_EARLY_ROWS = 1 << 14  # rows that are written before they have to be, at once: bounds how long others wait


@dataclass(frozen=True)
class Moved:
    """Rows of one block that are copied, and where they are, or go to, in the cache.

    Attributes
    ----------
    rows, places : int64 [U]
        Distinct.
    columns : dict of str to array [places, ...]
        The host's, or a device's.
    """

    rows: Ints
    places: Ints
    columns: Columns

    def values(self) -> dict[str, Any]:
        """Copies of what is at the places, the host's."""
        return {name: np.asarray(array[self.places]) for name, array in self.columns.items()}


def pieces(moved: Mapping[int, Moved]) -> Iterator[dict[int, Moved]]:
    """The same, at most ``PIECE_ROWS`` of each block at once."""
    for start in range(0, max((len(of.rows) for of in moved.values()), default=0), PIECE_ROWS):
        some = slice(start, start + PIECE_ROWS)
        yield {b: Moved(of.rows[some], of.places[some], of.columns) for b, of in moved.items() if start < len(of.rows)}


class Backing(Protocol):
    """What a cache lies over: rows of blocks by number. Both calls return when it is done."""

    def columns(self, block: int) -> Mapping[str, Floats]:
        """Rows, under "", and states: their types and shapes but for the first count."""

    def fetch(self, moved: Mapping[int, Moved]) -> None:
        """Copies rows and states to their places, by block."""

    def write_back(self, moved: Mapping[int, Moved]) -> None:
        """Takes rows and states that have changed; whoever fetches them from now on has these."""


class Cache:
    """Rows of blocks.

    Parameters
    ----------
    device : Device or None
        Where the cached rows are; None: in the host's memory.
    backing : Backing
    blocks : mapping of int to (int, int)
        By block: its rows, and slots, which have a place whatever steps are under way; a multiple of 32.

    Raises
    ------
    MemoryError
        There is not as much.
    """

    def __init__(self, device: kernels.Device | None, backing: Backing, blocks: Mapping[int, tuple[int, int]]) -> None:
        self.device, self._backing = device, backing
        self._plans = {b: CachePlan(slots, device) for b, (_, slots) in blocks.items()}
        # the host's memory is had as it is used, so there is room for any number of rows behind the slots
        self._there = {b: self._empty(b, slots + (n if device is None else 0)) for b, (n, slots) in blocks.items()}
        self._planning, self._moving = RLock(), Lock()  # taken in this order
        self._coming: dict[int, Some] = {}  # what was read last, or is now
        self._broken = set[int]()  # blocks whose rows are not what their plans say
        self._first: BaseException | None = None  # the error since when they are not
        self._wait()

    def _empty(self, block: int, n: int) -> dict[str, Any]:
        like = self._backing.columns(block)
        return {name: self._array((n, *of.shape[1:]), of.dtype) for name, of in like.items()}

    def _array(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return kernels.reserved_zeros(shape, dtype) if self.device is None else self.device.empty(shape, dtype)

    def _wait(self) -> None:
        if self.device is not None:
            self.device.wait()  # others go on in streams of their own

    def __contains__(self, block: int) -> bool:
        return block in self._plans

    def __iter__(self) -> Iterator[int]:
        return iter(self._plans)

    def __bool__(self) -> bool:
        return bool(self._plans)

    def rows(self, block: int) -> Any:
        """Float [places, D]."""
        return self._there[block][""]

    def states(self, block: int) -> dict[str, Any]:
        """Likewise, by name."""
        return {name: array for name, array in self._there[block].items() if name}

    def slots(self, block: int) -> int:
        """Of a block."""
        return self._plans[block].n_slots

    @property
    def n_bytes(self) -> int:
        """Of the memory that has the cached rows, and of their maps."""
        n_bytes = sum(plan.map_bytes for plan in self._plans.values())
        for b, there in self._there.items():
            n = len(there[""]) if self.device is not None else self._plans[b].n_places
            n_bytes += sum(n * array.nbytes // max(len(array), 1) for array in there.values())
        return n_bytes

    @property
    def counts(self) -> CacheCounts:
        """Of all blocks."""
        return sum((plan.counts for plan in self._plans.values()), start=CacheCounts())

    # Steps.

    def look(self, rows: Mapping[int, Ints], clock: int) -> None:
        """Rows [K] of each block that will be admitted at a clock to come; they may repeat."""
        with self._planning:
            for b, plan in self._plans.items():
                plan.look(rows[b], clock)

    def sees_little(self) -> bool:
        """Whether a step more would help to choose who goes, of every block."""
        return all(plan.sees_little() for plan in self._plans.values())

    def admit(
        self, step: int, rows: Mapping[int, Any], clock: int | None, on_host: Mapping[int, Ints] = NO_COPIES
    ) -> None:
        """Gives slots to a step's distinct rows [U] of each block, and reads what can be had by now.

        Parameters
        ----------
        clock : int or None
            The number of the step among those that are learned from; None where it is only read: no row loses its slot
            for it.
        on_host : mapping of int to int64 [U], optional
            Copies of ``rows`` that are in a device's memory; of blocks that have none here one is made.
        """
        with self._or_broken():
            with self._planning:
                self._check_whole()
                moves = {b: plan.admit(step, rows[b], clock, on_host.get(b)) for b, plan in self._plans.items()}
                self._store({b: gone for b, (gone, _) in moves.items()})
                self._moving.acquire()  # what was decided before is read before
                self._coming = {b: new for b, (_, new) in moves.items()}
            try:
                self._load(self._coming)
            finally:
                self._moving.release()

    def load(self, step: int) -> None:
        """Reads the rest: every row of the step is at its place now."""
        if not any(plan.lacks(step) for plan in self._plans.values()):
            return  # without waiting for what is read for steps to come
        with self._alone():
            late = {b: plan.late(step) for b, plan in self._plans.items()}
            self._grow()
            self._load(late)

    def changes(self, step: int, block: int) -> None:
        """The step is about to change its rows."""
        self._plans[block].changes(step)

    def release(self, step: int) -> None:
        """The step is over, or will not come: rows behind the slots that nobody wants any more go back."""
        if not any(plan.has_behind(step) for plan in self._plans.values()):
            for plan in self._plans.values():
                plan.release(step)
            return
        with self._or_broken(), self._planning:
            released = {b: plan.release(step) for b, plan in self._plans.items()}
            self._store({b: gone for b, (gone, _) in released.items()})
            for b, (_, over) in released.items():
                self._plans[b].give_back(over)

    def places(self, step: int, block: int) -> Ints:
        """Of the step's rows [U], once it was loaded."""
        return self._plans[block].places(step)

    def waits(self, step: int) -> bool:
        """Whether a step that was admitted may be loaded: rows may have been cleared since."""
        return all(plan.waits(step) for plan in self._plans.values())

    # The backing's rows.

    def flush(self, block: int) -> None:
        """Writes back what has changed: then the backing's rows are as they should be."""
        with self._alone():
            plan = self._plans[block]
            self._store({block: plan.changed()})
            plan.settled()

    def flush_idle(self) -> Iterator[int]:
        """Writes back what has changed and no step under way has; yields how many rows after some, when steps go on."""
        for b, plan in self._plans.items():
            with self._planning:
                idle = plan.idle()
            for start in range(0, len(idle), _EARLY_ROWS):
                some = Some(idle.rows[start : start + _EARLY_ROWS], idle.places[start : start + _EARLY_ROWS])
                with self._or_broken(), self._planning:
                    self._check_whole()
                    some = plan.idle(some)
                    self._store({b: some})
                    plan.settled(some)
                yield len(some)

    def refresh(self, block: int, rows: Ints) -> None:
        """The backing's rows were set anew: those that have a place are read again."""
        with self._alone():
            self._load({block: self._plans[block].find(rows)})

    def put(self, block: int, rows: Ints, columns: Mapping[str, Any]) -> None:
        """Sets distinct rows anew: in places that they have or are given, or, of those that find none, below.

        Parameters
        ----------
        columns : dict of str to float [U, ...] or float
            One for all rows.
        """
        with self._or_broken(), self._planning:
            self._check_whole()
            gone, places = self._plans[block].put(rows)
            self._store({block: gone})
            here = self._there[block]
            self._set(
                block,
                Some(rows, places),
                {
                    name: np.broadcast_to(np.asarray(columns[name], of.dtype), (len(rows), *of.shape[1:]))
                    for name, of in here.items()
                },
            )

    def _set(self, block: int, of: Some, values: Mapping[str, Any]) -> None:
        """Rows are these from now on: at their places, below where they have none (-1)."""
        if self._is_read(block, of.places):
            with self._moving:  # what is read there would come after this
                pass
        here, left = of.places >= 0, np.flatnonzero(of.places < 0)
        for name, array in self._there[block].items():
            array[of.places[here]] = values[name][here]
        if len(left):  # before anyone may decide to read them
            below = {name: array[left] for name, array in values.items()}
            self._backing.write_back({block: Moved(of.rows[left], np.arange(len(left)), below)})

    def _is_read(self, block: int, places: Ints) -> bool:
        """Whether any of these places may be read into now."""
        return bool(np.isin(places, self._coming.get(block, NOTHING).places).any())

    def clear(self, block: int) -> None:
        """Takes all rows out as they are, those too that were admitted for steps to come."""
        with self._planning, self._moving:
            self._plans[block].clear()
            self._wait()
            self._broken.discard(block)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nothing is decided, nor read, beside."""
        with self._or_broken(), self._planning, self._moving:
            self._check_whole()
            yield

    @contextmanager
    def _or_broken(self) -> Iterator[None]:
        """Where it fails, rows are not what the plans say."""
        try:
            yield
        except BaseException as error:
            if not self._broken:
                self._first = error
            self._broken.update(self._plans)
            raise

    def _check_whole(self) -> None:
        if self._broken:
            first = self._first
            said = str(first) if isinstance(first, HpcrecError) else f"{type(first).__name__}: {first}"
            raise HpcrecError(
                f"rows could not be brought into a cache of [store] ({said}), so those that are there are not known "
                "any more. Go on from the last checkpoint."
            ) from first

    # Another cache's rows, of one that lies over this one.

    def columns(self, block: int) -> Mapping[str, Floats]:
        """See ``Backing``."""
        return self._backing.columns(block)

    def fetch(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``. Rows that have no place here are read from below, and get none."""
        for some in pieces(moved):
            found, below = dict[int, dict[str, Any]](), dict[int, Moved]()
            with self._or_broken(), self._planning:
                self._check_whole()
                places = {b: self._plans[b].where(of.rows) for b, of in some.items()}
                waits = any((at < 0).any() or self._is_read(b, at) for b, at in places.items())
                with self._moving if waits else nullcontext():
                    for b, of in some.items():
                        there, here = self._there[b], np.flatnonzero(places[b] >= 0)
                        found[b] = {name: np.empty((len(of.rows), *a.shape[1:]), a.dtype) for name, a in there.items()}
                        for name, array in there.items():
                            found[b][name][here] = array[places[b][here]]
                        if len(here) < len(of.rows):
                            left = np.flatnonzero(places[b] < 0)
                            below[b] = Moved(of.rows[left], left, found[b])
                    if below:
                        self._backing.fetch(below)
            for b, of in some.items():
                for name, values in found[b].items():
                    of.columns[name][of.places] = values

    def write_back(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``. Rows that have no place here go below."""
        for some in pieces(moved):
            values = {b: of.values() for b, of in some.items()}
            with self._or_broken(), self._planning:
                self._check_whole()
                for b, of in some.items():
                    self._set(b, Some(of.rows, self._plans[b].rewritten(of.rows)), values[b])

    # Copies.

    def _load(self, some: Mapping[int, Some]) -> None:
        if moved := self._moved(some):
            self._backing.fetch(moved)

    def _store(self, some: Mapping[int, Some]) -> None:
        if moved := self._moved(some):
            self._backing.write_back(moved)

    def _moved(self, some: Mapping[int, Some]) -> dict[int, Moved]:
        return {b: Moved(of.rows, of.places, self._there[b]) for b, of in some.items() if len(of)}

    def _grow(self) -> None:
        """Room on a device for the places that there are. No step's rows are worked on meanwhile."""
        for b, plan in self._plans.items():
            if plan.n_places <= len(self._there[b][""]):
                continue
            n = plan.n_places + (plan.n_places - plan.n_slots) // 4  # the next step's are not quite as many
            there = plan.items()
            self._store({b: plan.changed()})
            plan.settled()
            like = self._backing.columns(b)
            for name, of in like.items():
                del self._there[b][name]  # a copy beside it would be twice the cache
                self._there[b][name] = self._array((n, *of.shape[1:]), of.dtype)
            self._load({b: there})
