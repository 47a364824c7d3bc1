"""The ids message: how a dense rank tells a holder what it wants.

::

    int64  [E, 2]   ids and bags of each entry
    int64  [K]      row numbers at the holder, entries in order
    int32  [...]    lengths of the bags, only of entries with bags of other than one id
    float  [...]    weights of the ids, only of weighted entries (the layout says which)
    padding to 64 bytes

Empty bags are not sent: the dense rank knows them. Bytes to a holder = 16 E + 8 K + 4 (bags of multi-hot entries) +
(4 or 8) (ids of weighted entries), rounded up to 64; nothing where E = 0. Knows no MPI.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class Piece:
    """One entry's ids for one holder.

    Attributes
    ----------
    rows : int64 [K]
        Row numbers at the holder.
    lengths : int64 [V] or None
        Ids of each bag, none of them 0; None where every bag is one id.
    weights : float [K] or None
    """

    rows: Ints
    lengths: Ints | None
    weights: Floats | None

    @property
    def n_bags(self) -> int:
        """Bags, that is vectors that answer it."""
        return len(self.rows) if self.lengths is None else len(self.lengths)


def encode(pieces: Sequence[Piece]) -> list[bytes | memoryview]:
    """The parts of one message, in order."""
    header = np.array([(len(p.rows), p.n_bags) for p in pieces], np.int64)
    parts: list[np.ndarray] = [header, *(p.rows for p in pieces)]
    parts += [p.lengths.astype(np.int32) for p in pieces if p.lengths is not None and p.n_bags != len(p.rows)]
    parts += [p.weights for p in pieces if p.weights is not None]
    return [part.data.cast("B") for part in parts if part.size]


@dataclass(frozen=True)
class Message:
    """A decoded message: bags of all entries one after the other.

    Attributes
    ----------
    n_ids, n_bags : int64 [E]
    rows : int64 [K]
    lengths : int64 [V]
    weights : float [K] or None
        1 for entries without weights; None where no entry has any.
    """

    n_ids: Ints
    n_bags: Ints
    rows: Ints
    lengths: Ints
    weights: Floats | None


def decode(message: np.ndarray, n_entries: int, weighted_E: np.ndarray, dtype: np.dtype) -> Message:
    """Reads a message (uint8) of ``n_entries``; ``weighted_E`` says which carry weights of ``dtype``."""
    header = message[: 16 * n_entries].view(np.int64).reshape(n_entries, 2)
    n_ids, n_bags = header[:, 0].copy(), header[:, 1].copy()
    at = 16 * n_entries
    total = int(n_ids.sum())
    rows = message[at : at + 8 * total].view(np.int64)
    at += 8 * total
    lengths = np.ones(int(n_bags.sum()), np.int64)
    multi_E = n_ids != n_bags
    if multi_E.any():
        several = int(n_bags[multi_E].sum())
        lengths[np.repeat(multi_E, n_bags)] = message[at : at + 4 * several].view(np.int32)
        at += 4 * several
    weights = None
    if weighted_E.any():
        weights = np.ones(total, dtype)
        count = int(n_ids[weighted_E].sum())
        weights[np.repeat(weighted_E, n_ids)] = message[at : at + dtype.itemsize * count].view(dtype)
    return Message(n_ids, n_bags, rows, lengths, weights)


def ranges(starts: Ints, counts: Ints, stride: int = 1) -> Ints:
    """``starts[i], starts[i] + stride, ...``, ``counts[i]`` of them, one after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - stride * before, counts) + stride * np.arange(int(counts.sum()), dtype=np.int64)


def cumulative(counts: Ints) -> Ints:
    """``[0, c0, c0 + c1, ...]``: offsets of consecutive pieces, int64 [len + 1]."""
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out
