"""What features of a DLRM have to do with each other: by how they move its logits together, and how alike vectors are.

Two signals, of each pair of features, over batches that it trains on. *Interaction strength*: what the logit changes by
their dot product, the mean over samples of |d logit / d product x (product - its mean)|, the mean that of a rank's part
of the batch. *Cosine*: the mean of |cos| of their pooled vectors [DMT]. Knows the model's interaction; knows no towers
and no ranks.

Legend: ``B`` samples, ``F`` features, ``P`` pairs of vectors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hpcrec.errors import ConfigError
from hpcrec.models.dlrm import DLRM


class PairSignals:
    """Sums over samples, of one rank.

    Parameters
    ----------
    model : DLRM
    n_features : int
        F.

    Attributes
    ----------
    sums : float64 [1 + 2 F F]
        Samples; then interaction strengths, and cosines, times samples. Those of ranks add up. Of a step that was left
        out, because something in it is not finite, nothing is in them.
    """

    def __init__(self, model: nn.Module, n_features: int) -> None:
        if not isinstance(model, DLRM):
            raise ConfigError(f"pairs of features are looked at in a DLRM, not in a {type(model).__name__}")
        self._model, self._n = model, n_features
        self._first = 0 if model.bottom is None else 1  # the dense inputs' vector is before the features'
        self._out: Tensor | None = None
        self._now = np.zeros(1 + 2 * n_features * n_features)
        self.sums = np.zeros(1 + 2 * n_features * n_features)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts, what the model computes forward is looked at; it counts where all of it is finite."""
        self._now[:] = 0
        hooks = [
            self._model.interaction.register_forward_hook(self._products),
            self._model.register_forward_hook(self._logits),
        ]
        try:
            yield
            if np.isfinite(self._now).all():
                self.sums += self._now
        finally:
            for hook in hooks:
                hook.remove()

    def _products(self, _: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        self._out = out
        with torch.no_grad():
            unit_BFD = functional.normalize(given[0].detach().double(), dim=2)
            cosine_FF = (unit_BFD @ unit_BFD.transpose(1, 2)).abs().sum(0)
        self._now[0] += len(out)
        self._now[1 + self._n**2 :] += cosine_FF.flatten().cpu().numpy()

    def _logits(self, _: nn.Module, __: tuple[Any, ...], logits: Tensor) -> None:
        out, self._out = self._out, None
        assert out is not None, "the interaction was computed"
        if not len(logits):
            return
        (slope,) = torch.autograd.grad(logits.sum(), out, retain_graph=True)
        n_vectors = self._n + self._first
        n_pairs = n_vectors * (n_vectors - 1) // 2
        product_BP, slope_BP = (x[:, -n_pairs:].detach().double() for x in (out, slope))
        strength_P = (slope_BP * (product_BP - product_BP.mean(0))).abs().sum(0).cpu().numpy()
        row, column = np.tril_indices(n_vectors, -1)
        mine = column >= self._first
        strength_FF = np.zeros((self._n, self._n))
        strength_FF[row[mine] - self._first, column[mine] - self._first] = strength_P[mine]
        self._now[1 : 1 + self._n**2] += (strength_FF + strength_FF.T).ravel()


def signals_of(sums: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interaction strengths and cosines, [F, F] each, of the sums of all ranks."""
    n = round(((len(sums) - 1) // 2) ** 0.5)
    means = sums[1:] / max(sums[0], 1)
    return means[: n * n].reshape(n, n), means[n * n :].reshape(n, n)
