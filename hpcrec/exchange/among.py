"""Partial results added among owners, before they cross to dense ranks, and their gradients handed back.

::

    member                          root of the sum                            dense rank
    its partial result  ----------> adds in the order of members  -----------> one partial result
    gradient            <---------- of each member's part          <---------- gradient

First operators that meet are computed (``at_place``), then partial results are added within hosts, on a communicator
of each host's owners, then between hosts, on that of all owners: a collective each a phase, of tags ``values`` and
``gradients``, only where the plan (``reduction``) has any, and within a host only where that host has some. Bytes:
``reduction.Reduction.rounds``; sums are written by the codec of the exchange, by levels those alone that cross hosts.
Knows the plan, operators and ranks; does not know where vectors come from.
"""

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from hpcrec.comm.world import World
from hpcrec.exchange.at_place import AtPlace
from hpcrec.exchange.codecs import uncoded_ranks
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.reduction import Reduction, Sum
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.substitute import Sent
from hpcrec.exchange.swap import Swap, put
from hpcrec.operators.base import Operator, flatten, parts_of
from hpcrec.types import Floats

Added = tuple[list[Tensor], Tensor]
"""The members' parts of one sum [N, P], in order, and what was made of them."""


class AmongOwners:
    """One owner's part in the sums of a plan.

    Parameters
    ----------
    world : World
    layout : Layout
    reduction : Reduction
    operators : mapping of str to Operator
    dtype : numpy float type
    codec : str
        How they are written on the wire.

    Attributes
    ----------
    idle : bool
        This rank has no part in any.
    slices : list of Slice
        Dense parameters of operators that are computed here.
    """

    def __init__(
        self,
        world: World,
        layout: Layout,
        reduction: Reduction,
        operators: Mapping[str, Operator],
        dtype: np.dtype,
        codec: str,
    ) -> None:
        self._rounds: list[AtPlace | _Round] = []
        self.slices: list[Slice] = []
        topology = world.topology
        if any(m.root in topology.host_ranks for m in layout.meetings) and topology.is_owner:
            together = world.owners if topology.n_hosts == 1 else world.host_owners
            at_place = AtPlace(topology.rank, together, layout, operators, dtype)
            self._rounds.append(at_place)
            self.slices = at_place.slices
        rank, here = world.topology.rank, set(world.topology.host_ranks)
        inside = [s for s in reduction.inside if here.issuperset(s.members)]
        for collectives, sums in ((world.host_owners, inside), (world.owners, reduction.across)):
            if sums and collectives is not None:
                mine = [s for s in sums if rank in s.members]
                numbers = [reduction.number(s, rank) for s in mine]
                swap = Swap(collectives, np.dtype(dtype), codec, uncoded_ranks(world, layout))
                self._rounds.append(_Round(swap, rank, mine, numbers, operators))
        self.idle = not self._rounds

    def forward(self, sent: Sent | None, *, train: bool) -> None:
        """Adds partial results, in place, where their sums are; collective over the owners.

        Parameters
        ----------
        sent : Sent or None
            This step's; None where no operator is computed here.
        train : bool
            Whether gradients will come back.
        """
        for turn in self._rounds:
            added = turn.forward(sent, train=train)
            if sent is not None and train:
                sent.sums.append(added)

    def backward(self, sent: Sent | None) -> None:
        """Fills in the gradients of partial results that others have added; collective over the owners."""
        for turn in reversed(self._rounds):
            turn.backward(sent, [] if sent is None else sent.sums.pop())


class _Round:
    """One collective each way.

    Parameters
    ----------
    swap : Swap
    rank : int
        This one, in the world.
    sums : sequence of Sum
        Those that this rank is a member of.
    numbers : sequence of int
        Of its partial results, which is added in each.
    operators : mapping of str to Operator
    """

    def __init__(
        self,
        swap: Swap,
        rank: int,
        sums: Sequence[Sum],
        numbers: Sequence[int],
        operators: Mapping[str, Operator],
    ) -> None:
        self._swap, self._rank = swap, rank
        self._sums = list(zip(sums, numbers, strict=True))
        self._operators = operators

    def forward(self, sent: Sent | None, *, train: bool) -> list[Added]:
        pieces = [] if sent is None else [(s, sent.rows(s.dense, sent.results[number])) for s, number in self._sums]
        given: dict[int, list[Floats]] = {}
        due: dict[int, list[tuple[int, int]]] = {}
        for s, rows in pieces:
            if s.root != self._rank:
                given.setdefault(s.root, []).extend(rows)
            for member in self._others(s):
                due.setdefault(member, []).append((sum(map(len, rows)), s.elements))
        came = self._swap(given, due, "values")
        added = []
        for s, rows in pieces:
            if s.root == self._rank:
                parts = [np.concatenate(rows) if m == self._rank else next(came[m]) for m in s.members]
                added.append(self._add(s, parts, train=train))
                put(rows, added[-1][1].detach().numpy())
        return added

    def backward(self, sent: Sent | None, added: Sequence[Added]) -> None:
        """Mirrors ``forward``."""
        pieces = [] if sent is None else [(s, sent.rows(s.dense, sent.gradients[number])) for s, number in self._sums]
        given: dict[int, list[Floats]] = {}
        due: dict[int, list[tuple[int, int]]] = {}
        kept = iter(added)
        for s, rows in pieces:
            if s.root != self._rank:
                due.setdefault(s.root, []).append((sum(map(len, rows)), s.elements))
                continue
            tensors, total = next(kept)
            gradients = torch.autograd.grad(total, tensors, torch.from_numpy(np.concatenate(rows)))
            for member, gradient in zip(s.members, gradients, strict=True):
                if member == self._rank:
                    put(rows, gradient.numpy())
                else:
                    given.setdefault(member, []).append(gradient.numpy())
        came = self._swap(given, due, "gradients")
        for s, rows in pieces:
            if s.root != self._rank:
                put(rows, next(came[s.root]))

    def _others(self, s: Sum) -> list[int]:
        """Members that this rank adds for."""
        return [m for m in s.members if m != s.root] if s.root == self._rank else []

    def _add(self, s: Sum, parts: Sequence[Floats], *, train: bool) -> Added:
        operator, columns = self._operators[s.operator], s.columns[1] - s.columns[0]
        tensors = [torch.from_numpy(part).requires_grad_(train) for part in parts]
        with torch.set_grad_enabled(train):
            return tensors, flatten(reduce(operator.reduce, [parts_of(operator, t, columns) for t in tensors]))
