"""The threads that read and learn, where several steps are in flight.

::

    main           inputs t        forward, backward t        learn t handed over      inputs t+1
    values         read t+1: gather | send, receive, assemble        read t+2: gather | ...
    gradients            learn t-1: send, receive | apply                 learn t: ... | apply

One thread reads and another one learns, each on a communicator of its own, so that values and gradients, which cross in
opposite directions, do so at once. What both do with rows, left and right of the bars, comes in the order of
``policy.events``, one at a time: gather into the message, then send; receive, then apply. Where that cannot be taken
apart, one thread does both. What the threads may do is fixed by what they were handed, the same on every rank, so they
also come to rest at the same place on every rank. Knows when; what is done is for ``exchange``.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from hpcrec import kernels
from hpcrec.comm.progress import Waiting, working_time
from hpcrec.errors import HpcrecError
from hpcrec.exchange.exchange import Exchange, Timer
from hpcrec.exchange.inputs import Gradients, Inputs
from hpcrec.exchange.kept import KeptRows
from hpcrec.exchange.route import Route
from hpcrec.policy.policy import (
    EVALUATE,
    LEARN,
    LEARN_FIRST,
    LEARN_REST,
    READ,
    READ_EARLY,
    READ_LATE,
    Points,
    Policy,
    events,
)
from hpcrec.policy.tickets import Ticket
from hpcrec.policy.trials import SKIPPED, STEPS, Trials

VALUES, GRADIENTS = "values", "gradients"  # lanes, and threads: the first does both where there is one
_LEARNS = (LEARN, LEARN_FIRST, LEARN_REST)


class _GivenUpError(Exception):
    """A thread waits for something that does not come any more."""


@dataclass
class _Segment:
    """Steps between two drain points. ``planned`` is where the second was when the first thread came here."""

    first: int
    planned: int
    until: int


@dataclass(frozen=True)
class _Turn:
    """An event's place in the order: it is number ``number`` of its ``kind``, after ``before`` of the ``other`` one."""

    thread: str
    kind: str
    other: str
    number: int
    before: int


@dataclass
class _Trial:
    """A staleness is tried in steps [first, until): what was measured so far, and when the step under way began."""

    first: int
    until: int
    took_s: float = 0.0
    waited_s: float = 0.0
    since_s: float = 0.0
    step_waited_s: float = 0.0
    counts: bool = True  # the step under way: it does not follow a drain point, whose wait no staleness hides


class Flight:
    """The threads of a rank. All that is public is called by the main thread.

    They wait for what only the main thread can give (a ticket, gradients, that a drain point or an evaluation is over),
    for each other, and for the other ranks. ``settle`` returns when none can go on without the main thread: what they
    have done by then is the same on every rank, so that an evaluation may be read on their communicator meanwhile.

    Parameters
    ----------
    policy : Policy
        With several steps in flight.
    exchange : Exchange
        On the lane ``VALUES``, and ``GRADIENTS`` where there are two.
    timer : callable
    points : Points
    learned : callable
        Called with the number of each step that is learned here, by the thread that does, before rows change again.
    agreed : callable
        The largest of a number over all ranks; collective, on the main thread.
    """

    def __init__(
        self,
        policy: Policy,
        exchange: Exchange,
        timer: Timer,
        points: Points,
        learned: Callable[[int], None],
        agreed: Callable[[float], float],
    ) -> None:
        self._policy, self._exchange, self._timer, self._points = policy, exchange, timer, points
        self._learned, self._agreed = learned, agreed
        self._trials: Trials | None = getattr(policy, "trials", None)
        self._trial = _Trial(0, 0)
        self._changed = threading.Condition()  # guards all that follows
        self._threads: dict[str, threading.Thread] = {}
        self._failure: BaseException | None = None
        self._ready: dict[str, Callable[[], bool]] = {}  # what a thread waits for, while it does
        self._ended: set[str] = set()  # threads
        self._given_up = False
        self._segments: list[_Segment] = []
        self._first = self._last = self._submitted = self._asked = 0
        self._tickets: dict[int, Ticket] = {}  # by step: submitted and not yet learned
        self._expected: dict[int, int] = {}  # step of each ticket to be read, by identity
        self._read: dict[int, Route] = {}  # by identity of the ticket
        self._handed: dict[int, tuple[Gradients | None, bool | None, float]] = {}  # by step
        self._flying: dict[int, Route] = {}  # of steps read and not yet learned, by step
        self._turns = {VALUES: 0, GRADIENTS: 0}  # reads and updates that have done with rows
        self._scale = 1.0  # of the step that was learned in part
        self._looked = 0  # steps below: what dense ranks keep of their rows is known
        self._told: dict[int, bool] = {}  # verdicts, by step, where the main thread does not know them
        self._worked_s = {VALUES: 0.0, GRADIENTS: 0.0}  # each written by one thread alone
        self._drained, self._drained_s = 0, 0.0
        self._step_waited_s = 0.0  # for values, by the tickets of a step so far
        self._usual, self._usual_s = 0, 0.0  # steps that do not follow a drain point, and their waits for values

    @property
    def worked_s(self) -> float:
        """See ``Pipeline.worked_s``."""
        return sum(self._worked_s.values())

    @property
    def drains(self) -> tuple[int, float]:
        """See ``Pipeline``."""
        return self._drained, self._drained_s

    def drain_after(self, step: int) -> None:
        """See ``Pipeline``."""
        with self._changed:
            assert step >= self._submitted, f"step {step} may have been read"
            self._points = replace(self._points, once=(*self._points.once, step))
            if self._segments:
                self._segments[-1].until = min(self._segments[-1].until, step)
            self._changed.notify_all()

    def begin(self, first: int, last: int) -> None:
        """See ``Pipeline``."""
        self.give_up()
        self.settle()
        self._given_up, self._first, self._last, self._submitted, self._asked = False, first, last, first, first
        self._looked = first
        lefts = self._tickets, self._expected, self._read, self._handed, self._told, self._flying
        for left in (*lefts, self._ended, self._segments):
            left.clear()
        self._turns, self._exchange.version = dict.fromkeys(self._turns, 0), first
        if self._trials is not None and not self._trials.found:
            self._trials.begin()
            self._try(first)
        names, threads = (VALUES, GRADIENTS) if self._exchange.two_lanes else (VALUES,), kernels.get_threads()
        self._threads = {
            name: threading.Thread(target=self._run, args=(name, len(names) == 1, threads), name=name, daemon=True)
            for name in names
        }
        for thread in self._threads.values():
            thread.start()

    def submit(self, ticket: Ticket) -> None:
        """A training batch, the next one."""
        with self._changed:
            self._raise()
            self._tickets[self._submitted] = ticket
            self._expected |= {id(one): self._submitted for one in (*ticket.beside, ticket)}
            self._submitted += 1
            self._changed.notify_all()

    def inputs(self, ticket: Ticket) -> Inputs | None:
        """See ``Pipeline``."""
        step = self._expected.pop(id(ticket), None)
        if step not in (None, self._asked) and self._trials is not None and not self._trials.found:
            self._go_on_trying(step, self._trials)
        copies = self._exchange.copies
        if copies is not None and step is not None:
            self._look(step, copies)
        with self._changed:
            if step is not None:
                self._asked, began_s = step, time.perf_counter()
                self._changed.notify_all()
                with self._timer("values_wait"):
                    self._take(lambda: id(ticket) in self._read and not self._given_up)  # read before, perhaps
                route = self._read.pop(id(ticket))
                own = self._tickets.get(step) is ticket  # else one of those beside it, which come first
                self._waited(step, time.perf_counter() - began_s, asks=route.asked is not None, last=own)
        if step is None:
            self.settle()  # an evaluation, read here: nothing else is on the communicator
            with self._timer("route_wait"), Waiting():
                route = ticket.routed.result()
            self._exchange.read(route)
        return self._exchange.inputs(route)

    def _look(self, step: int, copies: KeptRows) -> None:
        """What is kept of the rows of all steps that are read before this one, which begins, is learned.

        It is known as the step before has left it.
        """
        until = min(self._points.next_drain(step, self._last), step + self._policy.in_flight)
        while self._looked < until:
            with self._timer("route_wait"), Waiting():
                route = self._tickets[self._looked].routed.result()
            with self._timer("copies"):
                copies.look(route)
            with self._changed:
                self._looked += 1
                self._changed.notify_all()
            if route.stop:  # no step follows
                break

    def learn(self, step: int, gradients: Gradients | None, verdict: bool | None, lr_scale: float) -> bool:
        """See ``Pipeline``."""
        with self._changed:
            self._raise()
            self._handed[step] = gradients, verdict, lr_scale
            self._changed.notify_all()
            if verdict is not None:
                return verdict
            with self._timer("gradients_wait"):
                self._take(lambda: step in self._told)
            return self._told.pop(step)

    def settle(self) -> None:
        """See ``Pipeline``."""
        if not self._threads:
            return
        with self._changed:
            flew, began_s = bool(self._flying), time.perf_counter()
            self._wait(self._at_rest)
            ended = self._given_up
            if flew and self.rested and self._asked + 1 < self._last and not ended and not self._seeks(self._asked + 1):
                self._drained_s += time.perf_counter() - began_s
        if ended:
            with Waiting():
                for thread in self._threads.values():
                    thread.join()
            self._threads = {}
            self._raise()
            for route in self._flying.values():
                self._exchange.give_up(route)

    def _try(self, step: int) -> None:
        """A trial begins with this step, and ends at a drain point."""
        until = max(step + STEPS, self._submitted)
        self._trial = _Trial(step, until)
        self.drain_after(until)

    def _go_on_trying(self, step: int, trials: Trials) -> None:
        """A step is asked for while the staleness is sought: before anything is read for one after a drain point.

        Collective at the end of a trial; all ranks decide alike.
        """
        trial, now_s = self._trial, time.perf_counter()
        with self._changed:
            rested = self._points.evaluated(step) or self._segments[-1].until == step
        if step > trial.first + SKIPPED and not rested and trial.counts:
            trial.took_s, trial.waited_s = trial.took_s + now_s - trial.since_s, trial.waited_s + trial.step_waited_s
        trial.since_s = now_s
        if step == trial.until:
            trials.tell(self._agreed(trial.waited_s / trial.took_s if trial.took_s else 0.0), step)
            if not trials.found:
                self._try(step)
                self._trial.since_s = now_s

    def _seeks(self, step: int) -> bool:
        """Whether a drain point before this step may be one of a trial's."""
        return self._trials is not None and (not self._trials.found or step <= self._trial.until)

    def _waited(self, step: int, waited_s: float, *, asks: bool, last: bool) -> None:
        """A step has waited so long for values, or longer: the first one after a drain point for a whole read."""
        self._step_waited_s += waited_s
        if not last:
            return
        waited_s, self._step_waited_s = self._step_waited_s, 0.0
        after_drain = self._segments[-1].first == step
        self._trial.step_waited_s, self._trial.counts = waited_s if asks else 0.0, not after_drain
        if not after_drain:
            self._usual, self._usual_s = self._usual + 1, self._usual_s + waited_s
        elif step > self._first and not self._seeks(step):
            self._drained += 1
            self._drained_s += max(0.0, waited_s - self._usual_s / max(self._usual, 1))

    @property
    def rested(self) -> bool:
        """After ``settle``: no step is read and not learned."""
        return not self._flying

    def give_up(self) -> None:
        """See ``Pipeline``."""
        with self._changed:
            self._given_up = bool(self._threads)
            self._changed.notify_all()

    def end(self, within_s: float) -> bool:
        """Gives up, and says whether all threads have ended within so many seconds; raises nothing."""
        self.give_up()
        until_s = time.monotonic() + within_s
        for thread in self._threads.values():
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads.values())

    def _at_rest(self) -> bool:
        """Every thread waits, and for what is not there."""
        return all(name in self._ended or (name in self._ready and not self._ready[name]()) for name in self._threads)

    def _wait(self, ready: Callable[[], bool]) -> None:
        """For the threads, until ``ready()``; raises what one has failed with."""
        with Waiting():
            self._changed.wait_for(lambda: ready() or self._failure is not None or self._given_up)
        self._raise()

    def _take(self, ready: Callable[[], bool]) -> None:
        """The same for what only they can give."""
        self._wait(ready)
        if not ready():
            raise HpcrecError(
                "steps in flight were given up, by a checkpoint that was loaded for one. Leave the loop over the steps "
                "before, and begin a new one."
            )

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Called by the threads.

    def _run(self, name: str, both: bool, threads: int) -> None:
        kernels.set_threads(threads)
        try:
            self._go(name, both=both)
        except _GivenUpError:
            pass
        except BaseException as error:
            self._failure = self._failure or error
        with self._changed:
            self._ended.add(name)
            self._given_up = self._given_up or self._failure is not None or self._ended == self._threads.keys()
            self._changed.notify_all()

    def _go(self, name: str, *, both: bool) -> None:
        """Does what is this thread's of all events, each when those before it have done with rows."""
        number, seen = 0, {VALUES: 0, GRADIENTS: 0}
        while (segment := self._segment(number)) is not None:
            for event, step in events(self._policy, segment.first, segment.planned, self._points.evaluated):
                kind = GRADIENTS if event in _LEARNS else VALUES
                other = VALUES if kind == GRADIENTS else GRADIENTS
                seen[kind] += event != EVALUATE
                if both or kind == name:
                    turn = _Turn(name, kind, other, number=seen[kind], before=seen[other])
                    if step < segment.until:  # which may have come nearer meanwhile
                        began_s = working_time()
                        self._exchange.counts_for(self._points.line(step))
                        self._do(event, step, turn, segment)
                        self._worked_s[name] += working_time() - began_s
                    self._over(turn)
            self._await(name, lambda until=segment.until: self._asked >= until)  # type: ignore[misc]  # it is over
            number += 1

    def _segment(self, number: int) -> _Segment | None:
        with self._changed:
            if number == len(self._segments):
                first = self._segments[-1].until if self._segments else self._first
                if first >= self._last:
                    return None
                until = self._points.next_drain(first, self._last)
                self._segments.append(_Segment(first, until, until))
            return self._segments[number]

    def _come(self, turn: "_Turn") -> None:
        """Waits until all that comes before an event has done with rows."""
        with self._changed:
            self._ready[turn.thread] = lambda: self._turns[turn.other] >= turn.before
            self._changed.notify_all()
            with self._timer("rows_wait"), Waiting():
                self._changed.wait_for(lambda: self._turns[turn.other] >= turn.before or turn.other in self._ended)
            del self._ready[turn.thread]
            if self._turns[turn.other] < turn.before:
                raise _GivenUpError

    @contextmanager
    def _rows(self, turn: "_Turn", *, last: bool = True, learns: int | None = None) -> Iterator[None]:
        """While it lasts rows are this thread's; after the ``last`` time of an event they are the next one's.

        ``learns`` is the step that is learned meanwhile, if any.
        """
        self._come(turn)
        yield
        if learns is not None:
            self._learned(learns)
        if last:
            self._over(turn)

    def _over(self, turn: "_Turn") -> None:
        with self._changed:
            self._turns[turn.kind] = turn.number
            self._changed.notify_all()

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        """Until the main thread has given what ``ready`` looks for."""
        with self._changed:
            self._ready[name] = ready
            self._changed.notify_all()
            with self._timer("step_wait"), Waiting():
                self._changed.wait_for(lambda: ready() or self._given_up)
            del self._ready[name]
            if not ready():
                raise _GivenUpError

    def _do(self, event: str, step: int, turn: "_Turn", segment: _Segment) -> None:
        if event == EVALUATE:
            self._await(turn.thread, lambda: self._asked >= step)  # it is over: the next step is asked for
        elif event == READ:
            self._come(turn)  # first: what is in flight from now on is read
            found, copies = self._to_read(turn.thread, step, segment), self._exchange.copies
            for ticket, route in found:
                last = ticket is found[-1][0]
                ages = self._policy.in_flight if last and self._points.is_logged(step) and copies is None else 0
                self._exchange.read(route, self._rows(turn, last=last), ages=ages)
                self._is_read(ticket, route)
        elif event == READ_EARLY:
            for _, route in self._to_read(turn.thread, step, segment):
                self._exchange.read_part(route, early=True)
        elif event == READ_LATE:
            if step in self._flying:
                self._exchange.read_part(self._flying[step], early=False)
                self._is_read(self._tickets[step], self._flying[step])
        elif event == LEARN_REST:
            if step in self._flying:
                route, ahead = self._flying.pop(step), self._flying[step + 1]
                self._exchange.learn_rest(route, ahead, step=step + 1, lr_scale=self._scale)
        else:
            self._learn(event, step, turn, segment)

    def _to_read(self, name: str, step: int, segment: _Segment) -> Sequence[tuple[Ticket, Route]]:
        """What is read for a step, its own ticket last; nothing past the end, nor past a drain point."""
        if step >= self._last:
            return []
        looks = self._exchange.copies is not None
        self._await(
            name,
            lambda: (step in self._tickets and (step < self._looked or not looks)) or step >= segment.until,
        )
        if step >= segment.until:
            return []
        ticket = self._tickets[step]
        with self._timer("route_wait"), Waiting():
            found = [(one, one.routed.result()) for one in (*ticket.beside, ticket)]
        route = self._flying[step] = found[-1][1]
        if route.stop:  # a rank was asked to stop when this batch was routed: it is the last one, on every rank
            self._last = step + 1
        return found

    def _is_read(self, ticket: Ticket, route: Route) -> None:
        with self._changed:
            self._read[id(ticket)] = route
            self._changed.notify_all()

    def _learn(self, event: str, step: int, turn: "_Turn", segment: _Segment) -> None:
        """A step, or of one the rows that the next one asks for; nothing past a drain point."""
        if step >= self._last:
            raise _GivenUpError
        self._await(turn.thread, lambda: step in self._handed or step >= segment.until)
        if step >= segment.until:
            return
        gradients, verdict, lr_scale = self._handed.pop(step)
        route, ahead = self._flying[step], self._flying.get(step + 1) if event == LEARN_FIRST else None
        if ahead is not None:
            self._scale = lr_scale
            told = self._exchange.learn_first(
                route, ahead, gradients, learned=verdict, step=step + 1, lr_scale=lr_scale
            )
            self._learned(step)
        else:
            rows: AbstractContextManager[None] = self._rows(turn, learns=step)
            told = self._exchange.learn(route, gradients, learned=verdict, step=step + 1, lr_scale=lr_scale, rows=rows)
        with self._changed:
            if ahead is None:
                del self._flying[step]
            del self._tickets[step]
            if verdict is None:
                self._told[step] = told
            self._changed.notify_all()
