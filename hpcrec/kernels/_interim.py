"""Selection by magnitude, positions and half precision in plain NumPy: stands in for native kernels of the same names.

Values are float32 [n]; positions int64 [k], rising and distinct. Knows arrays, not what they are.
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.packed import pack_numbers, packed_bytes, unpack_numbers
from hpcrec.types import Floats, Ints

HALF_BLOCK = 128
MASK, PACKED = 0, 1  # codings of positions

Bytes = NDArray[np.uint8]


def half_bytes(n: int, kind: str) -> int:
    """Bytes that ``n`` values take."""
    return {"fp32": 4 * n, "bf16": 2 * n, "fp16": 2 * n + 4 * -(-n // HALF_BLOCK)}[kind]


def write_halves(values: Floats, out: Bytes, kind: str) -> None:
    """Values as ``kind``; fp16 as the largest magnitude of each block, then values divided by it."""
    if kind == "fp32":
        out[:] = values.view(np.uint8)
    elif kind == "bf16":
        words = values.view(np.uint32)
        rounded = words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))
        rounded = np.where(np.isnan(values), words | np.uint32(0x00400000), rounded)
        out[:] = (rounded >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    else:
        scales, n_blocks = _scales(values), -(-len(values) // HALF_BLOCK)
        with np.errstate(divide="ignore", invalid="ignore"):
            halves = values / np.repeat(scales, HALF_BLOCK)[: len(values)]
        halves[np.repeat(scales == 0, HALF_BLOCK)[: len(values)]] = 0
        out[: 4 * n_blocks] = scales.view(np.uint8)
        out[4 * n_blocks :] = halves.astype(np.float16).view(np.uint8)


def read_halves(data: Bytes, out: Floats, kind: str) -> None:
    """What ``write_halves`` wrote."""
    data, n = np.ascontiguousarray(data).copy(), len(out)
    if kind == "fp32":
        out[:] = data.view(np.float32)
    elif kind == "bf16":
        out[:] = (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        n_blocks = -(-n // HALF_BLOCK)
        scales = data[: 4 * n_blocks].copy().view(np.float32)
        halves = data[4 * n_blocks :].copy().view(np.float16).astype(np.float32)
        with np.errstate(invalid="ignore"):
            out[:] = halves * np.repeat(scales, HALF_BLOCK)[:n]


def _scales(values: Floats) -> Floats:
    padded = np.zeros(-(-len(values) // HALF_BLOCK) * HALF_BLOCK, np.float32)
    padded[: len(values)] = np.abs(values)
    return padded.reshape(-1, HALF_BLOCK).max(axis=1, initial=0).astype(np.float32)


def threshold_of(values: Floats, keep: int) -> float:
    """The ``keep``-th largest magnitude; nan counts as infinite."""
    magnitudes = np.abs(values)
    magnitudes[np.isnan(magnitudes)] = np.inf
    return float(np.partition(magnitudes, len(values) - keep)[len(values) - keep])


def select_above(values: Floats, tau: float) -> tuple[Ints, Floats]:
    """Where magnitudes are ``tau`` or more, and the values there; nan is."""
    positions = np.flatnonzero(~(np.abs(values) < values.dtype.type(tau)))
    return positions, values[positions]


def select_with_feedback(gradient: Floats, residual: Floats, tau: float) -> tuple[Ints, Floats]:
    """The same of gradient + residual, which replaces ``residual``, with 0 where it is chosen."""
    residual += gradient
    positions, chosen = select_above(residual, tau)
    residual[positions] = 0
    return positions, chosen


def scatter_add(out: Floats, positions: Ints, values: Floats) -> None:
    """Adds ``values`` to ``out`` at ``positions``."""
    out[positions] += values


def gather(values: Floats, positions: Ints) -> Floats:
    """Values at ``positions``."""
    return values[positions]


def positions_bytes(positions: Ints, n: int) -> tuple[int, int]:
    """Bytes that positions below ``n`` take, and in which coding: a bit for each of ``n``, or packed rising numbers."""
    packed, mask = packed_bytes(positions)[1], -(-n // 8)
    return (packed, PACKED) if packed <= mask else (mask, MASK)


def write_positions(positions: Ints, n: int, coding: int, out: Bytes) -> None:
    """Positions in a coding that ``positions_bytes`` gave."""
    if coding == PACKED:
        pack_numbers(positions, out, rising=True)
    else:
        chosen = np.zeros(n, np.uint8)
        chosen[positions] = 1
        out[:] = np.packbits(chosen, bitorder="little")


def read_positions(data: Bytes, k: int, n: int, coding: int) -> Ints:
    """What ``write_positions`` wrote: ``k`` positions."""
    if coding == PACKED:
        return unpack_numbers(np.ascontiguousarray(data), k, rising=True)
    return np.flatnonzero(np.unpackbits(data, count=n, bitorder="little"))
