"""Kernels on chunks of a file: numbers read by the addresses of their chunks, and HDF5's checksum of them.

Where chunks lie and what is done where they cannot be read is known above. One thread, whatever `set_threads` says.
Shapes: C chunks, P pieces.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.kernels.backend import backend
from hpcrec.types import Ints

_UINT8 = np.dtype(np.uint8)


def fletcher32(data: NDArray[np.uint8]) -> int:
    """HDF5's Fletcher-32 of uint8 [n]: what its filter appends to a chunk, little-endian."""
    return backend().fletcher32(checks.ints("data", data, dtype=_UINT8))


def read_chunks(file: int, chunk_at: Ints, checked: NDArray[np.uint8], wanted: Ints, out: NDArray[Any]) -> int:
    """Numbers that lie in chunks of a file, one after the other, into an array.

    Parameters
    ----------
    file : int
        Descriptor; its position is left as it is.
    chunk_at : int64 [C]
        Byte of the file where each chunk begins.
    checked : uint8 [C]
        0: the chunk is followed by its Fletcher-32, which has not been compared. It is then read whole, compared, and
        noted as 1. Of other chunks only what is wanted is read.
    wanted : int64 [P, 7]
        Of each piece: the first chunk of its column and how many there are; numbers of each chunk; bytes of a number
        (little-endian; those of `out`, or 4 for int32 where `out` is int64); the first number of the column that is
        wanted, and how many are; the limit that integers are below, from 0 on (0: they may be any).
    out : int64 or float32, any shape
        Filled whole, by the pieces one after the other.

    Returns
    -------
    int
        How many pieces could be read, before one that could not: the file ends before, cannot be read, a checksum
        differs, or a number is outside its limit. `out` then holds anything from there on.

    Raises
    ------
    ValueError
        A type, shape or size is wrong, a piece is not inside its chunks, or a wanted chunk has an address that no file
        has.
    """
    file = checks.whole("file", file, 0, checks.WIDEST)
    checks.ints("chunk_at", chunk_at)
    checks.writable("checked", checks.ints("checked", checked, chunk_at.size, dtype=_UINT8))
    checks.table("wanted", wanted, 7)
    checks.numbers("out", out, (checks.INT64, checks.FLOATS[0]))
    checks.apart("checked", checked, chunk_at=chunk_at, wanted=wanted)
    checks.apart("out", out, chunk_at=chunk_at, checked=checked, wanted=wanted)
    assert sys.byteorder == "little", "numbers in files are little-endian"
    return backend().read_chunks(file, chunk_at, checked, wanted, out)
