"""DCN v2 [DCNv2]: explicit crosses beside or before a deep tower. Does not know where vectors come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpcrec.models.base import Pooling, RecModel, block_operators
from hpcrec.models.layers import CrossNetV2, affine, as_logits, mlp
from hpcrec.models.options import require_choice, require_count, require_dropout, require_sizes
from hpcrec.types import Feature


@dataclass(frozen=True, kw_only=True)
class DCNOptions:
    """Options of ``DCN``.

    Attributes
    ----------
    cross_layers : int
        Crosses reach degree ``cross_layers + 1``.
    low_rank : int or None
        Rank of the cross layers' matrices; None for full matrices.
    hidden : tuple of int
        Sizes of the deep tower's hidden layers; empty for crosses alone.
    structure : str
        ``stacked``: the deep tower reads the crosses; ``parallel``: it reads the inputs, beside them.
    dropout : float
        Share of each hidden layer's outputs that is set to zero in training.
    """

    cross_layers: int = 3
    low_rank: int | None = None
    hidden: tuple[int, ...] = (256, 128)
    structure: str = "parallel"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_count("dcn", "cross_layers", self.cross_layers, at_least=1)
        if self.low_rank is not None:
            require_count("dcn", "low_rank", self.low_rank, at_least=1)
        require_sizes("dcn", "hidden", self.hidden)
        require_choice("dcn", "structure", self.structure, ("parallel", "stacked"))
        require_dropout("dcn", self.dropout)


class DCN(RecModel):
    """With ``x_0 = [dense, block]``: ``w [cross(x_0), MLP(x_0)] + b`` parallel, ``w MLP(cross(x_0)) + b`` stacked."""

    def __init__(
        self,
        features: Sequence[Feature],
        n_dense: int,
        *,
        width: int,
        n_labels: int = 1,
        pooling: Pooling | None = None,
        options: DCNOptions | None = None,
    ) -> None:
        super().__init__()
        options = options or DCNOptions()
        self.operators = block_operators(features, width, pooling)
        n_in = n_dense + len(features) * width
        n_deep = options.hidden[-1] if options.hidden else n_in
        self.cross = CrossNetV2(n_in, options.cross_layers, options.low_rank)
        self.deep = mlp(n_in, options.hidden, dropout=options.dropout)
        # Without hidden layers the two structures are the same: crosses alone.
        self.parallel = options.structure == "parallel" and bool(options.hidden)
        self.head = affine(n_in + n_deep if self.parallel else n_deep, n_labels)

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        """Logits [B] or [B, L]."""
        x0_BX = torch.cat([dense_BN, inputs["block"].flatten(1)], 1)
        crossed_BX = self.cross(x0_BX)
        if self.parallel:
            return as_logits(self.head(torch.cat([crossed_BX, self.deep(x0_BX)], 1)))
        return as_logits(self.head(self.deep(crossed_BX)))
