"""What this rank has come to: its step and, for each communicator, which collective it is in and since when.

Written by the threads that communicate, a few attributes a collective and no lock (under 1 microsecond), and copied to
the rank's board, which outlives it (``comm.board``); read by ``comm.stall``, which compares ranks. The collectives of a
communicator come in the same order on every rank, so a count of them says who has arrived. Each thread also has a clock
that stands still while it waits for other ranks, ``working_time``. Knows no MPI.

What a thread waits here its ``clock`` counts as waiting, in whatever part of its time that is.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from hpcrec import clock
from hpcrec.comm import board

ASIDE = "aside"  # the lane of the thread that works on files, which is in no other one: see ``comm.aside``
WORKING = -1  # in place of the number of the collective that is waited in


def working_time() -> float:
    """Seconds on this thread's clock, which stands still where it waits in a collective or under ``Waiting``.

    Only differences mean something, as of ``time.thread_time``, from which it differs in that a wait for the core, for
    a disk or for a device counts: a rank whose core is slow or shared is slow.
    """
    return time.monotonic() - clock.here().behind_s


class Waiting(clock.Waits):
    """A context manager: this thread waits for another one of its rank, which may wait for other ranks."""

    __slots__ = ("_began_s",)

    def __enter__(self) -> None:
        super().__enter__()
        self._began_s = working_time()

    def __exit__(self, *_: Any) -> None:
        self._clock.behind_s += working_time() - self._began_s
        super().__exit__(*_)


class Hop(NamedTuple):
    """Where in a collective that goes by hops (``comm.levels``) a rank waits.

    Attributes
    ----------
    number : int
        ``BEFORE`` and ``AFTER`` messages between hosts for its host; ``FROM`` and ``TO`` ranks of other hosts.
    ranks : tuple of int
        World ranks: those of its host, itself included; those whose messages it waits for, or that are to take its own.
    """

    number: int
    ranks: tuple[int, ...]


BEFORE, FROM, TO, AFTER = range(4)


class Lane:
    """The collectives of one communicator, which one thread at a time calls.

    Attributes
    ----------
    name : str
    ranks : tuple of int
        World ranks of the communicator.
    count : int
        Collectives started so far.
    waiting : int
        Number (from 1) of the collective that this rank waits in; 0 where it waits in none; ``WORKING`` where it works
        for the next one and says so (``works``).
    tag : str
        Of the collective that this rank waits or last waited in, or works for.
    since_s : float
        When that wait began, or ended, or when that work last came on, by ``time.monotonic``.
    hop : Hop or None
        Where in that collective it waits; None where it has no hops.
    worker : int or None
        The thread that last said that it works.
    """

    __slots__ = ("_did", "_row", "_tags", "count", "hop", "name", "ranks", "since_s", "tag", "waiting", "worker")

    def __init__(self, name: str, ranks: Sequence[int], row: board.Row | None = None) -> None:
        self._row: board.Row = [0.0] * 4 if row is None else row
        self._tags = board.mine().tags
        self.name = name
        self.ranks = tuple(ranks)
        self.count = 0
        self.waiting = 0
        self.tag = ""
        self.since_s = time.monotonic()
        self.hop: Hop | None = None
        self.worker: int | None = None
        self._did = clock.WORKS  # what the thread that waits did before

    def started(self) -> int:
        """Counts a collective; returns its number, for ``waits``."""
        self.count += 1
        self._row[0] = self.count
        return self.count

    def waits(self, number: int, tag: str) -> "Lane":
        """A context manager: this rank waits for the collective's end as long as the block lasts."""
        row = self._row
        self.tag, self.hop = tag, None
        row[2] = self._tags[tag]
        self.since_s = row[3] = time.monotonic()  # before ``waiting``: a reader sees no new wait with an old time
        self.waiting = row[1] = number
        if number > 0:
            self._did = clock.here().turn(clock.WAITS, self.since_s)
        return self

    def works(self, tag: str) -> None:
        """This rank works for the next collective, and has come on just now: as long as it does, nobody waits in vain.

        Until ``rests``, or a wait, it has to be said again and again: a rank that does not come on is a stall.
        """
        self.worker = threading.get_ident()
        self.waits(WORKING, tag)

    def rests(self) -> None:
        """The end of such work, as of a wait."""
        self.__exit__()

    def inside(self, tag: str) -> "Lane":
        """The same for a collective that returns when it is done."""
        return self.waits(self.started(), tag)

    def __enter__(self) -> "Lane":
        return self

    def __exit__(self, *_: object) -> None:
        row, now_s = self._row, time.monotonic()
        if self.waiting > 0:
            here = clock.here()
            here.behind_s += now_s - self.since_s
            here.turn(self._did, now_s)
        self.waiting = row[1] = 0
        self.since_s = row[3] = now_s


class Progress:
    """The step and the lanes of this rank.

    Attributes
    ----------
    lanes : dict of str to Lane
    role : str
        What this rank is, in words.
    """

    def __init__(self) -> None:
        self._step = 0
        self._role = ""
        self.lanes: dict[str, Lane] = {}
        self._board = board.mine()
        self._board.clear_lanes()

    @property
    def step(self) -> int:
        """Steps done."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self._board.set_step(step)

    @property
    def role(self) -> str:
        """What this rank is, in words."""
        return self._role

    @role.setter
    def role(self, role: str) -> None:
        self._role = role
        self._board.set_role(role)

    def lane(self, name: str, ranks: Sequence[int]) -> Lane:
        """A new lane."""
        lane = Lane(name, ranks, self._board.lane(name))
        self.lanes = {**self.lanes, name: lane}  # the stall watch's thread may be going through the old ones
        return lane
