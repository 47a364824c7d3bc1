"""``FM2``: the second-order term of a factorisation machine over pooled vectors. Knows nothing of the first order."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcrec.operators.base import add_partials, check_lookups
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
        return _Sums.apply(pooled_BFD)

    def reduce(self, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Elementwise sum."""
        return add_partials(a, b)

    def finish(self, partials: tuple[Tensor, ...]) -> Tensor:
        """Sum over pairs, [B]."""
        sum_BD, squares_B = partials
        return 0.5 * (sum_BD.square().sum(1) - squares_B)


class _Sums(torch.autograd.Function):
    """``(S, Q)``, whose gradient ``g_S + 2 g_Q v`` is written in one pass over memory; by itself torch takes six."""

    @staticmethod
    def forward(ctx: Any, pooled_BFD: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(pooled_BFD)
        return pooled_BFD.sum(1), pooled_BFD.square().sum((1, 2))

    @staticmethod
    def backward(ctx: Any, sum_gradient_BD: Tensor, squares_gradient_B: Tensor) -> Tensor:
        (pooled_BFD,) = ctx.saved_tensors
        return torch.addcmul(sum_gradient_BD[:, None], pooled_BFD, 2 * squares_gradient_B[:, None, None])
