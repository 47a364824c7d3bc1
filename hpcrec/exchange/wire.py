"""The ids message: how a dense rank tells a holder what it wants.

::

    uint32 [E, 6]   of each entry: ids; bags; coding, and 4 more where lengths of bags follow; distinct ids of a table;
                    bytes of its ids; bytes of its lengths
    ids             row numbers at the holder (of dynamic tables the ids, any int64), entries in order
    lengths         ids of the bags, only of entries with a bag of other than one id
    float  [...]    weights of the ids, only of weighted entries (the layout says which)
    padding to 64 bytes

Empty bags are sent only where vectors stay at the holder (form ``partial``): else the dense rank alone needs to know
them. An entry's ids are coded in the way that takes the fewest bytes, found by counting them, without loss:

``PACKED``   blocks of 128, a number in as many bits as the block's largest takes (``kernels.pack_numbers``)
``RISING``   where they rise, as distinct ids do: what lies between them, packed
``TABLE``    the distinct ids, rising, and the place of each id among them, packed
``PLAIN``    int64 ids and int32 lengths: what a holder makes for itself (``read_ids``), and is never sent

Lengths are packed. To find distinct ids takes about ten times as long as to pack them all, so a table is looked for on
the way to another host alone, and where a sample of the ids promises to save ``LEAST_SAVED_BITS`` of each.

Bytes to a holder = the sum of ``entry_bytes``, rounded up to 64; nothing where E = 0. Knows no MPI.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.kernels import Coding
from hpcrec.types import Floats, Ints

HEADER_BYTES = 24  # of an entry
_LENGTHS_FOLLOW = 4
_SAMPLE = 1024
LEAST_SAVED_BITS = 8  # of an id, for a table: they take at 100 MB/s what it takes to find distinct ids, 10 ns


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


@dataclass(frozen=True)
class Coded:
    """A piece, and how it is written.

    Attributes
    ----------
    piece : Piece
    coding : Coding
    ids_bytes, lengths_bytes : int
    table : (int64 [U], int64 [K]) or None
        Distinct ids and the place of each id among them; of ``TABLE`` alone.
    """

    piece: Piece
    coding: Coding
    ids_bytes: int
    lengths_bytes: int
    table: tuple[Ints, Ints] | None = None

    @property
    def n_bytes(self) -> int:
        """Of the entry in a message, its header included."""
        weights = self.piece.weights
        return HEADER_BYTES + self.ids_bytes + self.lengths_bytes + (0 if weights is None else weights.nbytes)

    @property
    def header(self) -> tuple[int, ...]:
        """As in the message."""
        follow = 0 if self.piece.lengths is None else _LENGTHS_FOLLOW
        n_distinct = 0 if self.table is None else len(self.table[0])
        n_ids, n_bags = len(self.piece.rows), self.piece.n_bags
        return n_ids, n_bags, self.coding + follow, n_distinct, self.ids_bytes, self.lengths_bytes

    def write_ids(self, out: np.ndarray) -> None:
        """The ids, into uint8 [ids_bytes]."""
        if self.coding == Coding.PLAIN:
            out.view(np.int64)[:] = self.piece.rows
        elif self.table is None:
            kernels.pack_numbers(self.piece.rows, out, rising=self.coding == Coding.RISING)
        else:
            distinct, places = self.table
            table_bytes = kernels.packed_bytes(distinct)[1]
            kernels.pack_numbers(distinct, out[:table_bytes], rising=True)
            kernels.pack_numbers(places, out[table_bytes:], rising=False)

    def write_lengths(self, out: np.ndarray) -> None:
        """The lengths, into uint8 [lengths_bytes]; nothing where there are none."""
        if self.piece.lengths is None:
            return
        if self.coding == Coding.PLAIN:
            out.view(np.int32)[:] = self.piece.lengths
        else:
            kernels.pack_numbers(self.piece.lengths, out, rising=False)


def plain(piece: Piece) -> Coded:
    """As it is, for a message that crosses nothing."""
    return Coded(piece, Coding.PLAIN, 8 * len(piece.rows), 0 if piece.lengths is None else 4 * len(piece.lengths))


def compact(piece: Piece, *, far: bool) -> Coded:
    """In the fewest bytes.

    Parameters
    ----------
    piece : Piece
    far : bool
        The holder is on another host: a table may be worth its time.
    """
    packed, rising = kernels.packed_bytes(piece.rows)
    lengths_bytes = 0 if piece.lengths is None else kernels.packed_bytes(piece.lengths)[0]
    if rising < packed:
        return Coded(piece, Coding.RISING, rising, lengths_bytes)
    if far and promises_a_table(piece.rows, packed):
        table = kernels.dedup(piece.rows)
        n_bytes = kernels.packed_bytes(table[0])[1] + kernels.packed_bytes(table[1])[0]
        if n_bytes < packed:
            return Coded(piece, Coding.TABLE, n_bytes, lengths_bytes, table)
    return Coded(piece, Coding.PACKED, packed, lengths_bytes)


def entry_bytes(piece: Piece, *, far: bool) -> int:
    """Bytes that one entry of a message takes."""
    return compact(piece, far=far).n_bytes


def promises_a_table(rows: Ints, packed_bytes: int) -> bool:
    """Whether a sample repeats so many ids that a table of all saves ``LEAST_SAVED_BITS`` of each.

    The more ids, the more of them repeat: the sample's share of distinct ids is at least that of all.
    """
    n, bits = len(rows), 8 * packed_bytes / max(1, len(rows))
    if n < 4 * _SAMPLE or bits < LEAST_SAVED_BITS:
        return False
    sample = np.ascontiguousarray(rows[:: n // _SAMPLE])
    share = len(kernels.dedup(sample)[0]) / len(sample)
    place_bits = math.log2(share * n)
    between_bits = 2 + max(0.0, bits - place_bits)  # 2: the largest of a block above the mean, if they are at random
    return bits - place_bits - share * between_bits >= LEAST_SAVED_BITS


def message_bytes(coded: Sequence[Coded]) -> int:
    """Bytes of one message, without its padding."""
    return sum(c.n_bytes for c in coded)


def write_message(coded: Sequence[Coded], out: np.ndarray) -> None:
    """Writes one message, into uint8 [message_bytes] that begins at a multiple of 8 bytes in memory.

    Raises
    ------
    OverflowError
        An entry has 2^32 ids or bytes, or more.
    """
    at = HEADER_BYTES * len(coded)
    out[:at].view(np.uint32)[:] = np.array([number for c in coded for number in c.header], np.uint32)
    for c in coded:
        c.write_ids(out[at : at + c.ids_bytes])
        at += c.ids_bytes
    for c in coded:
        c.write_lengths(out[at : at + c.lengths_bytes])
        at += c.lengths_bytes
    for c in coded:
        if c.piece.weights is not None:
            n_bytes = c.piece.weights.nbytes
            out[at : at + n_bytes] = c.piece.weights.view(np.uint8)
            at += n_bytes


@dataclass(frozen=True)
class Header:
    """Where a message's entries are; bytes count from the beginning of all that was received.

    Attributes
    ----------
    n_bags : int64 [E]
    places_EX : int64 [E, 8]
        First byte of the entry's ids, how many; first byte of its lengths, -1 where every bag is one id; bags; coding,
        distinct ids of a table, bytes of the ids, bytes of the lengths.
    weights_at : int64 [E]
        First byte of its weights; -1 where it has none.
    tables_of : int
        The set of tables that the message is read to.
    """

    n_bags: Ints
    places_EX: Ints
    weights_at: Ints
    tables_of: int = 0

    def lengths(self, received: np.ndarray, entry: int) -> Ints:
        """Ids of each of an entry's bags."""
        _, _, at, n, coding, _, _, n_bytes = (int(x) for x in self.places_EX[entry])
        if at < 0:
            return np.ones(n, np.int64)
        section = received[at : at + n_bytes]
        if coding == Coding.PLAIN:
            return section.view(np.int32).astype(np.int64)
        return kernels.unpack_numbers(section, n, rising=False)

    def weights(self, received: np.ndarray, entry: int, dtype: np.dtype) -> Floats:
        """Weights of an entry's ids; 1 where they carry none. They lie anywhere, not aligned."""
        n, at = int(self.places_EX[entry, 1]), int(self.weights_at[entry])
        return np.ones(n, dtype) if at < 0 else received[at : at + n * dtype.itemsize].view(dtype)


def read_header(
    received: np.ndarray, start: int, stop: int, weighted_E: np.ndarray, item: int, tables_of: int = 0
) -> Header:
    """Reads one message, bytes ``[start, stop)`` of ``received`` (uint8).

    Parameters
    ----------
    weighted_E : bool [E]
        Which entries carry weights.
    item : int
        Bytes of a weight.
    tables_of : int
        The set of tables that it is read to, which it does not say itself.
    """
    ids_from = start + HEADER_BYTES * len(weighted_E)
    numbers = received[start:ids_from].view(np.uint32).astype(np.int64).reshape(len(weighted_E), 6)
    n_ids, n_bags, coding, n_distinct, ids_bytes, lengths_bytes = numbers.T
    multi_E = coding >= _LENGTHS_FOLLOW
    ids_at = cumulative(ids_bytes, ids_from)
    lengths_at = cumulative(lengths_bytes, int(ids_at[-1]))
    weights_at = cumulative(np.where(weighted_E, item * n_ids, 0), int(lengths_at[-1]))
    assert weights_at[-1] <= stop, "a message shorter than its header says"
    places = ids_at[:-1], n_ids, np.where(multi_E, lengths_at[:-1], -1), n_bags
    how = np.where(multi_E, coding - _LENGTHS_FOLLOW, coding), n_distinct, ids_bytes, lengths_bytes
    return Header(n_bags, np.stack([*places, *how], axis=1), np.where(weighted_E, weights_at[:-1], -1), tables_of)


def cumulative(counts: Ints, first: int = 0) -> Ints:
    """``[first, first + c0, first + c0 + c1, ...]``: offsets of consecutive pieces, int64 [len + 1]."""
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out + first if first else out
