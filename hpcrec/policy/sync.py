"""Policy ``sync``: every read sees every earlier update. The reference that the other policies are held to.

Only ids run ahead: the route of batch t + 1 is made by a thread of its own while batch t is computed, which changes no
result, because ids do not depend on weights.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hpcrec.exchange.exchange import Exchange, Timer
from hpcrec.exchange.inputs import Inputs
from hpcrec.exchange.route import Reading, Route
from hpcrec.policy.base import Ticket
from hpcrec.types import Batch, GlobalIds


class _Later(Future[Route]):
    """A route that is made when it is first asked for, by who asks."""

    def __init__(self, make: Callable[[], Route]) -> None:
        super().__init__()
        self._make: Callable[[], Route] | None = make

    def result(self, timeout: float | None = None) -> Route:
        if self._make is not None:
            make, self._make = self._make, None
            try:
                self.set_result(make())
            except BaseException as error:
                self.set_exception(error)
        return super().result(timeout)


class Sync:
    """Reads and writes in step order.

    Parameters
    ----------
    exchange : Exchange
    timer : callable
    ahead : bool
        Route on a thread of its own; else a batch is routed when it is gathered, or its route asked for: one that is
        given up before leaves no trace.
    """

    def __init__(self, exchange: Exchange, *, timer: Timer, ahead: bool) -> None:
        self._exchange = exchange
        self._timer = timer
        # one thread, first in first out: all ranks submit in the same order, so their collectives meet
        self._router = ThreadPoolExecutor(1, thread_name_prefix="route") if ahead else None

    def submit(
        self,
        batch: Batch | None,
        ids: GlobalIds | None,
        *,
        train: bool,
        stop: bool = False,
        reading: Reading | None = None,
    ) -> Ticket:
        """See ``Policy``."""

        def route() -> Route:
            with self._timer("route"):
                return self._exchange.route(batch, ids, train=train, stop=stop, reading=reading)

        return Ticket(batch, train, _Later(route) if self._router is None else self._router.submit(route))

    def gather(self, ticket: Ticket) -> Inputs | None:
        """See ``Policy``."""
        if self._router is None:
            ticket.routed.result()  # is the routing itself, whose time is its own
        with self._timer("route_wait"):
            route = ticket.routed.result()
        return self._exchange.values(route)

    def scatter(self, ticket: Ticket, inputs: Inputs | None, *, step: int, lr_scale: float) -> None:
        """See ``Policy``."""
        gradients = None if inputs is None else inputs.gradients()
        self._exchange.gradients(ticket.routed.result(), gradients, step=step, lr_scale=lr_scale)

    def forget(self, ticket: Ticket) -> None:
        """See ``Policy``."""
        self._exchange.forget(ticket.routed.result())

    def close(self) -> None:
        """See ``Policy``."""
        if self._router is not None:
            self._router.shutdown()
        self._exchange.close()
