"""Bytes of the messages of conditional forms, by formula: what a step costs for so many rows asked, sent and pushed.

Of numbers of rows, or of arrays of these: what one dense rank and one owner send each other. As ``copies`` says, whose
types of numbers are here. Exact, but for what rounds a message up to whole bytes and to 64. Knows counts and no rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hpcrec.types import Floats

ENTRY_BYTES = 8  # of an entry, in the message that says how many of its rows are pushed
Numbers = TypeVar("Numbers", float, Floats)


def name_type(*, dynamic: bool) -> np.dtype:
    """What names a row that is pushed: its number, or its id where some of the tables are dynamic."""
    return np.dtype(np.int64 if dynamic else np.uint32)


def tick_type(staleness: int) -> np.dtype:
    """Of how many steps its gradient is."""
    return np.dtype(np.uint8 if staleness < 255 else np.uint32)


@dataclass(frozen=True)
class Part(Generic[Numbers]):
    """One kind of message: bytes, not rounded.

    Attributes
    ----------
    tag, what : str
    to_dense : bool
        Whether the owner sends it; else the dense rank does.
    exact : float, or an array as the arguments were
    """

    tag: str
    what: str
    to_dense: bool
    exact: Numbers


@dataclass(frozen=True)
class RowBytes:
    """Of one row.

    Attributes
    ----------
    sent, pushed : float
        Its vectors, and those of its gradient.
    accumulator, squares : float
        The numbers that go with them.
    """

    sent: float
    pushed: float
    accumulator: float = 0
    squares: float = 0


def parts_of(
    asked: Numbers, sent: Numbers, pushed: Numbers, row: RowBytes, *, staleness: int, dynamic: bool
) -> Iterator[Part[Numbers]]:
    """All of a step, but the request itself, and the counts of entries, which are ``ENTRY_BYTES`` for each and rank."""
    yield Part("ids", "known", False, asked / 8)
    yield Part("ids", "follows", True, asked / 8)
    if dynamic:
        yield Part("ids", "rowless", True, asked / 8)
    yield Part("values", "values", True, row.sent * sent)
    yield Part("ids", "names", False, name_type(dynamic=dynamic).itemsize * pushed)
    yield Part("ids", "ticks", False, tick_type(staleness).itemsize * pushed)
    yield Part("gradients", "gradients", False, row.pushed * pushed)
    if row.squares:
        yield Part("values", "accumulators", True, row.accumulator * sent)
        yield Part("gradients", "squares", False, row.squares * pushed)
