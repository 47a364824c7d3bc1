"""The definition, in NumPy, of packed numbers. See ``reference``.

Any int64 numbers, taken as words of 64 bits, are packed in blocks of ``PACKED_BLOCK``; the last may be shorter. First
comes one byte a block: the bits that its largest word takes, 64 where these are more than ``MOST_PACKED_BITS``. Then
come the blocks, each word in so many bits, lowest bit first, each block filled up to whole bytes. Packed *rising* is
what lies between each number and the one before (-1 before the first), modulo 2^64: little where numbers rise.
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.types import Ints

PACKED_BLOCK = 128
MOST_PACKED_BITS = 56
WORD_BITS = 64

Bytes = NDArray[np.uint8]


def _blocks(n: int) -> list[slice]:
    return [slice(first, min(first + PACKED_BLOCK, n)) for first in range(0, n, PACKED_BLOCK)]


def width_of(numbers: Ints) -> int:
    """Bits that each of some numbers takes where they share a width; there is one at least."""
    bits = int(numbers.view(np.uint64).max()).bit_length()
    return WORD_BITS if bits > MOST_PACKED_BITS else bits


def between(numbers: Ints) -> Ints:
    """What is packed of numbers that rise."""
    return np.diff(numbers, prepend=-1) - 1


def _n_bytes(numbers: Ints) -> int:
    return sum(1 + (len(block) * width_of(block) + 7) // 8 for block in (numbers[b] for b in _blocks(len(numbers))))


def packed_bytes(numbers: Ints) -> tuple[int, int]:
    """Bytes packed, and packed rising."""
    return _n_bytes(numbers), _n_bytes(between(numbers))


def pack_numbers(numbers: Ints, rising: bool, out: Bytes) -> None:
    """Block by block."""
    numbers = between(numbers) if rising else numbers
    if _n_bytes(numbers) != out.size:
        raise ValueError(f"numbers do not take the {out.size} bytes of out")
    blocks = [numbers[b] for b in _blocks(len(numbers))]
    parts = [np.array([width_of(block) for block in blocks], np.uint8)]
    parts += [
        np.packbits((block[:, None] >> np.arange(width_of(block))) & 1, bitorder="little").astype(np.uint8)
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
        if (bits > MOST_PACKED_BITS and bits != WORD_BITS) or packed.size - at < n_bytes:
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
