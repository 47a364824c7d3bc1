"""The first layer of a deep tower, whose part over pooled vectors is an operator. Knows no rank and no table.

Legend: ``B`` samples, ``N`` dense inputs, ``D`` columns of a vector, ``H`` outputs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hpcrec.models import fused
from hpcrec.models.layers import affine
from hpcrec.operators.base import Operator
from hpcrec.operators.folded import Folded
from hpcrec.types import Lookup

_ESCAPED = str.maketrans({"%": "%25", ".": "%2E", "@": "%40"})  # torch has no dots in names; @ is ours


class FirstLayer(nn.Module):
    """``relu(folded + W dense + b)`` of the result of ``operator``, a ``Folded``; then dropout.

    Equal to ``Linear`` over dense inputs and vectors side by side, its ReLU and dropout, and drawn as that one is.
    Parameters are ``weight_<feature>`` [D, H] of each lookup (``weight_<feature>@<table>`` where the table has another
    name), ``weight`` [H, N] of the dense inputs, if there are any, and ``bias``.

    Attributes
    ----------
    out_features : int
        ``H``.
    """

    def __init__(
        self, n_dense: int, lookups: Sequence[Lookup], width: int, out_features: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.out_features = out_features
        whole_HX = affine(n_dense + len(lookups) * width, out_features).get_parameter("weight").detach()
        weights = whole_HX[:, n_dense:].t().split(width)
        self._names = [_name(lookup) for lookup in lookups]
        for name, weight_DH in zip(self._names, weights, strict=True):
            self.register_parameter(name, nn.Parameter(weight_DH.contiguous()))
        self.weight = nn.Parameter(whole_HX[:, :n_dense].contiguous()) if n_dense else None
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.dropout = nn.Dropout(dropout) if dropout > 0 else None
        self._reads = tuple(lookups), width

    @property
    def operator(self) -> Operator:
        """What this layer needs from embeddings."""
        lookups, width = self._reads
        return Folded(lookups=lookups, width=width, weights=tuple(self.get_parameter(name) for name in self._names))

    def forward(self, folded_BH: Tensor, dense_BN: Tensor) -> Tensor:
        """Hidden values [B, H]."""
        hidden_BH = fused.added_relu(folded_BH, dense_BN, self.weight, self.bias)
        return hidden_BH if self.dropout is None else self.dropout(hidden_BH)


def _name(lookup: Lookup) -> str:
    of = "" if lookup.table == lookup.feature else f"@{lookup.table.translate(_ESCAPED)}"
    return f"weight_{lookup.feature.translate(_ESCAPED)}{of}"
