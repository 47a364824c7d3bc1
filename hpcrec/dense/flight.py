"""A sum under way that takes several collectives, one after the other. Knows their order, not what they move."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from hpcrec.dense.reducer import Allreduce


class Waits(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Waits for its end."""


Steps = Generator[tuple[Waits, bool]]  # collectives under way, and whether each is the last


@dataclass
class PlainSum:
    """A plain sum under way."""

    plain: Allreduce
    handle: Any

    def wait(self) -> None:
        """Waits for its end."""
        self.plain.wait(self.handle)


class Flight:
    """A sum under way.

    Parameters
    ----------
    steps : Steps
        Starts a collective at a time; what it does after the last is done once the sum is taken.

    Attributes
    ----------
    last : bool
        Whether the last collective is under way.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._under_way, self.last = next(steps)

    def advance(self) -> None:
        """Ends the collective that is under way and starts the next, unless it is the last."""
        if not self.last:
            self._under_way.wait()
            self._under_way, self.last = next(self._steps)

    def finish(self) -> None:
        """Ends the last collective, and takes the sum."""
        assert self.last, "collectives are left"
        self._under_way.wait()
        left = next(self._steps, None)
        assert left is None, "a collective after the last"

    def cancel(self) -> None:
        """Ends the collective that is under way, and takes nothing."""
        self._under_way.wait()
        self._steps.close()
