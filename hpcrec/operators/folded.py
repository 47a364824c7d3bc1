"""``Folded``: the first dense layer of a tower, over pooled vectors. Knows nothing of biases, dense inputs or ReLU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hpcrec.errors import ConfigError
from hpcrec.operators.base import add_partials, check_lookups
from hpcrec.operators.product import product
from hpcrec.types import Lookup


@dataclass(frozen=True, kw_only=True, eq=False)
class Folded:
    """Sum over features f of ``v_f W_f``: [B, H], for pooled vectors ``v_f`` and dense parameters ``W_f`` [D, H].

    ::

        partial  sum over f of v_f W_f                              H floats a sample
        reduce   sum
        finish   nothing: bias, dense inputs and what is not linear belong to the tower

    A holder of whole bags, or of some of their columns, computes it from those rows of ``W_f`` that meet its columns,
    which it then trains itself (see ``Learned``). A bag that is split over holders would need a copy of ``W_f`` at each
    of them, whose gradients would have to be summed; that is not offered. Source: [DES], "embedding + DNN".

    Attributes
    ----------
    weights : tuple of nn.Parameter [D, H]
        ``W_f`` of each lookup.
    """

    lookups: tuple[Lookup, ...]
    width: int
    weights: tuple[nn.Parameter, ...]

    def __post_init__(self) -> None:
        check_lookups("Folded", self.lookups, self.width)
        different = len({id(weight) for weight in self.weights})
        if not len(self.lookups) == len(self.weights) == different:
            raise ConfigError(
                f"operator Folded: it has {len(self.lookups)} lookups, {len(self.weights)} weights and {different} "
                "different ones; give it one parameter of its own for each lookup"
            )
        for lookup, weight in zip(self.lookups, self.weights, strict=True):
            if weight.ndim != 2 or weight.shape[1] != self.weights[0].shape[1]:
                raise ConfigError(
                    f"operator Folded: the weight of feature {lookup.feature!r} has shape {tuple(weight.shape)}; it "
                    f"must be [{self.width}, H], with one H for all lookups"
                )

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """One vector of H."""
        return ((self.weights[0].shape[1],),)

    @property
    def by_column(self) -> tuple[bool, ...]:
        """Summed over columns."""
        return (False,)

    @property
    def splits_bags(self) -> bool:
        """Each part of a bag would need the weights."""
        return False

    def over(self, lookups: Sequence[Lookup], weights: Sequence[nn.Parameter]) -> "Folded":
        """See ``Learned``."""
        return replace(self, lookups=tuple(lookups), weights=tuple(weights))

    def partial(self, pooled_BFD: Tensor) -> tuple[Tensor, ...]:
        """``(sum_BH,)``; D are the columns that the weights have."""
        return (product(pooled_BFD.flatten(1), torch.cat(self.weights)),)

    def reduce(self, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Elementwise sum."""
        return add_partials(a, b)

    def finish(self, partials: tuple[Tensor, ...]) -> Tensor:
        """The sum, [B, H]."""
        (sum_BH,) = partials
        return sum_BH
