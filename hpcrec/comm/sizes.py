"""Sizes of messages on the wire: whole units, so that counts stay small and each begins a cache line. Knows no MPI.

What a step does for each of its messages is computed by the native module, where it is there, by one call: with many
ranks on a core such calls take what an exchange of small messages takes. Here is what they compute.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.native_module import available, loaded
from hpcrec.types import Ints

UNIT_BYTES = 64
_NATIVE: Any = loaded if available() else None


def padded_bytes(n_bytes: Ints) -> Ints:
    """Sizes of messages on the wire: rounded up to whole units."""
    return -(-n_bytes // UNIT_BYTES) * UNIT_BYTES


def clear_padding(room: NDArray[np.uint8], bytes_R: Ints) -> int:
    """Zeros where the padding of consecutive messages is: the memory may hold anything, which is not to be sent.

    Returns where the last message ends. Where that is beyond the room nothing is cleared.
    """
    if _NATIVE is not None:
        return int(_NATIVE.clear_padding(room, bytes_R, UNIT_BYTES))
    ends_R = np.cumsum(bytes_R)
    if (last := int(ends_R[-1])) <= len(room):
        for end in ends_R[bytes_R > 0].tolist():
            room[end - UNIT_BYTES : end] = 0
    return last


def places(bytes_R: Ints) -> tuple[Ints, int]:
    """Where each of consecutive messages begins, and where the last ends: below 0 where one is no whole units."""
    if _NATIVE is not None:
        at_R = np.empty(len(bytes_R), np.int64)
        return at_R, _NATIVE.places(bytes_R, UNIT_BYTES, at_R)
    ends_R = np.cumsum(bytes_R)
    whole = not np.bitwise_or.reduce(bytes_R) % UNIT_BYTES
    return ends_R - bytes_R, int(ends_R[-1]) if whole else -1


def count_messages(
    n_bytes: Ints, n_messages: Ints | None, across: int, ranks: Ints, crosses_R: Ints, rank: int, counts: Ints
) -> int:
    """Adds what is sent to some ranks to ``counts``, leaving out what this rank has for itself; returns those bytes.

    Parameters
    ----------
    n_bytes, n_messages : int64 [N]
        To each of ``ranks``; by default one message where there are any bytes.
    across : int
        Messages to all ranks of other hosts, in place of those; below 0: as they are.
    ranks : int64 [N]
    crosses_R : int64 [R]
        1 for ranks of other hosts, 0 for those of this one.
    rank : int
        This one.
    counts : int64 [4]
        Bytes to this host and to others, messages to this host and to others.
    """
    if _NATIVE is not None:
        return int(_NATIVE.count_messages(n_bytes, n_messages, across, ranks, crosses_R, rank, counts))
    sent = np.where(ranks == rank, 0, n_bytes)
    messages = np.where(ranks == rank, 0, np.sign(n_bytes) if n_messages is None else n_messages)
    far = crosses_R[ranks]
    beyond = int(messages @ far) if across < 0 else across
    counts += np.array([sent @ (1 - far), sent @ far, messages @ (1 - far), beyond])
    return int(sent.sum())
