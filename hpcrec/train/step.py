"""One training step as a loop sees it: a batch, and ``run``. How it is done is for ``train.session``."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from hpcrec.errors import HpcrecError
from hpcrec.policy.pipeline import Ticket
from hpcrec.train.parts import Samples

if TYPE_CHECKING:
    from hpcrec.train.session import Session

Losses = Callable[[Mapping[str, Tensor], Samples], Tensor]


class Step:
    """One training step, not yet run.

    Attributes
    ----------
    number : int
        Steps done before it.
    batch : Batch or None
        This rank's part; None on ranks that are not dense.
    """

    def __init__(self, session: "Session", ticket: Ticket, number: int) -> None:
        self._session = session
        self._ticket = ticket
        self.number = number
        self.batch = ticket.batch

    def run(self, losses: Losses | None = None) -> float:
        """See ``Session.run_step``; once."""
        if self._session.step != self.number:
            raise HpcrecError(f"step {self.number} was run already")
        return self._session.run_step(self._ticket, losses)
