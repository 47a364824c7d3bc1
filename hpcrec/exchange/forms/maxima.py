"""The owner's half of form ``cached`` by ``policy.rule = "max"``: clocks of rows are maxima, as [HET] has them.

A push of n ticks by a rank whose copy knows of the clock k makes the clock of the row max(clock, k + n): ticks that
several ranks make of the same copies count once. So others make fewer copies too old, and less is promised: a
copy that was sent at clock c is valid up to c + s. Of another rank it may lack the ticks that came by one push of a
copy from before c (s), those of pushes from later copies (by which the clock rises to c + s at most: s), and what that
rank holds back (s): 3 s of each other rank. A copy ends with its push, as in the paper, where one that has more than s
ticks is invalid: two ranks that push in the same steps would otherwise never see each other's ticks.
Knows rows by number; knows no MPI. Clocks are kept as differences, so that none crosses.
"""

import numpy as np

from hpcrec.exchange.forms.conditional import NOBODY, Keeping
from hpcrec.exchange.forms.lags import Lags
from hpcrec.types import Ints

_INVALID = -1
_LAG = np.dtype(np.int32)
_MOST = np.iinfo(_LAG).max  # a copy that lacks as much is not read any more, and never will be by a smaller number


class Maxima(Lags):
    """See ``OwnerRule``: by how much the clock of a row is beyond that which the copy of each dense rank knows.

    ``missing`` counts these clocks, which are not more than ticks. They are exact, not cut off where a copy is too old,
    for a push of that copy raises the clock by what it is beyond.
    """

    @classmethod
    def dtype(cls, keeping: Keeping) -> np.dtype:  # noqa: ARG003
        """Of a number: see ``Lags``."""
        return _LAG

    def answer(self, rows: Ints, places: Ints) -> np.ndarray:
        """See ``OwnerRule``."""
        lag = self._lag[rows, places]
        too_old = np.asarray((lag > self._staleness) | (lag == _INVALID))
        self.missing.add(lag[~too_old])
        return too_old

    def learned(self, rows: Ints, places: Ints, ticks: Ints) -> None:
        """See ``OwnerRule``: all at once. Who has no valid copy here knows of the clock as it is."""
        distinct, at = np.unique(rows, return_inverse=True)
        self._ticks.add(distinct, np.bincount(at, ticks, len(distinct)).astype(np.int64))
        lag = self._lag[distinct].astype(np.int64)
        own = np.flatnonzero(places != NOBODY)
        behind = np.zeros(len(rows), np.int64)
        behind[own] = np.maximum(lag[at[own], places[own]], 0)
        rise = np.zeros(len(distinct), np.int64)
        np.maximum.at(rise, at, ticks - behind)
        after = lag + rise[:, None]
        np.subtract.at(after, (at[own], places[own]), ticks[own])
        self._lag[distinct] = np.where(lag == _INVALID, _INVALID, np.minimum(after, _MOST))

    def changed(self, rows: Ints) -> None:
        """See ``OwnerRule``: no copy knows of a tick of each, so that they are added, not their maximum."""
        lag = self._lag[rows].astype(np.int64)
        after = np.minimum(lag + self._lag.shape[1], _MOST)
        self._lag[rows] = np.where(lag == _INVALID, _INVALID, after)

    def restarted(self, rows: Ints) -> None:
        """See ``OwnerRule``."""
        self._lag[rows] = _INVALID
        self._ticks.restart(rows)
