"""Which owner of a host sends the sums of bags' parts that its owners have: planned alike by every rank.

Rows of a table may be dealt over several owners of a host, each of which has a part of a bag. For a dense rank on
another host they add these parts before they cross (``host_sums``): one of them, the *root*, sends the sums, of all
bags of which any of them has a part, and is sent their gradients. Who it is goes by turns over dense ranks and
features. For a dense rank of their own host they add nothing: no byte across hosts is saved.

Knows the layout, roles and hosts; knows no MPI and no batch.
"""

from collections.abc import Sequence
from functools import partial

from hpcrec.comm.topology import Topology
from hpcrec.exchange.bags import Splitter
from hpcrec.exchange.layout import Layout


class Roots:
    """Those of one layout.

    Parameters
    ----------
    layout : Layout
    dense : sequence of int
        World ranks that are sent vectors.
    host_of : sequence of int
        Host of each world rank.

    Attributes
    ----------
    n_dense : int
        How many there are.
    """

    def __init__(self, layout: Layout, dense: Sequence[int], host_of: Sequence[int]) -> None:
        self._host_of, self.n_dense = tuple(host_of), len(dense)
        self._far = {h: {d: i for i, d in enumerate(d for d in dense if host_of[d] != h)} for h in set(host_of)}
        self._members: dict[tuple[tuple[str, ...], int], list[int]] = {}
        self._number = {form.features: b for b, form in enumerate(layout.bundled())}
        for holder, leg in sorted(layout.legs.items()):
            for entry in leg.entries:
                if entry.features[0] in layout.added:
                    self._members.setdefault((entry.features, self._host_of[holder]), []).append(holder)

    def on_host(self, rank: int) -> bool:
        """Whether anything is added on a rank's host."""
        host = self._host_of[rank]
        several = any(len(ranks) > 1 for (_, at), ranks in self._members.items() if at == host)
        return several and self.n_far(rank) > 0

    def n_far(self, rank: int) -> int:
        """Dense ranks of other hosts than a rank's."""
        return len(self._far[self._host_of[rank]])

    def members(self, features: tuple[str, ...], rank: int) -> list[int]:
        """The holders on a rank's host that have parts of a bundle's bags, ascending: the order of the sum."""
        return self._members.get((features, self._host_of[rank]), [])

    def adds(self, features: tuple[str, ...], holder: int, dense: int) -> bool:
        """Whether what a holder has of a bundle for a dense rank is added to what others of its host have."""
        return len(self.members(features, holder)) > 1 and self._host_of[holder] != self._host_of[dense]

    def of(self, features: tuple[str, ...], holder: int, dense: int) -> int:
        """Who sends what a holder has of a bundle for a dense rank: itself, where nothing is added."""
        if not self.adds(features, holder, dense):
            return holder
        members = self.members(features, holder)
        turn = self._far[self._host_of[holder]][dense]
        return members[(turn + self._number[features]) % len(members)]


def tell_sums(splitter: Splitter, layout: Layout, topology: Topology) -> None:
    """Has a dense rank's splitter know what it is sent where hosts add vectors."""
    if layout.added and topology.is_dense:
        roots = Roots(layout, topology.dense, topology.host_of)
        splitter.add_up(layout.added, partial(roots.of, dense=topology.rank))
