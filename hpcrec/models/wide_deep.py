"""Wide & Deep [WDL]: a linear model and a deep tower, trained together. Does not know where vectors come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hpcrec.models.base import Pooling, RecModel, block_operators, wide_operators
from hpcrec.models.first import FirstLayer
from hpcrec.models.layers import FirstOrder, as_logits, mlp
from hpcrec.models.options import require_dropout, require_sizes
from hpcrec.types import Feature


@dataclass(frozen=True, kw_only=True)
class WideDeepOptions:
    """Options of ``WideDeep``.

    Attributes
    ----------
    hidden : tuple of int
        Sizes of the deep tower's hidden layers; the paper's are 1024, 512, 256.
    dropout : float
        Share of each hidden layer's outputs that is set to zero in training.
    """

    hidden: tuple[int, ...] = (1024, 512, 256)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_sizes("wide_deep", "hidden", self.hidden, at_least=1)
        require_dropout("wide_deep", self.dropout)


class WideDeep(RecModel):
    """``wide + W dense + b + MLP([dense, block])``, the MLP's first layer as an operator, ``Folded``.

    Departures from the paper: the wide part reads every feature (crossed features are the data set's to provide), and
    both parts learn by the optimizers of the run, where the paper has FTRL for the wide part.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        n_dense: int,
        *,
        width: int,
        n_labels: int = 1,
        pooling: Pooling | None = None,
        options: WideDeepOptions | None = None,
    ) -> None:
        super().__init__()
        options = options or WideDeepOptions()
        lookups, (first, *others) = block_operators(features, width, pooling)["block"].lookups, options.hidden
        self.first_order = FirstOrder(n_dense, n_labels)
        self.first = FirstLayer(n_dense, lookups, width, first, dropout=options.dropout)
        self.operators = wide_operators(features, n_labels, pooling) | {"first": self.first.operator}
        self.deep = mlp(first, others, n_labels, dropout=options.dropout)

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        """Logits [B] or [B, L]."""
        deep = self.deep(self.first(inputs["first"], dense_BN))
        return self.first_order(inputs["wide"], dense_BN) + as_logits(deep)
