"""Power laws: chances of rows, what the best fixed set reads and what the least recently used rows would.

A table's row of rank k is asked for with P ~ (k + 1)^-exponent. Knows numbers of rows, steps and draws; no stores.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Chances = NDArray[np.float64]


def by_rank(n_rows: int, exponent: float) -> Chances:
    """Of each rank, in one draw: float64 [n_rows]."""
    found = np.arange(1, n_rows + 1, dtype=np.float64) ** -exponent
    return found / found.sum()


def in_a_step(rows: Sequence[int], exponent: float, draws: int) -> Chances:
    """That a step of so many draws a table wants a row; tables one behind the other, each by rank: float64 [rows]."""
    return np.concatenate([-np.expm1(draws * np.log1p(-by_rank(n, exponent))) if n > 1 else [1.0] for n in rows])


def misses(chances: Chances, kept: int) -> float:
    """Rows a step that the best fixed set of so many rows lacks, on average."""
    if kept >= len(chances):
        return 0.0
    return float(np.partition(chances, len(chances) - kept)[: len(chances) - kept].sum())


def horizon(chances: Chances, kept: int) -> float:
    """Steps after which a row that was not asked for leaves a cache of so many, the least recently used first [Che]."""
    if kept >= len(chances):
        return float("inf")
    low, high = 0.0, 1.0
    while inside(chances, high) < kept:
        high *= 2
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if inside(chances, middle) < kept else (low, middle)
    return high


def inside(chances: Chances, steps: float) -> float:
    """Rows that are asked for at least once in so many steps, on average."""
    return float(-np.expm1(-steps * chances).sum())


def lru_misses(chances: Chances, steps: float) -> float:
    """Rows a step that were not asked for in so many steps."""
    return 0.0 if np.isinf(steps) else float((chances * np.exp(-steps * chances)).sum())


def tail(n_rows: int, exponent: float, kept: int) -> Chances:
    """Ends of the chances of ranks beyond the first ``kept``, in one draw that is beyond them: float64, to 1."""
    ends = np.cumsum(by_rank(n_rows, exponent)[kept:])
    return ends / ends[-1]
