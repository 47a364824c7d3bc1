"""What one step wants of a holder's arenas, and which of them are worked on together. Knows no MPI."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.store import Arena
from hpcrec.exchange.substitute import Sent
from hpcrec.exchange.wire import cumulative
from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class ArenaWork:
    """What one step wants of one arena.

    Attributes
    ----------
    index : int64 [K]
        Rows of the arena, bag after bag.
    offsets : int64 [V + 1]
        Bags in ``index``.
    value_start : int64 [V] or None
        First element of each bag's vector in the values sent; None for replicated tables, which have gradients only.
    weights : float [K] or None
    grouping : kernels.Grouping or None
        Occurrences by row, named by their bags, or by their positions where ids carry weights; None where no gradients
        will come.
    source_start : int64 [V] or [K]
        First element of the gradient of each bag, or of each position's bag, in the gradients received.
    """

    index: Ints
    offsets: Ints
    value_start: Ints | None
    weights: Floats | None
    grouping: kernels.Grouping | None
    source_start: Ints


@dataclass(frozen=True)
class Served:
    """One step's work at a holder.

    Attributes
    ----------
    works : tuple of ArenaWork
        By arena.
    beside : mapping of int to int
        Arena -> arena of width 1 that is read and moved along with it.
    value_bytes_R, gradient_bytes_R : int64 [R]
        Bytes to and from each world rank, with their padding.
    partials : Sent or None
        Where partial results are; None where no operator is computed here.
    """

    works: tuple[ArenaWork, ...]
    beside: Mapping[int, int]
    value_bytes_R: Ints
    gradient_bytes_R: Ints
    partials: Sent | None

    @property
    def elements_behind(self) -> int:
        """Elements of the vectors that stay here, behind the messages."""
        return 0 if self.partials is None else self.partials.elements


def pairs_of(arenas: Sequence[Arena], works: Sequence[ArenaWork]) -> dict[int, int]:
    """By arena: one of width 1 that was asked for the same rows and learns by the same rule, to be read along."""

    def fits(a: int, b: int) -> bool:
        alike = works[a].index is works[b].index and arenas[a].spec.name == arenas[b].spec.name
        sent = (works[a].value_start is None) == (works[b].value_start is None)
        return alike and sent and arenas[a].width > 1 and not needs_norms(arenas[a])

    pairs: dict[int, int] = {}
    for b, narrow in enumerate(arenas):
        if narrow.width == 1 and not needs_norms(narrow):
            wide = next((a for a in range(len(arenas)) if a not in pairs and fits(a, b)), None)
            if wide is not None:
                pairs[wide] = b
    return pairs


def as_before(work: ArenaWork, asked_PX: Ints, width: int, *, values: bool) -> ArenaWork:
    """The same rows of an arena of another width, whose vectors begin elsewhere."""
    bags_P = asked_PX[:, 3]
    n_bags = len(work.offsets) - 1
    first_P = cumulative(bags_P)[:-1] * width
    steps = np.arange(n_bags, dtype=np.int64) * width
    value_start, source_start = (np.repeat(asked_PX[:, x] - first_P, bags_P) + steps for x in (5, 6))
    if work.grouping is None:
        source_start = work.source_start
    elif work.weights is not None:
        source_start = np.repeat(source_start, np.diff(work.offsets))
    return replace(work, value_start=value_start if values else None, source_start=source_start)


def needs_norms(arena: Arena) -> bool:
    """Whether a step of this arena needs squared norms over columns that other ranks hold."""
    return arena.width != arena.total_width and arena.spec.name == "rowwise_adagrad"
