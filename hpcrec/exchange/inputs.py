"""What a model receives: each of its operators' results by name, over leaf tensors that end autograd at the wire.

Knows torch and operators; does not know where rows live or what crosses.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from hpcrec.exchange.layout import Layout, Partial
from hpcrec.exchange.tensors import Where, tensor_of
from hpcrec.operators.base import Operator, has_parameters, over, unflatten
from hpcrec.types import Floats, Lookup


@dataclass(frozen=True)
class Gradients:
    """What goes back: gradients of the leaves [B, F, D], and of the partial results [B, P] in the order they came."""

    leaves: list[Floats]
    partials: list[Floats]


class Inputs(Mapping[str, Tensor]):
    """Operator name -> ``finish(partial(pooled))``, computed when first asked for.

    Parameters
    ----------
    leaves : sequence of float [B, F, D]
        One a leaf group of the layout.
    partials : sequence of (Partial, float [B, P])
        Partial results of operators that were computed where rows are, holder after holder.
    layout : Layout
    operators : mapping of str to Operator
    train : bool
        Whether the leaves collect gradients.
    where : Where
        Where the model has its tensors.
    """

    def __init__(
        self,
        leaves: Sequence[Floats],
        partials: Sequence[tuple[Partial, Floats]],
        layout: Layout,
        operators: Mapping[str, Operator],
        *,
        train: bool,
        where: Where,
    ) -> None:
        self._layout = layout
        self._operators = operators
        self._results: dict[str, Tensor] = {}
        self._where = where
        self.leaves = [where.put(tensor_of(leaf)).requires_grad_(train) for leaf in leaves]
        self.partials = [(of, where.put(tensor_of(part)).requires_grad_(train)) for of, part in partials]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._results:
            self._results[name] = self._result(name, self._operators[name])
        return self._results[name]

    def _result(self, name: str, operator: Operator) -> Tensor:
        parts = [unflatten(operator, x_BP, of.columns) for of, x_BP in self.partials if of.operator == name]
        away = self._layout.substituted.get(name, ())
        here = tuple(k for k in operator.lookups if k not in away)
        if here:
            parts.append(over(operator, here).partial(self._pooled(here)))
        return operator.finish(reduce(operator.reduce, parts))

    def seen_by(self, operators: Mapping[str, Operator]) -> dict[str, Tensor]:
        """What another model of the same kind receives, whose operators these are; no gradients come back from it.

        Only those with dense parameters of their own are computed anew.
        """
        with torch.no_grad():
            return {
                name: self._result(name, operator)
                if has_parameters(operator) or name not in self._results
                else self._results[name].detach()
                for name, operator in operators.items()
            }

    def scale_gradients(self, factor: float) -> None:
        """Multiplies the gradients that there are; after backward."""
        for tensor in (*self.leaves, *(part for _, part in self.partials)):
            if tensor.grad is not None:
                tensor.grad.mul_(factor)

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

    def results(self) -> list[tuple[str, Tensor]]:
        """Partial results that came, by their operators' names."""
        return [(of.operator, part_BP) for of, part_BP in self.partials]

    def gradients(self) -> Gradients:
        """Gradients; zeros where the loss does not depend on something."""
        return Gradients(
            [self._gradient(leaf) for leaf in self.leaves], [self._gradient(part) for _, part in self.partials]
        )

    def _gradient(self, leaf: Tensor) -> Floats:
        found: Floats = self._where.take(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous())
        return found

    def _pooled(self, lookups: Sequence[Lookup]) -> Tensor:
        """These lookups of their leaf, in order: [B, F, D]; a view where they lie together."""
        places = [self._layout.place[k.feature, k.table] for k in lookups]
        leaf = self.leaves[places[0][0]]
        positions = [position for _, position in places]
        first = positions[0]
        if positions == list(range(first, first + len(positions))):
            return leaf if len(positions) == leaf.shape[1] else leaf[:, first : first + len(positions)]
        return leaf.index_select(1, torch.tensor(positions, device=leaf.device))
