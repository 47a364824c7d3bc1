"""Which dense rank of a host asks an owner for the rows that ranks of its host want: planned alike by every rank.

Of features of form ``rows``, dense ranks of a host want many of the same rows. Of an owner on another host one of them,
the *runner*, asks for each of these once, is sent it, and hands it on (``host_rows``). Of owners of its own host each
asks by itself: no byte across hosts would be saved. A runner has the same bundles of an owner in every step; they are
shared out by what they are likely to weigh.

Knows the layout, roles and hosts; knows no MPI and no batch.
"""

import math
from collections.abc import Sequence

from hpcrec.exchange.layout import Layout, Leg


class Runners:
    """Those of one layout.

    Parameters
    ----------
    layout : Layout
    dense : sequence of int
        World ranks that ask.
    host_of : sequence of int
        Host of each world rank.
    """

    def __init__(self, layout: Layout, dense: Sequence[int], host_of: Sequence[int]) -> None:
        self._host_of, self._dense = tuple(host_of), frozenset(dense)
        self._here = {host: [d for d in dense if host_of[d] == host] for host in set(host_of)}
        weights = [
            (-_weight(leg, number), holder, entry.features)
            for holder, leg in layout.legs.items()
            for number, entry in enumerate(leg.entries)
            if entry.merged
        ]
        self._asked = sorted(weights)  # the heaviest first
        self._of: dict[int, dict[tuple[tuple[str, ...], int], int]] = {}  # by host, of those that were asked about

    def _on(self, host: int) -> dict[tuple[tuple[str, ...], int], int]:
        """Who asks on a host, by bundle and holder: each goes to the rank that then has the least."""
        if host not in self._of:
            ranks = self._here[host]
            loads, found = dict.fromkeys(ranks, 0.0), dict[tuple[tuple[str, ...], int], int]()
            for weight, holder, features in self._asked if len(ranks) > 1 else ():
                if self._host_of[holder] != host:
                    runner = min(ranks, key=lambda rank: (loads[rank], rank))
                    loads[runner] -= weight
                    found[features, holder] = runner
            self._of[host] = found
        return self._of[host]

    def of(self, features: tuple[str, ...], holder: int, dense: int) -> int:
        """Who asks a holder for the rows of a bundle that a dense rank wants: itself, where none does it for others."""
        return self._on(self._host_of[dense]).get((features, holder), dense)

    def merges(self, features: tuple[str, ...], holder: int, dense: int) -> bool:
        """Whether they are asked for together with those that others of its host want."""
        return dense in self._dense and (features, holder) in self._on(self._host_of[dense])

    def any_on(self, host: int) -> bool:
        """Whether dense ranks of a host ask for anything together."""
        return bool(self._on(host))


def _weight(leg: Leg, number: int) -> float:
    """Of what is asked for an entry: of skewed ids, distinct rows grow about as the logarithm of all rows."""
    entry = leg.entries[number]
    columns = sum(stream.width for stream in leg.streams if stream.entry == number)
    return (columns + 1) * math.log2(entry.family.part_rows(entry.part) + 1) * len(entry.features)
