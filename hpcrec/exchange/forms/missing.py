"""What the record of copies is made of: how many reads lacked how many ticks, and how many ticks rows have got.

Knows numbers, no rows' values and no MPI.
"""

import numpy as np

from hpcrec import kernels
from hpcrec.types import Ints

MISSING_SHARE = 0.05  # of a row's ticks; where more may be missing, a run is short for its staleness


class Missing:
    """Reads by how many ticks they lacked, in bins of 0, 1, 2 to 3, 4 to 7 and so on.

    Parameters
    ----------
    most : int
        Ticks that a read may lack; more are counted with the last bin.

    Attributes
    ----------
    reads : int64 [bins]
    ticks : int
        All that were missing, summed over these reads.
    """

    def __init__(self, most: int) -> None:
        self.reads, self.ticks = np.zeros(most.bit_length() + 1, np.int64), 0

    def add(self, ticks: Ints) -> None:
        """Reads that lacked so many each, int64 [K]."""
        if len(ticks):
            bins = np.minimum(np.frexp(ticks)[1], len(self.reads) - 1)  # as many as bits of the number
            self.reads += np.bincount(bins, minlength=len(self.reads))
            self.ticks += int(ticks.sum())

    def add_none(self, reads: int) -> None:
        """So many reads that lacked nothing."""
        self.reads[0] += reads


def bin_names(bins: int) -> list[str]:
    """``['0', '1', '2-3', '4-7', ...]``."""
    return ["0", "1"][:bins] + [f"{1 << b - 1}-{(1 << b) - 1}" for b in range(2, bins)]


def enough_ticks(most_missing: int) -> int:
    """Ticks from which on at most ``MISSING_SHARE`` of a row's may be missing: the most that a read may lack, by it."""
    return round(most_missing / MISSING_SHARE)


class RowTicks:
    """How many ticks each row has got, counted up to as many as are enough.

    Parameters
    ----------
    rows, enough : int

    Attributes
    ----------
    all : int
        Ticks of all rows.
    """

    def __init__(self, rows: int, enough: int) -> None:
        self.all, self._enough, self._gone = 0, enough, 0
        self._ticks = kernels.reserved_zeros((rows,), self.dtype(enough))

    @staticmethod
    def dtype(enough: int) -> np.dtype:
        """The smallest unsigned integer that counts so far."""
        return np.min_scalar_type(enough)

    def add(self, rows: Ints, ticks: Ints) -> None:
        """To distinct rows."""
        self.all += int(ticks.sum())
        self._ticks[rows] = np.minimum(self._ticks[rows] + ticks, self._enough)

    def restart(self, rows: Ints) -> None:
        """These are other ids' from now on."""
        before = self._ticks[rows].astype(np.int64)
        self._gone += int(before[before < self._enough].sum())
        self._ticks[rows] = 0

    @property
    def of_few(self) -> int:
        """Ticks of rows that have got less than enough."""
        return self._gone + int(self._ticks[self._ticks < self._enough].sum(dtype=np.int64))
