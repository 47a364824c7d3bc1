"""Layers that several models share. Empty batches and zero dense inputs work. Knows no operators.

BatchNorm is not among them: its statistics are those of a rank's own part of the batch, so results would depend on the
number of ranks.

Legend: ``B`` samples, ``N`` vectors a sample, ``D`` their width, ``X`` inputs of a layer, ``L`` labels.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from hpcrec.models import fused


class Bias(nn.Module):
    """An affine map of no inputs: ``[B, 0] -> [B, n_out]``, the bias in every row (torch's ``Linear`` warns at 0)."""

    def __init__(self, n_out: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x_BX: Tensor) -> Tensor:
        """The bias for each of the B samples."""
        return self.bias.expand(x_BX.shape[0], -1)


def affine(n_in: int, n_out: int) -> nn.Module:
    """``x -> W x + b``: W Xavier normal (variance 2 / (n_in + n_out)), b zero; ``Bias`` where ``n_in`` is 0."""
    if n_in == 0:
        return Bias(n_out)
    layer = nn.Linear(n_in, n_out)
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Tower(nn.Sequential):
    """``nn.Sequential`` that computes each ``Linear`` and the ``ReLU`` after it at once (``fused.linear_relu``).

    Hooks on such a pair are not called.
    """

    def forward(self, x_BX: Tensor) -> Tensor:
        """The last layer's output."""
        layers = [*self]
        while layers:
            layer = layers.pop(0)
            if type(layer) is nn.Linear and layers and type(layers[0]) is nn.ReLU:
                layers.pop(0)
                x_BX = fused.linear_relu(x_BX, layer.weight, layer.bias)
            else:
                x_BX = layer(x_BX)
        return x_BX


def mlp(n_in: int, hidden: Sequence[int], n_out: int | None = None, *, dropout: float = 0.0) -> Tower:
    """Fully connected layers: each hidden one with ReLU, then dropout; then a linear one to ``n_out`` where given.

    Dropout masks come from torch's generator of the rank, so a run with dropout is repeatable on the same ranks, but
    not equal over numbers of ranks.
    """
    layers: list[nn.Module] = []
    for n_from, n_to in pairwise((n_in, *hidden)):
        layers += [affine(n_from, n_to), nn.ReLU()]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
    if n_out is not None:
        layers.append(affine(hidden[-1] if hidden else n_in, n_out))
    return Tower(*layers)


def as_logits(out_BL: Tensor) -> Tensor:
    """``[B, 1] -> [B]``; several labels stay ``[B, L]``."""
    return out_BL.squeeze(1) if out_BL.shape[1] == 1 else out_BL


class FirstOrder(nn.Module):
    """``wide + W dense + b``: logits [B] or [B, L] of a linear model."""

    def __init__(self, n_dense: int, n_labels: int) -> None:
        super().__init__()
        self.dense = affine(n_dense, n_labels)

    def forward(self, wide: Tensor, dense_BX: Tensor) -> Tensor:
        """Logits, from the wide sum [B] or [B, L]."""
        return wide + as_logits(self.dense(dense_BX))


class SharedTerm(nn.Module):
    """A term [B] that all labels share: as it is for one label; ``[B, L]`` with a learned factor a label for more."""

    def __init__(self, n_labels: int) -> None:
        super().__init__()
        self.factor_L = nn.Parameter(torch.ones(n_labels)) if n_labels > 1 else None

    def forward(self, term_B: Tensor) -> Tensor:
        """The term of each label."""
        return term_B if self.factor_L is None else term_B[:, None] * self.factor_L


class DotInteraction(nn.Module):
    """Dot products of all pairs of N vectors: the lower triangle without the diagonal, row by row. Source: [DLRM].

    ``[B, N, D] -> [B, N (N - 1) / 2]``, in the order (1,0), (2,0), (2,1), (3,0), ...; with the first of the vectors
    given by itself, ``[B, D]`` and ``[B, N - 1, D] -> [B, D + N (N - 1) / 2]``: that vector, then the products.
    """

    place_P: Tensor

    def __init__(self, n_vectors: int) -> None:
        super().__init__()
        row, column = torch.tril_indices(n_vectors, n_vectors, offset=-1)
        self.register_buffer("place_P", row * n_vectors + column, persistent=False)
        self.n_vectors = n_vectors

    def forward(self, block_BFD: Tensor, first_BD: Tensor | None = None) -> Tensor:
        """Products of the pairs, after the first vector where that is given."""
        found = block_BFD.shape[1] + (first_BD is not None)
        if found != self.n_vectors:
            raise ValueError(f"DotInteraction was made for {self.n_vectors} vectors a sample; it was given {found}")
        return fused.dot_interaction(first_BD, block_BFD, self.place_P)


class CrossNetV2(nn.Module):
    """Explicit crosses of bounded degree: ``x_{l+1} = x_0 * (W_l x_l + b_l) + x_l``. Source: [DCNv2], equation 1.

    With ``low_rank`` r, ``W_l = U_l V_l`` with ``U_l`` [X, r] and ``V_l`` [r, X] (equation 2, without the mixture of
    experts). ``[B, X] -> [B, X]``.
    """

    def __init__(self, n_in: int, n_layers: int, low_rank: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_cross_map(n_in, low_rank) for _ in range(n_layers))

    def forward(self, x0_BX: Tensor) -> Tensor:
        """Crossed inputs."""
        x_BX = x0_BX
        for layer in self.layers:
            x_BX = x0_BX * layer(x_BX) + x_BX
        return x_BX


def _cross_map(n_in: int, low_rank: int | None) -> nn.Module:
    """``x -> W x + b`` of one cross layer."""
    if low_rank is None:
        return affine(n_in, n_in)
    down = nn.Linear(n_in, low_rank, bias=False)
    nn.init.xavier_normal_(down.weight)
    return nn.Sequential(down, affine(low_rank, n_in))
