"""``WideSum``: the first-order term of linear and factorisation models. Knows nothing of biases or dense inputs."""

from dataclasses import dataclass

from torch import Tensor

from hpcrec.operators.base import add_partials, check_lookups
from hpcrec.types import Lookup


@dataclass(frozen=True, kw_only=True)
class WideSum:
    """Sum over features of one weight an id: [B]; or [B, L] where the tables hold L weights an id, one a label.

    ::

        partial  s = sum over f of pooled_BFD                      1 float a sample (L with L labels)
        reduce   sum
        finish   nothing

    The tables have width 1 (or L). Exact for bags split over holders too. Source: [DES], "LR / wide".
    """

    lookups: tuple[Lookup, ...]
    width: int = 1

    def __post_init__(self) -> None:
        check_lookups("WideSum", self.lookups, self.width)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """One sum, or one a label."""
        return ((),) if self.width == 1 else ((self.width,),)

    @property
    def by_column(self) -> tuple[bool, ...]:
        """Labels are columns."""
        return (self.width > 1,)

    @property
    def splits_bags(self) -> bool:
        """Sums of a bag's parts add up."""
        return True

    def partial(self, pooled_BFD: Tensor) -> tuple[Tensor, ...]:
        """``(sum_B,)``, or ``(sum_BL,)`` where the width is above 1."""
        sum_BD = pooled_BFD.sum(1)
        return (sum_BD.squeeze(1) if self.width == 1 else sum_BD,)

    def reduce(self, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Elementwise sum."""
        return add_partials(a, b)

    def finish(self, partials: tuple[Tensor, ...]) -> Tensor:
        """The sum, [B] or [B, L]."""
        (total,) = partials
        return total
