"""Which owner computes an operator that meets (a tower) for which dense rank: planned alike by every rank.

The rows of all its lookups are on one host, its *place*. The owners that have them, the *members*, give their vectors
to an owner of that host, the *root*, who computes the operator and sends the result::

    members  -- vectors -->  root: the operator  -- its result -->  dense rank
             <- gradients -                      <- its gradient -

Root may be every owner of the host that has rows of any such operator, since it knows then how many samples there are.
A dense rank that may be root is its own; for the others it goes by turns, which begin with another owner for each
operator. Knows who has what, roles and hosts; knows no MPI and no batch. Source: [DMT].
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hpcrec.operators.base import Operator, elements_of, layer_elements, module_weights


@dataclass(frozen=True)
class Places:
    """Who asks, where ranks are, and what is to be computed by owners of one host.

    Attributes
    ----------
    dense : tuple of int
        World ranks that want results.
    host_of : tuple of int
        Host number of each world rank.
    wanted : tuple of str
        Operators that meet, and whose features all have a form by which vectors stay.
    """

    dense: tuple[int, ...]
    host_of: tuple[int, ...]
    wanted: tuple[str, ...]


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
        The owner that computes it.
    dense : tuple of int
        Dense ranks whose samples it computes it of.
    roots : tuple of int
        All owners that compute it, each for others, ascending: they have its module, and train it together.
    weights : int
        Elements of the module's parameters.
    layers : int
        Of what its layers make of a sample.
    """

    operator: str
    elements: int
    members: tuple[int, ...]
    given: tuple[int, ...]
    root: int
    dense: tuple[int, ...]
    roots: tuple[int, ...]
    weights: int
    layers: int

    def given_by(self, rank: int) -> int:
        """Elements of one sample's vectors that a rank has; 0 where it is no member."""
        return self.given[self.members.index(rank)] if rank in self.members else 0


def plan_meetings(
    given: Mapping[str, Mapping[int, int]], operators: Mapping[str, Operator], places: Places
) -> tuple[Meeting, ...]:
    """Those of the operators that are given any vectors, operator by operator, roots ascending.

    Parameters
    ----------
    given : mapping of str to mapping of int to int
        Of each operator: elements of a sample's vectors of it, by owner, ascending.
    operators : mapping of str to Operator
    places : Places
    """
    holders: dict[int, set[int]] = {}
    for members in given.values():
        for rank in members:
            holders.setdefault(places.host_of[rank], set()).add(rank)
    found = []
    for turn, (name, members) in enumerate(given.items()):
        operator = operators[name]
        may = sorted(holders[places.host_of[next(iter(members))]])
        by_root: dict[int, list[int]] = {}
        for d in may:
            if d in places.dense:
                by_root[d] = [d]
        for i, d in enumerate(d for d in places.dense if d not in may):
            by_root.setdefault(may[(i + turn) % len(may)], []).append(d)
        found += [
            Meeting(
                operator=name,
                elements=elements_of(operator, operator.width),
                members=tuple(members),
                given=tuple(members.values()),
                root=root,
                dense=tuple(sorted(dense)),
                roots=tuple(sorted(by_root)),
                weights=sum(weight.numel() for weight in module_weights(operator)),
                layers=layer_elements(operator),
            )
            for root, dense in sorted(by_root.items())
        ]
    return tuple(found)
