"""Wide & Deep as HET trains it [HET]: a tower over the dense features alone, beside which vectors go into the logit.

With 13 dense features, 26 vectors of 128 columns and three layers of 256 it has 138 thousand dense parameters. Knows no
table.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hpcrec.models import block_operators
from hpcrec.types import Feature

HIDDEN = 256


class WideDeep(nn.Module):
    """``w [vectors, tower(dense)]``."""

    def __init__(self, features: Sequence[Feature], n_dense: int, *, width: int, **_: Any) -> None:
        super().__init__()
        self.operators = block_operators(features, width)
        sizes = (n_dense, HIDDEN, HIDDEN, HIDDEN)
        layers = [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
        self.tower = nn.Sequential(*layers[:-1])
        self.last = nn.Linear(len(features) * width + HIDDEN, 1, bias=False)

    def forward(self, inputs: Mapping[str, Tensor], dense: Tensor) -> Tensor:
        """Logits [B]."""
        return self.last(torch.cat([inputs["block"].flatten(1), self.tower(dense)], 1))[:, 0]


build = WideDeep  # model.name = "het_wdl:build"
