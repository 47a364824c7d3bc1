"""A user's own model: two towers whose dot product is the logit. Plain torch; no rank, table or optimizer in sight."""

import torch
from torch import nn

from hpcrec.models import block_operators


class TwoTowers(nn.Module):
    """The first ``n_left`` features make one tower, the other features and the dense inputs the other."""

    def __init__(self, features, n_dense, *, width, n_labels=1, n_left=1, out=32):
        super().__init__()
        if n_labels != 1 or not 0 < n_left < len(features):
            raise ValueError(f"n_left is {n_left}, of {len(features)} features; {n_labels} labels (1 is possible)")
        self.operators = block_operators(features, width)  # inputs["block"]: pooled vectors [B, features, width]
        self.n_left = n_left
        self.left = nn.Linear(n_left * width, out)
        self.right = nn.Linear((len(features) - n_left) * width + n_dense, out)

    def forward(self, inputs, dense):
        """Logits [B] from the operators' results by name and dense [B, n_dense]; B may be 0."""
        left, right = inputs["block"][:, : self.n_left], inputs["block"][:, self.n_left :]
        return (self.left(left.flatten(1)) * self.right(torch.cat([right.flatten(1), dense], 1))).sum(1)


build = TwoTowers  # model.name = "my_model:build"
