"""Which dense rank of a host asks an owner for the rows that ranks of its host want: planned alike by every rank.

Of features of form ``rows``, dense ranks of a host want many of the same rows. Of an owner on another host one of them,
the *runner*, asks for each of these once, is sent it, and hands it on (``host_rows``). Of owners of its own host each
asks by itself: no byte across hosts would be saved. A runner has the same bundles of an owner in every step; they are
shared out by what they are likely to weigh.

Knows the layout, roles and hosts; knows no MPI and no batch.
"""

import math
from collections.abc import Sequence

from hpcrec.exchange.layout import Layout


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
        self._here = {host: [d for d in dense if host_of[d] == host] for host in sorted(set(host_of))}
        self._of: dict[tuple[int, tuple[str, ...], int], int] = {}
        weights = [
            (-_weight(layout, holder, features), holder, features)
            for holder, leg in layout.legs.items()
            for features in (entry.features for entry in leg.entries if entry.merged)
        ]
        for host, ranks in self._here.items():
            loads = dict.fromkeys(ranks, 0.0)
            for weight, holder, features in sorted(weights) if len(ranks) > 1 else ():
                if self._host_of[holder] != host:
                    runner = min(ranks, key=lambda rank: (loads[rank], rank))
                    loads[runner] -= weight
                    self._of[host, features, holder] = runner

    def of(self, features: tuple[str, ...], holder: int, dense: int) -> int:
        """Who asks a holder for the rows of a bundle that a dense rank wants: itself, where none does it for others."""
        return self._of.get((self._host_of[dense], features, holder), dense)

    def merges(self, features: tuple[str, ...], holder: int, dense: int) -> bool:
        """Whether they are asked for together with those that others of its host want."""
        return dense in self._dense and (self._host_of[dense], features, holder) in self._of

    def any_on(self, host: int) -> bool:
        """Whether dense ranks of a host ask for anything together."""
        return any(at == host for at, _, _ in self._of)


def _weight(layout: Layout, holder: int, features: tuple[str, ...]) -> float:
    """Of what is asked a holder for a bundle: of skewed ids, distinct rows grow about as the logarithm of all rows."""
    leg = layout.legs[holder]
    number = next(e for e, entry in enumerate(leg.entries) if entry.features == features)
    entry = leg.entries[number]
    columns = sum(stream.width for stream in leg.streams if stream.entry == number)
    return (columns + 1) * math.log2(entry.family.part_rows(entry.part) + 1) * len(features)
