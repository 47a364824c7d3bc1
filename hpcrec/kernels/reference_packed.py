"""The definition, in NumPy, of packed numbers. See ``reference``.

Numbers in [0, 2^56) are packed in blocks of ``PACKED_BLOCK``, the last of which may be shorter. First comes one byte a
block: the bits that its largest number takes. Then come the blocks, each number in so many bits, lowest bit first, each
block filled up to whole bytes. Numbers that rise strictly are packed *rising*: each as what lies between it and the one
before (-1 before the first).
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.types import Ints

PACKED_BLOCK = 128
MOST_PACKED_BITS = 56

Bytes = NDArray[np.uint8]


def _blocks(n: int) -> list[slice]:
    return [slice(first, min(first + PACKED_BLOCK, n)) for first in range(0, n, PACKED_BLOCK)]


def _bits(numbers: Ints) -> int:
    return int(numbers.max()).bit_length()


def _between(numbers: Ints) -> Ints:
    return np.diff(numbers, prepend=-1) - 1


def _fit(numbers: Ints) -> bool:
    return not numbers.size or bool(numbers.min() >= 0 and _bits(numbers) <= MOST_PACKED_BITS)


def _n_bytes(numbers: Ints) -> int:
    return sum(1 + (len(block) * _bits(block) + 7) // 8 for block in (numbers[b] for b in _blocks(len(numbers))))


def packed_bytes(numbers: Ints) -> tuple[int, int]:
    """Bytes packed, and packed rising."""
    if not _fit(numbers):
        raise ValueError("numbers: one is negative, or not below 2^56")
    between = _between(numbers)
    return _n_bytes(numbers), _n_bytes(between) if _fit(between) else -1


def pack_numbers(numbers: Ints, rising: bool, out: Bytes) -> None:
    """Block by block."""
    numbers = _between(numbers) if rising and _fit(numbers) else numbers
    if not _fit(numbers) or _n_bytes(numbers) != out.size:
        raise ValueError(f"numbers are not below 2^56, do not rise, or do not take the {out.size} bytes of out")
    blocks = [numbers[b] for b in _blocks(len(numbers))]
    parts = [np.array([_bits(block) for block in blocks], np.uint8)]
    parts += [
        np.packbits((block[:, None] >> np.arange(_bits(block))) & 1, bitorder="little").astype(np.uint8)
        for block in blocks
    ]
    out[:] = np.concatenate(parts)


def read_packed(packed: Bytes, n: int, rising: bool) -> tuple[Ints, int] | None:
    """``n`` numbers from the beginning, and the bytes that they take; None where they are not there."""
    blocks = _blocks(n)
    if packed.size < len(blocks):
        return None
    at, out = len(blocks), np.zeros(n, np.int64)
    for block, bits in zip(blocks, packed.tolist(), strict=False):
        n_numbers = block.stop - block.start
        n_bytes = (n_numbers * bits + 7) // 8
        if bits > MOST_PACKED_BITS or packed.size - at < n_bytes:
            return None
        found = np.unpackbits(packed[at : at + n_bytes], count=n_numbers * bits, bitorder="little")
        out[block] = found.reshape(n_numbers, bits).astype(np.int64) @ (1 << np.arange(bits, dtype=np.int64))
        at += n_bytes
    return (np.cumsum(out + 1) - 1 if rising else out), at


def unpack_numbers(packed: Bytes, n: int, rising: bool) -> Ints:
    """Undoes ``pack_numbers``."""
    found = read_packed(packed, n, rising)
    if found is None or found[1] != packed.size:
        raise ValueError(f"packed: its {packed.size} bytes are not {n} numbers")
    return found[0]
