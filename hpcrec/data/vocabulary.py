"""Counts values in a first pass and numbers them for a second one.

Memory: the distinct values of a feature and their counts (12 bytes each, twice while merging); that is what a
vocabulary is, and `ids="hash"` does without.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcrec.types import Ints

MISSING, RARE, FIRST = 0, 1, 2  # ids: no value; a value that is not in the vocabulary; the most frequent value
_MERGE_AT = 1 << 20


class Counter:
    """Counts of the distinct values of one feature, block by block."""

    def __init__(self) -> None:
        self._values = np.empty(0, dtype=np.uint32)
        self._counts = np.empty(0, dtype=np.int64)
        self._pending: list[tuple[NDArray[np.uint32], Ints]] = []
        self._pending_size = 0

    def add(self, values: NDArray[np.uint32]) -> None:
        """Count these values."""
        values, counts = np.unique(values, return_counts=True)
        self._pending.append((values, counts))
        self._pending_size += len(values)
        if self._pending_size > max(_MERGE_AT, len(self._values)):
            self._merge()

    def finish(self, min_count: int, most: int | None) -> "Vocabulary":
        """The vocabulary of values counted at least `min_count` times, at most `most` of them, frequent ones first."""
        self._merge()
        chosen = np.flatnonzero(self._counts >= min_count)
        order = chosen[np.argsort(-self._counts[chosen], kind="stable")][:most]  # equal counts by value
        values = self._values[order]
        by_value = np.argsort(values)
        return Vocabulary(values, values[by_value], by_value.astype(np.int64) + FIRST)

    def _merge(self) -> None:
        values = np.concatenate([self._values, *(values for values, _ in self._pending)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._pending)])
        self._values, where = np.unique(values, return_inverse=True)
        # bincount adds in float64: exact below 2^53
        self._counts = np.bincount(where, weights=counts, minlength=len(self._values)).astype(np.int64)
        self._pending, self._pending_size = [], 0


@dataclass(frozen=True)
class Vocabulary:
    """Values numbered from `FIRST` on by falling count; see `Counter.finish`.

    Attributes
    ----------
    values : uint32 [V]
        Value of id ``FIRST + i``.
    """

    values: NDArray[np.uint32]
    _sorted: NDArray[np.uint32]
    _ids: Ints

    @property
    def cardinality(self) -> int:
        """Ids in use, the missing and the rare one included."""
        return FIRST + len(self.values)

    def ids(self, values: NDArray[np.uint32], missing: NDArray[np.bool_]) -> Ints:
        """Ids of values; int64, same length."""
        out = np.full(len(values), RARE, dtype=np.int64)
        if len(self._sorted):
            where = np.minimum(np.searchsorted(self._sorted, values), len(self._sorted) - 1)
            out = np.where(self._sorted[where] == values, self._ids[where], RARE)
        out[missing] = MISSING
        return out
