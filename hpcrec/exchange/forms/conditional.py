"""The contract of a form whose rows dense ranks keep: an owner sends those that its rule says are too old there.

In the phase values the dense rank says what it knows of each distinct row that it asks for (its *clock*), the owner
answers with a newer clock for each row that it sends, and with these rows; the form says what is read of them, and in
the phase gradients which rows it pushes: those of the step, of steps before, or none. So it may answer a read by a copy
and learn late; at drain points it pushes everything. Messages are ``copies``. Knows rows by number and one bundle of
features; knows no MPI.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hpcrec.exchange.forms.rows import Rows
from hpcrec.types import Floats, Ints

NOT_KNOWN = -1  # clock of a row of which there is no copy; and what an owner answers where the copy will do

_CLOCK_BYTES = 8


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
    """What is pushed of one bundle: rows, each once, in any order, and their gradients [N, D] by table."""

    asked: Asked
    gradients: Mapping[str, Floats]


class OwnerRule(Protocol):
    """The owner's half, of one part of a family: which copies are too old. A step is answered before it is learned."""

    def __init__(self, rows: int) -> None:
        """``rows``: of the part, with the spare row of a dynamic one."""

    def answer(self, rows: Ints, known: Ints) -> Ints:
        """For each row that a dense rank asks for, by the clock that it knows: the clock to send with it, or -1."""

    def learned(self, rows: Ints) -> None:
        """These distinct rows have changed, by whatever form."""

    def restarted(self, rows: Ints) -> None:
        """These were given to other ids: no copy of them is valid, whatever its clock."""


class Conditional(Rows):
    """See ``Form``; what is kept is of this bundle on this rank, and changed by ``read``, ``push`` and ``empty`` alone.

    An evaluation reads the owners' rows, and leaves what is kept as it is.

    Attributes
    ----------
    Owner : type
        The owner's half.
    """

    conditional = True
    simplicity = None  # what its copies save depends on steps before, which no count of single batches knows
    Owner: ClassVar[type[OwnerRule]]

    @abstractmethod
    def known(self, asked: Asked) -> Ints:
        """The clock of the copy of each row, int64 [U]; -1: there is none."""

    @abstractmethod
    def read(self, asked: Asked, clocks: Ints, came: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """What is read of each row, [U, D] by table.

        Parameters
        ----------
        asked : Asked
        clocks : int64 [U]
            Of the rows that came; -1 where the copy will do.
        came : mapping of str to float [U, D]
            By table; where none came, whatever.
        """

    @abstractmethod
    def push(self, asked: Asked, gradients: Mapping[str, Floats] | None, *, drain: bool) -> Push:
        """What goes to the owners after a step; called once a step.

        Parameters
        ----------
        asked : Asked
        gradients : mapping of str to float [U, D], or None
            By table, of the rows of the step; None where the step is left out: none is learned from.
        drain : bool
            Nothing may be held back.
        """

    @abstractmethod
    def empty(self) -> None:
        """Forgets all copies, at checkpoints, after a drain: a run that goes on from there has none."""

    @classmethod
    def memory(cls, rows: int, columns: int, item: int) -> float:
        """The most bytes that what is kept takes on a dense rank: of all tables of a bundle, so many rows and columns.

        By default a copy of every row, a gradient that is held back, and a clock.
        """
        return float(rows * (2 * columns * item + _CLOCK_BYTES))

    def figures(self) -> dict[str, float]:
        """What ``summary.json`` says of it: sums that are added over bundles and ranks."""
        return {}
