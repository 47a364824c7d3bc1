"""Operators that meet (towers), computed by owners of the host that has their rows, and their modules trained there.

By the plan of ``meetings``, on a communicator of each host's owners: one collective each way, of tags ``values`` and
``gradients``, in which vectors are as they are in memory, for they stay in the host. The root of a meeting runs the
operator on the samples of its dense ranks under torch's autograd, on the host; the gradients of its module's parameters
are left in each slice's ``part.grad``, zeros where an owner computes nothing: all members of an operator's meetings
have the whole module, and train it together. Knows the plan, operators and ranks; does not know where vectors come
from, nor what becomes of the result. Source: [DMT].

Legend: ``N`` samples of a root's dense ranks, ``F`` lookups of an operator, ``D`` their width, ``S`` samples of all
dense ranks, ``P`` elements of a result.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcrec.comm.collectives import Collectives
from hpcrec.errors import NonFiniteError
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.meetings import Meeting
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.substitute import Sent
from hpcrec.exchange.swap import Swap, put, rows_of
from hpcrec.operators.base import Operator, flatten, module_of, module_weights, with_module
from hpcrec.types import Floats


@dataclass(frozen=True)
class _Member:
    """One of those that give: which lookups its vectors are of, in their order."""

    rank: int
    lookups: tuple[int, ...]


@dataclass(frozen=True)
class _Computed:
    """What a root keeps for the way back: vectors [N, F, D], and the result [N, P]."""

    vectors: Tensor
    result: Tensor


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
        several = any(len(m.members) > 1 and m.root in here for m in layout.meetings)
        self._swap = Swap(owners, self._dtype) if owners is not None and several else None
        self._meetings = [m for m in layout.meetings if self._rank in m.members]
        mine = {m.operator: operators[m.operator] for m in self._meetings}
        self._operators = {name: with_module(operator) for name, operator in mine.items()}
        leg = layout.legs.get(self._rank)
        self._number = {p.operator: n for n, p in enumerate(() if leg is None else leg.partials)}
        self._members = {name: _members(layout, name, operator) for name, operator in mine.items()}
        self.slices: list[Slice] = []
        for name, operator in mine.items():
            ranks = tuple(member.rank for member in self._members[name])
            own = module_weights(self._operators[name])
            for whole, part in zip(module_weights(operator), own, strict=True):
                self.slices.append(Slice(whole, 0, len(whole), part, ranks))

    def forward(self, sent: Sent | None, *, train: bool) -> list[_Computed]:
        """From vectors to results, where this rank is root; collective over the host's owners."""
        given: dict[int, list[Floats]] = {}
        due: dict[int, list[tuple[int, int]]] = {}
        pieces = [] if sent is None else [(m, self._rows(sent, m, sent.results)) for m in self._meetings]
        for m, rows in pieces:
            n = sum(map(len, rows))
            if m.root != self._rank:
                given.setdefault(m.root, []).extend(rows)
                continue
            for rank, elements in zip(m.members, m.given, strict=True):
                if rank != self._rank:
                    due.setdefault(rank, []).append((n, elements))
        came = self._swapped(given, due, "values")
        results = {} if sent is None else {name: self._room(sent, name) for name in self._operators}
        kept = []
        for m, rows in pieces:
            if m.root == self._rank:
                parts = {r: np.concatenate(rows) if r == self._rank else next(came[r]) for r in m.members}
                kept.append(self._compute(m, parts, train=train))
                assert sent is not None, "it is asked for something"
                put(rows_of(sent, m.dense, results[m.operator]), kept[-1].result.detach().numpy())
        if sent is not None:
            for name, result_SP in results.items():
                sent.results[self._number[name]] = result_SP
        return kept

    def backward(self, sent: Sent | None, kept: Sequence[_Computed]) -> None:
        """From gradients of results to those of vectors, and of parameters; mirrors ``forward``."""
        for own in self.slices:
            own.part.grad = torch.zeros_like(own.part) if own.part.requires_grad else None
        given: dict[int, list[Floats]] = {}
        due: dict[int, list[tuple[int, int]]] = {}
        vectors: dict[str, Floats] = {}
        if sent is not None:
            samples = int(sent.first_P[-1])
            for m in self._meetings:
                mine = m.given[m.members.index(self._rank)]
                vectors.setdefault(m.operator, np.empty((samples, mine), self._dtype))
        computed = iter(kept)
        for m in self._meetings if sent is not None else ():
            assert sent is not None
            rows = self._rows(sent, m, sent.gradients)
            if m.root != self._rank:
                n, elements = sum(map(len, rows)), m.given[m.members.index(self._rank)]
                due.setdefault(m.root, []).append((n, elements))
                continue
            gradient_NFD = self._learn(m, next(computed), np.concatenate(rows))
            for member in self._members[m.operator]:
                part = np.ascontiguousarray(gradient_NFD[:, list(member.lookups)]).reshape(len(gradient_NFD), -1)
                if member.rank == self._rank:
                    put(rows_of(sent, m.dense, vectors[m.operator]), part)
                else:
                    given.setdefault(member.rank, []).append(part)
        came = self._swapped(given, due, "gradients")
        for m in self._meetings if sent is not None else ():
            assert sent is not None
            if m.root != self._rank:
                put(rows_of(sent, m.dense, vectors[m.operator]), next(came[m.root]))
        if sent is not None:
            for name, gradient in vectors.items():
                sent.gradients[self._number[name]] = gradient
        self._refuse_not_finite()

    def _swapped(
        self, given: Mapping[int, Sequence[Floats]], due: Mapping[int, Sequence[tuple[int, int]]], tag: str
    ) -> dict[int, Iterator[Floats]]:
        """As of ``Swap``; nothing where no owner of this host has a part in another's meeting."""
        return {} if self._swap is None else self._swap(given, due, tag)

    def _rows(self, sent: Sent, m: Meeting, of: Sequence[Floats]) -> list[Floats]:
        return rows_of(sent, m.dense, of[self._number[m.operator]])

    def _room(self, sent: Sent, name: str) -> Floats:
        """For the results of all samples; of those that another root computes nothing is read."""
        elements = next(m.elements for m in self._meetings if m.operator == name)
        return np.empty((int(sent.first_P[-1]), elements), self._dtype)

    def _compute(self, m: Meeting, parts: Mapping[int, Floats], *, train: bool) -> _Computed:
        operator, n = self._operators[m.operator], len(parts[self._rank])
        vectors_NFD = np.zeros((n, len(operator.lookups), operator.width), self._dtype)
        for member in self._members[m.operator]:
            part_NFD = parts[member.rank].reshape(n, len(member.lookups), operator.width)
            vectors_NFD[:, list(member.lookups)] += part_NFD  # rows that are dealt: a part of the bag each
        vectors = torch.from_numpy(vectors_NFD).requires_grad_(train)
        module = module_of(operator)
        if module is not None:
            module.train(train)
        with torch.set_grad_enabled(train):
            return _Computed(vectors, flatten(operator.partial(vectors)))

    def _learn(self, m: Meeting, computed: _Computed, gradient_NP: Floats) -> Floats:
        """Gradients of the vectors; those of parameters are added up."""
        del m
        torch.autograd.backward(computed.result, torch.from_numpy(gradient_NP).to(computed.result))
        gradient = computed.vectors.grad
        assert gradient is not None, "the result depends on vectors"
        return gradient.numpy()

    def _refuse_not_finite(self) -> None:
        for own in self.slices:
            gradient = own.part.grad
            if gradient is None or math.isfinite(gradient.sum()) or bool(torch.isfinite(gradient).all()):
                continue
            raise NonFiniteError(
                f"gradients of the module of one of {', '.join(self._operators)} at its owners are not finite, though "
                "those of its results are. This owner's rows were not changed. Look for a slope that an empty bag's "
                'zeros make infinite, or set exchange.form = "pooled", where such a batch can be left out '
                "(train.nonfinite)."
            )


def _members(layout: Layout, name: str, operator: Operator) -> tuple[_Member, ...]:
    """Who has which vectors of an operator, ascending."""
    number = {(k.feature, k.table): f for f, k in enumerate(operator.lookups)}
    found = []
    for rank, leg in sorted(layout.legs.items()):
        for partial in leg.partials:
            if partial.operator == name:
                streams = [leg.hidden[h] for h in partial.hidden]
                lookups = tuple(number[leg.entries[s.entry].features[0], s.table] for s in streams)
                found.append(_Member(rank, lookups))
    return tuple(found)
