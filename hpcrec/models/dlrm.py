"""DLRM [DLRM]: dot products of all pairs of vectors between two MLPs. Does not know where vectors come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hpcrec.errors import ConfigError
from hpcrec.models.base import Pooling, RecModel, block_operators
from hpcrec.models.layers import DotInteraction, as_logits, mlp
from hpcrec.models.options import require_dropout, require_sizes
from hpcrec.types import Feature


@dataclass(frozen=True, kw_only=True)
class DLRMOptions:
    """Options of ``DLRM``; the sizes are those of its public Criteo Kaggle runs.

    Attributes
    ----------
    bottom : tuple of int
        Hidden layers of the MLP over dense inputs; a layer of ``width`` follows them.
    top : tuple of int
        Hidden layers of the MLP over the interactions; the logits follow them.
    dropout : float
        Share of each of the top MLP's hidden outputs that is set to zero in training.
    """

    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (512, 256)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_sizes("dlrm", "bottom", self.bottom)
        require_sizes("dlrm", "top", self.top)
        require_dropout("dlrm", self.dropout)


class DLRM(RecModel):
    """``MLP([x, <v_i, v_j> for j < i])``, where ``v_0 = x = MLP(dense)`` and the rest are the features' vectors.

    Without dense inputs there is no bottom MLP: the top MLP reads the products of the features' vectors alone.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        n_dense: int,
        *,
        width: int,
        n_labels: int = 1,
        pooling: Pooling | None = None,
        options: DLRMOptions | None = None,
    ) -> None:
        super().__init__()
        options = options or DLRMOptions()
        self.operators = block_operators(features, width, pooling)
        n_vectors = len(features) + (n_dense > 0)
        if n_vectors < 2:
            raise ConfigError(
                "model dlrm: one feature and no dense inputs have no pairs to interact; add one of either"
            )
        self.bottom = mlp(n_dense, (*options.bottom, width)) if n_dense > 0 else None
        self.interaction = DotInteraction(n_vectors)
        n_top = n_vectors * (n_vectors - 1) // 2 + (width if n_dense > 0 else 0)
        self.top = mlp(n_top, options.top, n_labels, dropout=options.dropout)

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        """Logits [B] or [B, L]."""
        x_BD = None if self.bottom is None else self.bottom(dense_BN)
        return as_logits(self.top(self.interaction(inputs["block"], x_BD)))
