"""What one step asks of a holder, and where its streams are in the messages. Knows no MPI."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked, Maxima
from hpcrec.exchange.substitute import Sent
from hpcrec.exchange.wire import cumulative
from hpcrec.types import Ints


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
    works : tuple of Asked
        By block of the store.
    number : int
        What the store calls the step.
    """

    value_bytes_R: Ints
    gradient_bytes_R: Ints
    spans: Spans
    partials: Sent | None
    find: Callable[[], tuple[Asked, ...]] | None
    verdict_at: int
    verdict_in: int
    works: tuple[Asked, ...] = ()
    number: int = -1

    @property
    def values_behind(self) -> int:
        """Elements of the vectors that stay here, behind the messages."""
        return 0 if self.partials is None else self.partials.elements

    @property
    def gradients_behind(self) -> int:
        """Elements of the gradients of those vectors, and of single ids: of one block at a time."""
        return self.values_behind + max((w.maxima.elements for w in self.works if w.maxima is not None), default=0)


def read_maxima(received: np.ndarray, asked_PX: Ints, width: int, behind: int, *, train: bool) -> Maxima:
    """What was asked of one block in bags that are pooled by max; ``asked_PX`` as of ``kernels.unpack``."""
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


def with_maxima(work: Asked, maxima: Maxima, width: int, move: Callable[[Ints], Ints]) -> Asked:
    """The same, and bags of the same block that are pooled by max; ``work`` has no grouping yet.

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


def as_before(work: Asked, asked_PX: Ints, width: int, *, values: bool) -> Asked:
    """The same rows of a block of another width, whose vectors begin elsewhere."""
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
