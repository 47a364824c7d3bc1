"""A model that computes next to nothing: what is left of a step is the exchange. Knows no table."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcrec.models import block_operators
from hpcrec.types import Feature


class Summed(nn.Module):
    """A number times the sum of all vectors: every element has a gradient, and one number a dense sum."""

    def __init__(self, features: Sequence[Feature], n_dense: int, *, width: int, **_: Any) -> None:  # noqa: ARG002
        super().__init__()
        self.operators = block_operators(features, width)
        self.scale = nn.Parameter(torch.full((1,), 1e-3))

    def forward(self, inputs: Mapping[str, Tensor], dense: Tensor) -> Tensor:  # noqa: ARG002
        """Logits [B]."""
        return self.scale * inputs["block"].sum((1, 2))


build = Summed  # model.name = "summed:build"
