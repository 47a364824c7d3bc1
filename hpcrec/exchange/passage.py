"""What every way of messages between owners and dense ranks is: ``way``, past stages; ``between_hosts``, with sums.

An owner writes its messages as if they went straight to dense ranks, and a dense rank reads them so; what lies between
is the way's. Knows neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hpcrec.exchange.slices import Slice
from hpcrec.types import Floats, Ints


@dataclass(kw_only=True)
class Passage:
    """One step's messages on their way.

    Attributes
    ----------
    flat : float or None
        The messages, where they wait for the step.
    """

    flat: Floats | None = None


class Passing(Protocol):
    """One rank's part in a way.

    Attributes
    ----------
    ahead, current : sequence
        Its parts: those that may run ahead of the step; and the rest, which run in it.
    slices : sequence of Slice
        Dense parameters that are used and trained there.
    """

    ahead: Sequence[Any]
    current: Sequence[Any]
    slices: Sequence[Slice]

    def message(self, bytes_R: Ints, behind_bytes: int = 0, tag: str = "gradients") -> Floats:
        """Where messages of these sizes are written, and room behind them.

        Values are handed to ``forward`` before any other message is begun; the memory of gradients nobody uses again.
        """

    def forward(self, passage: Any, flat: Floats, hops: Sequence[Any], *, train: bool) -> Floats:
        """Values on one part of the way; collective."""

    def backward(self, passage: Any, flat: Floats, hops: Sequence[Any], behind_bytes: int = 0) -> Floats:
        """Gradients on it, the other way, with room behind what comes to an owner; collective."""
