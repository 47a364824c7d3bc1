"""Stable 64-bit mixing, vectorised: what the global order, hashed ids and hash splits are defined by.

The numbers are part of the file format and of a run's reproducibility, so they depend on nothing but this file: not on
NumPy's generators, not on Python's hash. The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a
bijection on 64 bits.
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.types import Ints

UInts = NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """Mix one 64-bit integer (negative values are taken modulo 2^64)."""
    x = (value + GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def mix_array(values: UInts | Ints) -> UInts:
    """`mix` of each element; uint64, same shape."""
    x = values.astype(np.uint64)  # a copy: worked on in place
    x += np.uint64(GOLDEN)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


def stream(*parts: int) -> int:
    """Seed of the stream named by integers, say ``stream(seed, epoch, window)``: mix folded over them in order."""
    state = 0
    for part in parts:
        state = mix(state ^ mix(part))
    return state


def keys(seed: int, start: int, n: int) -> UInts:
    """Numbers ``start .. start + n`` of the stream `seed`: ``mix(seed + number)``, modulo 2^64; uint64 [n]."""
    numbers = np.arange(start, start + n, dtype=np.uint64)
    return mix_array(numbers + np.uint64(seed & _MASK))


def uniforms(seed: int, start: int, n: int) -> NDArray[np.float64]:
    """Numbers of the stream as float64 in [0, 1), from their upper 53 bits."""
    return (keys(seed, start, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, n: int) -> Ints:
    """Order of ``0 .. n`` by their keys, ties by number; int64 [n]."""
    return np.argsort(keys(seed, 0, n), kind="stable").astype(np.int64, copy=False)
