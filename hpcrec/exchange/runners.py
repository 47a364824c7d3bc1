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
        self._host_of = tuple(host_of)
        self._here = {host: [d for d in dense if host_of[d] == host] for host in set(host_of)}
        weights = sorted(
            (-_weight(leg, number), holder, entry.features)
            for holder, leg in layout.legs.items()
            for number, entry in enumerate(leg.entries)
            if entry.merged
        )
        self._place = {(features, holder): place for place, (_, holder, features) in enumerate(weights)}
        self._hosts = {host_of[holder] for _, holder, _ in weights}

    def of(self, features: tuple[str, ...], holder: int, dense: int) -> int:
        """Who asks a holder for the rows of a bundle that a dense rank wants: itself, where none does it for others."""
        if not self.merges(features, holder, dense):
            return dense
        ranks = self._here[self._host_of[dense]]
        turn, place = divmod(self._place[features, holder], len(ranks))  # there and back, the heaviest first
        return ranks[place if turn % 2 == 0 else -1 - place]

    def merges(self, features: tuple[str, ...], holder: int, dense: int) -> bool:
        """Whether they are asked for together with those that others of its host want."""
        host, ranks = self._host_of[dense], self._here[self._host_of[dense]]
        return len(ranks) > 1 and dense in ranks and self._host_of[holder] != host and (features, holder) in self._place

    def any_on(self, host: int) -> bool:
        """Whether dense ranks of a host ask for anything together."""
        return len(self._here[host]) > 1 and bool(self._hosts - {host})


def _weight(leg: Leg, number: int) -> float:
    """Of what is asked for an entry: of skewed ids, distinct rows grow about as the logarithm of all rows."""
    entry = leg.entries[number]
    columns = sum(stream.width for stream in leg.streams if stream.entry == number)
    return (columns + 1) * math.log2(entry.family.part_rows(entry.part) + 1) * len(entry.features)
