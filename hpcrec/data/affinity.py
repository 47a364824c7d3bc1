"""Deals the samples of each batch by affinity: a sample goes to the part that has had most of its rows before.

Any part of a shuffled order reads all of it, so that which samples of a batch it takes costs no bytes, and each sees
the ids of the whole batch. So all parts compute the same dealing of each batch from the same past, and tell each other
nothing. The past is a table of a fixed number of places: by a hash of a row, the part that has had it; rows that meet
in a place are taken for one. A sample's score for a part is a sum over its ids: what the row weighs, ``OWNS`` times
where the part owns it and ``HAD`` times where the part has had it. A row weighs its columns over the root of the number
of ids that the batch has of it: of a row that most parts need anyway, one sample more or less changes little. Scores
become parts of given sizes by an auction (``data.auction``). Then a row is the part's that had it, if that has been
given a sample with it again, else another's that has.

The table is emptied where a window of the order begins, so that whoever begins in the middle of a window, as a run that
goes on does, has to deal no more than the batches of this window before: it has them in memory. Beyond a window the
owners keep it steady. What is forgotten, or taken for another row, is no error: every dealing gives the same batch.

It saves since a row that a batch has on one part crosses to that alone, and copies (policy ``cached``) are read where
they are [HERALD]. Knows columns of ids, windows and parts by number; knows no ranks, no policy and no bytes of
messages.

Legend: ``B`` samples of a batch, ``K`` ids of a batch, ``U`` distinct places of these.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.data import hashing
from hpcrec.data.auction import assign
from hpcrec.data.layout import Column, Columns
from hpcrec.data.order import GlobalOrder
from hpcrec.types import Ints

PLACE_BITS = 20
OWNS, HAD = 3, 2
UNIT = 1 << 10  # that weights are whole numbers
MOST_PARTS = np.iinfo(np.int16).max
PLACE_BYTES = 2 << PLACE_BITS  # of the table
_NONE = -1


@dataclass(frozen=True)
class Looked:
    """A feature whose rows are looked at.

    Attributes
    ----------
    feature : str
    seed : int
        Equal for features that read the same rows.
    columns : int
        Of a row, in all of its tables: what it weighs.
    owner : callable
        Ids [K] -> the part whose rank owns the row of each, -1 where that is no part's; int64 [K]. A pure function.
    """

    feature: str
    seed: int
    columns: int
    owner: Callable[[Ints], Ints]


@dataclass(frozen=True)
class Affinity:
    """By what batches are dealt.

    Attributes
    ----------
    looked : tuple of Looked
    parts : int
        Of each batch.
    """

    looked: tuple[Looked, ...]
    parts: int

    @property
    def features(self) -> tuple[str, ...]:
        """Those whose ids have to be read."""
        return tuple(looked.feature for looked in self.looked)


class Dealer:
    """The dealing of batch after batch, from the beginning of a window on.

    Parameters
    ----------
    affinity : Affinity
    order : GlobalOrder
    """

    def __init__(self, affinity: Affinity, order: GlobalOrder) -> None:
        assert affinity.parts <= MOST_PARTS, affinity.parts
        self._affinity, self._order = affinity, order
        self._had = np.empty(1 << PLACE_BITS, np.int16)  # the part that has had what is at each place
        self._window: tuple[int, int] | None = None

    def order(self, epoch: int, index: int, columns: Columns) -> Ints:
        """Samples of a batch by their place in the order, part after part: int64 [B]; in each part they rise.

        Parameters
        ----------
        epoch, index : int
            The batch after the last, or the first that begins in its window.
        columns : Columns
            The samples of the whole batch, of the features that are looked at.
        """
        parts = self._affinity.parts
        if parts == 1:
            return np.arange(columns.samples)
        window = epoch, self._order.window_of(epoch, self._order.batch_range(index)[0])
        if window != self._window:
            self._window = window
            self._had.fill(_NONE)
        sample_K, place_K, owner_K, columns_K = self._looked_up(columns)
        place_U, index_K = kernels.dedup(place_K)
        had_K = self._had[place_U].astype(np.int64)[index_K]
        alike_U = np.bincount(index_K, minlength=len(place_U))
        weight_K = columns_K * (UNIT / np.sqrt(alike_U)).astype(np.int64)[index_K]  # root and quotient round alike
        score = np.zeros(columns.samples * parts)
        for part_K, times in ((owner_K, OWNS), (had_K, HAD)):
            some = np.flatnonzero(part_K >= 0)
            at = sample_K[some] * parts + part_K[some]
            score += np.bincount(at, weights=times * weight_K[some], minlength=len(score))  # whole: exact below 2^53
        part_B = assign(score.astype(np.int64).reshape(-1, parts), np.diff(self._order.firsts(index, parts)))
        self._remember(place_U, index_K, had_K, part_B[sample_K])
        return np.argsort(part_B, kind="stable")

    def _remember(self, place_U: Ints, index_K: Ints, had_K: Ints, part_K: Ints) -> None:
        """Where the rows of a batch were given; of a row that several new parts have, the last in the order of ids."""
        given_U = np.empty(len(place_U), np.int16)
        given_U[index_K] = part_K
        again = part_K == had_K
        given_U[index_K[again]] = part_K[again]
        self._had[place_U] = given_U

    def _looked_up(self, columns: Columns) -> tuple[Ints, Ints, Ints, Ints]:
        """Of each id, feature after feature: its sample, its row's place, the part that owns it, its columns [K]."""
        every_B = np.arange(columns.samples)
        found = []
        for looked in self._affinity.looked:
            column = columns.sparse[looked.feature]
            sample_K = every_B if column.offsets is None else np.repeat(every_B, np.diff(column.offsets))
            columns_K = np.full(len(sample_K), looked.columns)
            found.append((sample_K, _places(column, looked.seed), looked.owner(column.ids), columns_K))
        sample, place, owner, width = (np.concatenate(of) for of in zip(*found, strict=True))
        return sample, place, owner, width


def _places(column: Column, seed: int) -> Ints:
    """Of its ids' rows, by Fibonacci hashing from an offset of the rows' own; int64 [K] in [0, 2^PLACE_BITS)."""
    spread = (column.ids.astype(np.uint64) + np.uint64(seed)) * np.uint64(hashing.GOLDEN)
    return (spread >> np.uint64(64 - PLACE_BITS)).astype(np.int64)
