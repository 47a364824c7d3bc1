"""Kernels on packed numbers: integers written in as many bits as the largest of each block of 128 takes.

``reference_packed`` says how they lie. What they stand for is known above. One thread, whatever `set_threads` says.
"""

import sys

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks, native
from hpcrec.kernels.backend import backend, native_fits
from hpcrec.kernels.reference_packed import PACKED_BLOCK
from hpcrec.types import Ints

_UINT8 = np.dtype(np.uint8)
_numbers_fit = native_fits("numbers: int64[any]")
_pack_fits = native_fits("numbers: int64[any]", "written out: uint8[any]")
_unpack_fits = native_fits("packed: uint8[any]", "n: 0+")
assert sys.byteorder == "little", "packed numbers are read as little-endian words"


def packed_bytes(numbers: Ints) -> tuple[int, int]:
    """Bytes that int64 [n] take packed, and packed rising.

    Raises
    ------
    ValueError
        A type or shape is wrong.
    """
    if _numbers_fit(numbers):
        return native.packed_bytes(numbers)
    return backend(numbers).packed_bytes(checks.ints("numbers", numbers))


def pack_numbers(numbers: Ints, out: NDArray[np.uint8], *, rising: bool) -> None:
    """Packs int64 [n] into ``out``, uint8, which has to be just as long as ``packed_bytes`` says.

    Raises
    ------
    ValueError
        A type, shape or size is wrong.
    """
    if _pack_fits(numbers, out):
        native.pack_numbers(numbers, bool(rising), out)
        return
    checks.ints("numbers", numbers)
    checks.writable("out", checks.ints("out", out, dtype=_UINT8))
    checks.apart("out", out, numbers=numbers)
    backend(numbers, out).pack_numbers(numbers, bool(rising), out)


def unpack_numbers(packed: NDArray[np.uint8], n: int, *, rising: bool) -> Ints:
    """The ``n`` numbers, int64, that were packed to these bytes.

    Raises
    ------
    ValueError
        A type or shape is wrong, or the bytes are not so many packed numbers.
    """
    if _unpack_fits(packed, n) and n <= PACKED_BLOCK * packed.size:
        return native.unpack_numbers(packed, n, bool(rising))
    checks.ints("packed", packed, dtype=_UINT8)
    n = checks.whole("n", n, 0)
    if n > PACKED_BLOCK * packed.size:  # before memory is had for them
        raise ValueError(f"packed: its {packed.size} bytes are not {n} numbers")
    return backend(packed).unpack_numbers(packed, n, bool(rising))
