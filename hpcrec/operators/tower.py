"""``Tower``: a module over the pooled vectors of some features, which have to meet. Does not know where that is.

Source: [DMT], tower modules.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from hpcrec.operators.base import check_lookups
from hpcrec.types import Lookup


@dataclass(frozen=True, kw_only=True)
class Tower:
    """What a module makes of its lookups' vectors: [B, F, D] to [B, elements].

    ::

        partial  module(pooled_BFD)                                elements floats a sample
        reduce   none: the module is no sum over lookups
        finish   nothing

    It is computed where all vectors meet: on the dense rank, or at an owner of the host that has all the rows, which
    trains the module then (``exchange.at_place``). Exact for bags split over holders, whose vectors are added before
    the module sees them. The module's parameters are the model's, under the name that it has there.

    Attributes
    ----------
    module : nn.Module
    elements : int
        Of its result.
    """

    lookups: tuple[Lookup, ...]
    width: int
    module: nn.Module
    elements: int

    def __post_init__(self) -> None:
        check_lookups("Tower", self.lookups, self.width)

    @property
    def meets(self) -> bool:
        """There is no result of some of its lookups."""
        return True

    @property
    def parametrized(self) -> bool:
        """The module's parameters are the model's."""
        return True

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """One vector a sample."""
        return ((self.elements,),)

    @property
    def by_column(self) -> tuple[bool, ...]:
        """No columns of the rows."""
        return (False,)

    @property
    def splits_bags(self) -> bool:
        """Vectors of a bag's parts add up before the module sees them."""
        return True

    def partial(self, pooled_BFD: Tensor) -> tuple[Tensor, ...]:
        """``(module(pooled_BFD),)``."""
        return (self.module(pooled_BFD),)

    def reduce(self, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Never called: see ``meets``."""
        raise TypeError("a tower has one result, of all its lookups; there is nothing to add to it")

    def finish(self, partials: tuple[Tensor, ...]) -> Tensor:
        """The module's result [B, elements]."""
        (found_BE,) = partials
        return found_BE
