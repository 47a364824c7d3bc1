"""The definition, in NumPy, of the mixer of 64-bit words that ids, seeds and random bits are defined by."""

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
WORD = 2**64 - 1

Words = NDArray[np.uint64]


def mix(x: Words) -> Words:
    """One step of splitmix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit words."""
    x = x + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def word(value: int) -> Words:
    """A Python integer modulo 2^64, as an array of one: NumPy warns when scalars wrap around, and not for arrays."""
    return np.array([value & WORD], np.uint64)
