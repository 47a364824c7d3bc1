"""CRC-32 of a file's bytes, or of a column's values: fed block by block, and joined where they follow each other.

Knows nothing of what is in files. That of values is of their bytes, little-endian, in the type that they have on disk.

Joining needs no values: CRCs are remainders of polynomials over GF(2), so that of A followed by n bytes is that of A
times x^(8 n), plus that of the n bytes. A polynomial is an int here with x^0 in its highest of 32 bits, as CRC-32 has
it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib
from numpy.typing import DTypeLike, NDArray

crc32 = isal_zlib.crc32  # the same as zlib's, which takes longer than the disk

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_X_8 = 1 << 23  # a shift by one byte
_PIECE_BYTES = 1 << 20  # of a file, at a time: stays in a core's cache
_AHEAD_BYTES = 48 << 20  # that the disk is asked for in advance, at least: checksums are faster than it


def of_file(path: Path, comes_on: Callable[[], None] = lambda: None) -> int:
    """CRC-32 of a file, at the disk's rate; ``comes_on`` is called for each MiB.

    Raises
    ------
    OSError
        It cannot be read.
    """
    room, crc, at, asked = memoryview(bytearray(_PIECE_BYTES)), 0, 0, 0
    with path.open("rb", buffering=0) as file:
        while True:
            if hasattr(os, "posix_fadvise") and at + _AHEAD_BYTES > asked:
                os.posix_fadvise(file.fileno(), asked, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
                asked += _AHEAD_BYTES
            if not (n_bytes := file.readinto(room)):
                return crc
            comes_on()
            crc, at = crc32(room[:n_bytes], crc), at + n_bytes


def update(crc: int, values: NDArray[Any], dtype: DTypeLike) -> int:
    """CRC-32 of what `crc` is of, followed by `values` as `dtype`; 0 is of nothing."""
    return crc32(np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<")).data, crc)


def join(first: int, second: int, n_bytes: int) -> int:
    """CRC-32 of what `first` is of, followed by the `n_bytes` that `second` is of."""
    shift, power = _ONE, _X_8
    while n_bytes:
        if n_bytes & 1:
            shift = _times(shift, power)
        power = _times(power, power)
        n_bytes >>= 1
    return _times(first, shift) ^ second


def _times(a: int, b: int) -> int:
    """Product of two polynomials, modulo CRC-32's."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
