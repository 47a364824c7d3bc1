"""Rows of steps to come are brought into the caches of a holder's arenas while the step before is under way.

``read`` of a step notes which rows it wants; once the values of the step before are gathered, a thread admits them, and
``ready`` waits for it. Evaluations come between, in the order in which they are answered. Knows caches and what steps
want of arenas; knows no MPI.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import Any

from hpcrec import kernels
from hpcrec.embedding.arena import Arena
from hpcrec.embedding.cache import Held
from hpcrec.exchange.work import ArenaWork, Served

_MOST_ADMITTED = 2  # a training step, and an evaluation before it


class CacheFeed:
    """Of one holder.

    Parameters
    ----------
    arenas : sequence of Arena
    device : Device or None
    """

    def __init__(self, arenas: Sequence[Arena], device: kernels.Device | None) -> None:
        self._cached = [a for a, arena in enumerate(arenas) if arena.cache is not None]
        self._caches = [arena.cache for arena in arenas if arena.cache is not None]
        self._device = device
        self._read: list[Served] = []
        self._lock = Lock()  # of that: another thread routes
        self._admitted: dict[int, list[Held]] = {}  # by the identity of what was served
        self._running: Future[None] | None = None
        threads = kernels.get_threads()
        self._pool = ThreadPoolExecutor(1, "rows ahead", lambda: kernels.set_threads(threads)) if self._cached else None

    def note(self, served: Served) -> None:
        """A step that will be answered, in this order; its rows are known."""
        if self._cached:
            with self._lock:
                self._read.append(served)

    def ready(self, served: Served) -> None:
        """Brings the step's rows to where it finds them, and tells its works where that is."""
        if not self._cached:
            return
        self.wait()
        self._forget_before(served)
        held = self._admitted.pop(id(served), None)
        if held is None or not all(cache.waits(of) for cache, of in zip(self._caches, held, strict=True)):
            held = self._admit(served)
        works = list(served.works)
        for a, cache, of in zip(self._cached, self._caches, held, strict=True):
            cache.load(of)
            works[a] = _at_slots(works[a], self._device.array(of.slots))  # type: ignore[union-attr]
        served.works = tuple(works)

    def _forget_before(self, served: Served) -> None:
        """Takes a step out of those that are to come, and those that it shows to have been given up.

        An evaluation comes before steps of the training that were routed already; else steps are answered in order.
        """
        trains, over = _trains(served), list[Served]()
        with self._lock:
            while any(other is served for other in self._read):
                over.append(next(o for o in self._read if trains or not _trains(o)))
                self._read = [o for o in self._read if o is not over[-1]]
        for other in over:
            if other is not served:
                self._drop(other)

    def _drop(self, served: Served) -> None:
        for cache, held in zip(self._caches, self._admitted.pop(id(served), ()), strict=False):
            cache.drop(held)

    def ahead(self) -> None:
        """Begins to bring the rows of the step that comes next, if it is known by now."""
        with self._lock:
            waits = any(_trains(served) for served in self._read if id(served) in self._admitted)
            others = (served for served in self._read if id(served) not in self._admitted)
            # Steps after one that waits have to see what it changes; an evaluation may come before it.
            coming = next((served for served in others if not (waits and _trains(served))), None)
        if self._pool is not None and coming is not None and len(self._admitted) < _MOST_ADMITTED:

            def admit() -> None:
                self._admitted[id(coming)] = self._admit(coming)

            self._running = self._pool.submit(admit)

    def done(self) -> None:
        """The step has changed its rows."""
        if self._cached:
            self.wait()
        for cache in self._caches:
            cache.finish()

    def close(self) -> None:
        """No step comes any more."""
        if self._pool is not None:
            self.wait()
            self._pool.shutdown()

    def wait(self) -> None:
        """Nothing is being brought any more."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def _admit(self, served: Served) -> list[Held]:
        assert self._device is not None
        with self._device.aside():
            return [
                cache.admit(_distinct(served.works[a])[0], changes=_trains(served))
                for a, cache in zip(self._cached, self._caches, strict=True)
            ]


def _trains(served: Served) -> bool:
    return all(work.grouping is not None for work in served.works)


def _distinct(work: ArenaWork) -> tuple[Any, Any]:
    assert work.distinct is not None, "rows of this arena are cached"
    return work.distinct


def _at_slots(work: ArenaWork, slots_U: Any) -> ArenaWork:
    """The same, of slots in place of rows."""
    index = slots_U[_distinct(work)[1]]
    grouping = work.grouping and work.grouping._replace(unique=slots_U)
    maxima = work.maxima and replace(work.maxima, index=index[len(index) - len(work.maxima.index) :])
    return replace(work, index=index, grouping=grouping, maxima=maxima)
