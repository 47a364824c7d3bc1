"""The definition, in NumPy, of rows of 16-bit elements: what they stand for, and how float32 is rounded to them.

``bf16`` is the upper half of a float32, ``fp16`` an IEEE half. Each is read exactly. Written, a finite value stays
finite: beyond the largest number of its kind it becomes that number. Infinities stay; NaNs become one and the same,
0x7fc0 or 0x7e00.

To the nearest, ties go to even. Stochastically, a value goes to either of the two numbers around it, up (in magnitude)
where the part below the last place, as a fraction, plus 16 random bits, as a fraction, is 1 or more. So it is right on
average, and exactly so where that part has no more than 16 bits: always, but for subnormal ``fp16``, of whose part only
the upper 16 bits count. Random bits are the halves, lower first, of words of 32 bits that are made from (seed, step,
row, pair of columns). See ``reference``.
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.half_rows import HalfBits, HalfRows, Rows, draws
from hpcrec.kernels.reference_mix import mix, word
from hpcrec.types import Floats, Ints

Words = NDArray[np.uint32]


def read_rows(rows: Rows, index: Ints | slice) -> Floats:
    """``rows[index]``, of halves as float32."""
    if not isinstance(rows, HalfRows):
        return rows[index]
    bits = rows.bits[index]
    if rows.kind == "fp16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_rows(rows: Rows, unique: Ints, values_UD: Floats, step: int) -> None:
    """``rows[unique] = values_UD``, halves rounded by the random bits of the step."""
    if not isinstance(rows, HalfRows):
        rows[unique] = values_UD
        return
    drawn = draws(rows, step)
    random_UD = None if drawn is None else random_bits(drawn, unique, rows.shape[1])
    rows.bits[unique] = rounded(values_UD, rows.kind, random_UD)


def to_half_rows(rows: Floats, first_row: int, out: HalfRows) -> None:
    """All rows, with the random bits of rows from ``first_row`` on at step 0."""
    drawn = draws(out, 0)
    numbers = np.arange(len(rows)) + first_row
    out.bits[:] = rounded(rows, out.kind, None if drawn is None else random_bits(drawn, numbers, rows.shape[1]))


def from_half_rows(rows: HalfRows, out: Floats) -> None:
    """All rows, exactly."""
    out[:] = read_rows(rows, slice(None))


def random_bits(drawn: int, rows_U: Ints, width: int) -> HalfBits:
    """[U, D]: 16 bits an element. The mixing of words is the finalizer of MurmurHash3 (Appleby)."""
    keys_U = mix(rows_U.view(np.uint64) ^ word(drawn))
    low_U, high_U = (keys_U & np.uint64(2**32 - 1)).astype(np.uint32), (keys_U >> np.uint64(32)).astype(np.uint32)
    x = low_U[:, None] + np.arange(-(-width // 2)).astype(np.uint32) * np.uint32(0x9E3779B9)
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    words = (x ^ (x >> 16)) ^ high_U[:, None]
    return words.astype("<u4").view(np.uint16)[:, :width]


def rounded(values: Floats, kind: str, random: HalfBits | None) -> HalfBits:
    """float32 as halves of a kind: to the nearest, or by random bits of the same shape."""
    words = np.ascontiguousarray(values).view(np.uint32)
    magnitudes = words & 0x7FFFFFFF
    largest, infinite, nan = (0x477FE000, 0x7C00, 0x7E00) if kind == "fp16" else (0x7F7F0000, 0x7F80, 0x7FC0)
    bounded = np.minimum(magnitudes, np.uint32(largest))
    if kind == "fp16":
        halves = _nearest_fp16(bounded) if random is None else _stochastic_fp16(bounded, random)
    else:
        halves = (bounded + (0x7FFF + (bounded >> 16 & 1) if random is None else random)) >> 16
    halves = np.where(magnitudes >= 0x7F800000, infinite, halves) | (words >> 16 & 0x8000)
    return np.where(magnitudes > 0x7F800000, nan, halves).astype(np.uint16)


def _nearest_fp16(magnitudes: Words) -> Words:
    return magnitudes.view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)


def _stochastic_fp16(magnitudes: Words, random: HalfBits) -> Words:
    """13 bits are below the last place of a half; below that of a subnormal one, 2^-24, the 16 down to 2^-40 count."""
    least_normal = np.uint32(0x38800000)  # 2^-14
    normal = (magnitudes - np.uint32(0x38000000) + (random >> 3)) >> 13
    small = np.minimum(magnitudes, least_normal).view(np.float32)
    subnormal = ((small * np.float32(2.0**40)).astype(np.uint32) + random) >> 16
    return np.where(magnitudes < least_normal, subnormal, normal)
