"""``Block``: the pooled vectors themselves. Does not know what a model makes of them."""

from dataclasses import dataclass

from torch import Tensor

from hpcrec.operators.base import add_partials, check_lookups
from hpcrec.types import Lookup


@dataclass(frozen=True, kw_only=True)
class Block:
    """The pooled vectors, [B, F, D]: all that most models need, and all that a user's own model does.

    ::

        partial  pooled_BFD, zeros where a holder has nothing      F * D floats a sample
        reduce   sum
        finish   nothing

    Exact for bags split over holders too where the pooling is a sum, or a mean whose divisor is the whole bag's length;
    the largest of a bag is taken of its parts before.
    Source: [DES], "embedding + DNN".
    """

    lookups: tuple[Lookup, ...]
    width: int

    def __post_init__(self) -> None:
        check_lookups("Block", self.lookups, self.width)

    @property
    def shapes(self) -> None:
        """The pooled vectors themselves."""

    @property
    def by_column(self) -> tuple[bool, ...]:
        """No partial result."""
        return ()

    @property
    def splits_bags(self) -> bool:
        """Vectors of a bag's parts add up."""
        return True

    def partial(self, pooled_BFD: Tensor) -> tuple[Tensor, ...]:
        """``(pooled_BFD,)``."""
        return (pooled_BFD,)

    def reduce(self, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Elementwise sum."""
        return add_partials(a, b)

    def finish(self, partials: tuple[Tensor, ...]) -> Tensor:
        """Pooled vectors [B, F, D]."""
        (pooled_BFD,) = partials
        return pooled_BFD
