"""The definition, in NumPy, of how requests are read; ``reference_requests`` says how they lie.

Messages may be of any bytes. Nothing is read outside of one, and no more memory had than as many numbers as it could
hold: 128 for each byte and cell. Knows messages; knows nothing of what entries, ids and weights are.
"""

from typing import NamedTuple

import numpy as np

from hpcrec.kernels.reference_packed import MOST_PACKED_BITS, PACKED_BLOCK, WORD_BITS, Bytes, read_packed
from hpcrec.kernels.reference_requests import PACKED, RISING, TABLE, Flags
from hpcrec.types import Ints

_PADDING = 64  # bytes behind a message are fewer
_VARINT_BYTES = 5  # at most


class Requests(NamedTuple):
    """What several senders ask for, sender after sender, in each entry after entry.

    Attributes
    ----------
    ids : int64 [K]
    offsets : int64 [V + 1]
        Bounds of bags over the ids.
    cells : int64 [N, 4]
        Number of the sender, entry, ids and bags of each cell.
    weights : uint8, flat
        Of the ids of weighted cells.
    """

    ids: Ints
    offsets: Ints
    cells: Ints
    weights: Bytes


class _Reader:
    """Takes the sections of one sender's message."""

    def __init__(self, message: Bytes, sender: int) -> None:
        self._left = message
        self._sender = sender
        self.limit = PACKED_BLOCK * message.size  # of anything that is counted

    def fail(self, found: str) -> ValueError:
        return ValueError(f"sender {self._sender}: {found}")

    @property
    def n_left(self) -> int:
        return self._left.size

    def take(self, n_bytes: int, what: str) -> Bytes:
        if n_bytes > self._left.size:
            raise self.fail(f"{what} are damaged")
        taken, self._left = self._left[:n_bytes], self._left[n_bytes:]
        return taken

    def varint(self, what: str) -> int:
        n = 0
        for place in range(_VARINT_BYTES):
            byte = int(self.take(1, what)[0])
            n += (byte & 127) << 7 * place
            if byte < 128:
                return n
        raise self.fail(f"{what} are damaged")

    def packed(self, n: int, what: str, *, rising: bool = False) -> Ints:
        found = read_packed(self._left, n, rising) if n <= self.limit else None
        if found is None:
            raise self.fail(f"{what} are damaged")
        self.take(found[1], what)
        return found[0]

    def runs(self, sizes: list[int], codings: list[int], distinct: list[int], what: str) -> list[Ints]:
        """One of each size; the tables have so many distinct numbers."""
        short = [n for n in sizes if n < PACKED_BLOCK]
        widths = self.packed(len(short), what).tolist()
        if any(not 0 <= width <= MOST_PACKED_BITS and width != WORD_BITS for width in widths):
            raise self.fail(f"{what} are damaged")
        n_bits = sum(n * width for n, width in zip(short, widths, strict=True))
        bits = np.unpackbits(self.take((n_bits + 7) // 8, what), count=n_bits, bitorder="little").astype(np.int64)
        its_width, its_table = iter(widths), iter(distinct)
        out: list[Ints] = []
        for n, coding in zip(sizes, codings, strict=True):
            if n < PACKED_BLOCK:
                width = next(its_width)
                found = bits[: n * width].reshape(n, width) @ (1 << np.arange(width, dtype=np.int64))
                bits = bits[n * width :]
                out.append(np.cumsum(found + 1) - 1 if coding == RISING else found)
            else:
                out.append(np.empty(0, np.int64))  # behind the short ones
        for i, (n, coding) in enumerate(zip(sizes, codings, strict=True)):
            if n >= PACKED_BLOCK:
                table = self.packed(next(its_table), what, rising=True) if coding == TABLE else None
                out[i] = self.packed(n, what, rising=coding == RISING)
                if table is not None:
                    if (out[i].view(np.uint64) >= len(table)).any():
                        raise self.fail(f"{what} are damaged")
                    out[i] = table[out[i]]
        return out


def read_requests(message: Bytes, at_P: Ints, bytes_P: Ints, weighted: Flags, item: int) -> Requests:
    """Sender by sender."""
    none = np.empty(0, np.int64)
    read = [(none, np.zeros(1, np.int64), none.reshape(0, 4), np.empty(0, np.uint8))]
    for p, (at, n_bytes) in enumerate(zip(at_P.tolist(), bytes_P.tolist(), strict=True)):
        if n_bytes < 0 or not 0 <= at <= message.size - n_bytes:
            raise ValueError(f"sender {p}: its message is not inside the {message.size} bytes")
        if n_bytes:
            read.append(_read(_Reader(message[at : at + n_bytes], p), p, weighted, item))
    ids, lengths, cells, weights = (np.concatenate(parts) for parts in zip(*read, strict=True))
    return Requests(ids, np.cumsum(lengths), cells, weights)


def _read(reader: _Reader, sender: int, weighted: Flags, item: int) -> tuple[Ints, Ints, Ints, Bytes]:
    """Ids, lengths, cells and weights of one message."""
    n_cells = reader.varint("its cells")
    if not 1 <= n_cells <= len(weighted):
        raise reader.fail("its cells are damaged")
    entries = reader.packed(n_cells, "its cells", rising=True)
    n_bags = reader.packed(n_cells, "its cells")
    how = reader.packed(n_cells, "its cells")
    if (
        entries[0] < 0
        or (entries >= len(weighted)).any()
        or (entries[1:] <= entries[:-1]).any()
        or (n_bags.view(np.uint64) >= reader.limit).any()
        or (how.view(np.uint64) > 2 * TABLE + 1).any()
    ):
        raise reader.fail("its cells are damaged")
    n_bags = n_bags + 1
    follow = (how & 1).astype(bool)
    coding = how >> 1
    found = iter(reader.runs(n_bags[follow].tolist(), [PACKED] * int(follow.sum()), [], "its lengths"))
    lengths = [
        next(found) if f else np.ones(n, np.int64) for f, n in zip(follow.tolist(), n_bags.tolist(), strict=True)
    ]
    n_ids = np.array([_sum(reader, its) for its in lengths], np.int64)
    tables = coding == TABLE
    distinct = reader.packed(int(tables.sum()), "its ids")
    if (n_ids[tables] < PACKED_BLOCK).any() or (distinct < 1).any() or (distinct > n_ids[tables]).any():
        raise reader.fail("its ids are damaged")
    some = n_ids > 0
    ids = reader.runs(n_ids[some].tolist(), coding[some].tolist(), distinct.tolist(), "its ids")
    weights = reader.take(item * int(n_ids[weighted[entries]].sum()), "its weights")
    if reader.n_left >= _PADDING:
        raise reader.fail(f"{reader.n_left} bytes are left behind its message; allowed are fewer than {_PADDING}")
    cells = np.stack([np.full(n_cells, sender), entries, n_ids, n_bags], axis=1)
    return np.concatenate([np.empty(0, np.int64), *ids]), np.concatenate(lengths), cells, weights


def _sum(reader: _Reader, lengths: Ints) -> int:
    """Ids of a cell, from lengths that may be anything."""
    words, half = lengths.view(np.uint64), np.uint64(32)
    total = (int((words >> half).sum()) << 32) + int((words & np.uint64(2**32 - 1)).sum())
    if total > reader.limit:
        raise reader.fail("its lengths are damaged")
    return total
