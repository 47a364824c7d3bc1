"""Logistic regression over ids and dense inputs. Does not know how ids become weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hpcrec.models.base import Pooling, RecModel, wide_operators
from hpcrec.models.layers import FirstOrder
from hpcrec.types import Feature


@dataclass(frozen=True, kw_only=True)
class LROptions:
    """Logistic regression has no options."""


class LR(RecModel):
    """``wide + W dense + b``: one weight an id, which is a table of width 1 a feature; ``width`` is not used."""

    def __init__(
        self,
        features: Sequence[Feature],
        n_dense: int,
        *,
        width: int,  # noqa: ARG002  all builders have one signature
        n_labels: int = 1,
        pooling: Pooling | None = None,
        options: LROptions | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__()
        self.operators = wide_operators(features, n_labels, pooling)
        self.first_order = FirstOrder(n_dense, n_labels)

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        """Logits [B] or [B, L]."""
        return self.first_order(inputs["wide"], dense_BN)
