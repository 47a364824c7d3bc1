"""The definition, in NumPy, of how rising positions are used, and how written in a message. See ``reference``.

Positions in ``[0, n)`` that rise are written as n bits, the lowest of a byte first and those behind the last one zero
(``MASK``), or as numbers packed rising (``RISING``; see ``reference_packed``).
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.types import Floats, Ints

Bytes = NDArray[np.uint8]


class PositionCoding(IntEnum):
    """How positions are written; see ``kernels.positions_bytes``."""

    MASK = 0
    RISING = 1


def require_rising(positions: Ints, n: int) -> None:
    """Each in ``[0, n)`` and above the one before."""
    checks.require_below("positions", positions, n)
    bad = positions[1:] <= positions[:-1]
    if bad.any():
        at = int(np.argmax(bad)) + 1
        raise ValueError(
            f"positions[{at}] is {int(positions[at])}, after {int(positions[at - 1])}; positions must rise: sort them, "
            "each once"
        )


def expand(out: Floats, positions: Ints, values: Floats) -> None:
    """Values where they are, zeros elsewhere."""
    require_rising(positions, out.size)
    out[:] = 0
    out[positions] = values


def scatter_add(out: Floats, positions: Ints, values: Floats) -> None:
    """Adds, once a position."""
    require_rising(positions, out.size)
    with np.errstate(over="ignore", invalid="ignore"):
        out[positions] += values


def gather(values: Floats, positions: Ints) -> Floats:
    """Picks."""
    checks.require_below("positions", positions, values.size)
    return values[positions]


def write_mask(positions: Ints, n: int, out: Bytes) -> None:
    """One bit a position that there is."""
    require_rising(positions, n)
    bits = np.zeros(n, bool)
    bits[positions] = True
    out[:] = np.packbits(bits, bitorder="little")


def read_mask(data: Bytes, k: int, n: int) -> Ints:
    """Undoes ``write_mask``."""
    bits = np.unpackbits(data, bitorder="little")
    positions = np.flatnonzero(bits).astype(np.int64)
    if positions.size != k or bits[n:].any():
        raise ValueError(f"data: its {data.size} bytes are not a mask of {k} of {n} positions")
    return positions
