"""A batch on its way: its part and its route. Holds things; routes only what is not routed ahead."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from hpcrec.exchange.route import Route
from hpcrec.types import Batch


class Later(Future[Route]):
    """A route that is made when it is first asked for, by who asks."""

    def __init__(self, make: Callable[[], Route]) -> None:
        super().__init__()
        self._make: Callable[[], Route] | None = make

    def result(self, timeout: float | None = None) -> Route:
        """See ``Future``."""
        if self._make is not None:
            make, self._make = self._make, None
            try:
                self.set_result(make())
            except BaseException as error:
                self.set_exception(error)
        return super().result(timeout)


@dataclass(frozen=True, eq=False)
class Ticket:
    """A batch on its way: its part on this rank (None where the rank is not dense), and its route when done.

    ``beside`` are tickets of the same batch, read of other sets of tables: to be read before it in training, so
    that nothing comes between its vectors and their gradients, and after it in an evaluation.
    """

    batch: Batch | None
    train: bool
    routed: Future[Route]
    beside: "tuple[Ticket, ...]" = ()
