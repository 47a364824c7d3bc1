"""Kernels on rising positions of a vector: values put, added or taken there; and how positions are written.

What the positions are of is known above. Written positions take one thread for the packing of numbers, as many as
``set_threads`` says else. After an error the contents of outputs are undefined. Shapes: K positions of n.
"""

from typing import Any

import numpy as np

from hpcrec.kernels import checks, native_messages, reference_positions
from hpcrec.kernels.backend import messages_backend, native_fits
from hpcrec.kernels.packed import pack_numbers, packed_bytes, unpack_numbers
from hpcrec.kernels.reference_packed import PACKED_BLOCK
from hpcrec.kernels.reference_positions import Bytes, PositionCoding
from hpcrec.types import Floats, Ints

_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
_put_fits = native_fits("written out: float32[any]", "positions: int64[K]", "values: float32[K]")
_gather_fits = native_fits("values: float32[any]", "positions: int64[any]")


def _backend(*arrays: Any) -> Any:
    return messages_backend(reference_positions, *arrays)


def expand(out: Floats, positions: Ints, values: Floats) -> None:
    """``out[positions[k]] = values[k]``, and zeros elsewhere.

    Parameters
    ----------
    out : float32 [n]
    positions : int64 [K]
        In ``[0, n)``, rising.
    values : float32 [K]

    Raises
    ------
    ValueError
        A type or shape is wrong, a position is outside or does not rise, or ``out`` shares memory with another
        argument.
    """
    if _put_fits(out, positions, values):
        native_messages.expand(out, positions, values)
        return
    _backend(out, positions, values).expand(*_put(out, positions, values))


def scatter_add(out: Floats, positions: Ints, values: Floats) -> None:
    """``out[positions[k]] += values[k]``; parameters and errors as of `expand`."""
    if _put_fits(out, positions, values):
        native_messages.scatter_add(out, positions, values)
        return
    _backend(out, positions, values).scatter_add(*_put(out, positions, values))


def _put(out: Floats, positions: Ints, values: Floats) -> tuple[Floats, Ints, Floats]:
    checks.floats("out", out, (None,), _FLOAT32, write=True)
    checks.floats("values", values, (checks.ints("positions", positions).size,), _FLOAT32)
    checks.apart("out", out, positions=positions, values=values)
    return out, positions, values


def gather(values: Floats, positions: Ints) -> Floats:
    """``values[positions]``, float32 [K], of float32 [n] and int64 [K] in ``[0, n)``, in any order.

    Raises
    ------
    ValueError
        A type or shape is wrong, or a position is outside.
    """
    if _gather_fits(values, positions):
        return native_messages.gather(values, positions)
    return _backend(values, positions).gather(
        checks.floats("values", values, (None,), _FLOAT32), checks.ints("positions", positions)
    )


def positions_bytes(positions: Ints, n: int) -> tuple[int, PositionCoding]:
    """Bytes that int64 [K] take, rising, in ``[0, n)``, and the coding that takes so few: of equals ``MASK``.

    Raises
    ------
    ValueError
        A type or shape is wrong, or n is negative.
    """
    mask, rising = _mask_bytes(checks.whole("n", n, 0)), packed_bytes(positions)[1]
    return (mask, PositionCoding.MASK) if mask <= rising else (rising, PositionCoding.RISING)


def write_positions(positions: Ints, n: int, coding: int, out: Bytes) -> None:
    """Writes positions into bytes.

    Parameters
    ----------
    positions : int64 [K]
        In ``[0, n)``, rising.
    n : int
    coding : PositionCoding
        ``MASK``: n bits. ``RISING``: as ``pack_numbers`` packs them, rising.
    out : uint8
        Just as long as the coding takes: see `positions_bytes`.

    Raises
    ------
    ValueError
        A type, shape or size is wrong, a position is outside or does not rise, or the coding is not known.
    """
    checks.ints("positions", positions)
    checks.writable("out", checks.ints("out", out, dtype=_UINT8))
    checks.apart("out", out, positions=positions)
    n = checks.whole("n", n, 0)
    if _coding(coding) == PositionCoding.MASK:
        if out.size != _mask_bytes(n):
            raise ValueError(f"out is of {out.size} bytes; a mask of {n} positions takes {_mask_bytes(n)}")
        _backend(positions, out).write_mask(positions, n, out)
    else:
        _backend(positions).require_rising(positions, n)
        pack_numbers(positions, out, rising=True)


def read_positions(data: Bytes, k: int, n: int, coding: int) -> Ints:
    """The ``k`` positions, int64, rising and in ``[0, n)``, that were written to these bytes.

    Raises
    ------
    ValueError
        A type or shape is wrong, the coding is not known, or the bytes are not so many such positions.
    """
    checks.ints("data", data, dtype=_UINT8)
    k, n = checks.whole("k", k, 0), checks.whole("n", n, 0)
    if _coding(coding) == PositionCoding.MASK:
        if data.size != _mask_bytes(n) or k > n:
            raise ValueError(f"data: its {data.size} bytes are not a mask of {k} of {n} positions")
        return _backend(data).read_mask(data, k, n)
    if k > PACKED_BLOCK * data.size:  # before memory is had for them
        raise ValueError(f"data: its {data.size} bytes are not {k} positions")
    positions = unpack_numbers(data, k, rising=True)
    _backend(positions).require_rising(positions, n)
    return positions


def _mask_bytes(n: int) -> int:
    return -(-n // 8)


def _coding(coding: int) -> PositionCoding:
    return PositionCoding(checks.whole("coding", coding, 0, max(PositionCoding)))
