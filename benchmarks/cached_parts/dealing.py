"""To which dense rank each sample of a global batch goes, in equal parts: by scores that ranks have for samples.

``assign`` is cheap, not the best there is: a few turns of an auction find a price of each rank, at which about as many
samples prefer it as it takes, and what is still too many goes elsewhere, those that lose least first. Knows numbers
alone; no rows, copies or bytes.

Legend: ``N`` samples of a global batch, ``R`` ranks.
"""

import numpy as np

from hpcrec.types import Ints

TURNS, GAIN = 24, 0.5  # of the auction; how far a price moves in a turn, of the range of scores, at first
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
    part = samples // ranks
    price_R = _prices(score_NR, part)
    rank_N, room_R, left = np.zeros(samples, np.int64), np.full(ranks, part), np.arange(samples)
    while len(left):  # each turn fills a rank or places all
        net = np.where(room_R > 0, score_NR[left] - price_R, -np.inf)
        best = net.argmax(axis=1)
        loses = _first_over_second(net)
        placed = np.zeros(len(left), bool)
        for rank in range(ranks):
            mine = np.flatnonzero(best == rank)
            if len(mine) > room_R[rank]:
                mine = mine[np.argsort(-loses[mine], kind="stable")[: room_R[rank]]]
            placed[mine] = True
            rank_N[left[mine]] = rank
            room_R[rank] -= len(mine)
        left = left[~placed]
    return rank_N


def _prices(score_NR: np.ndarray, part: int) -> np.ndarray:
    """Of each rank [R]."""
    ranks = score_NR.shape[1]
    price_R = score_NR.mean(axis=0)
    reach = GAIN * float((score_NR - price_R).std())
    for turn in range(TURNS):
        load_R = np.bincount((score_NR - price_R).argmax(axis=1), minlength=ranks)
        price_R = price_R + reach / (1 + turn) * (load_R / part - 1.0)
    return price_R


def _first_over_second(net: np.ndarray) -> np.ndarray:
    """What each sample loses where it may not go to the rank that it prefers; anything where only one has room."""
    if net.shape[1] == 1:
        return np.zeros(len(net))
    two = np.partition(net, -2, axis=1)[:, -2:]
    return two[:, 1] - two[:, 0]
