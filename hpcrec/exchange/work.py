"""What one step wants of a holder's arenas, and which of them are worked on together. Knows no MPI."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hpcrec import kernels
from hpcrec.embedding.arena import Arena
from hpcrec.exchange.substitute import Sent
from hpcrec.exchange.wire import cumulative
from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class Maxima:
    """Bags of one arena that are pooled by max.

    Attributes
    ----------
    index : int64 [K]
        Rows of the arena, bag after bag.
    offsets : int64 [V + 1]
    value_start, gradient_start : int64 [V]
        First element of each bag's vector in the values sent, and of its gradient in the gradients received; the second
        is empty in evaluation.
    winners : int32 [V, D] or None
        Which of its ids gave each column of a bag, once it was gathered; None in evaluation.
    behind : int
        Where the gradients of single ids are put, [K, D]: behind the messages and the vectors that stay, where every
        arena has its turn.
    """

    index: Ints
    offsets: Ints
    value_start: Ints
    gradient_start: Ints
    winners: NDArray[np.int32] | None
    behind: int

    @property
    def elements(self) -> int:
        """Of the gradients of single ids."""
        return 0 if self.winners is None else len(self.index) * self.winners.shape[1]

    def forward(self, rows: Floats, values: Floats) -> None:
        """Rows of the arena -> the vector of each bag."""
        kernels.pooled_max(rows, self.index, self.offsets, values, out_start=self.value_start, winners=self.winners)

    def backward(self, gradients: Floats) -> None:
        """Gradient of each bag's vector -> gradients of its ids, behind: zero where another id won."""
        assert self.winners is not None, "this step was routed for evaluation"
        ids_KD = gradients[self.behind : self.behind + self.elements].reshape(len(self.index), self.winners.shape[1])
        kernels.pooled_max_backward(
            self.winners, self.offsets, gradients[: self.behind], ids_KD, source_start=self.gradient_start
        )


@dataclass(frozen=True)
class ArenaWork:
    """What one step wants of one arena.

    Attributes
    ----------
    index : int64 [K]
        Rows of the arena, bag after bag; at the end those of bags that are pooled by max.
    offsets : int64 [V + 1]
        Bags in ``index`` whose rows are added.
    value_start : int64 [V] or None
        First element of each bag's vector in the values sent; None for replicated tables, which have gradients only.
    weights : float [K] or None
    grouping : kernels.Grouping or None
        Occurrences by row, named by their bags, or by their positions where ids carry weights or some bags are pooled
        by max; None where no gradients will come.
    source_start : int64 [V] or [K]
        First element of the gradient of each bag, or of each position's bag (of max: its own), in the gradients.
    maxima : Maxima or None
        Bags that are pooled by max; None where there are none.
    distinct : (int64 [U], int64 [K]) or None
        Distinct rows, ascending, and the place of each of ``index`` among them; None where rows are not cached.
    """

    index: Ints
    offsets: Ints
    value_start: Ints | None
    weights: Floats | None
    grouping: kernels.Grouping | None
    source_start: Ints
    maxima: Maxima | None = None
    distinct: tuple[Ints, Ints] | None = None


@dataclass(frozen=True)
class Spans:
    """Where streams are in the values that a holder sends.

    Attributes
    ----------
    ranks_P : int64 [P]
        World ranks that are sent any.
    sets_P : int64 [P]
        The set of tables that each of them reads.
    at_P, end_P : int64 [P]
        First element of each one's message, and the end of its elements.
    elements_PS : int64 [P, S]
        Of each stream, one after the other; partial results follow.
    """

    ranks_P: Ints
    sets_P: Ints
    at_P: Ints
    end_P: Ints
    elements_PS: Ints

    def of(self, p: int, s: int) -> tuple[int, int]:
        """First element of a stream, and the end of them."""
        start = int(self.at_P[p] + self.elements_PS[p, :s].sum())
        return start, start + int(self.elements_PS[p, s])

    def behind(self, p: int) -> tuple[int, int]:
        """First element of the partial results, and how many there are."""
        start = int(self.at_P[p] + self.elements_PS[p].sum())
        return start, int(self.end_P[p]) - start


@dataclass
class Served:
    """One step's work at a holder.

    Attributes
    ----------
    value_bytes_R, gradient_bytes_R : int64 [R]
        Bytes to and from each world rank, with their padding.
    spans : Spans
        Where streams are in the values.
    partials : Sent or None
        Where partial results are; None where no operator is computed here.
    find : callable or None
        Makes ``works`` once the updates of all steps before are done, where rows depend on them; None where they are
        made.
    verdict_at, verdict_in : int
        Place of the verdict in the gradients that come, and in the message that has it (``verdict``).
    works : tuple of ArenaWork
        By arena.
    beside : mapping of int to int
        Arena -> arena of width 1 that is read and moved along with it.
    """

    value_bytes_R: Ints
    gradient_bytes_R: Ints
    spans: Spans
    partials: Sent | None
    find: Callable[[], tuple[ArenaWork, ...]] | None
    verdict_at: int
    verdict_in: int
    works: tuple[ArenaWork, ...] = ()
    beside: Mapping[int, int] = field(default_factory=dict)

    @property
    def values_behind(self) -> int:
        """Elements of the vectors that stay here, behind the messages."""
        return 0 if self.partials is None else self.partials.elements

    @property
    def gradients_behind(self) -> int:
        """Elements of the gradients of those vectors, and of single ids: of one arena at a time."""
        return self.values_behind + max((w.maxima.elements for w in self.works if w.maxima is not None), default=0)


def read_maxima(received: np.ndarray, asked_PX: Ints, width: int, behind: int, *, train: bool) -> Maxima:
    """What was asked of one arena in bags that are pooled by max; ``asked_PX`` as of ``kernels.unpack``."""
    joined = kernels.unpack(received, asked_PX, width, gradients=train)
    assert joined.value_start is not None
    return Maxima(
        index=joined.index,
        offsets=joined.offsets,
        value_start=joined.value_start,
        gradient_start=joined.index[:0] if joined.gradient_start is None else joined.gradient_start,
        winners=np.empty((len(joined.offsets) - 1, width), np.int32) if train else None,
        behind=behind,
    )


def with_maxima(work: ArenaWork, maxima: Maxima, width: int, move: Callable[[Ints], Ints]) -> ArenaWork:
    """The same, and bags of the same arena that are pooled by max; ``work`` has no grouping yet.

    A row has one gradient a step, whatever bags it is in, so both kinds are grouped together, by position; where, that
    ``move`` says.
    """
    n = len(maxima.index)
    index, weights = np.concatenate([work.index, maxima.index]), work.weights
    if weights is not None:
        weights = np.concatenate([weights, np.ones(n, weights.dtype)])
    grouping, source_start = None, work.source_start
    if maxima.winners is not None:
        own_start = maxima.behind + np.arange(n, dtype=np.int64) * width
        source_start = np.concatenate([source_start, own_start])
        grouping = kernels.group(move(index))
    return replace(work, index=index, weights=weights, grouping=grouping, source_start=source_start, maxima=maxima)


def pairs_of(arenas: Sequence[Arena], works: Sequence[ArenaWork]) -> dict[int, int]:
    """By arena: one of width 1 that was asked for the same rows and learns by the same rule, to be read along."""

    def fits(a: int, b: int) -> bool:
        alike = (
            works[a].index is works[b].index
            and works[a].distinct is None  # where rows are cached, each arena has other slots for them
            and arenas[a].spec.name == arenas[b].spec.name
        )
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
