"""The definition, in NumPy, of how chunks of a file are read and summed; see ``reference``."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.types import Ints

CHECKSUM_BYTES = 4
LAST_BYTE = 2**62  # chunks begin before it
_MOST_BYTES = 1 << 24  # asked for at once: memory is taken for them before the file turns out to be shorter


def fletcher32(data: NDArray[np.uint8]) -> int:
    """Two sums over big-endian words of 16 bits, modulo 2^16 - 1, where 0 is all zeros alone."""
    words = np.append(data, np.zeros(data.size % 2, np.uint8)).view(">u2").astype(np.int64)
    # Word i of n is in the second sum n - i times; below 2^63 for any chunk that HDF5 takes.
    low, high = int(words.sum()), int((words * np.arange(len(words), 0, -1)).sum())
    return (_folded(high) << 16) | _folded(low)


def _folded(total: int) -> int:
    return (total - 1) % 0xFFFF + 1 if total else 0


def read_chunks(file: int, chunk_at: Ints, checked: NDArray[np.uint8], wanted: Ints, out: NDArray[Any]) -> int:
    """Piece by piece, chunk by chunk; see ``kernels.read_chunks``."""
    room = out.size
    for i, piece in enumerate(wanted.tolist()):
        _check(i, piece, chunk_at, room, out.itemsize)
        room -= piece[5]
    if room:
        raise ValueError("wanted: out has room for more numbers")
    flat, done = out.reshape(-1), 0
    for i, (first, _, items, item, start, n, limit) in enumerate(wanted.tolist()):
        stored, end = (out.dtype if item == out.itemsize else checks.INT32), done + n
        part = flat[done:end]
        while done < end:
            chunk, low = divmod(start + n - (end - done), items)
            high = min(low + end - done, items)
            raw = _read_chunk(file, chunk_at, checked, first + chunk, items * item, low * item, high * item)
            if raw is None:
                return i
            flat[done : done + high - low] = raw.view(stored)
            done += high - low
        if limit and ((part < 0) | (part >= limit)).any():
            return i
    return len(wanted)


def _check(i: int, piece: list[int], chunk_at: Ints, room: int, out_item: int) -> None:
    first, chunks, items, item, start, n, limit = piece
    if first < 0 or chunks < 0 or first + chunks > chunk_at.size:
        raise ValueError(f"wanted[{i}]: its chunks are not among those of the file")
    if not 1 <= items <= checks.WIDEST:
        raise ValueError(f"wanted[{i}]: a chunk has no numbers, or too many")
    if item != out_item and (item, out_item) != (4, 8):
        raise ValueError(f"wanted[{i}]: its numbers are neither as long as those of out, nor int32 for int64")
    if limit < 0 or (limit and out_item != 8):
        raise ValueError(f"wanted[{i}]: it has a limit that numbers cannot have")
    if not 0 <= n <= room:
        raise ValueError(f"wanted[{i}]: there is not as much room in out")
    if not 0 <= start <= LAST_BYTE or (n and (start + n - 1) // items >= chunks):
        raise ValueError(f"wanted[{i}]: its numbers are not in its chunks")
    if n:
        checks.require_below(
            "chunk_at", chunk_at[first + start // items : first + (start + n - 1) // items + 1], LAST_BYTE
        )


def _read_chunk(
    file: int, chunk_at: Ints, checked: NDArray[np.uint8], chunk: int, n: int, low: int, high: int
) -> NDArray[np.uint8] | None:
    """Bytes ``[low, high)`` of a chunk of n; None where they cannot be read, or its checksum is not theirs."""
    at = int(chunk_at[chunk])
    if checked[chunk]:
        return _bytes(file, at + low, high - low)
    raw = _bytes(file, at, n + CHECKSUM_BYTES)
    if raw is None or fletcher32(raw[:n]) != int.from_bytes(raw[n:].tobytes(), "little"):
        return None
    checked[chunk] = 1
    return raw[low:high]


def _bytes(file: int, at: int, n: int) -> NDArray[np.uint8] | None:
    """Bytes of a file; None where they cannot be read, or there are fewer."""
    parts: list[bytes] = []
    while n:
        try:
            part = os.pread(file, min(n, _MOST_BYTES), at)
        except OSError:
            return None
        if not part:
            return None
        parts.append(part)
        at, n = at + len(part), n - len(part)
    return np.frombuffer(b"".join(parts), np.uint8)
