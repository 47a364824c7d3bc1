"""What a model receives: each of its operators' results by name, over leaf tensors that end autograd at the wire.

Knows torch and operators; does not know where rows live or what crosses.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hpcrec.exchange.layout import Layout
from hpcrec.operators.base import Operator
from hpcrec.types import Floats


class Inputs(Mapping[str, Tensor]):
    """Operator name -> ``finish(partial(pooled))``, computed when first asked for.

    Parameters
    ----------
    leaves : sequence of float [B, F, D]
        One a leaf group of the layout.
    layout : Layout
    operators : mapping of str to Operator
    train : bool
        Whether the leaves collect gradients.
    """

    def __init__(
        self, leaves: Sequence[Floats], layout: Layout, operators: Mapping[str, Operator], *, train: bool
    ) -> None:
        self._layout = layout
        self._operators = operators
        self._results: dict[str, Tensor] = {}
        self.leaves = [torch.from_numpy(leaf).requires_grad_(train) for leaf in leaves]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._results:
            operator = self._operators[name]
            self._results[name] = operator.finish(operator.partial(self._pooled(operator)))
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._operators)

    def __len__(self) -> int:
        return len(self._operators)

    def vectors(self) -> Iterator[tuple[str, Tensor]]:
        """Pooled vectors [B, D] of each lookup, by the feature's name, and the table's where that is another."""
        for group, leaf in zip(self._layout.groups, self.leaves, strict=True):
            for position, lookup in enumerate(group.lookups):
                of = "" if lookup.table == lookup.feature else f" of {lookup.table}"
                yield lookup.feature + of, leaf[:, position]

    def gradients(self) -> list[Floats]:
        """Gradient of each leaf [B, F, D]; zeros for a leaf that the loss does not depend on."""
        return [
            np.zeros(tuple(leaf.shape), leaf.detach().numpy().dtype)
            if leaf.grad is None
            else leaf.grad.contiguous().numpy()
            for leaf in self.leaves
        ]

    def _pooled(self, operator: Operator) -> Tensor:
        """The operator's lookups of their leaf, in its order: [B, F, D]; a view where they lie together."""
        places = [self._layout.place[k.feature, k.table] for k in operator.lookups]
        leaf = self.leaves[places[0][0]]
        positions = [position for _, position in places]
        first = positions[0]
        if positions == list(range(first, first + len(positions))):
            return leaf if len(positions) == leaf.shape[1] else leaf[:, first : first + len(positions)]
        return leaf.index_select(1, torch.tensor(positions))
