"""How often each id occurs in a stream of ids, in bounded memory. Knows nothing of files or features."""

import math
from typing import Any

import numpy as np

from hpcrec.data import hashing
from hpcrec.types import Ints

_LIMIT = 1 << 21  # ids that are counted; 100 MB at the most
_SMALLEST = 1 << 14  # hashes that the number of distinct ids is estimated from: to 0.8 %
_FIT_FROM = 5  # counts below this say little of the law that they were drawn by


class IdCounts:
    """Counts ids, all of them up to `limit` distinct ones, beyond that the more frequent half of those.

    Parameters
    ----------
    limit : int

    Attributes
    ----------
    lookups : int
        Ids seen.
    exact : bool
        Whether none was dropped. Where some were, counts are too low by what came before an id was counted again, and
        the number of distinct ids is estimated from the smallest of their hashes (Bar-Yossef et al. 2002).
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self.lookups, self.exact, self._limit = 0, True, limit
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._pending: list[tuple[Ints, Ints]] = []
        self._smallest: Any = np.empty(0, np.uint64)

    def add(self, ids: Ints) -> None:
        """Count ids; int64 [K]."""
        self.lookups += len(ids)
        unique, counts = np.unique(ids, return_counts=True)
        self._pending.append((unique, counts))
        if sum(len(waiting) for waiting, _ in self._pending) >= max(len(self._ids), 1 << 16):
            self._merge()

    def describe(self, top: int = 5) -> dict[str, Any]:
        """Distinct ids, the most frequent ones, and how skewed they are.

        Returns
        -------
        dict
            ``distinct`` and whether it is ``exact``; ``top``, a list of ``{"id", "share"}``; ``top_1_percent_share``,
            the part of lookups that goes to the most frequent hundredth of the ids seen; ``zipf_exponent``, s in
            count ~ rank^-s, by least squares over ranks in equal steps of their logarithm (None for fewer than 10
            ids with 5 lookups).
        """
        self._merge()
        order = np.argsort(-self._counts, kind="stable")
        ids, counts = self._ids[order], self._counts[order]
        distinct = len(ids) if self.exact else self._estimate()
        lookups = max(self.lookups, 1)
        return {
            "distinct": distinct,
            "exact": self.exact,
            "top": [
                {"id": int(i), "share": n / lookups} for i, n in zip(ids[:top], counts[:top].tolist(), strict=True)
            ],
            "top_1_percent_share": float(counts[: math.ceil(distinct / 100)].sum()) / lookups,
            "zipf_exponent": _zipf(counts),
        }

    def _merge(self) -> None:
        if not self._pending:
            return
        new = np.concatenate([ids for ids, _ in self._pending])
        self._note(new)
        ids = np.concatenate([self._ids, new])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._pending)])
        self._pending = []
        self._ids, inverse = np.unique(ids, return_inverse=True)
        self._counts = np.bincount(inverse, counts, len(self._ids)).astype(np.int64)
        if len(self._ids) > self._limit:
            self.exact = False
            kept = np.sort(np.argsort(-self._counts, kind="stable")[: self._limit // 2])
            self._ids, self._counts = self._ids[kept], self._counts[kept]

    def _note(self, ids: Ints) -> None:
        keys = hashing.mix_array(ids)
        if len(self._smallest) == _SMALLEST:
            keys = keys[keys < self._smallest[-1]]
        self._smallest = np.union1d(self._smallest, keys)[:_SMALLEST]

    def _estimate(self) -> int:
        if len(self._smallest) < _SMALLEST:
            return len(self._smallest)
        return round((_SMALLEST - 1) * 2.0**64 / float(self._smallest[-1]))


def _zipf(counts: Ints) -> float | None:
    n = int(np.count_nonzero(counts >= _FIT_FROM))
    if n < 10:
        return None
    ranks = np.unique(np.geomspace(1, n, 200).astype(np.int64))
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)[0]
    return float(-slope)
