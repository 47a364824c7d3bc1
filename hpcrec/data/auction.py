"""To which of several parts each sample of a batch goes, by scores that the parts have for samples; parts have sizes.

``assign`` is cheap, not the best there is: a few turns of an auction find a price of each part, at which about as many
samples prefer it as it takes; what is still too many goes elsewhere, those that lose least first. All of it is in whole
numbers, so that every rank of every machine finds the same. Knows numbers alone: no rows, no bytes and no ranks.

Legend: ``N`` samples of a batch, ``P`` parts.
"""

import numpy as np

from hpcrec.types import Ints

TURNS = 24  # of the auction
FINE = 1 << 4  # prices are so much finer than scores
_NEVER = -(1 << 62)


def assign(score_NP: Ints, size_P: Ints) -> Ints:
    """A part for each sample [N], ``size_P`` samples for each part, of a high sum of scores.

    Parameters
    ----------
    score_NP : int64 [N, P]
        The sum of their magnitudes is below 2^58, that prices and sums stay below 2^63.
    size_P : int64 [P]
        Their sum is N; may have zeros.

    Returns
    -------
    int64 [N]
        Equal numbers give equal parts, on any machine.
    """
    assert score_NP.shape == (int(size_P.sum()), len(size_P)), (score_NP.shape, size_P)
    some = np.flatnonzero(size_P)
    if len(some) < 2:
        return np.full(len(score_NP), some[0] if len(some) else 0, np.int64)
    net_NP = FINE * score_NP[:, some]
    room_P = size_P[some]
    net_NP -= _prices(net_NP, room_P)
    return some[_placed(net_NP, room_P)]


def _prices(score_NP: Ints, size_P: Ints) -> Ints:
    """Of each part [P]: from the mean of its scores, up where more samples prefer it than it takes, and down."""
    samples, parts = score_NP.shape
    price_P = score_NP.sum(axis=0) // samples
    reach = int(np.abs(score_NP - price_P).sum()) // (2 * samples * parts)
    fair = max(1, samples // parts)
    for turn in range(1, TURNS + 1):
        load_P = np.bincount((score_NP - price_P).argmax(axis=1), minlength=parts)
        price_P = price_P + reach * (load_P - size_P) // (fair * turn)
    return price_P


def _placed(net_NP: Ints, room_P: Ints) -> Ints:
    """Each sample where it gains most, if there is room: first those that would lose most elsewhere."""
    samples, parts = net_NP.shape
    part_N, room_P, left = np.zeros(samples, np.int64), room_P.copy(), np.arange(samples)
    while len(left):  # each turn fills a part, or places all
        net = np.where(room_P > 0, net_NP[left], _NEVER)
        best = net.argmax(axis=1)
        two = np.partition(net, parts - 2, axis=1)[:, -2:]
        loses = two[:, 1] - two[:, 0]
        placed = np.zeros(len(left), bool)
        for part in range(parts):
            mine = np.flatnonzero(best == part)
            if len(mine) > room_P[part]:
                mine = mine[np.argsort(-loses[mine], kind="stable")[: room_P[part]]]
            placed[mine] = True
            part_N[left[mine]] = part
            room_P[part] -= len(mine)
        left = left[~placed]
    return part_N
