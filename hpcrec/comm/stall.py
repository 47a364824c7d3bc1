"""Stalls: a rank that waits too long in a collective has it said, once, by whom and for whom; later the job is ended.

Each rank has a thread that wakes about once a second, looks at ``comm.progress`` and at messages of other ranks' watch
threads, on a communicator of their own. A rank whose wait passes a limit tells the lowest rank that answers; that one
asks every rank where it is and prints one report for all of them: each collective that is waited in, who has arrived
and who has not. A rank that computes, sleeps or reads answers all the same; one that is stopped (SIGSTOP), or held up
in native code that keeps Python's lock, does not, and is named as such. Work that is long and says that it comes on
(``Lane.works``) is no stall for whoever waits for it, and one itself when it does not.

Past the second limit the report comes with stacks and the job ends. Does not know what the collectives are for.
"""

import atexit
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrec.comm.failure import ExitCodes, attempt, end_job, say
from hpcrec.comm.library import MPI
from hpcrec.comm.progress import WORKING, Progress
from hpcrec.comm.stall_report import Standing, Wait, describe, find_held_up, find_waits, stacks, where

_LONGEST_TICK_S = 1.0
_BUSY_TICK_S = 0.02  # while an answer is awaited
_ANSWER_S = 2.0  # beyond two ticks: how long a rank may take to answer
_TELL_AGAIN_S = 15.0  # whoever was to end the job has not
_MOST_STACKS = 8
_NOTE_S = 2.0  # how long the end of the job is put off for a note of it
_TELL, _ASK, _ANSWER = 1, 2, 3  # message tags
REPORT, ABORT = 1, 2  # levels


@dataclass(frozen=True)
class StallLimits:
    """Seconds of waiting in one collective after which it is reported, and the job ended; 0 means never."""

    report_s: float
    abort_s: float

    def of(self, level: int) -> float:
        """The limit of a level."""
        return self.report_s if level == REPORT else self.abort_s


@dataclass
class _Round:
    """One collection of standings by this rank."""

    level: int
    until_s: float
    standings: dict[int, Standing] = field(default_factory=dict)


class StallWatch:
    """The watch thread of a rank. Made by every rank of ``comm``; collective, as ``close`` is.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks. Where MPI does not let a second thread communicate, each rank reports for itself alone.
    progress : Progress
        This rank's, with all its lanes.
    members : mapping of str to tuple of int
        World ranks of every communicator that any rank has a lane for.
    limits : StallLimits

    Attributes
    ----------
    note : callable or None
        Given the report by the rank that ends the job, before it does. It has a moment, on a thread of its own.
    """

    def __init__(
        self, comm: MPI.Intracomm, progress: Progress, members: Mapping[str, tuple[int, ...]], limits: StallLimits
    ) -> None:
        self._comm = comm.Dup()
        self._asks = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        self._progress = progress
        self._members = dict(members)
        self._limits = limits
        self.note: Callable[[str], None] | None = None
        given = [limit for limit in (limits.report_s, limits.abort_s) if limit]
        self.tick_s = min(_LONGEST_TICK_S, min(given) / 4)
        self._answer_s = _ANSWER_S + 2 * self.tick_s
        self._told: dict[str, tuple[int, int, float]] = {}  # lane -> (number, level, until when that will do)
        self._reported: set[tuple[str, int, tuple[int, ...]]] = set()  # (lane, number, ranks missing)
        self._candidate = -1  # the rank that was told and has not asked yet; -1: none
        self._candidate_until_s = 0.0
        self._round: _Round | None = None
        self._serial = 0
        self._sending: list[MPI.Request] = []
        self._ended = threading.Event()
        # The thread holds no reference to self, so a world that is dropped without close() ends it.
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(self), self._ended), name="stall-watch", daemon=True
        )
        self._thread.start()
        atexit.register(_stop, weakref.ref(self))  # before MPI_Finalize, which mpi4py runs later

    def add(self, members: Mapping[str, tuple[int, ...]]) -> None:
        """Communicators that are made later; every rank adds the same."""
        self._members = {**self._members, **members}

    def stop(self) -> None:
        """Ends the thread; this rank answers no more."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def close(self) -> None:
        """Ends the threads of all ranks and frees the communicator; collective.

        All that was sent is received first, and not answered: MPI may give the next communicator the number of this
        one, and with it what is still on its way.
        """
        self.stop()
        while self._unsent():
            self._receive_all()
        every = self._comm.Ibarrier()  # ends once all that any rank has sent is received
        while not every.Test():
            self._receive_all()
        self._comm.Free()

    def _unsent(self) -> list[MPI.Request]:
        """What was sent and not received yet."""
        self._sending = [request for request in self._sending if not request.Test()]
        return self._sending

    def _receive_all(self) -> None:
        """Takes what has come, and does nothing with it."""
        while (message := self._comm.improbe()) is not None:
            message.recv()
        time.sleep(_BUSY_TICK_S / 10)

    def look(self) -> float:
        """One turn of the thread; returns seconds until the next."""
        if self._asks:
            self._serve()
        now_s = time.monotonic()
        level = self._due(now_s)
        if self._round is not None:
            if now_s > self._round.until_s or len(self._round.standings) == self._comm.size:
                done, self._round = self._round, None
                self._report(done)
        elif level == 0:
            self._candidate = -1
        elif not self._asks or self._comm.rank == 0:
            self._collect(level, now_s)
        elif self._candidate < 0 or now_s > self._candidate_until_s:
            self._tell_next(level, now_s)
        return _BUSY_TICK_S if self._round is not None or self._candidate >= 0 else self.tick_s

    # What this rank has to say.

    def _due(self, now_s: float) -> int:
        """The highest level of a wait of this rank that nobody has taken up yet; 0: none."""
        due = 0
        for name, lane in self._progress.lanes.items():
            number, since_s = lane.waiting, lane.since_s
            for level in (REPORT, ABORT):
                limit_s = self._limits.of(level)
                told_number, told_level, until_s = self._told.get(name, (0, 0, 0.0))
                taken_up = told_number == number and told_level >= level and now_s < until_s
                if number and limit_s and now_s - since_s >= limit_s and not taken_up:
                    due = max(due, level)
        return due

    def _standing(self, level: int) -> Standing:
        """Where this rank is; its waits count as taken up at this level from now on."""
        now_s, lanes, hops, aside = time.monotonic(), {}, {}, ""
        for name, lane in self._progress.lanes.items():
            number, seconds_s = lane.waiting, now_s - lane.since_s
            lanes[name] = (lane.count, number, lane.tag, seconds_s)
            if number > 0 and (hop := lane.hop) is not None:
                hops[name] = hop
            if number and seconds_s >= self._limits.of(level) / 2:
                self._told[name] = (number, level, now_s + self._will_do_s(level))
            if number == WORKING:
                aside = where(lane.worker)
        self._candidate = -1
        everything = stacks() if level == ABORT else ""
        role = self._progress.role
        return Standing(self._progress.step, lanes, socket.gethostname(), where(), everything, role, aside, hops)

    def _will_do_s(self, level: int) -> float:
        """How long a wait that was taken up is not told again.

        It may have been none, for work that came on when it was looked at, and become one since.
        """
        return _TELL_AGAIN_S if level == ABORT else min(_TELL_AGAIN_S, self._limits.of(level) / 4)

    # Between ranks.

    def _tell_next(self, level: int, now_s: float) -> None:
        """Tells rank 0; where it does not ask back, ranks 1, 3, 7, ...; at last this rank asks itself."""
        self._candidate = 2 * self._candidate + 1 if self._candidate >= 0 else 0
        if self._candidate >= self._comm.rank:
            self._collect(level, now_s)
            return
        self._candidate_until_s = now_s + self._answer_s
        self._send(level, self._candidate, _TELL)

    def _collect(self, level: int, now_s: float) -> None:
        self._serial += 1
        self._round = _Round(level, now_s + (self._answer_s if self._asks else 0.0))
        self._round.standings[self._comm.rank] = self._standing(level)
        for rank in range(self._comm.size):
            if self._asks and rank != self._comm.rank:
                self._send((level, self._serial), rank, _ASK)

    def _send(self, thing: Any, rank: int, tag: int) -> None:
        self._unsent()
        self._sending.append(self._comm.issend(thing, rank, tag))  # which is known to be received

    def _serve(self) -> None:
        """Takes up what other ranks have sent."""
        status = MPI.Status()
        while (message := self._comm.improbe(status=status)) is not None:
            source, tag = status.Get_source(), status.Get_tag()
            thing = message.recv()
            if tag == _TELL and self._round is None:
                self._collect(int(thing), time.monotonic())
            elif tag == _ASK:
                level, serial = thing
                self._send((serial, self._standing(level)), source, _ANSWER)
            elif tag == _ANSWER and self._round is not None and thing[0] == self._serial:
                self._round.standings[source] = thing[1]

    def _report(self, done: _Round) -> None:
        members = self._members if self._asks else dict.fromkeys(self._progress.lanes, (self._comm.rank,))
        members = {lane: ranks for lane, ranks in members.items() if _all_have(lane, ranks, done.standings)}
        level, waits = self._lasting(done, members)
        if level == 0:
            return  # it has ended in the meantime, or comes on
        limit_s = self._limits.of(level)
        text, blamed = describe(waits, done.standings)
        if not self._asks:
            text += "\n  which ranks are missing is not known: this MPI has no MPI_THREAD_MULTIPLE"
        if level == REPORT:
            if self._limits.abort_s:
                text += f"\n  after {self._limits.abort_s:g} s (run.stall_abort_s) the job is ended"
            say("".join(f"hpcrec: stall: {line}\n" for line in text.splitlines()))
            return
        shown = [r for r in (*blamed[:_MOST_STACKS], *waits[0].waiting[:1]) if r in done.standings]
        traces = "".join(f"hpcrec: stacks of rank {r}:\n{done.standings[r].stacks}" for r in dict.fromkeys(shown))
        said = f"stalled past run.stall_abort_s = {limit_s:g}, the job is ended: {text}"
        say(f"{traces}hpcrec: error: {said}\n")
        if (note := self.note) is not None:
            attempt(lambda: note(said), _NOTE_S)
        end_job(self._comm, "", ExitCodes.ERROR)

    def _lasting(self, done: _Round, members: Mapping[str, tuple[int, ...]]) -> tuple[int, list[Wait]]:
        """The highest level that is due by what all ranks said, 0 where none is, and the waits to report."""
        for level in (ABORT, REPORT):
            limit_s = self._limits.of(level)
            if not limit_s or level > done.level:
                continue
            waits = find_waits(done.standings, members, limit_s / 2)
            waits += find_held_up(done.standings, members, waits, limit_s / 2)
            due = {(w.lane, w.number, w.missing) for w in waits if w.seconds_s >= limit_s}
            if due and level == ABORT:
                return level, waits
            if due - self._reported:
                self._reported |= due
                return level, waits
        return 0, []


def _all_have(lane: str, ranks: Sequence[int], standings: Mapping[int, Standing]) -> bool:
    """Whether all ranks of a lane that have answered had it by then: it may have been made meanwhile."""
    return all(lane in standings[rank].lanes for rank in ranks if rank in standings)


def _run(watch: "weakref.ref[StallWatch]", ended: threading.Event) -> None:
    pause_s = _BUSY_TICK_S
    while not ended.wait(pause_s):
        alive = watch()
        if alive is None:
            return
        pause_s = alive.look()
        del alive


def _stop(watch: "weakref.ref[StallWatch]") -> None:
    alive = watch()
    if alive is not None:
        alive.stop()
