"""Which owner computes an operator that meets (a tower) for which dense rank: planned alike by every rank.

The rows of all its lookups are on one host, its *place*. Of its owners each gives the vectors that it has to one of
them, the *root*, who computes the operator and sends the result::

    owners of the host  -- vectors -->  root: the operator  -- its result -->  dense rank
                        <- gradients -                      <- its gradient -

A dense rank that is an owner there itself is its own root; for the others roots go by turns, over the owners that have
any of the rows. Knows the layout, roles and hosts; knows no MPI and no batch. Source: [DMT].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcrec.exchange.layout import Leg


@dataclass(frozen=True)
class Places:
    """Who asks, and where ranks are.

    Attributes
    ----------
    dense : tuple of int
        World ranks that want results.
    host_of : tuple of int
        Host number of each world rank.
    """

    dense: tuple[int, ...]
    host_of: tuple[int, ...]


@dataclass(frozen=True)
class Meeting:
    """An operator, as one owner computes it.

    Attributes
    ----------
    operator : str
    elements : int
        Of one sample's result.
    members : tuple of int
        World ranks that have vectors of it, ascending: the order in which parts of a bag are added.
    given : tuple of int
        Elements of one sample's vectors that each of them has.
    root : int
        The member that computes it.
    dense : tuple of int
        Dense ranks whose samples it computes it of.
    """

    operator: str
    elements: int
    members: tuple[int, ...]
    given: tuple[int, ...]
    root: int
    dense: tuple[int, ...]


def plan_meetings(legs: "Mapping[int, Leg]", met: Sequence[str], places: Places) -> tuple[Meeting, ...]:
    """Those of operators ``met``, operator by operator, roots ascending."""
    found = []
    for name in met:
        given: dict[int, int] = {}
        elements = 0
        for holder, leg in sorted(legs.items()):
            for partial in leg.partials:
                if partial.operator == name:
                    given[holder] = sum(leg.hidden[h].width for h in partial.hidden)
                    elements = partial.elements
        members = tuple(given)
        by_root: dict[int, list[int]] = {}
        far = [d for d in places.dense if d not in members]
        for d in places.dense:
            root = d if d in members else members[far.index(d) % len(members)]
            by_root.setdefault(root, []).append(d)
        found += [
            Meeting(name, elements, members, tuple(given.values()), root, tuple(dense))
            for root, dense in sorted(by_root.items())
        ]
    return tuple(found)
