"""Operators that meet (towers), computed by owners of the host that has their rows, and their modules trained there.

By the plan of ``meetings``, on a communicator of each host's owners: one collective each way, of tags ``values`` and
``gradients``, in which vectors are as they are in memory, for they stay in the host. The root of a meeting runs the
operator on the samples of its dense ranks under torch's autograd, on the host; the gradients of its module's parameters
are left in each slice's ``part.grad``: all roots of an operator have the whole module, and train it together. Knows the
plan, operators and ranks; does not know where vectors come from, nor what becomes of the result. Source: [DMT].

Legend: ``N`` samples of a root's dense ranks, ``F`` lookups of an operator, ``D`` their width, ``S`` samples of all
dense ranks, ``P`` elements of a result.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcrec.comm.collectives import Collectives
from hpcrec.errors import NonFiniteError
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.meetings import Meeting
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.substitute import Sent
from hpcrec.exchange.swap import Swap, put
from hpcrec.operators.base import Operator, flatten, module_of, module_weights, with_module
from hpcrec.types import Floats


@dataclass(frozen=True)
class _Member:
    """One of those that give, and which lookups its vectors are of, in their order."""

    rank: int
    some: slice | list[int]


@dataclass(frozen=True)
class _Computed:
    """What a root keeps for the way back: vectors [N, F, D], and the result [N, P]."""

    vectors: Tensor
    result: Tensor


Arrays = dict[int, list[Floats]]
Shapes = dict[int, list[tuple[int, int]]]


class AtPlace:
    """One owner's part in the meetings of a layout.

    Parameters
    ----------
    rank : int
        This one, in the world.
    owners : Collectives or None
        Owners of this rank's host; None where it is the only one.
    layout : Layout
    operators : mapping of str to Operator
    dtype : numpy float type

    Attributes
    ----------
    slices : list of Slice
        Parameters of modules, as they are now.
    """

    def __init__(
        self,
        rank: int,
        owners: Collectives | None,
        layout: Layout,
        operators: Mapping[str, Operator],
        dtype: np.dtype[Any],
    ) -> None:
        self._rank, self._dtype = rank, np.dtype(dtype)
        here = () if owners is None else owners.ranks
        given = any(m.root in here and set(m.members) - {m.root} for m in layout.meetings)
        self._swap = Swap(owners, self._dtype) if owners is not None and given else None
        self._meetings = [m for m in layout.meetings if rank in m.members or rank == m.root]
        self._operators = {m.operator: with_module(operators[m.operator]) for m in self._meetings if m.root == rank}
        leg = layout.legs.get(rank)
        self._number = {p.operator: n for n, p in enumerate(() if leg is None else leg.partials)}
        self._members = {name: _members(layout, name, operators[name]) for name in self._operators}
        self.slices: list[Slice] = []
        self._named: list[tuple[str, nn.Parameter]] = []
        for name, own in self._operators.items():
            ranks = next(m.roots for m in self._meetings if m.operator == name)
            for whole, part in zip(module_weights(operators[name]), module_weights(own), strict=True):
                self.slices.append(Slice(whole, 0, len(whole), part, ranks))
            module = module_of(own)
            self._named += [] if module is None else [(f"{name}: {of}", w) for of, w in module.named_parameters()]

    def forward(self, sent: Sent | None, *, train: bool) -> list[_Computed]:
        """From vectors to results, where this rank is root; collective over the host's owners."""
        given, due = Arrays(), Shapes()
        for m in self._meetings if sent is not None else ():
            assert sent is not None
            rows = sent.rows(m.dense, sent.results[self._number[m.operator]])
            if m.root != self._rank:
                given.setdefault(m.root, []).extend(rows)
                continue
            for member, elements in zip(m.members, m.given, strict=True):
                if member != self._rank:
                    due.setdefault(member, []).append((sum(map(len, rows)), elements))
        came = {} if self._swap is None else self._swap(given, due, "values")
        kept = []
        for m in self._mine(sent):
            assert sent is not None
            rows = sent.rows(m.dense, sent.results[self._number[m.operator]])
            parts = {r: _joined(rows) if r == self._rank else next(came[r]) for r in m.members}
            kept.append(self._compute(m, sum(map(len, rows)), parts, train=train))
        results = iter(kept)
        for m in self._mine(sent):  # vectors have all been taken
            assert sent is not None
            result_SP = np.empty((int(sent.first_P[-1]), m.elements), self._dtype)
            put(sent.rows(m.dense, result_SP), next(results).result.detach().numpy())
            sent.results[self._number[m.operator]] = result_SP
        return kept

    def backward(self, sent: Sent | None, kept: Sequence[_Computed]) -> None:
        """From gradients of results to those of vectors, and of parameters; mirrors ``forward``."""
        for own in self.slices:
            own.part.grad = torch.zeros_like(own.part) if own.part.requires_grad else None
        given, due, mine = Arrays(), Shapes(), dict[str, list[tuple[Meeting, Floats]]]()
        computed = iter(kept)
        for m in self._meetings if sent is not None else ():
            assert sent is not None
            rows = sent.rows(m.dense, sent.gradients[self._number[m.operator]])
            if m.root != self._rank:
                due.setdefault(m.root, []).append((sum(map(len, rows)), m.given_by(self._rank)))
                continue
            gradient_NFD = _gradient(next(computed), _joined(rows))
            for member in self._members[m.operator]:
                part = np.ascontiguousarray(gradient_NFD[:, member.some]).reshape(len(gradient_NFD), -1)
                if member.rank == self._rank:
                    mine.setdefault(m.operator, []).append((m, part))
                else:
                    given.setdefault(member.rank, []).append(part)
        self._refuse_not_finite()
        came = {} if self._swap is None else self._swap(given, due, "gradients")
        for m in self._meetings if sent is not None else ():
            if m.root != self._rank:
                mine.setdefault(m.operator, []).append((m, next(came[m.root])))
        for name, pieces in mine.items():
            assert sent is not None
            gradient = np.empty((int(sent.first_P[-1]), pieces[0][0].given_by(self._rank)), self._dtype)
            for m, piece in pieces:
                put(sent.rows(m.dense, gradient), piece)
            sent.gradients[self._number[name]] = gradient

    def _mine(self, sent: Sent | None) -> list[Meeting]:
        """Those of which this rank is root, where it is asked for anything."""
        return [] if sent is None else [m for m in self._meetings if m.root == self._rank]

    def _compute(self, m: Meeting, n: int, parts: Mapping[int, Floats], *, train: bool) -> _Computed:
        operator, members = self._operators[m.operator], self._members[m.operator]
        whole = len(members) == 1 and members[0].some == slice(0, len(operator.lookups))
        if whole:
            vectors_NFD = parts[members[0].rank].reshape(n, len(operator.lookups), operator.width)
        else:
            vectors_NFD = np.zeros((n, len(operator.lookups), operator.width), self._dtype)
        for member in () if whole else members:  # of rows that are dealt each has a part of the bag
            vectors_NFD[:, member.some] += parts[member.rank].reshape(n, -1, operator.width)
        vectors = torch.from_numpy(vectors_NFD).requires_grad_(train)
        module = module_of(operator)
        if module is not None:
            module.train(train)
        with torch.set_grad_enabled(train):
            return _Computed(vectors, flatten(operator.partial(vectors)))

    def _refuse_not_finite(self) -> None:
        for name, part in self._named:
            gradient = part.grad
            if gradient is None or math.isfinite(gradient.sum()) or bool(torch.isfinite(gradient).all()):
                continue
            raise NonFiniteError(
                f"the gradient of parameter {name} at its owner is not finite, though those of the operator's results "
                "are. This owner's rows were not changed. Look for a slope that an empty bag's zeros make infinite, or "
                'set exchange.form = "pooled", where such a batch can be left out (train.nonfinite).'
            )


def _joined(rows: Sequence[Floats]) -> Floats:
    """One after the other; a copy, for what they are of is used again."""
    return np.concatenate(rows)


def _gradient(computed: _Computed, gradient_NP: Floats) -> Floats:
    """Of the vectors; those of parameters are added up. What did not lead to a result has zeros."""
    torch.autograd.backward(computed.result, torch.from_numpy(gradient_NP).to(computed.result))
    found = computed.vectors.grad
    return np.zeros(tuple(computed.vectors.shape), gradient_NP.dtype) if found is None else found.numpy()


def _members(layout: Layout, name: str, operator: Operator) -> tuple[_Member, ...]:
    """Who has which vectors of an operator, ascending."""
    number = {(k.feature, k.table): f for f, k in enumerate(operator.lookups)}
    found = []
    for rank, leg in sorted(layout.legs.items()):
        for partial in leg.partials:
            if partial.operator == name and partial.hidden:
                streams = [leg.hidden[h] for h in partial.hidden]
                lookups = [number[leg.entries[s.entry].features[0], s.table] for s in streams]
                first, stop = lookups[0], lookups[0] + len(lookups)
                found.append(_Member(rank, slice(first, stop) if lookups == list(range(first, stop)) else lookups))
    return tuple(found)
