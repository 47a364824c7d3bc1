"""``FM2``: the second-order term of a factorisation machine over pooled vectors. Knows nothing of the first order."""

from dataclasses import dataclass

from torch import Tensor

from hpcrec.operators.base import add_partials, check_lookups
from hpcrec.operators.sums import both_sums
from hpcrec.types import Lookup


@dataclass(frozen=True, kw_only=True)
class FM2:
    """Sum over pairs of features f < g of the dot product of their pooled vectors: [B].

    ::

        partial  S = sum over f of v_f        [B, D]
                 Q = sum over f of |v_f|^2    [B]                  D + 1 floats a sample
        reduce   sum, of S and of Q
        finish   (|S|^2 - Q) / 2

    It is defined on the pooled vectors ``v_f`` of whole bags. Q is not linear, so a bag that is split over holders must
    be summed before ``partial``; sets of whole bags may be split at will. Sources: [DES], "FM 2nd order"; [FM].
    """

    lookups: tuple[Lookup, ...]
    width: int

    def __post_init__(self) -> None:
        check_lookups("FM2", self.lookups, self.width)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """S and Q."""
        return (self.width,), ()

    @property
    def by_column(self) -> tuple[bool, ...]:
        """S has columns, Q sums over them."""
        return True, False

    @property
    def splits_bags(self) -> bool:
        """Q of a bag is not the sum of its parts' Q."""
        return False

    def partial(self, pooled_BFD: Tensor) -> tuple[Tensor, ...]:
        """``(S_BD, Q_B)``."""
        return both_sums(pooled_BFD)

    def reduce(self, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Elementwise sum."""
        return add_partials(a, b)

    def finish(self, partials: tuple[Tensor, ...]) -> Tensor:
        """Sum over pairs, [B]."""
        sum_BD, squares_B = partials
        return 0.5 * (sum_BD.square().sum(1) - squares_B)
