"""What one step asks of a holder, and where its streams are in the messages. Knows no MPI."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hpcrec.embedding.asked import Asked
from hpcrec.embedding.blocks import Block
from hpcrec.embedding.blocks import Part as BlockPart
from hpcrec.exchange.copies import Served as ServedApart
from hpcrec.exchange.parts import Places
from hpcrec.exchange.substitute import Sent
from hpcrec.types import Floats, Ints


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

    def without(self, ranks: Collection[int]) -> "Spans":
        """Those of the other ranks."""
        keep_P = ~np.isin(self.ranks_P, list(ranks))
        of = self.ranks_P, self.sets_P, self.at_P, self.end_P, self.elements_PS
        return Spans(*(array[keep_P] for array in of))

    def of(self, p: int, s: int) -> tuple[int, int]:
        """First element of a stream, and the end of them."""
        start = int(self.at_P[p] + self.elements_PS[p, :s].sum())
        return start, start + int(self.elements_PS[p, s])

    def behind(self, p: int) -> tuple[int, int]:
        """First element of the partial results, and how many there are."""
        start = int(self.at_P[p] + self.elements_PS[p].sum())
        return start, int(self.end_P[p]) - start


@dataclass(eq=False)
class Parts:
    """Of a step that may be read, and learned, in two parts.

    Attributes
    ----------
    early : bool [bags]
        Of all bags that are asked: those that may be answered before the step before is learned.
    places, back : Places
        Of the vectors that cross, and of the gradients that come back.
    bags_R : int64 [R]
        How many bags each rank asks for.
    bags_of : list of int64 [V]
        By block: which bags are asked of it, once that is known.
    urgent : bool [bags] or None
        Those whose gradients come first, once the step after it is routed.
    received : float, flat or None
        Gradients, until all rows have learned.
    """

    early: np.ndarray
    places: Places
    back: Places
    bags_R: Ints
    bags_of: list[Ints] = field(default_factory=list)
    urgent: np.ndarray | None = None
    received: Floats | None = None


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
    apart, pushed : copies.Served or None
        Rows that conditional forms ask for, once they are found; and push, once they have come.
    parts : Parts or None
        Which bags may be answered early, where reads come in two parts.
    number : int
        What the store calls the step.
    """

    value_bytes_R: Ints
    gradient_bytes_R: Ints
    spans: Spans
    partials: Sent | None
    find: Callable[[], tuple[tuple[Asked, ...], "ServedApart | None", list[Ints]]] | None
    verdict_at: int
    verdict_in: int
    works: tuple[Asked, ...] = ()
    number: int = -1
    apart: ServedApart | None = None
    pushed: ServedApart | None = None
    parts: "Parts | None" = None

    @property
    def values_behind(self) -> int:
        """Elements of the vectors that stay here, behind the messages."""
        return 0 if self.partials is None else self.partials.elements

    @property
    def gradients_behind(self) -> int:
        """Elements of the gradients of those vectors, and of single ids: of one block at a time."""
        return self.values_behind + max((w.maxima.elements for w in self.works if w.maxima is not None), default=0)


def ages_of(blocks: Sequence[Block], served: Served, unlearned: Iterable[Served], most: int) -> Ints:
    """Of the distinct rows that a step asks for: how many lack 0, 1, ... updates of steps that were answered.

    Returns
    -------
    int64 [most]
        A row counts at one rank, once for all tables that share its ids.
    """
    found, others = np.zeros(most, np.int64), list(unlearned)
    for number, (block, asked) in enumerate(zip(blocks, served.works, strict=True)):
        assert asked.grouping is not None, "it is learned from"
        spans = [(p.base, p.base + p.rows) for p in block.parts if _stands_for_its_rows(p)]
        rows = _within(np.asarray(asked.grouping.unique), spans)
        lacks = np.zeros(len(rows), np.int64)
        for before in others:
            other = before.works[number].grouping
            assert other is not None, "it is learned from"
            lacks += np.isin(rows, np.asarray(other.unique))
        found += np.bincount(lacks, minlength=most)
    return found


def _stands_for_its_rows(part: BlockPart) -> bool:
    """Of the parts of columns, copies and tables that have the same rows: whether it is the first."""
    first = part.number == 0 if part.family.kind == "replicate" else part.columns[0] == 0
    return first and part.table == part.family.tables[0]


def _within(rows: Ints, spans: Sequence[tuple[int, int]]) -> Ints:
    """Those of rising rows that lie in these spans."""
    places = [slice(*np.searchsorted(rows, span).tolist()) for span in spans]
    return np.concatenate([rows[:0], *(rows[place] for place in places)])
