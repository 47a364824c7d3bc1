"""Whether blocks together have each id and column of a table once: in any order, in memory for one of them.

Each (id, column) has a number, of a hash of either, and blocks the sum of theirs, modulo 2^64: these are added over
blocks and ranks, and come to the sum of the whole table where none is twice or missing. That another set comes to it is
as likely as any 64 bits. Knows numbers; which of the ids it is that is missing, ``hpcrec checkpoint verify`` finds.
"""

import numpy as np

from hpcrec import kernels
from hpcrec.types import Ints

_SPAN = 1 << 62
_MODULUS = 1 << 64
_BLOCK = 1 << 16
_ID, _COLUMN = 1, 2  # seeds


def cover_of(ids: Ints, columns: tuple[int, int]) -> int:
    """The sum of a block with these ids [U] and columns [start, stop)."""
    return _sum(ids, _ID) * _sum(np.arange(*columns), _COLUMN) % _MODULUS


def cover_of_range(start: int, stop: int, width: int) -> int:
    """The sum of all columns of ids [start, stop) of a table so wide."""
    blocks = (np.arange(first, min(first + _BLOCK, stop)) for first in range(start, stop, _BLOCK))
    return sum(cover_of(ids, (0, width)) for ids in blocks) % _MODULUS


def said_of(folder: object, table: str) -> str:
    """The message for a table whose parts do not come to the whole."""
    return (
        f"{folder}: the parts of table {table!r} have as many values as the table, but some ids and columns twice and "
        "others not at all. 'hpcrec checkpoint verify' says which; see docs/checkpoint.md."
    )


def _sum(numbers: Ints, seed: int) -> int:
    hashes = kernels.hash_ids(np.ascontiguousarray(numbers, np.int64), _SPAN, seed)
    return int(hashes.sum(dtype=np.uint64))
