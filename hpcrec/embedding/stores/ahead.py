"""Rows of steps to come, brought into a cache by a thread while the steps before are under way.

A step is noted when its rows are known; the thread gives them places and reads what is missing, step after step, as far
ahead as steps are noted and their rows leave half of the slots to others. ``need`` waits for a step's rows, or brings
them where the thread has not come to that. Where the cache lies over another one, that has a thread of its own, which
runs ahead in the same steps. Knows steps by number and rows by block; knows not what a step does. Source: [MTRAINS].
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, Self

import numpy as np

from hpcrec import kernels
from hpcrec.clock import Phase, Waits
from hpcrec.embedding.stores.cache import Cache
from hpcrec.types import Ints

_SHARE_AHEAD = 2  # rows of steps to come have one in so many slots


@dataclass(eq=False)
class Noted:
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
    on_host : dict of int to int64 [U]
        Of rows that are in an array of a device, copies, where the cache below has some.
    """

    step: int
    trains: bool
    rows: dict[int, Any]
    clock: int
    inverse: dict[int, Any] = field(default_factory=dict)
    placed: dict[int, Any] | None = None
    on_host: dict[int, Ints] = field(default_factory=dict)

    def asks(self, rows: Mapping[int, Any], inverse: Mapping[int, Any]) -> None:
        """It is known what it asks for."""
        self.inverse = dict(inverse)
        if any(found is not self.rows[b] for b, found in rows.items()) and not all(
            np.array_equal(np.asarray(self.rows[b]), np.asarray(found)) for b, found in rows.items()
        ):
            self.rows = dict(rows)


class Ahead:
    """Of one cache. One call at a time, but that steps may be noted by another thread.

    Parameters
    ----------
    cache : Cache
    device : Device or None
        Where it is: rows are brought to a device one step ahead, and not while others change there or go (``rest``).
    below : Ahead, optional
        Of the cache over which this one lies.
    """

    def __init__(self, cache: Cache, device: kernels.Device | None, below: Self | None = None) -> None:
        self.cache, self._device, self.below = cache, device, below
        self._noted: dict[int, Noted] = {}  # in the order in which steps will be read
        self._waiting: list[int] = []  # of those, what was not read yet
        self._admitted: list[int] = []  # of these, what has places
        self._bringing: int | None = None  # the one that is given them now
        self._changed = Condition()  # of all these: another thread routes, and one brings rows
        self._read: set[int] = set()  # steps that need their rows, until they are released
        self._running: Future[None] | None = None
        self._runs = False  # and will look for another step before it ends
        self._stilled = 0  # callers that want no rows to be brought
        self._failure: BaseException | None = None  # of the thread
        self.told = 0  # steps that are learned from and were noted
        threads = kernels.get_threads()
        self._pool = ThreadPoolExecutor(1, "rows ahead", lambda: kernels.set_threads(threads)) if cache else None

    @property
    def lowest(self) -> Self:
        """Of the last cache below."""
        return self if self.below is None else self.below.lowest

    def noted(self, step: int) -> Noted:
        """A step that was noted and not released."""
        return self._noted[step]

    def needs(self, step: int) -> bool:
        """Whether a step has asked for its rows, and was not released."""
        return step in self._read

    def here(self, rows: Mapping[int, Any]) -> dict[int, Ints]:
        """Of rows by block those that are cached here, the host's arrays."""
        return {b: np.asarray(of) for b, of in rows.items() if b in self.cache}

    # What is known of steps.

    def foresee(self, step: int, rows: dict[int, Ints]) -> None:
        """A step that will be noted, and most of its rows; the host's arrays."""
        if self.below is not None:
            self.below.foresee(step, rows)
            return
        with self._changed:
            self._note(step, rows, trains=True)
        self.start()

    def note(self, step: int, rows: dict[int, Any], inverse: Mapping[int, Any], *, trains: bool) -> None:
        """A step, and its distinct rows [U]; ``inverse``: see ``Noted``."""
        on_host = dict[int, Ints]()
        if self.below is not None and trains:
            foreseen, on_host = step in self.below._noted, self.below.here(rows)
            self.below.note(step, on_host, {}, trains=True)
            if foreseen:  # then it is read at once, and what was foreseen before and has not come never does
                self.below._give_up_before(step)
        with self._changed:
            if step not in self._noted:
                self._note(step, rows, trains=trains)
            self._noted[step].asks(rows, inverse)
            self._noted[step].on_host = on_host
        if self._device is None:  # a device's rows are brought between two calls of the step under way
            self.start()

    def _note(self, step: int, rows: dict[int, Any], *, trains: bool) -> None:
        self.told += trains
        self._noted[step] = Noted(step, trains, rows, self.told)
        self._waiting.append(step)

    def note_anew(self, step: int, rows: dict[int, Any], inverse: Mapping[int, Any]) -> None:
        """The step asks for these. Rows that it had keep their slots, unless they have to make room."""
        if step not in self._read:
            self._give_up_before(step)
        self._note_anew(step, rows, inverse)

    def _note_anew(self, step: int, rows: dict[int, Any], inverse: Mapping[int, Any]) -> None:
        noted, waits = self._noted[step], step not in self._read
        self._taken_over(step)  # and its thread is not below
        noted.on_host = {}
        if self.below is not None and noted.trains:
            noted.on_host = self.below.here(rows)
            self.below._note_anew(step, noted.on_host, {})
        noted.asks(rows, inverse)
        self.cache.release(step)
        noted.placed = None
        if waits:
            with self._changed:
                self._waiting.insert(0, step)
        else:
            self._bring(noted)

    # Steps.

    def need(self, step: int) -> None:
        """Every row of the step has its place, as long as it is not released."""
        self._give_up_before(step)
        self._need(step)

    def _need(self, step: int) -> None:
        self._read.add(step)
        self._taken_over(step)
        noted = self._noted[step]
        if noted.placed is noted.rows and self.cache.waits(step):
            self.cache.load(step)
        else:
            self.cache.release(step)
            self._bring(noted)

    @contextmanager
    def beside(self, step: int, rows: dict[int, Any], inverse: Mapping[int, Any]) -> Iterator[None]:
        """A step that takes no slot from others, from its first call to its last; nothing is brought meanwhile."""
        with self.still():
            self.note(step, rows, inverse, trains=False)
            self.need(step)
            try:
                yield
            finally:
                self.release(step)

    def release(self, step: int) -> None:
        """The step is over, or does not come."""
        if step not in self._read:
            self._taken_over(step)
        self.rest()
        self._forget(step)
        if self._device is None:
            self.start()  # there may be room now

    def _forget(self, step: int) -> None:
        self.cache.release(step)
        self._read.discard(step)
        with self._changed:
            self._noted.pop(step, None)
        if self.below is not None:
            self.below.release(step)

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
            self._forget(other)

    def _taken_over(self, step: int) -> None:
        """The step does not wait any more, and is not brought by the thread."""
        with self._changed:
            self._waiting = [s for s in self._waiting if s != step]
            with Waits():
                self._changed.wait_for(lambda: self._bringing != step)
            self._admitted = [s for s in self._admitted if s != step]
            self._raise()
        self.rest()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _bring(self, noted: Noted) -> None:
        """Every row of the step has its place."""
        with self._aside():
            self._admit(noted, noted.rows)
        self.cache.load(noted.step)
        noted.placed = noted.rows

    def _admit(self, noted: Noted, rows: dict[int, Any]) -> None:
        if self.below is not None and noted.trains:
            self.below._need(noted.step)  # those before it may still come: this thread may have overtaken a step
        self.cache.admit(noted.step, rows, noted.clock if noted.trains else None, noted.on_host)

    # The thread.

    def start(self) -> None:
        """Begins to bring rows of steps that come, if any are known by now."""
        if self._pool is None:
            return
        with self._changed:
            if not self._runs and self._failure is None and self._coming() is not None:
                self._runs = True
                self._running = self._pool.submit(self._run)

    def _coming(self) -> Noted | None:
        """The step whose rows are to be brought next; None: there is none, or they have to wait for room."""
        if self._bringing is not None or self._stilled:
            return None
        ahead = [self._noted[s] for s in self._admitted]
        coming = next(
            (self._noted[s] for s in self._waiting if self._noted[s].trains and s not in self._admitted), None
        )
        if coming is None or (ahead and (self._device is not None or not self._leaves_room([*ahead, coming]))):
            return None
        return coming

    def _leaves_room(self, ahead: Sequence[Noted]) -> bool:
        """Whether rows of these steps leave enough slots of every block to those under way."""
        slots = {b: self.cache.slots(b) // _SHARE_AHEAD for b in self.cache}
        return all(sum(len(of.rows[b]) for of in ahead) <= n for b, n in slots.items())

    def _run(self) -> None:
        """Brings rows of steps to come, one after the other, until there is none or they have to wait."""
        while True:
            with self._changed:
                if self._failure is not None or (noted := self._coming()) is None:
                    self._runs = False
                    return
                self._bringing, rows = noted.step, noted.rows
            try:
                with Phase("bring"), self._aside():
                    self._admit(noted, rows)
            except BaseException as error:  # said by the next step that comes, or by ``close``
                self._failure = error
            with self._changed:
                noted.placed = rows
                self._admitted.append(noted.step)
                self._bringing = None
                self._changed.notify_all()

    @contextmanager
    def still(self) -> Iterator[None]:
        """No rows are brought: those below are set anew. Steps that have lost theirs get them in their turn."""
        with self.still_here(), nullcontext() if self.below is None else self.below.still():
            yield

    @contextmanager
    def still_here(self) -> Iterator[None]:
        """No rows are brought into this cache, while its thread may go on below. It goes on with its own afterwards."""
        with self._changed:
            runs = self._runs
            self._stilled += 1
            with Waits():
                self._changed.wait_for(lambda: self._bringing is None)
        try:
            yield
        finally:
            with self._changed:
                self._stilled -= 1
            if runs:  # it may have ended for this
                self.start()

    def rest(self) -> None:
        """On a device nothing is being brought any more."""
        if self._device is not None:
            self._wait()

    def _wait(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            with Waits():
                running.result()

    def _aside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._device is None else self._device.aside()

    def close(self) -> None:
        """No step comes any more. Raises what its thread has failed with: perhaps no step was told."""
        try:
            if self._pool is not None:
                with self._changed:
                    self._waiting.clear()
                self._pool.shutdown()
                self._wait()
                self._raise()
        finally:
            if self.below is not None:
                self.below.close()
