"""A part of a dense parameter that is trained away from the dense ranks. Holds things; does nothing."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Slice:
    """Rows [start, stop) of ``whole``, a dense parameter of an operator, which this rank has as ``part``.

    ``ranks``: the world ranks that train these rows together, each with a part of its own: gradients of all of them are
    summed, so that the parts stay alike. Empty: this rank alone.
    """

    whole: nn.Parameter
    start: int
    stop: int
    part: nn.Parameter
    ranks: tuple[int, ...] = ()
