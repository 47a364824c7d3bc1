"""Kernels on float32 written in half as many bytes, for messages: bfloat16, or float16 with a scale for each block.

``reference_halves`` says how they lie. What they stand for, and whether what they lose matters, is known above.
"""

import sys
from typing import Any

import numpy as np

from hpcrec.kernels import checks, native_messages, reference_halves
from hpcrec.kernels.backend import messages_backend, native_fits
from hpcrec.kernels.reference_halves import HALF_BLOCK, HALF_KINDS, Bytes
from hpcrec.types import Floats

__all__ = ["HALF_BLOCK", "half_bytes", "read_halves", "write_halves"]
_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
_write_fits = native_fits("values: float32[any]", "written out: uint8[any]")
_read_fits = native_fits("data: uint8[any]", "written out: float32[any]")
assert sys.byteorder == "little", "halves are written as little-endian words"


def _backend(*arrays: Any) -> Any:
    return messages_backend(reference_halves, *arrays)


def half_bytes(n: int, kind: str) -> int:
    """Bytes that n values take: ``bf16`` 2 each, ``fp16`` as well and 4 for each block of `HALF_BLOCK`, ``fp32`` 4.

    Raises
    ------
    ValueError
        The number is negative, or the kind not known.
    """
    return reference_halves.half_bytes(checks.whole("n", n, 0), _kind(kind))


def write_halves(values: Floats, out: Bytes, kind: str) -> None:
    """Writes values into bytes.

    Parameters
    ----------
    values : float32 [n]
    out : uint8 [half_bytes(n, kind)]
        May begin at any byte.
    kind : str
        ``bf16``, rounded to nearest even: a value x is read again with an error of at most ``2^-8 |x|``, where x is
        normal and does not round past the largest number; NaN and infinities stay.
        ``fp16``: an error of at most ``2^-12`` of the largest magnitude of its block, and what two roundings to
        float32 add; a block in which not all is finite is read as NaN throughout.
        ``fp32``: a copy.

    Raises
    ------
    ValueError
        A type, shape or size is wrong, the arrays share memory, or the kind is not known.
    """
    if kind in HALF_KINDS and _write_fits(values, out) and out.size == reference_halves.half_bytes(values.size, kind):
        native_messages.write_halves(values, out, kind)
        return
    n = checks.floats("values", values, (None,), _FLOAT32).size
    checks.writable("out", checks.ints("out", out, half_bytes(n, kind), dtype=_UINT8))
    checks.apart("out", out, values=values)
    _backend(values, out).write_halves(values, out, kind)


def read_halves(data: Bytes, out: Floats, kind: str) -> None:
    """The values that were written to these bytes.

    Parameters
    ----------
    data : uint8 [half_bytes(n, kind)]
        May begin at any byte, and hold anything.
    out : float32 [n]
    kind : str

    Raises
    ------
    ValueError
        A type, shape or size is wrong, the arrays share memory, or the kind is not known.
    """
    if kind in HALF_KINDS and _read_fits(data, out) and data.size == reference_halves.half_bytes(out.size, kind):
        native_messages.read_halves(data, out, kind)
        return
    n = checks.floats("out", out, (None,), _FLOAT32, write=True).size
    checks.ints("data", data, half_bytes(n, kind), dtype=_UINT8)
    checks.apart("out", out, data=data)
    _backend(data, out).read_halves(data, out, kind)


def _kind(kind: str) -> str:
    if kind not in HALF_KINDS:
        raise ValueError(f"kind is {kind!r}; allowed are {', '.join(HALF_KINDS)}")
    return kind
