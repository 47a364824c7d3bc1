"""Sizes of messages on the wire: whole units, so that counts stay small and each begins a cache line. Knows no MPI."""

import numpy as np
from numpy.typing import NDArray

from hpcrec.types import Ints

UNIT_BYTES = 64


def padded_bytes(n_bytes: Ints) -> Ints:
    """Sizes of messages on the wire: rounded up to whole units."""
    return -(-n_bytes // UNIT_BYTES) * UNIT_BYTES


def clear_padding(room: NDArray[np.uint8], bytes_R: Ints) -> None:
    """Zeros where the padding of consecutive messages is: the memory may hold anything, which is not to be sent."""
    for end in np.cumsum(bytes_R)[bytes_R > 0].tolist():
        room[end - UNIT_BYTES : end] = 0
