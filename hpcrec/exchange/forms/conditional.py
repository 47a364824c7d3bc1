"""The contract of a form whose rows dense ranks keep: an owner sends those that its rule says are too old there.

In the phase values the dense rank says of each distinct row that it asks for whether it has a copy, the owner answers
whether the row follows, and sends those that do; the form says what is read of them, and in the phase gradients which
rows it pushes: those of the step, of steps before, or none. So it may answer a read by a copy and learn late; at drain
points it pushes everything. What a copy lacks the owner's rule knows, so that no number of a row crosses for it.
Messages are ``copies``. Knows rows by number and the bundles of one form; knows no MPI.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np

from hpcrec.exchange.forms.missing import Missing
from hpcrec.exchange.forms.rows import Rows
from hpcrec.kernels import Evict
from hpcrec.types import Floats, Ints, TableSpec

ADAGRADS = ("adagrad", "rowwise_adagrad")
NOBODY = -1  # in place of a dense rank


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """By what rows are kept; a form that asks for less leaves the rest.

    Attributes
    ----------
    staleness : int
        Ticks that a copy may lack of those that its owner has, and that a dense rank may hold back of a row's.
    capacity : int or float
        Rows that are kept of all tables of a width: at most so many, or this share of them.
    capacity_bytes : int or None
        In its place, the bytes that all copies of a dense rank may take: how many rows these are the form says.
    item : int
        Bytes of an element of a row, by which they are counted.
    rule : str
        How an owner counts what copies lack: ``sum`` of ticks, or ``max``, clocks that are maxima.
    evict : str
        Which row goes where there are more: see ``kernels.IdMap``, or for ``known`` ``kernels.KnownMap``.
    window : int
        Under ``known``: the steps ahead whose rows are known.
    max_age : int or None
        Steps after which a copy is asked for anew, and what is held back is pushed; None: however many.
    lookahead : int
        Steps by which rows are asked for ahead: what these have pushed and learned meanwhile their answers lack.
    dense : tuple of int
        Dense ranks, ascending.
    tables : mapping of str to TableSpec
    check : bool
        Whether every read is held to the bound, by exact counts (``exact``).
    shadow_reads : int
        Of so many reads of copies one is compared with its owner's row (``shadow``); 0: none.
    seed : int
        By which these are picked.
    """

    staleness: int = 0
    capacity: int | float = 1.0
    capacity_bytes: int | None = None
    item: int = 4
    rule: Literal["sum", "max"] = "sum"
    evict: Evict | Literal["known"] = "lru"
    window: int = 0
    max_age: int | None = None
    lookahead: int = 0
    dense: tuple[int, ...] = (0,)
    tables: Mapping[str, TableSpec] = field(default_factory=dict)
    check: bool = False
    shadow_reads: int = 0
    seed: int = 0

    @property
    def most_missing(self) -> int:
        """Ticks that a read may lack, by the rule, and for steps that are asked for ahead."""
        ranks = len(self.dense)
        return self.staleness * (ranks if self.rule == "sum" else 3 * (ranks - 1)) + (ranks - 1) * self.lookahead

    @property
    def previews(self) -> bool:
        """Whether a dense rank reads what its own gradients will make of rows, as far as it knows."""
        return self.staleness > 0 or self.lookahead > 0

    def accumulates(self, table: str) -> bool:
        """Whether previews of it are read, and its optimizer adds up squares.

        Then each row that is sent has its accumulator with it, and each that is pushed its sum of squares.
        """
        return self.previews and self.tables[table].optimizer.name in ADAGRADS


@dataclass(frozen=True)
class Asked:
    """Distinct rows of one bundle, as a step asks for them.

    Attributes
    ----------
    rows : int64 [U]
        As their part calls them; ids, where the family is dynamic. A row is named by this and its part.
    part : int64 [U]
        0 where every part has all rows.
    """

    rows: Ints
    part: Ints


@dataclass(frozen=True)
class Push:
    """What is pushed of one bundle: rows, each once, in any order, and their gradients [N, D] by table.

    ``ticks`` [N] is of how many steps each gradient is the sum, and ``squares`` [N] by table what ``Sums.squares`` is,
    of those that ``Keeping.accumulates``.
    """

    asked: Asked
    gradients: Mapping[str, Floats]
    ticks: Ints
    squares: Mapping[str, Floats] = field(default_factory=dict)


class OwnerRule(Protocol):
    """The owner's half, of one part of a family and one bundle: which copies are too old.

    A step is answered before it is learned. Dense ranks are called by their places in ``Keeping.dense``.

    Attributes
    ----------
    missing : Missing
        Of the copies that were found not to be too old, as far as the rule knows; rows that are sent are added to it.
    """

    missing: Missing

    def __init__(self, rows: int, keeping: Keeping) -> None:
        """``rows``: of the part, with the spare row of a dynamic one."""

    def answer(self, rows: Ints, places: Ints) -> np.ndarray:
        """Of each row that a dense rank asks for and has a copy of: whether it is too old, bool [K]."""

    def sent(self, rows: Ints, places: Ints) -> None:
        """The copies of these rows there are now as their rows are."""

    def learned(self, rows: Ints, places: Ints, ticks: Ints) -> None:
        """These ranks have pushed so many ticks of rows, which their copies have: ``NOBODY``'s have no copy of here."""

    def changed(self, rows: Ints) -> None:
        """These distinct rows were learned by another form too: a tick of each dense rank, which no copy has."""

    def restarted(self, rows: Ints) -> None:
        """These were given to other ids: no copy of them is valid."""

    def figures(self) -> dict[str, float]:
        """What ``summary.json`` says of it: sums that are added over owners."""


class Copies(Protocol):
    """The dense half: what this rank keeps, of all bundles of the form; changed by these verbs alone.

    ``kept``, ``read`` and ``push`` are called once a training step each, by one thread, in the order of steps:
    ``kept`` of a step up to ``Keeping.lookahead`` steps before its ``read``, so that the answer lacks what the steps
    between them push. What a step in flight has asked for stays. An evaluation reads the owners' rows, and leaves what
    is kept as it is. Lists have an element a bundle.
    """

    def __init__(self, bundles: "Sequence[Conditional]", tables: Sequence[Sequence[str]], keeping: Keeping) -> None:
        """``tables``: of each bundle, those that all of its features read."""

    def kept(self, asked: Sequence[Asked]) -> list[np.ndarray]:
        """Whether there is a copy of each row, bool [U]."""

    def foresee(self, asked: Sequence[Asked]) -> None:
        """What the next training step that is not foreseen yet will ask for. Under ``known`` alone.

        Each is foreseen once: ``Keeping.window`` steps before its ``kept`` or, at first and after ``give_up``, fewer.
        """

    def read(
        self,
        asked: Sequence[Asked],
        sent: Sequence[np.ndarray],
        came: Sequence[Mapping[str, Floats]],
        accumulators: Sequence[Mapping[str, Floats]],
        rowless: Sequence[np.ndarray],
    ) -> list[Mapping[str, Floats]]:
        """What is read of each row, [U, D] by table; what came may be written over.

        Parameters
        ----------
        asked : sequence of Asked
        sent : sequence of bool [U]
            Which rows came; of the others the copy will do.
        came : sequence of mappings of str to float [U, D]
            By table; where none came, whatever.
        accumulators : sequence of mappings of str to float [U]
            Likewise, of the tables that ``Keeping.accumulates``: those of the owner of a row's first columns.
        rowless : sequence of bool [U]
            Which of those that came are of ids without a row, of a dynamic table: they are read as they came, no copy
            is kept of them, and their gradients of this step are for nobody.
        """

    def push(
        self,
        asked: Sequence[Asked],
        gradients: Sequence[Mapping[str, Floats]] | None,
        *,
        drain: bool,
        lr_scale: float,
    ) -> list[Push]:
        """What goes to the owners after a step.

        Parameters
        ----------
        asked : sequence of Asked
        gradients : sequence of mappings of str to float [U, D], or None
            By table, of the rows of the step; None where the step is left out: none is learned from.
        drain : bool
            Nothing may be held back.
        lr_scale : float
            What the schedule multiplies learning rates by, in this step.
        """

    def empty(self) -> None:
        """Forgets all copies, at checkpoints, after a drain: a run that goes on from there has none.

        What is foreseen of the steps that follow is not forgotten.
        """

    def give_up(self) -> None:
        """Steps that were foreseen, or asked for and not read, or not pushed, do not come.

        What others hold back stays.
        """

    def figures(self) -> dict[str, float]:
        """What ``summary.json`` says of it: sums that are added over ranks."""


class Conditional(Rows):
    """See ``Form``.

    Attributes
    ----------
    Owner, Dense : type
        The halves; of the owner's, the one that there is by default.
    counts : tuple of str
        Those of ``Copies.figures`` that lines of metrics tell of.
    """

    conditional = True
    simplicity = None  # what its copies save depends on steps before, which no count of single batches knows
    Owner: ClassVar[type[OwnerRule]]
    Dense: ClassVar[type[Copies]]
    counts: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def owner_rule(cls, rows: int, keeping: Keeping) -> OwnerRule:
        """The owner's half for a part of so many rows: arguments of ``OwnerRule``."""
        return cls.Owner(rows, keeping)

    @classmethod
    def holds_back(cls, keeping: Keeping) -> bool:  # noqa: ARG003
        """Whether gradients may be held back after a step that is no drain."""
        return True

    @classmethod
    def rooms(
        cls,
        bundles: "Sequence[Conditional]",
        tables: Sequence[Sequence[str]],  # noqa: ARG003
        keeping: Keeping,  # noqa: ARG003
    ) -> list[tuple[list[int], int]]:
        """Numbers of the bundles whose copies share room, and how many rows have some: by default all of each."""
        return [([b], max(1, form.family.rows)) for b, form in enumerate(bundles)]

    @classmethod
    def owner_memory(cls, rows: int, keeping: Keeping) -> float:  # noqa: ARG003
        """The most bytes that ``OwnerRule`` takes of so many rows: by default none."""
        return 0.0

    @classmethod
    def memory(
        cls, bundles: "Sequence[Conditional]", tables: Sequence[Sequence[str]], keeping: Keeping, item: int
    ) -> float:
        """The most bytes that what is kept takes on a dense rank: arguments of ``Copies``, and bytes of an element.

        By default a copy of every row, and a gradient that is held back.
        """
        columns = [sum(keeping.tables[table].width for table in of) for of in tables]
        rows = [form.family.rows for form in bundles]
        return float(sum(n * 2 * wide * item for n, wide in zip(rows, columns, strict=True)))
