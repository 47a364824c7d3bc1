"""Which owners add partial results of which others before they cross to a dense rank: planned alike by every rank.

A partial result (an operator's, over some columns) that several owners have for a dense rank is added there, or in
part on the way, where these owners and the dense rank are on different hosts::

    dense    every owner -------------------------------------------> dense rank      as many messages as owners
    host     owners of a host --(same host)--> one of them ---------> dense rank      as many as hosts of owners
    owners   the same, then hosts' owners ----> one of them --------> dense rank      one

Gradients go the same way back. For a dense rank on their own host owners add nothing: no byte across hosts is saved.
Whatever the way, m owners send m partial results in all, the members of a sum but one to its root and that one to the
dense rank: so what changes is not how many bytes are sent (``measure.step_bytes``), but how many cross hosts, and to
whom. In partial results a sample, of ``h`` other hosts with ``m_i`` owners:

======== =============================== ======================== ===========================
way      cross hosts                     received by dense host   on owners' hosts, same host
======== =============================== ======================== ===========================
dense    sum of m_i                      sum of m_i               0
host     h                               h                        sum of (m_i - 1)
owners   h, h - 1 of them between owners 1                        sum of (m_i - 1)
======== =============================== ======================== ===========================

Who adds for whom goes by turns, so that every owner of a host, and every host, adds for some of the dense ranks. Knows
the layout, roles and hosts; knows no MPI and no batch. Source: [DES].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from hpcrec.exchange.layout import Layout
from hpcrec.units import MB

WAYS = ("dense", "host", "owners")
SAME_HOST_PRICE = 0.125  # of a byte inside a host, where one between hosts costs 1: memory passes on 10 GB/s or so
ROUND_BYTES = 0.125 * MB  # what a collective among owners costs besides: 100 us, in which 10 Gbit/s carry so much


@dataclass(frozen=True)
class Sum:
    """Partial results that are added.

    Attributes
    ----------
    operator : str
    columns : (int, int)
        Those that all members have of it.
    elements : int
        Of one sample's partial result.
    members : tuple of int
        World ranks that have one, ascending: the order in which they are added.
    root : int
        The member that adds.
    dense : tuple of int
        Dense ranks whose samples they are of.
    """

    operator: str
    columns: tuple[int, int]
    elements: int
    members: tuple[int, ...]
    root: int
    dense: tuple[int, ...]


@dataclass(frozen=True)
class Transfer:
    """``elements`` a sample of dense rank ``dense``, from one rank to another."""

    sender: int
    receiver: int
    dense: int
    elements: int


class Reduction:
    """The sums of one layout.

    Parameters
    ----------
    layout : Layout
    dense : sequence of int
        World ranks that want the results.
    host_of : sequence of int
        Host number of each world rank.
    way : str
        One of ``WAYS``.

    Attributes
    ----------
    way : str
    inside : tuple of Sum
        Within hosts; first.
    across : tuple of Sum
        Between hosts, of what was added inside.
    meetings : tuple of Meeting
        Of operators that meet, whose results are not added; whatever the way.
    """

    def __init__(self, layout: Layout, dense: Sequence[int], host_of: Sequence[int], way: str) -> None:
        assert way in WAYS, way
        self.way = way
        self._legs = layout.legs
        self._dense, self._host_of = tuple(dense), tuple(host_of)
        inside: list[Sum] = []
        across: list[Sum] = []
        self._numbers: dict[tuple[str, tuple[int, int]], dict[int, int]] = {}  # which of its partial results it is
        for holder, leg in sorted(layout.legs.items()):
            for number, partial in enumerate(leg.partials):
                self._numbers.setdefault((partial.operator, partial.columns), {})[holder] = number
        self.meetings = layout.meetings
        met = {m.operator for m in self.meetings}
        summed = [(key, numbers) for key, numbers in self._numbers.items() if way != "dense" and key[0] not in met]
        for turn, (key, numbers) in enumerate(summed):
            elements = next(layout.legs[holder].partials[n].elements for holder, n in numbers.items())
            of = (*key, elements)
            leads = self._within(of, tuple(numbers), turn, inside)
            if way == "owners":
                self._between(of, leads, turn, across)
        self.inside, self.across = tuple(inside), tuple(across)
        self._taken: dict[tuple[int, int], set[int]] = {}  # (holder, dense rank) -> partial results that others add
        for s in (*inside, *across):
            for member in set(s.members) - {s.root}:
                for d in s.dense:
                    self._taken.setdefault((member, d), set()).add(self.number(s, member))
        for m in self.meetings:
            for other, d in product({*m.members, *m.roots} - {m.root}, m.dense):
                number = next(n for n, p in enumerate(layout.legs[other].partials) if p.operator == m.operator)
                self._taken.setdefault((other, d), set()).add(number)

    def _within(
        self, of: tuple[str, tuple[int, int], int], holders: Sequence[int], turn: int, sums: list[Sum]
    ) -> dict[int, list[int]]:
        """Sums of each host; by dense rank, who of each other host has them."""
        leads: dict[int, list[int]] = {d: [] for d in self._dense}
        by_host: dict[int, list[int]] = {}
        for holder in holders:
            by_host.setdefault(self._host_of[holder], []).append(holder)
        for host, members in by_host.items():
            led: dict[int, list[int]] = {}
            for i, d in enumerate(d for d in self._dense if self._host_of[d] != host):
                lead = members[(i + turn) % len(members)]
                led.setdefault(lead, []).append(d)
                leads[d].append(lead)
            if len(members) > 1:
                sums += [Sum(*of, tuple(members), lead, tuple(some)) for lead, some in sorted(led.items())]
        return leads

    def _between(
        self, of: tuple[str, tuple[int, int], int], leads: dict[int, list[int]], turn: int, sums: list[Sum]
    ) -> None:
        together: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for i, (d, some) in enumerate(leads.items()):
            if len(some) > 1:
                together.setdefault((tuple(sorted(some)), some[(i + turn) % len(some)]), []).append(d)
        sums += [Sum(*of, members, root, tuple(some)) for (members, root), some in sorted(together.items())]

    def number(self, of: Sum, holder: int) -> int:
        """Which of a member's partial results is added."""
        return self._numbers[of.operator, of.columns][holder]

    def sent(self, holder: int, dense: int) -> list[int]:
        """Numbers of the partial results that a holder sends to a dense rank: its own, or sums."""
        taken = self._taken.get((holder, dense), ())
        return [n for n in range(len(self._legs[holder].partials)) if n not in taken]

    def rounds(self) -> list[list[Transfer]]:
        """What passes from rank to rank in each collective of the values phase, and back in the other's.

        Vectors that meet, sums within hosts, between them, and to dense ranks; nothing from a rank to itself.
        """
        met = [
            Transfer(member, m.root, d, elements)
            for m in self.meetings
            for (member, elements), d in product(zip(m.members, m.given, strict=True), m.dense)
            if member != m.root
        ]
        added = [
            [Transfer(m, s.root, d, s.elements) for s in sums for m, d in product(s.members, s.dense) if m != s.root]
            for sums in (self.inside, self.across)
        ]
        last = [
            Transfer(holder, d, d, sum(leg.partials[n].elements for n in self.sent(holder, d)))
            for holder, leg in self._legs.items()
            for d in self._dense
            if d != holder
        ]
        return [met, *added, last]

    def elements_at(self, rank: int) -> int:
        """Of a sample on every dense rank: what a rank gives to sums, is given for them, and has of its own in them.

        Of what meets likewise, and what is made of it.
        """
        sums = [s for s in (*self.inside, *self.across) if rank in s.members]
        met = 0
        for m in self.meetings:
            given = m.given_by(rank)
            if rank == m.root:
                given = 2 * sum(m.given) + m.layers + 2 * m.elements
            met += given * len(m.dense)
        return met + sum(s.elements * len(s.dense) * (len(s.members) if rank == s.root else 1) for s in sums)

    def crosses(self, transfer: Transfer) -> bool:
        """From host to host."""
        return self._host_of[transfer.sender] != self._host_of[transfer.receiver]

    def price(self, samples: float, item_bytes: float) -> float:
        """What partial results cost a phase, in bytes across hosts: see ``reduction_for``.

        Parameters
        ----------
        samples : float
            On each dense rank.
        item_bytes : float
            Of an element on the wire.
        """
        hosts, elements = max(self._host_of) + 1, 0.0
        for transfers in self.rounds():
            out_H, in_H, same_H = np.zeros(hosts), np.zeros(hosts), np.zeros(hosts)
            for t in transfers:
                if self.crosses(t):
                    out_H[self._host_of[t.sender]] += t.elements
                    in_H[self._host_of[t.receiver]] += t.elements
                else:
                    same_H[self._host_of[t.sender]] += t.elements
            elements += max(out_H.max(), in_H.max()) + SAME_HOST_PRICE * same_H.max()
        return float(samples * item_bytes * elements) + ROUND_BYTES * (bool(self.inside) + bool(self.across))


def reduction_for(
    layout: Layout, dense: Sequence[int], host_of: Sequence[int], way: str, *, samples: float, item_bytes: float
) -> Reduction:
    """The way that is asked for, or of ``auto`` the one with the lowest price; of equal ones the simplest.

    The price of a phase is, for each of its collectives, one after the other, the bytes of partial results that the
    busiest direction of the busiest host's link carries, and those inside the host with the most of them at
    ``SAME_HOST_PRICE`` each; and ``ROUND_BYTES`` for each collective that is had besides. Vectors that cross beside
    them cost the same whatever the way, and are left out. On one host every way is the same, and has no collective.
    """
    ways = WAYS if way == "auto" else (way,)
    found = [Reduction(layout, dense, host_of, way) for way in (ways if len(set(host_of)) > 1 else WAYS[:1])]
    return min(found, key=lambda r: r.price(samples, item_bytes)) if len(found) > 1 else found[0]
