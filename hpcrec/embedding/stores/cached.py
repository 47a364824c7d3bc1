"""Rows of a store, cached in faster memory: those of steps to come are brought while the ones before are under way.

``prefetch`` notes which rows a step wants; a thread gives them places in the cache and reads what is missing, step
after step, as far ahead as steps are noted and their rows leave half of the slots to others. ``gather`` waits for its
step's rows, or brings them where the thread has not come to that. Evaluations come between, in the order in which they
are gathered. Knows a cache and what steps ask of blocks; knows no messages and no MPI. Source: [MTRAINS].
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import Condition
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked
from hpcrec.embedding.held_rows import HeldRows
from hpcrec.embedding.stores.cache import Backing, Cache, Moved
from hpcrec.embedding.stores.memory import MemoryStore, Worked
from hpcrec.errors import ConfigError
from hpcrec.types import Floats, Ints

PIECE_ROWS = 1 << 16  # rows that are copied at once: bounds the memory beside them
_SHARE_AHEAD = 2  # rows of steps to come have one in so many slots


@dataclass(eq=False)
class _Noted:
    """A step whose rows are known, or most of them.

    Attributes
    ----------
    step : int
    trains : bool
    rows : dict of int to int64 [U]
        Distinct ones, by cached block.
    clock : int
        How many steps that are learned from were noted, with this one.
    inverse : dict of int to int64 [K]
        The place of each row asked among these; empty as long as the step is only foreseen.
    placed : dict of int to int64 [U] or None
        Rows that were given places: others than ``rows``, where it asks for others than was foreseen.
    """

    step: int
    trains: bool
    rows: dict[int, Any]
    clock: int
    inverse: dict[int, Any] = field(default_factory=dict)
    placed: dict[int, Any] | None = None

    def asks(self, distinct: Mapping[int, tuple[Any, Any]]) -> None:
        """It is known what it asks for."""
        self.inverse = {b: inverse for b, (_, inverse) in distinct.items()}
        if not all(np.array_equal(np.asarray(self.rows[b]), np.asarray(rows)) for b, (rows, _) in distinct.items()):
            self.rows = {b: rows for b, (rows, _) in distinct.items()}


class HeldBacking:
    """A cache's rows are those of ``HeldRows``, by block."""

    def __init__(self, held: Sequence[HeldRows]) -> None:
        self._held = held

    def columns(self, block: int) -> Mapping[str, Floats]:
        """See ``Backing``."""
        return self._held[block].columns

    def fetch(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``."""
        for b, of in moved.items():
            for start in range(0, len(of.rows), PIECE_ROWS):
                some = slice(start, start + PIECE_ROWS)
                for name, found in self._held[b].fetch(of.rows[some]).items():
                    of.columns[name][of.places[some]] = found

    def write_back(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``."""
        for b, of in moved.items():
            for start in range(0, len(of.rows), PIECE_ROWS):
                some = slice(start, start + PIECE_ROWS)
                columns = {name: np.asarray(array[of.places[some]]) for name, array in of.columns.items()}
                self._held[b].write_back(of.rows[some], columns)


class CachedStore(MemoryStore):
    """See ``Store``. A subclass says which blocks are cached, and with how many slots (``_slots``).

    Where none is, steps work on ``held``. ``window``: see ``Store``.
    """

    def __init__(self, *args: Any, window: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._window = window
        found = {b: slots for b in range(len(self.blocks)) if (slots := self._slots(b)) is not None}
        self._cache = self._made_cache({b: (self.blocks[b].rows, slots) for b, slots in found.items()})
        self._apart = [b in self._cache for b in range(len(self.blocks))]
        self._spares: list[list[int]] = [[] for _ in self.blocks]
        for family, rows in self.dynamic.items():
            for b, part in self._parts_of(family):
                self._spares[b].append(part.base + rows.spare)
        self._noted: dict[int, _Noted] = {}  # in the order in which steps will be gathered
        self._waiting: list[int] = []  # of those, what was not gathered yet
        self._admitted: list[int] = []  # of these, what has places
        self._bringing: int | None = None  # the one that is given them now
        self._changed = Condition()  # of all these: another thread routes, and one brings rows
        self._gathered: set[int] = set()  # of those that have places, for as long
        self._running: Future[None] | None = None
        self._runs = False  # and will look for another step before it ends
        self._stilled = 0  # callers that want no rows to be brought
        self._failure: BaseException | None = None
        self._waited_s = 0.0
        self._told = self._seen = 0  # number of the training step that was noted last, and that was looked at last
        threads = kernels.get_threads()
        self._pool = ThreadPoolExecutor(1, "rows ahead", lambda: kernels.set_threads(threads)) if self._cache else None

    def _slots(self, block: int) -> int | None:
        """Slots of a block's cache; None where it is not cached."""
        raise NotImplementedError

    def _backing(self) -> Backing:
        """What the cache lies over."""
        return HeldBacking(self.held)

    def _made_cache(self, blocks: dict[int, tuple[int, int]]) -> Cache:
        try:
            return Cache(self.device, self._backing(), blocks)
        except MemoryError as error:
            raise ConfigError(
                f"store.memory_bytes asks for caches of {[slots for _, slots in blocks.values()]} rows, which this "
                f"rank's {'GPU' if self.on_device else 'host'} has no memory for: {error}. Lower it."
            ) from None

    # Steps.

    @property
    def looks_ahead(self) -> bool:
        """See ``Store``."""
        return bool(self._cache) and self.device is None

    @property
    def window(self) -> int:
        """See ``Store``."""
        return self._window

    @property
    def looks_further(self) -> bool:
        """See ``Store``."""
        wanted = 0 < self._window > self._seen - self._told
        return wanted and bool(self._cache) and self._cache.sees_little()

    def look(self, rows: Sequence[Ints]) -> None:
        """See ``Store``."""
        self._seen += 1
        self._cache.look({b: rows[b] for b in self._cache}, self._seen)

    def look_anew(self) -> None:
        """See ``Store``."""
        self._seen = self._told

    def foresee(self, step: int, rows: Sequence[Ints]) -> None:
        """See ``Store``. Spare rows do not count: who has one now gets a row in the step."""
        spares = [np.array(self._spares[b], np.int64) for b in range(len(self.blocks))]
        known = {b: kernels.dedup(rows[b][~np.isin(rows[b], spares[b])])[0] for b in self._cache}
        with self._changed:
            self._note(step, known, trains=True)
        self._ahead()

    def prefetch(self, step: int, asked: Sequence[Asked]) -> None:
        """See ``Store``."""
        if not self._cache:
            return
        distinct = {b: kernels.dedup(asked[b].index) for b in self._cache}
        trains = all(wanted.grouping is not None for wanted in asked)
        with self._changed:
            if step not in self._noted:
                self._note(step, {b: rows for b, (rows, _) in distinct.items()}, trains=trains)
            self._noted[step].asks(distinct)
        if self.device is None:  # a device's rows are brought between ``gather`` and ``learn``
            self._ahead()

    def _note(self, step: int, rows: dict[int, Any], *, trains: bool) -> None:
        self._told += trains
        self._noted[step] = _Noted(step, trains, rows, self._told)
        self._waiting.append(step)

    def extend(self, step: int, asked: Sequence[Asked]) -> None:
        """See ``Store``. Rows that it had keep their slots, unless they have to make room."""
        if not self._cache:
            return
        waits = step not in self._gathered
        if waits:
            self._give_up_before(step)
        self._taken_over(step)
        noted = self._noted[step]
        noted.asks({b: kernels.dedup(asked[b].index) for b in self._cache})
        self._cache.release(step)
        noted.placed = None
        if waits:
            with self._changed:
                self._waiting.insert(0, step)
        else:
            self._brought(noted)

    def gather(self, step: int, asked: Sequence[Asked], values: Floats) -> None:
        """See ``Store``."""
        if self._cache and step not in self._gathered:
            began_s = time.perf_counter()
            self._gathered.add(step)
            self._give_up_before(step)
            self._taken_over(step)
            noted = self._noted[step]
            if noted.placed is noted.rows and self._cache.waits(step):
                self._cache.load(step)
            else:
                self._cache.release(step)
                self._brought(noted)
            if noted.trains:
                self._waited_s += time.perf_counter() - began_s
        super().gather(step, asked, values)
        self._ahead()

    def learn(self, step: int, *args: Any, **kwargs: Any) -> None:
        """See ``Store``."""
        super().learn(step, *args, **kwargs)
        self._rest()

    def release(self, step: int) -> None:
        """See ``Store``."""
        super().release(step)
        if self._cache:
            if step not in self._gathered:
                self._taken_over(step)
            self._rest()
            self._cache.release(step)
            self._gathered.discard(step)
            with self._changed:
                self._noted.pop(step, None)
            if self.device is None:
                self._ahead()  # there may be room now

    def _worked(self, step: int, block: int, asked: Asked) -> Worked:
        if block not in self._cache:
            return super()._worked(step, block, asked)
        noted = self._noted[step]
        unique, inverse = noted.rows[block], noted.inverse[block]
        places = self._cache.places(step, block)
        if len(asked.index) != len(inverse):  # a part of the bags
            inverse = np.searchsorted(np.asarray(unique), np.asarray(asked.index))
        if asked.grouping is not None and len(asked.grouping.unique) != len(places):  # a part of the rows
            rows = np.asarray(asked.grouping.unique)
            some = self._there(places[np.searchsorted(np.asarray(unique), rows)])
            grouping: kernels.Grouping | None = asked.grouping._replace(unique=some)
            unique = rows
        else:
            grouping = asked.grouping and asked.grouping._replace(unique=self._there(places))
        index = self._there(places)[inverse]
        maxima = asked.maxima and replace(asked.maxima, index=index[len(index) - len(asked.maxima.index) :])
        at_places = replace(asked, index=index, grouping=grouping, maxima=maxima)
        return Worked(at_places, self._cache.rows(block), self._cache.states(block), unique)

    def _there(self, array: Ints) -> Any:
        return array if self.device is None else self.device.array(array)

    def _will_change(self, step: int, works: Sequence[Worked]) -> None:
        for b, (held, work) in enumerate(zip(self.held, works, strict=True)):
            if b in self._cache:
                self._cache.changes(step, b)
            elif len(work.asked.index):
                held.will_change(work.unique)

    def _give_up_before(self, step: int) -> None:
        """Takes steps out that this one shows to have been given up.

        One that is only read may come before others that were routed earlier, and shows nothing of them. One that is
        learned from comes after all that were: what of them still waits, as of an evaluation cut short, never comes.
        """
        with self._changed:
            if not self._noted[step].trains or step not in self._waiting:
                return
            at = self._waiting.index(step)
            over, self._waiting = self._waiting[:at], self._waiting[at:]
        for other in over:
            self._taken_over(other)
            self._cache.release(other)
            with self._changed:
                del self._noted[other]

    def _taken_over(self, step: int) -> None:
        """The step does not wait any more, and is not brought by the thread."""
        with self._changed:
            self._waiting = [s for s in self._waiting if s != step]
            self._changed.wait_for(lambda: self._bringing != step)
            self._admitted = [s for s in self._admitted if s != step]
            if self._failure is not None:
                raise self._failure
        self._rest()

    def _brought(self, noted: _Noted) -> None:
        """Every row of the step has its place."""
        with self._aside():
            self._cache.admit(noted.step, noted.rows, noted.clock if noted.trains else None)
        self._cache.load(noted.step)
        noted.placed = noted.rows

    def _ahead(self) -> None:
        """Begins to bring rows of steps that come, if any are known by now."""
        if self._pool is None:
            return
        with self._changed:
            if not self._runs and self._failure is None and self._coming() is not None:
                self._runs = True
                self._running = self._pool.submit(self._bring)

    def _coming(self) -> _Noted | None:
        """The step whose rows are to be brought next; None: there is none, or they have to wait for room."""
        if self._bringing is not None or self._stilled:
            return None
        ahead = [self._noted[s] for s in self._admitted]
        coming = next(
            (self._noted[s] for s in self._waiting if self._noted[s].trains and s not in self._admitted), None
        )
        if coming is None or (ahead and (self.device is not None or not self._leaves_room([*ahead, coming]))):
            return None
        return coming

    @contextmanager
    def _still(self) -> Iterator[None]:
        """No rows are brought: those below are set anew. Steps that have lost theirs get them in their turn."""
        with self._changed:
            self._stilled += 1
            self._changed.wait_for(lambda: self._bringing is None)
        try:
            yield
        finally:
            with self._changed:
                self._stilled -= 1

    def load(self, *args: Any, **more: Any) -> int:
        """See ``Store``."""
        with self._still():
            return super().load(*args, **more)

    def _leaves_room(self, ahead: Sequence[_Noted]) -> bool:
        """Whether rows of these steps leave enough slots of every block to those under way."""
        slots = {b: self._cache.slots(b) // _SHARE_AHEAD for b in self._cache}
        return all(sum(len(of.rows[b]) for of in ahead) <= n for b, n in slots.items())

    def _bring(self) -> None:
        """Brings rows of steps to come, one after the other, until there is none or they have to wait."""
        while True:
            with self._changed:
                if self._failure is not None or (noted := self._coming()) is None:
                    self._runs = False
                    return
                self._bringing, rows = noted.step, noted.rows
            try:
                with self._aside():
                    self._cache.admit(noted.step, rows, noted.clock)
            except BaseException as error:  # said by the step
                self._failure = error
            with self._changed:
                noted.placed = rows
                self._admitted.append(noted.step)
                self._bringing = None
                self._changed.notify_all()

    def _aside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.device is None else self.device.aside()

    def _rest(self) -> None:
        """On a device rows are not brought while others change, or go."""
        if self.device is not None:
            self._wait()

    def _wait(self) -> None:
        """Nothing is being brought any more."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def close(self) -> None:
        """See ``Store``."""
        if self._pool is not None:
            with self._changed:
                self._waiting.clear()
            self._wait()
            self._pool.shutdown()

    # The rows below.

    def _settled(self, block: int) -> None:
        if block in self._cache:
            self._cache.flush(block)

    def _cleared(self, block: int) -> None:
        if block in self._cache:
            self._cache.clear(block)

    def _put(self, block: int, where: Ints, rows: Floats | float, states: Mapping[str, float]) -> None:
        if block in self._cache and self.device is None:  # a device's places are given between two steps alone
            self._cache.put(block, where, {"": rows, **states})
        else:
            super()._put(block, where, rows, states)

    def _refreshed(self, block: int, rows: Ints) -> None:
        if block in self._cache:
            self._cache.refresh(block, rows)

    def figures(self) -> dict[str, float]:
        """See ``Store``; how often rows were in the cache, and for how long steps have waited for the others."""
        mine = {**self._cache.counts.figures(), "rows_waited_s": self._waited_s} if self._cache else {}
        return {**super().figures(), **mine}
