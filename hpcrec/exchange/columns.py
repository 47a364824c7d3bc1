"""One batch's ids: feature by feature, and as each form deals them to the parts of tables. Does nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class Column:
    """One feature's bags on this rank.

    Attributes
    ----------
    rows : int64 [K]
        Row numbers in the whole table; ids, where it is dynamic.
    lengths : int64 [B]
    weights : float [K] or None
    scale : float [B] or None
        1 / ids of the bag, for means.
    """

    rows: Ints
    lengths: Ints
    weights: Floats | None
    scale: Floats | None


@dataclass(frozen=True)
class Dealt:
    """Ids of one bundle of features, each with the part of its family that has its row.

    Attributes
    ----------
    rows : int64 [K]
        As the part calls them.
    part : int64 [K] or None
        None: every part is asked for all of them.
    lengths : int64 [V]
        Ids of each bag. A bag is that of a sample unless ``sample`` says else, or, where distinct rows are asked for, a
        row.
    weights : float [K] or None
    sample : int64 [V] or None
        The sample of each bag, where a form asks for several bags of one (``Form.answers``).
    """

    rows: Ints
    part: Ints | None
    lengths: Ints
    weights: Floats | None
    sample: Ints | None = None


@dataclass(frozen=True)
class Dealing:
    """What is asked for of one batch, which depends on its ids alone.

    Attributes
    ----------
    columns : mapping of str to Column
        By feature.
    dealt : sequence of (Dealt, int64 [K] or None)
        By form, as ``Form.ask`` has it.
    """

    columns: Mapping[str, Column]
    dealt: Sequence[tuple[Dealt, Ints | None]]
