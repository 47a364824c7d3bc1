"""The owner's half of form ``cached`` by ``policy.rule = "sum"``: how many ticks of a row each copy lacks.

Knows rows by number, and which dense rank has a copy; knows no MPI. Clocks are kept as differences, so that none
crosses.
"""

import numpy as np

from hpcrec import kernels
from hpcrec.exchange.forms.conditional import NOBODY, Keeping
from hpcrec.exchange.forms.missing import Missing, RowTicks, enough_ticks
from hpcrec.types import Ints


class Lags:
    """See ``OwnerRule``: how many ticks of a row the copy of each dense rank lacks, up to one more than it may.

    Kept here, a number a row and dense rank, so that no clock of a row crosses in either direction.
    """

    def __init__(self, rows: int, keeping: Keeping) -> None:
        self._staleness = keeping.staleness
        self._lag = kernels.reserved_zeros((rows, len(keeping.dense)), self.dtype(keeping))
        self.missing = Missing(keeping.staleness)
        self._ticks = RowTicks(rows, enough_ticks(keeping.most_missing))

    @classmethod
    def dtype(cls, keeping: Keeping) -> np.dtype:
        """Of a number: the smallest one that counts one tick more than a copy may lack."""
        return next(of for of in map(np.dtype, ("u1", "u2", "u4")) if keeping.staleness < np.iinfo(of).max)

    def answer(self, rows: Ints, places: Ints) -> np.ndarray:
        """See ``OwnerRule``."""
        lag = self._lag[rows, places]
        too_old = np.asarray(lag > self._staleness)
        self.missing.add(lag[~too_old])
        return too_old

    def sent(self, rows: Ints, places: Ints) -> None:
        """See ``OwnerRule``."""
        self._lag[rows, places] = 0

    def learned(self, rows: Ints, places: Ints, ticks: Ints) -> None:
        """See ``OwnerRule``."""
        distinct, at = np.unique(rows, return_inverse=True)
        total = np.bincount(at, ticks, len(distinct)).astype(np.int64)
        self._ticks.add(distinct, total)
        lag = self._lag[distinct].astype(np.int64) + total[:, None]
        own = np.flatnonzero(places != NOBODY)
        np.subtract.at(lag, (at[own], places[own]), ticks[own])
        self._lag[distinct] = np.minimum(lag, self._staleness + 1)

    def changed(self, rows: Ints) -> None:
        """See ``OwnerRule``."""
        lag = self._lag[rows].astype(np.int64) + self._lag.shape[1]
        self._lag[rows] = np.minimum(lag, self._staleness + 1)

    def restarted(self, rows: Ints) -> None:
        """See ``OwnerRule``."""
        self._lag[rows] = self._staleness + 1
        self._ticks.restart(rows)

    def figures(self) -> dict[str, float]:
        """See ``OwnerRule``: ticks that rows have got, and those of rows that have got few for the staleness."""
        return {"ticks": self._ticks.all, "ticks_of_few": self._ticks.of_few}
