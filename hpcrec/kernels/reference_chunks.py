"""The definition, in NumPy, of how chunks of a file are read and summed; see ``reference``."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.types import Ints

CHECKSUM_BYTES = 4
LAST_BYTE = 2**62  # chunks begin before it


def fletcher32(data: NDArray[np.uint8]) -> int:
    """Two sums over big-endian words of 16 bits, modulo 2^16 - 1, where 0 is all zeros alone."""
    words = np.append(data, np.zeros(data.size % 2, np.uint8)).view(">u2").astype(np.int64)
    # Word i of n is in the second sum n - i times; below 2^63 for any chunk that HDF5 takes.
    low, high = int(words.sum()), int((words * np.arange(len(words), 0, -1)).sum())
    return (_folded(high) << 16) | _folded(low)


def _folded(total: int) -> int:
    return (total - 1) % 0xFFFF + 1 if total else 0


def read_chunks(
    file: int,
    chunk_at: Ints,
    chunk_items: int,
    checked: NDArray[np.uint8] | None,
    stored: np.dtype,
    start: int,
    out: NDArray[Any],
) -> bool:
    """Chunk by chunk; see ``kernels.read_chunks``."""
    flat, item, done = out.reshape(-1), stored.itemsize, 0
    first, last = start // chunk_items, -(-(start + out.size) // chunk_items)
    if out.size:
        checks.require_below("chunk_at", chunk_at[first:last], LAST_BYTE)
    while done < out.size:
        chunk, low = divmod(start + done, chunk_items)
        high = min(low + out.size - done, chunk_items)
        begin, end, at = low * item, high * item, int(chunk_at[chunk])
        if checked is not None and not checked[chunk]:
            n = chunk_items * item
            raw = _bytes(file, at, n + CHECKSUM_BYTES)
            if raw is None or fletcher32(raw[:n]) != int.from_bytes(raw[n:].tobytes(), "little"):
                return False
            checked[chunk] = 1
            raw = raw[begin:end]
        else:
            raw = _bytes(file, at + begin, end - begin)
        if raw is None:
            return False
        flat[done : done + high - low] = raw.view(stored)
        done += high - low
    return True


def _bytes(file: int, at: int, n: int) -> NDArray[np.uint8] | None:
    """Bytes of a file; None where they cannot be read, or there are fewer."""
    parts: list[bytes] = []
    while n:
        try:
            part = os.pread(file, n, at)
        except OSError:
            return None
        if not part:
            return None
        parts.append(part)
        at, n = at + len(part), n - len(part)
    return np.frombuffer(b"".join(parts), np.uint8)
