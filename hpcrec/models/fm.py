"""Factorisation machine of degree 2 [FM]. Does not know how ids become vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hpcrec.models.base import Pooling, RecModel, fm2_operators, wide_operators
from hpcrec.models.layers import FirstOrder, SharedTerm
from hpcrec.types import Feature


@dataclass(frozen=True, kw_only=True)
class FMOptions:
    """A factorisation machine has no options besides the width."""


class FM(RecModel):
    """``wide + W dense + b + sum over pairs of features of <v_f, v_g>``.

    Departures from the paper: pairs are of features (pooled bags), not of ids within a bag; dense inputs have no
    vectors and enter to first order only. With several labels the pair term is shared, with a learned factor a label.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        n_dense: int,
        *,
        width: int,
        n_labels: int = 1,
        pooling: Pooling | None = None,
        options: FMOptions | None = None,  # noqa: ARG002  all builders have one signature
    ) -> None:
        super().__init__()
        self.operators = wide_operators(features, n_labels, pooling) | fm2_operators(features, width, pooling)
        self.first_order = FirstOrder(n_dense, n_labels)
        self.pairs = SharedTerm(n_labels)

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        """Logits [B] or [B, L]."""
        return self.first_order(inputs["wide"], dense_BN) + self.pairs(inputs["fm2"])
