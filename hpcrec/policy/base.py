"""What a policy is: it says when a batch's rows are read and when its gradients are applied.

A policy hands the loop leaf tensors and takes back their gradients; the loop looks the same under every policy.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from hpcrec.exchange.inputs import Inputs
from hpcrec.exchange.route import Reading, Route
from hpcrec.types import Batch, GlobalIds

__all__ = ["Policy", "Reading", "Ticket"]


@dataclass(frozen=True)
class Ticket:
    """A batch on its way: its part on this rank (None where the rank is not dense), and its route when done.

    ``beside`` are tickets of the same batch, read of other sets of tables: to be gathered before it in training, so
    that nothing comes between its vectors and their gradients, and after it in an evaluation.
    """

    batch: Batch | None
    train: bool
    routed: "Future[Route]"
    beside: "tuple[Ticket, ...]" = ()


class Policy(Protocol):
    """Four verbs, each collective: every rank calls them in the same order."""

    def submit(
        self,
        batch: Batch | None,
        ids: GlobalIds | None,
        *,
        train: bool,
        stop: bool = False,
        reading: Reading | None = None,
    ) -> Ticket:
        """A batch to be routed: at once where routing runs ahead, else in its step. ``ids``: of holders.

        ``reading`` says which sets of tables are read; by default all ranks read the first.
        """

    def gather(self, ticket: Ticket) -> Inputs | None:
        """What the model receives for the batch; None on ranks that are not dense."""

    def scatter(self, ticket: Ticket, inputs: Inputs | None, *, step: int, lr_scale: float) -> None:
        """Sends the gradients of the leaves to their rows."""

    def forget(self, ticket: Ticket) -> None:
        """The batch is left out: no gradients will follow. Not collective."""

    def close(self) -> None:
        """Ends what runs ahead."""
