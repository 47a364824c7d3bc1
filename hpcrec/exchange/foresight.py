"""A dense rank's batches of the steps to come, as many as its copies of rows are told of (``policy.window``).

A batch is dealt once, as it enters the window: what its forms ask for tells the copies of its rows, and is kept until
its own step asks owners for them. Knows the order of batches; knows no rows and no ranks.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from hpcrec.exchange.columns import Dealing
from hpcrec.types import Batch


@dataclass(eq=False)
class Foreseen:
    """This rank's part of a batch, and what forms ask for of it, from its entry on until it is taken."""

    batch: Batch
    dealing: Dealing | None = None

    def take(self) -> Dealing | None:
        """What forms ask for; it is kept here no longer."""
        dealing, self.dealing = self.dealing, None
        return dealing


@dataclass(frozen=True)
class Sight:
    """A step's own batch, and those that enter the window with it: one, none at the end, or at first all, its own too.

    Each step's batch enters once, before its step or with it.
    """

    own: Foreseen
    entering: tuple[Foreseen, ...]


class Window:
    """An iterator over the steps' sights.

    Parameters
    ----------
    batches : iterator of Batch
        Of all steps, in order.
    steps : int
        How many are seen beyond each.
    """

    def __init__(self, batches: Iterator[Batch], steps: int) -> None:
        self._batches, self._steps = batches, steps
        self._waiting = deque[Foreseen]()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sight:
        entering = list[Foreseen]()
        while len(self._waiting) + len(entering) <= self._steps:
            batch = next(self._batches, None)
            if batch is None:
                break
            entering.append(Foreseen(batch))
        self._waiting += entering
        if not self._waiting:
            raise StopIteration
        return Sight(self._waiting.popleft(), tuple(entering))
