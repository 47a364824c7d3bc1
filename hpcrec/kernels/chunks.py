"""Kernels on chunks of a file: numbers read by the addresses of their chunks, and HDF5's checksum of them.

Where chunks lie and what is done where they cannot be read is known above. One thread, whatever `set_threads` says.
Shapes: C chunks.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.kernels.backend import backend
from hpcrec.types import Ints

_NUMBERS = (checks.INT32, checks.INT64, *checks.FLOATS)
_UINT8 = np.dtype(np.uint8)


def fletcher32(data: NDArray[np.uint8]) -> int:
    """HDF5's Fletcher-32 of uint8 [n]: what its filter appends to a chunk, little-endian."""
    return backend().fletcher32(checks.ints("data", data, dtype=_UINT8))


def read_chunks(
    file: int,
    chunk_at: Ints,
    chunk_items: int,
    checked: NDArray[np.uint8] | None,
    stored: np.dtype,
    start: int,
    out: NDArray[Any],
) -> bool:
    """Numbers that lie in chunks of a file, one chunk after the other, into an array.

    Parameters
    ----------
    file : int
        Descriptor; its position is left as it is.
    chunk_at : int64 [C]
        Byte of the file where each chunk begins.
    chunk_items : int
        Numbers of a chunk, the same of all.
    checked : uint8 [C] or None
        Where chunks are followed by their Fletcher-32: whether it has been compared. A chunk for which it has not is
        read whole, compared and noted here; of others only what is wanted is read.
    stored : dtype
        Of the numbers in the file, little-endian: that of `out`, or int32 where `out` is int64.
    start : int
        The first number that is wanted.
    out : int32, int64, float32 or float64, any shape
        Filled whole.

    Returns
    -------
    bool
        False where the file ends before, cannot be read, or a checksum differs: `out` then holds anything.

    Raises
    ------
    ValueError
        A type, shape or size is wrong, more is asked for than the chunks hold, or a wanted chunk has an address that no
        file has.
    """
    file = checks.whole("file", file, 0, checks.WIDEST)
    checks.ints("chunk_at", chunk_at)
    chunk_items = checks.whole("chunk_items", chunk_items, 1, checks.WIDEST)
    checks.numbers("out", out, _NUMBERS)
    stored = np.dtype(stored)
    if stored != out.dtype and (stored, out.dtype) != (checks.INT32, checks.INT64):
        raise ValueError(f"stored is {stored}, out {out.dtype}; needed are equal types, or int32 and int64")
    start = checks.whole("start", start, 0)
    if start + out.size > chunk_at.size * chunk_items:
        raise ValueError(
            f"numbers [{start}, {start + out.size}) are asked for; {chunk_at.size} chunks hold {chunk_items} each"
        )
    if checked is not None:
        checks.writable("checked", checks.ints("checked", checked, chunk_at.size, dtype=_UINT8))
        checks.apart("checked", checked, chunk_at=chunk_at)
    checks.apart("out", out, chunk_at=chunk_at, checked=checked)
    assert sys.byteorder == "little", "numbers in files are little-endian"
    return backend().read_chunks(file, chunk_at, chunk_items, checked, stored, start, out)
