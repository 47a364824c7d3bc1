"""The definition, in NumPy, of float32 written in half as many bytes. See ``reference``.

``bf16``: the upper half of a float32's bits, rounded to the nearest, ties to even. What rounds past the largest number
becomes infinite; a NaN stays one, its quiet bit set.

``fp16``: blocks of ``HALF_BLOCK`` values; the last may be shorter. First comes one float32 a block, its scale: the
largest magnitude in it. Then come the values divided by their scale, rounded to float16. A block of zeros has scale 0.
A block that holds what is not finite has a scale that is not (NaN exceeds infinity), zeros for its halves, and is read
as NaN throughout.

``fp32``: a copy.
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.types import Floats

HALF_BLOCK = 128
HALF_KINDS = ("bf16", "fp16", "fp32")
SCALE_BYTES = 4

Bytes = NDArray[np.uint8]


def half_bytes(n: int, kind: str) -> int:
    """Bytes of n values."""
    if kind == "fp32":
        return 4 * n
    return 2 * n + (SCALE_BYTES * -(-n // HALF_BLOCK) if kind == "fp16" else 0)


def write_halves(values: Floats, out: Bytes, kind: str) -> None:
    """Writes all values."""
    if kind == "bf16":
        out[:] = _upper(values.view(np.uint32)).view(np.uint8)
    elif kind == "fp16":
        scales, halves = _scaled(values)
        out[:] = np.concatenate([scales.view(np.uint8), halves.view(np.uint8)])
    else:
        out[:] = values.view(np.uint8)


def read_halves(data: Bytes, out: Floats, kind: str) -> None:
    """Undoes ``write_halves``, but for what was rounded."""
    if kind == "bf16":
        out.view(np.uint32)[:] = _copied(data, np.uint16).astype(np.uint32) << 16
    elif kind == "fp16":
        n_scales = -(-out.size // HALF_BLOCK)
        scales = np.repeat(_copied(data[: SCALE_BYTES * n_scales], np.float32), HALF_BLOCK)[: out.size]
        halves = _copied(data[SCALE_BYTES * n_scales :], np.float16).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            out[:] = np.where(np.isfinite(scales), halves * scales, np.float32(np.nan))
    else:
        out[:] = _copied(data, np.float32)


def _upper(words: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """To nearest: half of the last place is added, a bit less where that place is even."""
    upper = words >> 16
    with np.errstate(over="ignore"):  # of NaNs, which are left out
        nearest = (words + 0x7FFF + (upper & 1)) >> 16
    is_nan = (words & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, upper | 0x40, nearest).astype(np.uint16)


def _scaled(values: Floats) -> tuple[Floats, NDArray[np.float16]]:
    """Scale of each block, and the halves."""
    values_BV = np.concatenate([values, np.zeros(-values.size % HALF_BLOCK, np.float32)]).reshape(-1, HALF_BLOCK)
    scales_B = (values_BV.view(np.uint32) & 0x7FFFFFFF).max(axis=1, initial=0).astype(np.uint32).view(np.float32)
    halves_BV = np.zeros(values_BV.shape, np.float16)
    some = np.isfinite(scales_B) & (scales_B > 0)
    halves_BV[some] = (values_BV[some] / scales_B[some, None]).astype(np.float16)
    return scales_B, halves_BV.reshape(-1)[: values.size]


def _copied(data: Bytes, dtype: type) -> Floats:
    """The same bytes, where numbers of this type may lie."""
    return np.frombuffer(data.tobytes(), dtype)
