"""The definition of the known map in plain Python: a search of all batches to come for the next use of each id.

Knows no rows' contents.
"""

import math
from collections import deque

import numpy as np

from hpcrec.kernels.reference_id_map import ReferenceRowMap
from hpcrec.types import Ints


class KnownMap(ReferenceRowMap):
    """See ``hpcrec.kernels.KnownMap``; arguments have passed its checks."""

    def __init__(self, capacity: int, window: int, in_use: int) -> None:
        self._capacity, self._window, self._in_use = capacity, window, in_use
        self._row_of: dict[int, int] = {}
        self._used: dict[int, tuple[int, int]] = {}  # of ids with a row: last batch, and turn of the use among all
        self._future = deque[list[int]]()
        self._clock = self._turn = 0
        self.evicted = 0

    @property
    def n_bytes(self) -> int:
        """As if it were as compact as the native one."""
        return 40 * len(self._row_of) + 51 * sum(len(ids) for ids in self._future)

    def foresee(self, ids: Ints) -> None:
        """The next batch that is not foreseen yet."""
        if len(self._future) > self._window:
            raise ValueError(
                f"foresee: {len(self._future)} batches are foreseen and not admitted; allowed are window + 1, "
                f"{self._window + 1}"
            )
        self._future.append(ids.tolist())

    def admit(self, ids: Ints) -> tuple[Ints, Ints]:
        """Rows of the first batch that is foreseen, and the places of ids that it gives one to."""
        if not self._future:
            raise ValueError("admit: no batch is foreseen; foresee each one first")
        if self._future[0] != ids.tolist():
            raise ValueError("admit: ids are not those that were foreseen for this batch")
        self._future.popleft()
        self._clock += 1
        next_use = dict[int, float]()
        for batch, of_batch in enumerate(self._future):
            for i in of_batch:
                next_use.setdefault(i, batch)
        first = dict[int, int]()
        for place, i in enumerate(ids.tolist()):
            first.setdefault(i, place)
        for i in first:
            if i in self._row_of:
                self._use(i)
        coming = sorted((i for i in first if i not in self._row_of), key=lambda i: next_use.get(i, math.inf))
        fresh = sorted(first[i] for i in coming if self._give_row(i, next_use))
        return self.find(ids), np.array(fresh, np.int64)

    def _use(self, i: int) -> None:
        self._turn += 1
        self._used[i] = self._clock, self._turn

    def _give_row(self, i: int, next_use: dict[int, float]) -> bool:
        row = len(self._row_of)
        if row == self._capacity:
            free = [other for other, (used, _) in self._used.items() if self._clock - used >= self._in_use]
            if not free:
                return False
            gone = min(free, key=lambda other: (-next_use.get(other, math.inf), self._used[other][1]))
            if next_use.get(i, math.inf) >= next_use.get(gone, math.inf):
                return False
            row = self._row_of.pop(gone)
            del self._used[gone]
            self.evicted += 1
        self._row_of[i] = row
        self._use(i)
        return True

    def forget(self) -> None:
        """What is foreseen does not come."""
        self._future.clear()

    def clear(self) -> None:
        """No id has a row any more."""
        self._row_of.clear()
        self._used.clear()
