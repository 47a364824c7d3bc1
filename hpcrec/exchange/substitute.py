"""The holder's side of substituted operators: partial results out, gradients of the vectors that stayed back in.

A holder gathers the vectors of its hidden streams into memory behind the message, [F, S, D] for each width: F streams,
S samples of all dense ranks in rank order. Operators run on them under torch's autograd, as they do on a dense rank;
their results travel, some of them to another owner first (``among``). Of operators that meet it is the vectors
themselves that go on, to the owner that computes these (``at_place``). Dense parameters of operators (``Learned``) are
sliced: this holder has those rows that meet its columns, and leaves their gradients, over the global batch, in
``.grad``; who steps them is for others to know. Knows one holder's leg and operators; knows no MPI. Source: [DES].
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcrec.errors import NonFiniteError
from hpcrec.exchange.bags import cumulative
from hpcrec.exchange.layout import Leg, Partial
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.tensors import tensor_of
from hpcrec.operators.base import Learned, Operator, flatten, meets
from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class Sent:
    """One step's partial results, and where they are.

    Attributes
    ----------
    dense_P : int64 [P]
        World rank of each sender.
    first_P : int64 [P + 1]
        First sample of each sender.
    value_at_P, gradient_at_P : int64 [P]
        First element of each sender's partial results in the values sent and the gradients received.
    value_behind, gradient_behind : int
        Where the messages end, and the vectors that stay begin.
    elements : int
        Of those vectors.
    scales : sequence of float [F, S, 1] or None
        By width: 1 / ids of each bag, for means.
    results, gradients : list of float [S, P]
        Of each operator, once they are there; changed in place where they are added among owners.
    sums : list
        What ``among`` keeps for the way back.
    """

    dense_P: Ints
    first_P: Ints
    value_at_P: Ints
    gradient_at_P: Ints
    value_behind: int
    gradient_behind: int
    elements: int
    scales: Sequence[Floats | None]
    results: list[Floats] = field(default_factory=list)
    gradients: list[Floats] = field(default_factory=list)
    sums: list[Any] = field(default_factory=list)
    graph: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = field(default_factory=list)  # leaves and results

    @cached_property
    def _place_of(self) -> dict[int, int]:
        """Of each sender among them."""
        return {d: i for i, d in enumerate(self.dense_P.tolist())}

    def rows(self, dense: Sequence[int], of_SP: Floats) -> list[Floats]:
        """Rows of the samples of each of these dense ranks, views."""
        at = self._place_of
        places = [at[d] for d in dense if d in at]  # who asks nothing of this rank asks nothing of any member
        return [of_SP[:0], *(of_SP[self.first_P[i] : self.first_P[i + 1]] for i in places)]


class Substitute:
    """The substituted operators of one holder.

    Parameters
    ----------
    leg : Leg
    operators : mapping of str to Operator
    sent : callable, optional
        Dense rank -> numbers of the partial results that this holder sends it, in their order; default: all.
    keeps : bool
        Vectors are copied, since the memory behind the values is used again before their gradients come.

    Attributes
    ----------
    slices : list of Slice
        Of operators' dense parameters, as these are now.
    """

    def __init__(
        self,
        leg: Leg,
        operators: Mapping[str, Operator],
        sent: Callable[[int], Sequence[int]] | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        self._keeps = keeps
        self.slices: list[Slice] = []
        self._partials = [(self._operator(operators[p.operator], p, leg), p) for p in leg.partials]
        self._sent = sent or (lambda _: range(len(leg.partials)))
        self._groups: list[tuple[int, int, int]] = []  # first hidden stream, streams, width
        first = 0
        for width, streams in groupby(leg.hidden, key=lambda s: s.width):
            n = len(list(streams))
            self._groups.append((first, n, width))
            first += n

    def _operator(self, operator: Operator, partial: Partial, leg: Leg) -> Operator:
        """The operator of one partial result; with slices of its parameters, if it has any."""
        if meets(operator):
            return _AsTheyAre()  # type: ignore[return-value]
        if not isinstance(operator, Learned):
            return operator
        weight_of = {(k.feature, k.table): (k, w) for k, w in zip(operator.lookups, operator.weights, strict=True)}
        streams = [leg.hidden[number] for number in partial.hidden]
        found = [weight_of[leg.entries[s.entry].features[0], s.table] for s in streams]
        start, stop = partial.columns
        parts = []
        for _, whole in found:
            part = nn.Parameter(whole.detach()[start:stop].clone(), requires_grad=whole.requires_grad)
            parts.append(part)
            self.slices.append(Slice(whole, start, stop, part))
        return operator.over([k for k, _ in found], parts)

    def elements(self, dense_P: Ints) -> Ints:
        """Of a sample's partial results that are sent to each of these dense ranks: int64 [P]."""
        counts = [sum(self._partials[n][1].elements for n in self._sent(d)) for d in dense_P.tolist()]
        return np.array(counts, np.int64)

    def place(
        self,
        dense_P: Ints,
        samples_P: Ints,
        ends: tuple[Ints, Ints],
        behind: tuple[int, int],
        lengths: Mapping[int, Ints],
    ) -> tuple[Sent, Ints]:
        """Where one step's partial results are, and the vectors that stay.

        Parameters
        ----------
        dense_P : int64 [P]
            World rank of each sender.
        samples_P : int64 [P]
            Of each of them.
        ends : two of int64 [P]
            Where each sender's vectors end in the values and the gradients, and its partial results begin.
        behind : two of int
            Where the values and the gradients end.
        lengths : mapping of int to int64 [S]
            Ids of the bags of each hidden stream that is a mean, by its number.

        Returns
        -------
        (Sent, int64 [P, H])
            The second: first element of each sender's vectors of each hidden stream, counted from ``behind``.
        """
        first_P = cumulative(samples_P)
        samples, at, columns = int(first_P[-1]), 0, []
        scales: list[Floats | None] = []
        for first, n, width in self._groups:
            columns += [at + (i * samples + first_P[:-1]) * width for i in range(n)]
            at += n * samples * width
            means = [s for s in lengths if first <= s < first + n]
            scale = np.ones((n, samples, 1)) if means else None
            for s in means:
                assert scale is not None
                scale[s - first, :, 0] = 1.0 / np.maximum(lengths[s], 1)
            scales.append(scale)
        return Sent(dense_P, first_P, *ends, *behind, at, scales), np.stack(columns, axis=1)

    def forward(self, sent: Sent, values: Floats, *, train: bool) -> None:
        """From the vectors behind the values to partial results, of all samples; ``write`` puts them into messages."""
        samples, at = int(sent.first_P[-1]), sent.value_behind
        leaves: list[Tensor] = []
        for _, n, width in self._groups:
            size = n * samples * width
            vectors_FSD = tensor_of(values[at : at + size].reshape(n, samples, width))
            leaves.append((vectors_FSD.clone() if self._keeps and train else vectors_FSD).requires_grad_(train))
            at += size
        with torch.set_grad_enabled(train):
            vectors = [
                leaf if scale is None else leaf * torch.from_numpy(scale).to(leaf)
                for leaf, scale in zip(leaves, sent.scales, strict=True)
            ]
            pooled = [self._pooled(vectors, p.hidden, samples) for _, p in self._partials]
            results = [
                flatten(_beside(operator, x).partial(x))
                for (operator, _), x in zip(self._partials, pooled, strict=True)
            ]
        if train:
            sent.graph.append((leaves, results))
        sent.results[:] = [r.detach().cpu().numpy() for r in results]

    def write(self, sent: Sent, values: Floats) -> None:
        """Partial results, each to who is sent it, into the messages."""
        self._exchange(sent, sent.value_at_P, values, sent.results, write=True)
        sent.results.clear()

    def read(self, sent: Sent, gradients: Floats) -> None:
        """Gradients of what was sent, out of the messages; those of other rows are left for ``among`` to fill in."""
        _, results = sent.graph[-1]
        sent.gradients[:] = [
            np.empty((len(r), partial.elements), gradients.dtype)
            for (_, partial), r in zip(self._partials, results, strict=True)
        ]
        self._exchange(sent, sent.gradient_at_P, gradients, sent.gradients, write=False)

    def backward(self, sent: Sent, gradients: Floats) -> None:
        """From the gradients of the partial results to those of the vectors, behind the messages."""
        leaves, results = sent.graph.pop()
        for own in self.slices:
            own.part.grad = None
        pairs = [
            (r, torch.from_numpy(g).to(r)) for g, r in zip(sent.gradients, results, strict=True) if r.requires_grad
        ]
        torch.autograd.backward([r for r, _ in pairs], [g for _, g in pairs])
        sent.gradients.clear()
        found = [leaf.grad for leaf in leaves] + [own.part.grad for own in self.slices if own.part.requires_grad]
        for gradient in found:
            assert gradient is not None, "every hidden stream, and every weight, is read by an operator"
            if not math.isfinite(gradient.sum()) and not bool(torch.isfinite(gradient).all()):
                names = ", ".join(p.operator for _, p in self._partials)
                raise NonFiniteError(
                    f"gradients of vectors or weights at their owner are not finite, though those of the results of "
                    f"{names} are. This owner's rows were not changed. Look for a slope that an empty bag's zeros make "
                    'infinite, or set exchange.form = "pooled", where such a batch can be left out (train.nonfinite).'
                )
        at = sent.gradient_behind
        for leaf in leaves:
            assert leaf.grad is not None, "looked at above"
            tensor_of(gradients[at : at + leaf.numel()].reshape(*leaf.shape)).copy_(leaf.grad)
            at += leaf.numel()

    def _pooled(self, vectors: Sequence[Tensor], hidden: Sequence[int], samples: int) -> Tensor:
        """[S, F, D] of these hidden streams, which have one width; of none of them nothing."""
        if not hidden:
            return vectors[0].detach().new_empty((samples, 0))
        group = next(g for g, (first, n, _) in enumerate(self._groups) if first <= hidden[0] < first + n)
        numbers = [s - self._groups[group][0] for s in hidden]
        picked = vectors[group]
        if numbers != list(range(picked.shape[0])):
            picked = picked.index_select(0, torch.tensor(numbers, device=picked.device))
        return picked.transpose(0, 1)

    def _exchange(self, sent: Sent, at_P: Ints, flat: Floats, results: Sequence[Floats], *, write: bool) -> None:
        """Results [S, P] to or from each sender's part of the message, one operator after the other."""
        for sender, (dense, at) in enumerate(zip(sent.dense_P.tolist(), at_P.tolist(), strict=True)):
            rows = slice(int(sent.first_P[sender]), int(sent.first_P[sender + 1]))
            for number in self._sent(dense):
                part = results[number][rows]
                there = flat[at : at + part.size].reshape(part.shape)
                if write:
                    there[:] = part
                else:
                    part[:] = there
                at += part.size


class _AsTheyAre:
    """In place of an operator that meets: the vectors that are here."""

    @staticmethod
    def partial(pooled_BFD: Tensor) -> tuple[Tensor, ...]:
        """They themselves."""
        return (pooled_BFD,)


def _beside(operator: Operator, pooled: Tensor) -> Operator:
    """The operator with its dense parameters where the vectors are; they stay, and learn, where they were."""
    if not isinstance(operator, Learned) or all(w.device == pooled.device for w in operator.weights):
        return operator
    return operator.over(operator.lookups, [w.to(pooled.device) for w in operator.weights])  # type: ignore[misc]
