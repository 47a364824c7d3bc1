"""DeepFM [DeepFM]: a factorisation machine and a deep tower that share vectors. Does not know where those come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hpcrec.models.base import Pooling, RecModel, fm2_operators, wide_operators
from hpcrec.models.first import FirstLayer
from hpcrec.models.layers import FirstOrder, SharedTerm, as_logits, mlp
from hpcrec.models.options import require_dropout, require_sizes
from hpcrec.types import Feature


@dataclass(frozen=True, kw_only=True)
class DeepFMOptions:
    """Options of ``DeepFM``.

    Attributes
    ----------
    hidden : tuple of int
        Sizes of the deep tower's hidden layers; the paper's are three of 400.
    dropout : float
        Share of each hidden layer's outputs that is set to zero in training.
    """

    hidden: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_sizes("deepfm", "hidden", self.hidden, at_least=1)
        require_dropout("deepfm", self.dropout)


class DeepFM(RecModel):
    """``wide + W dense + b + FM2 + MLP([dense, block])``.

    ``FM2`` and ``Folded``, the MLP's first layer, read the same lookups, so vectors that cross do so once. Departure
    from the paper: dense inputs have no vectors; they enter to first order and into the deep tower.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        n_dense: int,
        *,
        width: int,
        n_labels: int = 1,
        pooling: Pooling | None = None,
        options: DeepFMOptions | None = None,
    ) -> None:
        super().__init__()
        options = options or DeepFMOptions()
        self.operators = wide_operators(features, n_labels, pooling) | fm2_operators(features, width, pooling)
        self.first_order = FirstOrder(n_dense, n_labels)
        self.pairs = SharedTerm(n_labels)
        lookups, (first, *others) = self.operators["fm2"].lookups, options.hidden
        self.first = FirstLayer(n_dense, lookups, width, first, dropout=options.dropout)
        self.operators["first"] = self.first.operator
        self.deep = mlp(first, others, n_labels, dropout=options.dropout)

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        """Logits [B] or [B, L]."""
        deep = self.deep(self.first(inputs["first"], dense_BN))
        return self.first_order(inputs["wide"], dense_BN) + self.pairs(inputs["fm2"]) + as_logits(deep)
