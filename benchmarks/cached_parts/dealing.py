"""To which dense rank each sample of a global batch goes, in equal parts: by scores that ranks have for samples.

Scores become parts by the product's auction (``data.auction``), which is in whole numbers. Knows numbers alone; no
rows, copies or bytes.

Legend: ``N`` samples of a global batch, ``R`` ranks.
"""

import numpy as np

from hpcrec.data import auction
from hpcrec.types import Ints

FINE = 1 << 8  # what of a score is told apart
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: 2^64 over the golden ratio


def contiguous(samples: int, ranks: int) -> Ints:
    """As the loader deals: the first part to the first rank, and so on [N]; ``samples`` are a multiple of ``ranks``."""
    return np.repeat(np.arange(ranks), samples // ranks)


def hashed(ids: Ints, ranks: int) -> np.ndarray:
    """Scores by which a sample goes where the hash of one of its ids says, as long as there is room [N, R]."""
    chosen = ((ids.astype(np.uint64) * _SPREAD) >> np.uint64(32)) % np.uint64(ranks)
    return to(chosen.astype(np.int64), ranks)


def to(rank_N: Ints, ranks: int) -> np.ndarray:
    """Scores by which a sample goes to the rank that is given, as long as there is room [N, R]."""
    return np.eye(ranks, dtype=np.float32)[rank_N]


def assign(score_NR: np.ndarray) -> Ints:
    """A rank for each sample [N], as many samples for each rank, of a high sum of scores."""
    samples, ranks = score_NR.shape
    return auction.assign(np.rint(FINE * score_NR).astype(np.int64), np.full(ranks, samples // ranks))
