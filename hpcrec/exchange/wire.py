"""The ids message: how a dense rank tells a holder what it wants.

::

    int64  [E, 2]   ids and bags of each entry; bags as -1 - bags where their lengths follow
    int64  [K]      row numbers at the holder, entries in order
    int32  [...]    lengths of the bags, only of entries with a bag of other than one id
    float  [...]    weights of the ids, only of weighted entries (the layout says which)
    padding to 64 bytes

Empty bags are sent only where vectors stay at the holder (form ``partial``): else the dense rank alone needs to know
them. Bytes to a holder = 16 E + 8 K + 4 (bags of entries with lengths) + (4 or 8) (ids of weighted entries), rounded up
to 64; nothing where E = 0. Knows no MPI.
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
        Ids of each bag; None where every bag is one id.
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
    bags = [p.n_bags if p.lengths is None else -1 - p.n_bags for p in pieces]
    header = np.array([(len(p.rows), n) for p, n in zip(pieces, bags, strict=True)], np.int64)
    parts: list[np.ndarray] = [header, *(p.rows for p in pieces)]
    parts += [p.lengths.astype(np.int32) for p in pieces if p.lengths is not None]
    parts += [p.weights for p in pieces if p.weights is not None]
    return [part.data.cast("B") for part in parts if part.size]


@dataclass(frozen=True)
class Header:
    """Where a message's entries are; bytes count from the beginning of all that was received.

    Attributes
    ----------
    n_bags : int64 [E]
    places_EX : int64 [E, 4]
        First byte of the entry's ids, how many; first byte of its lengths, -1 where every bag is one id; bags.
    weights_at : int64 [E]
        First byte of its weights; -1 where it has none.
    """

    n_bags: Ints
    places_EX: Ints
    weights_at: Ints

    def lengths(self, received: np.ndarray, entry: int) -> Ints:
        """Ids of each of an entry's bags."""
        _, _, at, n = (int(x) for x in self.places_EX[entry])
        return np.ones(n, np.int64) if at < 0 else received[at : at + 4 * n].view(np.int32).astype(np.int64)

    def weights(self, received: np.ndarray, entry: int, dtype: np.dtype) -> Floats:
        """Weights of an entry's ids; 1 where they carry none."""
        n, at = int(self.places_EX[entry, 1]), int(self.weights_at[entry])
        return np.ones(n, dtype) if at < 0 else received[at : at + n * dtype.itemsize].view(dtype)


def read_header(received: np.ndarray, start: int, stop: int, weighted_E: np.ndarray, item: int) -> Header:
    """Reads one message, bytes ``[start, stop)`` of ``received`` (uint8).

    Parameters
    ----------
    weighted_E : bool [E]
        Which entries carry weights.
    item : int
        Bytes of a weight.
    """
    n_entries = len(weighted_E)
    counts = received[start : start + 16 * n_entries].view(np.int64).reshape(n_entries, 2)
    n_ids, multi_E = counts[:, 0], counts[:, 1] < 0
    n_bags = np.where(multi_E, -1 - counts[:, 1], counts[:, 1])
    ids_at = cumulative(8 * n_ids, start + 16 * n_entries)
    lengths_at = cumulative(np.where(multi_E, 4 * n_bags, 0), int(ids_at[-1]))
    weights_at = cumulative(np.where(weighted_E, item * n_ids, 0), int(lengths_at[-1]))
    assert weights_at[-1] <= stop, "a message shorter than its header says"
    places_EX = np.stack([ids_at[:-1], n_ids, np.where(multi_E, lengths_at[:-1], -1), n_bags], axis=1)
    return Header(n_bags, places_EX, np.where(weighted_E, weights_at[:-1], -1))


def cumulative(counts: Ints, first: int = 0) -> Ints:
    """``[first, first + c0, first + c0 + c1, ...]``: offsets of consecutive pieces, int64 [len + 1]."""
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out + first if first else out
