"""The one pipeline that runs a policy's events, and the only place with threads for them.

::

    main thread        submit t+n   inputs t   forward, backward   learn t   inputs t+1 ...
    routing            ids of t+n                                                            own thread and lane
    steps              policy.events: read (values), learn (gradients)                       inline, or its own

With one step in flight a step is read where its inputs are asked for and learned where its gradients are handed over,
by the main thread. With more, one thread does both, in the order of ``events``, on a communicator of its own; so no two
threads use a communicator at once, calls may block, and results do not depend on how fast a rank is. What this thread
may do is fixed by what it was handed, the same on every rank, so it also comes to rest at the same place on every rank.
Ids may be routed ahead under every policy, by a thread and on a communicator of their own: they depend on no weight.
Knows when; what is done is for ``exchange``.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hpcrec import kernels
from hpcrec.comm.progress import Waiting, working_time
from hpcrec.errors import HpcrecError
from hpcrec.exchange.exchange import Exchange, Timer
from hpcrec.exchange.inputs import Gradients, Inputs
from hpcrec.exchange.route import Reading, Route
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
from hpcrec.policy.tickets import Later, Ticket
from hpcrec.types import Batch, GlobalIds

__all__ = ["LANE", "Inputs", "Pipeline", "Reading", "Ticket"]

LANE = "steps"  # of the thread, where there is one


class Pipeline:
    """Runs a policy over an exchange. Its verbs are called by one thread, in the same order on every rank.

    Parameters
    ----------
    policy : Policy
    exchange : Exchange
        On the lane ``LANE``, where several steps are in flight.
    timer : callable
    ahead : bool
        Route on a thread of its own; else a batch is routed as it is read, or its route asked for: one that is given up
        before leaves no trace. With several steps in flight there always is one.
    points : Points
        What comes between steps.
    """

    def __init__(self, policy: Policy, exchange: Exchange, *, timer: Timer, ahead: bool, points: Points) -> None:
        self.exchange = exchange
        self._timer = timer
        self._routed_s = 0.0  # written by the routing thread alone
        self._points, self._last = points, 0
        self._copies = exchange.keeps_copies
        self._whole = self._rests = True  # nothing is held back by a dense rank; and none has copies
        self._steps = None if policy.in_flight == 1 else _Steps(policy, exchange, timer, points)
        # one thread, first in first out: all ranks submit in the same order, so their collectives meet
        ahead = ahead or self._steps is not None
        self._router = ThreadPoolExecutor(1, "route", kernels.set_threads, (kernels.get_threads(),)) if ahead else None

    def begin(self, first: int, last: int) -> None:
        """Steps [first, last) follow: the next training batches that are submitted."""
        self._last = last
        if self._steps is not None:
            self._steps.begin(first, last)

    def submit(
        self,
        batch: Batch | None,
        ids: GlobalIds | None,
        *,
        train: bool,
        stop: bool = False,
        save_failed: bool = False,
        readings: Sequence[Reading],
    ) -> Ticket:
        """A batch to be routed: at once where routing runs ahead, else in its step. ``ids``: of holders.

        ``readings`` say which sets of tables are read; it is learned from, if at all, as the first of them says. See
        `Exchange.route` for the rest.
        """
        first, *others = readings
        ticket = self._routed(batch, ids, first, train=train, told=(stop, save_failed))
        if others:
            beside = tuple(self._routed(batch, ids, one, train=False, told=(False, False)) for one in others)
            ticket = Ticket(batch, train, ticket.routed, beside)
        if train and self._steps is not None:
            self._steps.submit(ticket)
        return ticket

    def _routed(
        self, batch: Batch | None, ids: GlobalIds | None, reading: Reading, *, train: bool, told: tuple[bool, bool]
    ) -> Ticket:
        stop, save_failed = told

        def route() -> Route:
            with self._timer("route"):
                return self.exchange.route(batch, ids, train=train, stop=stop, save_failed=save_failed, reading=reading)

        def route_ahead() -> Route:
            began_s = working_time()
            route_ = route()
            if train:
                self._routed_s += working_time() - began_s
            return route_

        return Ticket(batch, train, Later(route) if self._router is None else self._router.submit(route_ahead))

    @property
    def worked_s(self) -> float:
        """Seconds for which its threads have worked for training steps so far, by ``comm.progress.working_time``."""
        return self._routed_s + (0.0 if self._steps is None else self._steps.worked_s)

    def inputs(self, ticket: Ticket) -> Inputs | None:
        """What the model receives for the batch; None on ranks that are not dense."""
        if self._steps is not None:
            return self._steps.inputs(ticket)
        if self._router is None:
            ticket.routed.result()  # is the routing itself, whose time is its own
        with self._timer("route_wait"), Waiting():
            route = ticket.routed.result()
        if not ticket.train and not self._whole:
            raise HpcrecError(
                "an evaluation after this step would lack gradients that dense ranks hold back until the next drain "
                "point. Evaluate after a step that train.eval_every or checkpoint.every divides, or the last one."
            )
        self.exchange.read(route)
        return self.exchange.inputs(route)

    def learn(
        self, ticket: Ticket, gradients: Gradients | None, verdict: bool | None, *, step: int, lr_scale: float
    ) -> bool:
        """Hands over a step's gradients, to be sent to their rows, and whether it is learned at all; returns that.

        Parameters
        ----------
        ticket : Ticket
        gradients : Gradients or None
            None on ranks that are not dense. They are not changed any more.
        verdict : bool or None
            What dense ranks have agreed on; None on the others, which are told.
        step : int
            Steps done before.
        lr_scale : float
        """
        route = ticket.routed.result()
        left = self.exchange.push(route, gradients, learned=verdict)
        if self._steps is not None:
            return self._steps.learn(step, left, verdict, lr_scale)
        exchange, done = self.exchange, step + 1
        if not self._copies:
            return exchange.learn(route, left, learned=verdict, step=done, lr_scale=lr_scale)
        self._rests = route.stop or self._points.next_drain(step, self._last) == done
        self._whole = self._rests or self._points.evaluated(done)
        learned = exchange.learn(route, left, learned=verdict, step=done, lr_scale=lr_scale, drain=self._whole)
        if self._rests:
            exchange.empty()
        return learned

    def drain_after(self, step: int) -> None:
        """Nothing is in flight after so many steps: one more of the `Points`.

        Every rank adds the same ones, before the batch that follows is submitted: whatever was read by then, that was
        not.
        """
        self._points = replace(self._points, once=(*self._points.once, step))
        if self._steps is not None:
            self._steps.drain_after(step)

    def settle(self) -> None:
        """What was handed over is learned. Reads that it allows may be done too: on every rank the same."""
        if self._steps is not None:
            self._steps.settle()

    def rested(self) -> bool:
        """Settles; whether no step was read that is not learned, nor one learned in part. The same on every rank."""
        self.settle()
        return self._rests if self._steps is None else self._steps.rested

    def rest(self) -> None:
        """Settles, for what has to find rows and what is kept beside them as they are between two steps.

        Raises
        ------
        HpcrecError
            Steps were read that are not learned, as where a loop was left between two drain points, or dense ranks hold
            gradients back; on every rank.
        """
        if not self.rested():
            raise HpcrecError(
                "a checkpoint of this step would have parts of later ones, which were read already, and not learned, "
                "or lack what dense ranks hold back or keep. Save where nothing is in flight: after a step that "
                "checkpoint.every divides, or the last one."
            )

    def drain(self) -> None:
        """The same, and nothing is read further: steps that were read and not learned are given up."""
        if self._steps is not None:
            self._steps.give_up()
            self._steps.settle()

    def give_up(self) -> None:
        """No step that ``begin`` announced follows any more. Waits for nothing, so that no error is held up."""
        if self._steps is not None:
            self._steps.give_up()

    def close(self) -> None:
        """Ends what runs ahead."""
        self.drain()
        if self._router is not None:
            self._router.shutdown()
        self.exchange.close()


class _GivenUpError(Exception):
    """The thread waits for something that does not come any more."""


class _Steps:
    """The thread that reads and learns, where several steps are in flight.

    It waits for what only the main thread can give (a ticket, gradients, that a drain point or an evaluation is over),
    and for the other ranks. ``settle`` returns when it waits for the main thread: what it has done by then is the same
    on every rank, so that an evaluation may be read on its communicator meanwhile.
    """

    def __init__(self, policy: Policy, exchange: Exchange, timer: Timer, points: Points) -> None:
        self._policy, self._exchange, self._timer, self._points = policy, exchange, timer, points
        self._changed = threading.Condition()  # guards all that follows
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._ready: Callable[[], bool] | None = None  # what the thread waits for, while it does
        self._given_up = False
        self._last = self._submitted = self._asked = 0
        self._until = 0  # the next drain point
        self._tickets: dict[int, Ticket] = {}  # by step: submitted and not yet learned
        self._expected: dict[int, int] = {}  # step of each ticket to be read, by identity
        self._read: dict[int, Route] = {}  # by identity of the ticket
        self._handed: dict[int, tuple[Gradients | None, bool | None, float]] = {}  # by step
        self._flying: dict[int, Route] = {}  # of steps read and not yet learned, by step; the thread's own
        self._event, self._scale = "", 1.0  # what the thread does; of the step that was learned in part
        self.worked_s = 0.0  # written by the thread alone; see ``Pipeline.worked_s``
        self._told: dict[int, bool] = {}  # verdicts, by step, where the main thread does not know them

    # Called by the main thread.

    def drain_after(self, step: int) -> None:
        with self._changed:
            assert step >= self._submitted, f"step {step} may have been read"
            self._points = replace(self._points, once=(*self._points.once, step))
            self._until = min(self._until, step)
            self._changed.notify_all()

    def begin(self, first: int, last: int) -> None:
        self.give_up()
        self.settle()
        self._given_up, self._last, self._submitted, self._asked = False, last, first, first
        for left in (self._tickets, self._expected, self._read, self._handed, self._told, self._flying):
            left.clear()
        threads = kernels.get_threads()
        self._thread = threading.Thread(target=self._run, args=(first, threads), name=LANE, daemon=True)
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        with self._changed:
            self._raise()
            self._tickets[self._submitted] = ticket
            self._expected |= {id(one): self._submitted for one in (*ticket.beside, ticket)}
            self._submitted += 1
            self._changed.notify_all()

    def inputs(self, ticket: Ticket) -> Inputs | None:
        with self._changed:
            step = self._expected.pop(id(ticket), None)
            if step is not None:
                self._asked = step
                self._changed.notify_all()
                self._wait(lambda: id(ticket) in self._read)
                route = self._read.pop(id(ticket))
        if step is None:
            self.settle()  # an evaluation, read here: nothing else is on the communicator
            with self._timer("route_wait"), Waiting():
                route = ticket.routed.result()
            self._exchange.read(route)
        return self._exchange.inputs(route)

    def learn(self, step: int, gradients: Gradients | None, verdict: bool | None, lr_scale: float) -> bool:
        with self._changed:
            self._raise()
            self._handed[step] = gradients, verdict, lr_scale
            self._changed.notify_all()
            if verdict is not None:
                return verdict
            self._wait(lambda: step in self._told)
            return self._told.pop(step)

    def settle(self) -> None:
        if self._thread is None:
            return
        with self._changed:
            self._wait(lambda: self._ready is not None and not self._ready() and not self._given_up)
            ended = self._given_up
        if ended:
            self._thread.join()
            self._thread = None
            self._raise()

    @property
    def rested(self) -> bool:
        """After ``settle``: no step is read and not learned."""
        return not self._flying

    def give_up(self) -> None:
        with self._changed:
            self._given_up = self._thread is not None
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        """For the thread, until ``ready()``; raises what it has failed with."""
        with Waiting():
            self._changed.wait_for(lambda: ready() or self._failure is not None or self._given_up)
        self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Called by the thread.

    def _run(self, first: int, threads: int) -> None:
        kernels.set_threads(threads)
        do = {
            READ: self._do_read,
            READ_EARLY: self._do_read_early,
            READ_LATE: self._do_read_late,
            LEARN: self._do_learn,
            LEARN_FIRST: self._do_learn,
            LEARN_REST: self._do_learn_rest,
            EVALUATE: self._over,
        }
        try:
            while first < self._last:
                with self._changed:
                    self._until = self._points.next_drain(first, self._last)
                for event, step in events(self._policy, first, self._until, self._points.evaluated):
                    if step < self._until:  # which may have come nearer meanwhile
                        self._event, began_s = event, working_time()
                        do[event](step)
                        self.worked_s += working_time() - began_s
                first = self._until
                self._over(first)
        except _GivenUpError:
            for route in self._flying.values():
                self._exchange.give_up(route)
        except BaseException as error:
            self._failure = error
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def _await(self, ready: Callable[[], bool]) -> None:
        """Until the main thread has given what ``ready`` looks for."""
        with self._changed:
            self._ready = ready
            self._changed.notify_all()
            with Waiting():
                self._changed.wait_for(lambda: ready() or self._given_up)
            self._ready = None
            if not ready():
                raise _GivenUpError

    def _over(self, step: int) -> None:
        """A drain point or an evaluation after so many steps is over: the next step is asked for."""
        self._await(lambda: self._asked >= step)

    def _to_read(self, step: int) -> list[tuple[Ticket, Route]]:
        """What is read for a step, its own ticket last; nothing past the end, nor past a drain point."""
        if step >= self._last:
            return []
        self._await(lambda: step in self._tickets or step >= self._until)
        if step >= self._until:
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

    def _do_read(self, step: int) -> None:
        for ticket, route in self._to_read(step):
            self._exchange.read(route)
            self._is_read(ticket, route)

    def _do_read_early(self, step: int) -> None:
        for _, route in self._to_read(step):
            self._exchange.read_part(route, early=True)

    def _do_read_late(self, step: int) -> None:
        if step in self._flying:
            self._exchange.read_part(self._flying[step], early=False)
            self._is_read(self._tickets[step], self._flying[step])

    def _do_learn(self, step: int) -> None:
        """A step, or of one the rows that the next one asks for."""
        if step >= self._last:
            raise _GivenUpError
        self._await(lambda: step in self._handed)
        gradients, verdict, lr_scale = self._handed.pop(step)
        route, ahead = self._flying[step], None
        if self._event == LEARN_FIRST and step + 1 in self._flying:
            ahead, self._scale = self._flying[step + 1], lr_scale
        else:
            del self._flying[step]
        told = self._exchange.learn(route, gradients, learned=verdict, step=step + 1, lr_scale=lr_scale, ahead=ahead)
        with self._changed:
            del self._tickets[step]
            if verdict is None:
                self._told[step] = told
            self._changed.notify_all()

    def _do_learn_rest(self, step: int) -> None:
        if step in self._flying:
            route, ahead = self._flying.pop(step), self._flying[step + 1]
            self._exchange.learn_rest(route, ahead, step=step + 1, lr_scale=self._scale)
