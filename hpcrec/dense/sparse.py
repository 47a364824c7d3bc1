"""Few entries of a flat array: chosen by magnitude, written as bytes, read again.

A message is positions, then values, each group of values (a parameter tensor's) written by itself, so that a scale of
its own fits it. Four numbers go ahead of it: entries, how positions are coded, bytes of positions, bytes in all.

float32 goes through the kernels; float64, for runs that are compared to 1e-12, by NumPy here, its values as they are.
Knows arrays; knows neither ranks nor what is done with entries that are not chosen.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hpcrec import kernels
from hpcrec.types import Floats, Ints

HEADER_WORDS = 4
HEADER_BYTES = 8 * HEADER_WORDS
_FLOAT32 = np.dtype(np.float32)

Bytes = NDArray[np.uint8]


@functools.cache  # of each parameter in each step
def kept_of(n: int, density: float) -> int:
    """Entries of ``n`` that a density keeps: at least so large a share of them, as the decimal fraction it is."""
    return math.ceil(Fraction(repr(density)) * n)


@functools.cache
def most_of(n: int, density: float) -> int:
    """Entries of ``n`` that may pass before a threshold counts as outgrown: twice the density, and those to keep."""
    return max(kept_of(n, density), math.floor(2 * Fraction(repr(density)) * n))


def threshold(values: Floats, keep: int) -> float:
    """The ``keep``-th largest magnitude; above zero, for a zero need not be sent."""
    if values.dtype == _FLOAT32:
        found = kernels.threshold_of(values, keep)
    else:
        found = float(np.partition(np.abs(values), len(values) - keep)[len(values) - keep])
    return max(found, float(np.finfo(values.dtype).smallest_subnormal))


def take_above(values: Floats, tau: float) -> tuple[Ints, Floats]:
    """Positions and values of magnitudes of ``tau`` or more, which are zero in ``values`` afterwards."""
    if values.dtype == _FLOAT32:
        positions, chosen = kernels.select_above(values, tau)
    else:
        positions = np.flatnonzero(~(np.abs(values) < tau))
        chosen = values[positions]
    values[positions] = 0
    return positions, chosen


def add_and_take_above(values: Floats, more: Floats, tau: float) -> tuple[Ints, Floats]:
    """The same of ``values`` + ``more``, which replaces ``values``; one pass over float32."""
    if values.dtype == _FLOAT32:
        return kernels.select_with_feedback(more, values, tau)
    values += more
    return take_above(values, tau)


def add_at(out: Floats, positions: Ints, values: Floats) -> None:
    """Adds ``values`` to ``out`` at distinct ``positions``."""
    if out.dtype == _FLOAT32:
        kernels.scatter_add(out, positions, values)
    else:
        out[positions] += values


@dataclass(frozen=True)
class Codec:
    """How values are written: ``kind`` is fp32 (as they are, float64 too), bf16 or fp16."""

    kind: str
    dtype: np.dtype

    @property
    def lossless(self) -> bool:
        """Whether values are read as they were."""
        return self.kind == "fp32"

    def n_bytes(self, n: int) -> int:
        """Bytes of ``n`` values."""
        return n * self.dtype.itemsize if self.lossless else kernels.half_bytes(n, self.kind)

    def write(self, values: Floats, out: Bytes) -> None:
        """Writes values to just as many bytes."""
        if self.lossless:
            out[:] = np.ascontiguousarray(values).view(np.uint8)
        else:
            kernels.write_halves(np.ascontiguousarray(values), out, self.kind)

    def read(self, data: Bytes, out: Floats) -> None:
        """Reads values from just as many bytes."""
        if self.lossless:
            out.view(np.uint8)[:] = data
        else:
            kernels.read_halves(data, out, self.kind)


def codec_for(values: str, dtype: np.dtype) -> Codec:
    """How values are written that are asked for as ``values``: float64 as it is."""
    return Codec(values if dtype == _FLOAT32 else "fp32", dtype)


def written(positions: Ints, values: Floats, n: int, groups: Sequence[int], codec: Codec) -> tuple[Ints, Bytes]:
    """Entries of an array of ``n`` as (header, message).

    Parameters
    ----------
    positions : int64 [k]
        Rising, below ``n``.
    values : float [k]
    groups : sequence of int
        Numbers of values that are written together, in order.
    """
    position_bytes, coding = kernels.positions_bytes(positions, n)
    sizes = [codec.n_bytes(k) for k in groups]
    message = np.empty(position_bytes + sum(sizes), np.uint8)
    kernels.write_positions(positions, n, coding, message[:position_bytes])
    at = position_bytes
    for start, stop, size in zip(_starts(groups), _ends(groups), sizes, strict=True):
        codec.write(values[start:stop], message[at : at + size])
        at += size
    return np.array([len(positions), coding, position_bytes, len(message)], np.int64), message


def read(header: Ints, message: Bytes, bounds: Sequence[int], codec: Codec) -> tuple[Ints, Floats]:
    """Positions and values of what ``written`` wrote.

    Parameters
    ----------
    bounds : sequence of int
        Where groups of the array end; the last is its length.
    """
    k, coding, position_bytes, _ = header.tolist()
    positions = kernels.read_positions(message[:position_bytes], k, bounds[-1] if bounds else 0, coding)
    return positions, values_in(header, message, groups_of(positions, bounds), codec)


def values_in(header: Ints, message: Bytes, groups: Sequence[int], codec: Codec) -> Floats:
    """The values alone, where it is known how many each group has."""
    values, at = np.empty(int(header[0]), codec.dtype), int(header[2])
    for start, stop in zip(_starts(groups), _ends(groups), strict=True):
        size = codec.n_bytes(stop - start)
        codec.read(message[at : at + size], values[start:stop])
        at += size
    return values


def groups_of(positions: Ints, bounds: Sequence[int]) -> list[int]:
    """How many of the rising positions lie below each bound and not below the one before."""
    return np.diff(np.searchsorted(positions, np.asarray(bounds, np.int64)), prepend=0).tolist()


def _ends(groups: Sequence[int]) -> list[int]:
    return np.cumsum(groups, dtype=np.int64).tolist()


def _starts(groups: Sequence[int]) -> list[int]:
    return [end - n for end, n in zip(_ends(groups), groups, strict=True)]
