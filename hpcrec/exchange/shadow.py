"""``run.shadow_reads``: of one read of a copy in so many, how far it is from its owner's row.

::

    dense rank                            owner
    picks rows    --- shadow ----------->  how many; which of those asked for    after the answer which rows follow
                  <-- shadow -----------  these rows as they are, likewise written as all values

Which reads are picked is a pure function of seed, step and row, so that it is the same at any speed of the ranks, and
at all owners of a row. The rows change nothing of what is read or learned. Bytes: 8 a rank, 4 a picked row, and the
row. Knows rows by number and tables by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives
from hpcrec.exchange.copies import Kept, Served, Vectors, Wanted, numbers
from hpcrec.exchange.layout import Layout
from hpcrec.types import Floats, Ints

# Upper ends of the bins of distances; the last bin is of all that are farther.
ENDS = (0.0, *(float(f"{digit}e{power}") for power in range(-6, 1) for digit in (1, 2, 5)))
_STEPS_SEED = 0x9E3779B97F4A7C15  # odd, so that steps follow each other over all 64 bits
_MASK = (1 << 63) - 1
_NONE = np.zeros(0, np.int64)


@dataclass
class Distances:
    """Of the shadow reads so far, by table: |read - current| / |current|.

    Attributes
    ----------
    reads : int64 [T]
        Those whose current row is not zero.
    total, most : float64 [T]
        Sum and largest of their distances.
    binned : int64 [T, bins]
        How many lie up to each of ``ENDS``, and beyond.
    """

    reads: Ints
    total: Floats
    most: Floats
    binned: Ints

    @classmethod
    def of(cls, tables: int) -> "Distances":
        """None yet."""
        counts = np.zeros(tables, np.int64), np.zeros(tables), np.zeros(tables)
        return cls(*counts, np.zeros((tables, len(ENDS) + 1), np.int64))

    def add(self, table: int, distances: Floats) -> None:
        """Some more of one table."""
        if len(distances):
            self.reads[table] += len(distances)
            self.total[table] += distances.sum()
            self.most[table] = max(self.most[table], float(distances.max()))
            bins = np.searchsorted(ENDS, distances)
            self.binned[table] += np.bincount(bins, minlength=len(ENDS) + 1)


class ShadowReads:
    """Of one exchange; on every rank of it, for messages are collective.

    Parameters
    ----------
    collectives : Collectives
    layout : Layout
    every, seed : int
        One read of a copy in so many is picked; that of the run.

    Attributes
    ----------
    tables : tuple of str
        All that are read from copies.
    found : Distances
    """

    def __init__(self, collectives: Collectives, layout: Layout, every: int, seed: int) -> None:
        self._collectives, self._every, self._seed = collectives, every, seed
        self.tables = tuple(dict.fromkeys(t for f in layout.conditional for t in layout.tables_of[f]))
        self.found = Distances.of(len(self.tables))

    def pick(self, kept: Sequence[Kept], wanted: Wanted, step: int) -> Ints:
        """Which of the rows that a step wants are picked: numbers of reads of copies, rising, int64 [picked]."""
        picked_K = np.zeros(len(wanted.row_K), bool)
        for b, of in enumerate(kept):
            mine = np.flatnonzero(wanted.bundle_K == b)
            picked_U = picks(of.asked.rows, of.asked.part, self._every, self._seed + b, step)
            picked_K[mine] = picked_U[wanted.row_K[mine]]
        return np.flatnonzero(picked_K & ~wanted.follows_K)

    def tell(self, wanted: Wanted | None, picked: Ints, asked: Served | None) -> Ints:
        """Owners are told; returns which of the rows that this one was asked for are picked. Collective."""
        owner_K = _NONE if wanted is None else wanted.owner_K
        peer_K = _NONE if asked is None else asked.peer_K
        first_R = _first(owner_K, self._collectives.size)
        to = owner_K[picked]
        n_R = np.bincount(to, minlength=self._collectives.size)
        came_R = self._collectives.alltoall(n_R[:, None], "shadow")[:, 0]
        sent_R, at = numbers(to, self._collectives.size, bits=32)
        due_R, came_at = numbers(np.repeat(np.arange(len(came_R)), came_R), self._collectives.size, bits=32)
        message = self._collectives.message(sent_R, np.uint32)
        message[at] = picked - first_R[to]  # both sides have the rows peer by peer, in the same order
        came = np.asarray(self._collectives.alltoallv(message, sent_R, due_R, "shadow"))[came_at].astype(np.int64)
        return came + _first(peer_K, self._collectives.size)[np.repeat(np.arange(len(came_R)), came_R)]

    def compare(
        self, kept: Sequence[Kept], wanted: Wanted, v: Vectors, columns: Sequence[tuple[str, slice]], current: Floats
    ) -> None:
        """Counts how far what was read is from these vectors, the current rows.

        Parameters
        ----------
        kept : sequence of Kept
            With what was read.
        wanted : Wanted
        v : Vectors
            Those of picked rows.
        columns : sequence of (str, slice)
            Table and columns of each stream.
        current : float, flat
            The messages.
        """
        squares: dict[tuple[str, int], Floats] = {}  # of a row: |read - current|^2 and |current|^2, over its owners
        for row, s, start in zip(v.row.tolist(), v.stream.tolist(), v.start.tolist(), strict=True):
            table, part = columns[s]
            b, u = int(wanted.bundle_K[row]), int(wanted.row_K[row])
            now = current[start : start + part.stop - part.start].astype(np.float64)
            apart = kept[b].rows[table][u, part] - now
            sums = squares.setdefault((table, b << 40 | u), np.zeros(2))
            sums += (apart @ apart, now @ now)
        for t, table in enumerate(self.tables):
            found = np.array([of for (name, _), of in squares.items() if name == table]).reshape(-1, 2)
            found = found[found[:, 1] > 0]
            self.found.add(t, np.sqrt(found[:, 0] / found[:, 1]))


def picks(rows: Ints, part: Ints, every: int, seed: int, step: int) -> np.ndarray:
    """Whether each row is picked in a step: one in ``every``, bool [U]; a pure function of its arguments."""
    named = kernels.hash_ids(rows, 1 << 62, seed) ^ part  # rows of two parts may be called alike
    return np.asarray(kernels.hash_ids(named, every, (seed + step * _STEPS_SEED) & _MASK) == 0)


def _first(peer_K: Ints, size: int) -> Ints:
    """The number of each peer's first row, of rows that lie peer after peer."""
    n_R = np.bincount(peer_K, minlength=size)
    return np.cumsum(n_R) - n_R
