"""Rows of a store, cached in faster memory: those of the step to come are brought while the one before is under way.

``prefetch`` notes which rows a step wants; once the vectors of the step before are gathered, a thread gives them places
in the caches, and ``gather`` waits for it. Evaluations come between, in the order in which they are gathered. Knows
caches and what steps ask of blocks; knows no messages and no MPI. Source: [MTRAINS].
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked
from hpcrec.embedding.stores.cache import CacheCounts, RowCache
from hpcrec.embedding.stores.memory import MemoryStore, Worked
from hpcrec.errors import ConfigError
from hpcrec.types import Floats, Ints

_MOST_ADMITTED = 2  # a step that is learned from, and an evaluation before it


@dataclass(eq=False)
class _Noted:
    """A step whose rows are known: by cached block the distinct ones, and the place of each asked among them."""

    step: int
    trains: bool
    distinct: dict[int, tuple[Any, Any]]


class CachedStore(MemoryStore):
    """See ``Store``. A subclass says which blocks are cached, and with how many slots (``_slots``).

    Where none is, steps work on ``held``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        found = {b: slots for b in range(len(self.blocks)) if (slots := self._slots(b)) is not None}
        self._caches = {b: self._cache(b, slots) for b, slots in found.items()}
        self._apart = [b in self._caches for b in range(len(self.blocks))]
        self._noted: dict[int, _Noted] = {}  # in the order in which steps will be gathered
        self._waiting: list[int] = []  # of those, what was not gathered yet
        self._admitted: list[int] = []  # of those, what has places
        self._gathered: set[int] = set()  # of those that have places, for as long
        self._lock = Lock()  # of these: another thread routes
        self._running: Future[None] | None = None
        threads = kernels.get_threads()
        self._pool = ThreadPoolExecutor(1, "rows ahead", lambda: kernels.set_threads(threads)) if self._caches else None

    def _slots(self, block: int) -> int | None:
        """Slots of a block's cache; None where it is not cached."""
        raise NotImplementedError

    def _cache(self, block: int, slots: int) -> RowCache:
        try:
            return RowCache(self.device, self.held[block], slots)
        except MemoryError as error:
            raise ConfigError(
                f"store.memory_bytes asks for a cache of {slots} rows, which this rank's GPU has no memory for: "
                f"{error}. Lower it."
            ) from None

    # Steps.

    def prefetch(self, step: int, asked: Sequence[Asked]) -> None:
        """See ``Store``."""
        if self._caches:
            distinct = {b: kernels.dedup(asked[b].index) for b in self._caches}
            trains = all(wanted.grouping is not None for wanted in asked)
            with self._lock:
                self._noted[step] = _Noted(step, trains, distinct)
                self._waiting.append(step)

    def extend(self, step: int, asked: Sequence[Asked]) -> None:
        """See ``Store``. Rows that it had keep their slots, unless they have to make room."""
        if not self._caches:
            return
        self._wait()
        with self._lock:
            noted = self._noted[step]
            noted.distinct = {b: kernels.dedup(asked[b].index) for b in self._caches}
            gathered = step in self._gathered
            self._admitted = [s for s in self._admitted if s != step]
        for cache in self._caches.values():
            cache.release(step)
        if gathered:
            with self._aside():
                for b, cache in self._caches.items():
                    cache.admit(step, noted.distinct[b][0])
            for cache in self._caches.values():
                cache.load(step)

    def gather(self, step: int, asked: Sequence[Asked], values: Floats) -> None:
        """See ``Store``."""
        if self._caches and step not in self._gathered:
            self._gathered.add(step)
            self._wait()
            self._give_up_before(step)
            if step not in self._admitted or not all(cache.waits(step) for cache in self._caches.values()):
                self._admit(self._noted[step])
            with self._lock:
                self._admitted = [s for s in self._admitted if s != step]
            for cache in self._caches.values():
                cache.load(step)
        super().gather(step, asked, values)
        self._ahead()

    def learn(self, step: int, *args: Any, **kwargs: Any) -> None:
        """See ``Store``."""
        super().learn(step, *args, **kwargs)
        self._wait()

    def release(self, step: int) -> None:
        """See ``Store``."""
        super().release(step)
        if self._caches:
            self._wait()
            for cache in self._caches.values():
                cache.release(step)
            self._gathered.discard(step)
            with self._lock:
                self._noted.pop(step, None)

    def _worked(self, step: int, block: int, asked: Asked) -> Worked:
        cache = self._caches.get(block)
        if cache is None:
            return super()._worked(step, block, asked)
        unique, inverse = self._noted[step].distinct[block]
        places = cache.places(step)
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
        return Worked(at_places, cache.rows, cache.states, unique)

    def _there(self, array: Ints) -> Any:
        return array if self.device is None else self.device.array(array)

    def _will_change(self, step: int, works: Sequence[Worked]) -> None:
        for b, (held, work) in enumerate(zip(self.held, works, strict=True)):
            if b in self._caches:
                self._caches[b].changes(step)
            elif len(work.asked.index):
                held.will_change(work.unique)

    def _give_up_before(self, step: int) -> None:
        """Takes a step out of those that are to come, and those that it shows to have been given up.

        One that is only read may come before others that were routed earlier, and shows nothing of them. One that is
        learned from comes after all that were: what of them still waits, as of an evaluation cut short, never comes.
        """
        with self._lock:
            over = list[int]()
            if self._noted[step].trains and step in self._waiting:
                over, self._waiting = self._waiting[: (at := self._waiting.index(step))], self._waiting[at + 1 :]
            self._waiting = [s for s in self._waiting if s != step]
            for other in over:
                del self._noted[other]
            self._admitted = [s for s in self._admitted if s not in over]
        for other in over:
            for cache in self._caches.values():
                cache.release(other)

    def _ahead(self) -> None:
        """Begins to bring the rows of the step that comes next, if it is known by now."""
        if self._pool is None:
            return
        with self._lock:
            trained = any(self._noted[s].trains for s in self._admitted)
            others = (s for s in self._waiting if s not in self._admitted)
            # one that is learned from at a time; an evaluation may come before it
            coming = next((s for s in others if not (trained and self._noted[s].trains)), None)
            noted = None if coming is None or len(self._admitted) >= _MOST_ADMITTED else self._noted[coming]
        if noted is not None:
            self._running = self._pool.submit(self._admit, noted)

    def _admit(self, noted: _Noted) -> None:
        with self._aside():
            for b, cache in self._caches.items():
                cache.admit(noted.step, noted.distinct[b][0])
        with self._lock:
            self._admitted.append(noted.step)

    def _aside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.device is None else self.device.aside()

    def _wait(self) -> None:
        """Nothing is being brought any more."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def close(self) -> None:
        """See ``Store``."""
        if self._pool is not None:
            self._wait()
            self._pool.shutdown()

    # The rows below.

    def _settled(self, block: int) -> None:
        if block in self._caches:
            self._caches[block].flush()

    def _cleared(self, block: int) -> None:
        if block in self._caches:
            self._caches[block].clear()

    def _refreshed(self, block: int, rows: Ints) -> None:
        if block in self._caches:
            self._caches[block].refresh(rows)

    def figures(self) -> dict[str, float]:
        """See ``Store``; and how often rows were in the caches."""
        counts = sum((cache.counts for cache in self._caches.values()), start=CacheCounts())
        return {**super().figures(), **(counts.figures() if self._caches else {})}
