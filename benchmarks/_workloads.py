"""Ids and shapes that the kernels are timed on: one large table, and the tables of three models.

W1 is a click model of Criteo's tables with one id a sample, W2 has 26 tables of 100,000 rows with bags of 20, W3 has 30
tables of 1,000,000 rows with bags of 20. An id of a table is of rank k with probability ~ (k + 1)^-1.05, and the row of
a rank is drawn by a seeded permutation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SEED = 20260101
CRITEO = (1460, 583, 1_000_000, 1_000_000, 305, 24, 12517, 633, 3, 93145, 5683, 1_000_000, 3194, 27, 14992, 1_000_000,
          10, 5652, 2173, 4, 1_000_000, 18, 15, 286181, 105, 142572)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Tables of one width, a bag of ``pooling`` ids for each sample and table."""

    rows: Sequence[int]
    width: int
    pooling: int
    batch: int

    def ids(self, batch: int = 0) -> np.ndarray:
        """int64 [tables, batch, pooling], of the batch of that number."""
        ids = np.empty((len(self.rows), self.batch, self.pooling), np.int64)
        for t, n in enumerate(self.rows):
            ids[t] = zipf_ids(n, ids[t].size, (SEED, t, batch)).reshape(ids[t].shape)
        return ids

    def places(self) -> np.ndarray:
        """First element of each bag's vector in an array [batch, tables x width]; bags of a table follow each other."""
        n = len(self.rows)
        return ((np.arange(self.batch) * n + np.arange(n)[:, None]) * self.width).reshape(-1)


W1 = Workload(rows=CRITEO, width=16, pooling=1, batch=2048)
W2 = Workload(rows=(100_000,) * 26, width=64, pooling=20, batch=2048)
W3 = Workload(rows=(1_000_000,) * 30, width=16, pooling=20, batch=8192)


def zipf_ids(n_rows: int, n: int, seed: Sequence[int]) -> np.ndarray:
    """Rows by rank; ``seed[:-1]`` fixes which row has which rank, the whole seed the draw."""
    row_of_rank = np.random.default_rng(seed[:-1]).permutation(n_rows)
    weights = np.cumsum(np.arange(1, n_rows + 1) ** -1.05)
    ranks = np.searchsorted(weights, np.random.default_rng(seed).random(n) * weights[-1])
    return row_of_rank[np.minimum(ranks, n_rows - 1)]
