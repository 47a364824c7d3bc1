"""The one pipeline that runs a policy's events.

::

    main thread        submit t+n   inputs t   forward, backward   learn t   inputs t+1 ...
    routing            ids of t+n                                                            own thread and lane
    flight             policy.events: read (values), learn (gradients)                inline, or threads and lanes

With one step in flight a step is read where its inputs are asked for and learned where its gradients are handed over,
by the main thread. With more, threads do both (``flight``), in the order of ``events``, on communicators of their own:
no two threads use a communicator at once, calls may block, and results do not depend on how fast a rank is. Ids may be
routed ahead under every policy, by a thread and on a communicator of their own: they depend on no weight.
Knows when; what is done is for ``exchange``.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np

from hpcrec import kernels
from hpcrec.comm.progress import Waiting, working_time
from hpcrec.errors import HpcrecError
from hpcrec.exchange.exchange import Exchange, Timer
from hpcrec.exchange.foresight import Sight
from hpcrec.exchange.forms.conditional import Asked
from hpcrec.exchange.inputs import Gradients, Inputs
from hpcrec.exchange.route import Reading, Route
from hpcrec.policy.flight import Flight
from hpcrec.policy.policy import Points, Policy
from hpcrec.policy.tickets import Later, Ticket
from hpcrec.policy.trials import Trials
from hpcrec.types import Batch, GlobalIds

__all__ = ["Inputs", "Pipeline", "Reading", "Ticket"]
_ENDS_S = 5.0  # that threads are waited for after one has failed: another may be in a call that no rank answers


class Pipeline:
    """Runs a policy over an exchange. Its verbs are called by one thread, in the same order on every rank.

    Parameters
    ----------
    policy : Policy
    exchange : Exchange
        On lanes of its own, where several steps are in flight.
    timer : callable
    ahead : bool
        Route on a thread of its own; else a batch is routed as it is read, or its route asked for: one that is given up
        before leaves no trace. With several steps in flight there always is one.
    points : Points
        What comes between steps.
    agreed : callable
        The largest of a number over all ranks; collective, on the main thread.

    Attributes
    ----------
    ages : int64 [steps in flight]
        Of the last step that a line of metrics tells of: how many of the distinct rows that were read here lacked 0, 1,
        ... updates. Empty where none ever does.
    in_flight : int
        Steps read and not yet learned, at most.
    in_parts : bool
        Each is read and learned in two parts: what is read last waits for what is learned first.
    trials : Trials or None
        Where the policy seeks its staleness: what it has found.
    on_logged : callable
        Given the number of each step that a line of metrics tells of when it is learned here, before rows change again:
        by the thread that learns.
    """

    def __init__(
        self,
        policy: Policy,
        exchange: Exchange,
        *,
        timer: Timer,
        ahead: bool,
        points: Points,
        agreed: Callable[[float], float],
    ) -> None:
        self.exchange = exchange
        self._timer = timer
        self._routed_s = 0.0  # written by the routing thread alone
        self._points, self._last, self._submitted = points, 0, 0
        self.in_flight = policy.in_flight
        self.trials: Trials | None = getattr(policy, "trials", None)
        self.on_logged: Callable[[int], None] = _nothing
        self.in_parts: bool = getattr(policy, "parts", False)
        self._most_missing = 0 if self.in_parts else policy.in_flight - 1
        self.ages = np.zeros(policy.in_flight if self._most_missing else 0, np.int64)
        self._copies, self._holds = exchange.copies, exchange.holds_back
        self._whole = self._rests = True  # nothing is held back by a dense rank; and none has copies
        flown = points  # what dense ranks hold back an evaluation would lack
        if self._copies is not None:
            flown = replace(points, drains=(*points.drains, *points.evaluations))
        self._flight = None if policy.in_flight == 1 else Flight(policy, exchange, timer, flown, self._logged, agreed)
        # one thread, first in first out: all ranks submit in the same order, so their collectives meet
        ahead = ahead or self._flight is not None
        self._router = ThreadPoolExecutor(1, "route", kernels.set_threads, (kernels.get_threads(),)) if ahead else None

    def begin(self, first: int, last: int) -> None:
        """Steps [first, last) follow: the next training batches that are submitted."""
        self._submitted, self._last = first, last
        if self._flight is not None:
            self._flight.begin(first, last)
        else:
            self.exchange.version = first
        if self._copies is not None:
            self._copies.give_up()

    def submit(
        self,
        batch: Batch | None,
        ids: GlobalIds | None,
        *,
        train: bool,
        stop: bool = False,
        save_failed: bool = False,
        readings: Sequence[Reading],
        sight: Sight | None = None,
    ) -> Ticket:
        """A batch to be routed: at once where routing runs ahead, else in its step. ``ids``: of holders.

        ``readings`` say which sets of tables are read; it is learned from, if at all, as the first of them says. See
        `Exchange.route` for the rest. ``sight``: what is seen of the steps after it, where copies are told of them.
        """
        first, *others = readings
        line = self._points.line(self._submitted) if train else None
        ticket = self._routed(batch, ids, first, line, train=train, told=(stop, save_failed), sight=sight)
        if others:
            beside = tuple(self._routed(batch, ids, one, line, train=False, told=(False, False)) for one in others)
            ticket = Ticket(batch, train, ticket.routed, beside)
        if train:
            self._submitted += 1
            if self._flight is not None:
                self._flight.submit(ticket)
        return ticket

    def _routed(
        self,
        batch: Batch | None,
        ids: GlobalIds | None,
        reading: Reading,
        line: int | None,
        *,
        train: bool,
        told: tuple[bool, bool],
        sight: Sight | None = None,
    ) -> Ticket:
        """``line``: of metrics, that its bytes are counted for; None for none."""
        stop, save_failed = told

        def route() -> Route:
            if line is not None:
                self.exchange.counts_for(line)
            with self._timer("route"):
                foreseen, of = self._foreseen(reading, sight)
                found = self.exchange.route(batch, ids, train=train, stop=stop, save_failed=save_failed, reading=of)
                found.foreseen = foreseen
                return found

        def route_ahead() -> Route:
            began_s = working_time()
            route_ = route()
            if train:
                self._routed_s += working_time() - began_s
            return route_

        return Ticket(batch, train, Later(route) if self._router is None else self._router.submit(route_ahead))

    def _foreseen(self, reading: Reading, sight: Sight | None) -> tuple[list[list[Asked]], Reading]:
        """Rows that steps to come ask for, and what this one does, which was dealt as it came in sight."""
        if sight is None or self._copies is None:
            return [], reading
        foreseen = self._copies.foresee(sight)
        return foreseen, replace(reading, dealing=sight.own.take())

    @property
    def worked_s(self) -> float:
        """Seconds for which its threads have worked for training steps so far, by ``comm.progress.working_time``."""
        return self._routed_s + (0.0 if self._flight is None else self._flight.worked_s)

    @property
    def drains(self) -> tuple[int, float]:
        """Drain points between two steps so far, and seconds that this rank's steps have waited longer by them."""
        return (0, 0.0) if self._flight is None else self._flight.drains

    def inputs(self, ticket: Ticket) -> Inputs | None:
        """What the model receives for the batch; None on ranks that are not dense."""
        if not ticket.train and not self._whole:
            raise HpcrecError(
                "an evaluation after this step would lack gradients that dense ranks hold back until the next drain "
                "point. Evaluate after a step that train.eval_every or checkpoint.every divides, or the last one."
            )
        if self._flight is not None:
            return self._flight.inputs(ticket)
        if self._router is None:
            ticket.routed.result()  # is the routing itself, whose time is its own
        with self._timer("route_wait"), Waiting():
            route = ticket.routed.result()
        if ticket.train and self._copies is not None:
            with self._timer("copies"):
                self._copies.look(route)
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

        Raises
        ------
        HpcrecError
            Its rows lacked more updates than the policy allows.
        """
        route = ticket.routed.result()
        most = self._most_missing if self.trials is None else self.trials.at(step)
        if not 0 <= step - route.version <= most:
            raise HpcrecError(
                f"step {step} has read rows of step {route.version}, {step - route.version} updates early, and the "
                f"policy allows {most}: a fault of hpcrec."
            )
        if route.ages is not None:
            self.ages = route.ages
        exchange, done, drain = self.exchange, step + 1, True
        if self._copies is not None:
            self._rests = route.stop or self._points.next_drain(step, self._last) == done
            drain = self._rests or self._points.evaluated(done)
            self._whole = drain or not self._holds
        left = exchange.push(route, gradients, learned=verdict, lr_scale=lr_scale, drain=drain)
        if self._flight is not None:
            if self._copies is not None and self._rests:
                self._copies.empty()  # what is pushed is on its way
            return self._flight.learn(step, left, verdict, lr_scale)
        learned = exchange.learn(route, left, learned=verdict, step=done, lr_scale=lr_scale)
        if self._copies is not None and self._rests:
            with self._timer("copies"):
                self._copies.empty()
        self._logged(step)
        return learned

    def _logged(self, step: int) -> None:
        """A step is learned here."""
        if self._points.is_logged(step):
            self.on_logged(step)

    def drain_after(self, step: int) -> None:
        """Nothing is in flight after so many steps: one more of the `Points`.

        Every rank adds the same ones, before the batch that follows is submitted: whatever was read by then, that was
        not.
        """
        self._points = replace(self._points, once=(*self._points.once, step))
        if self._flight is not None:
            self._flight.drain_after(step)

    def settle(self) -> None:
        """What was handed over is learned. Reads that it allows may be done too: on every rank the same."""
        if self._flight is not None:
            self._flight.settle()

    def rested(self) -> bool:
        """Settles; whether no step was read that is not learned, nor one learned in part. The same on every rank."""
        self.settle()
        return self._rests and (self._flight is None or self._flight.rested)

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
        """The same, and nothing is read further: steps that were read and not learned are given up.

        So is what dense ranks hold back and keep, where a loop was left between two drain points.
        """
        if self._flight is not None:
            self._flight.give_up()
            self._flight.settle()
        if self._copies is not None:
            self._copies.empty()
            self._whole = self._rests = True

    def give_up(self) -> None:
        """No step that ``begin`` announced follows any more. Waits for nothing, so that no error is held up."""
        if self._flight is not None:
            self._flight.give_up()

    def close(self) -> None:
        """Ends what runs ahead, and lets go of what rows are in.

        Where a thread has failed, that is raised, once the rest was ended: what another rank would have to give is not
        waited for, and what fails on the way says nothing, for it comes of the first error.
        """
        try:
            self.drain()
        except BaseException:
            self._end_after_a_failure()
            raise
        if self._router is not None:
            self._router.shutdown()
        self.exchange.close()

    def _end_after_a_failure(self) -> None:
        if self._router is not None:
            self._router.shutdown(wait=False, cancel_futures=True)
        if self._flight is None or self._flight.end(_ENDS_S):  # else a thread may be at the rows
            with suppress(Exception):
                self.exchange.close()


def _nothing(_: int) -> None:
    """Nobody asks for it."""
