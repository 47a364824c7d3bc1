"""Metrics within groups of samples, exact over any number of ranks: GAUC, NDCG@k, recall@k and MRR.

Samples meet by group on one rank (``over_ranks.by_group``), are sorted there once, and no loop runs over groups. Each
group's value, and the order in which they are added, depend on the samples alone, so a result has the same bits on any
number of ranks. Memory: about 150 bytes for each sample of this rank's groups. docs/metrics.md has the definitions.

Where scores are equal, a group's value is its mean over all orders of these. Knows no files, models or names.

Legend: ``N`` samples, ``T`` ties (runs of equal scores within a group, of one sample or more), ``G`` groups.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpcrec.data.hashing import UInts
from hpcrec.training.over_ranks import (
    Doubles,
    Reductions,
    bucket_of,
    by_group,
    starts_of,
    total_by_bucket,
)
from hpcrec.types import Ints

_SIGN = np.uint32(1 << 31)
_AT_ONCE = 1 << 20  # numbers that are worked on together where rows are made as long as each other


@dataclass(frozen=True)
class Grouped:
    """Samples of this rank's groups: group after group, in each from the highest score down.

    Attributes
    ----------
    score_N, label_N, weight_N : float64 [N]
        No weight is 0.
    group_G : int64 [G]
        First sample of each group.
    tie_T : int64 [T]
        First sample of each tie.
    bucket_G : int64 [G]
        Bucket of each group; rises.
    """

    score_N: Doubles
    label_N: Doubles
    weight_N: Doubles
    group_G: Ints
    tie_T: Ints
    bucket_G: Ints

    @classmethod
    def of(
        cls, score_N: Doubles, label_N: Doubles, weight_N: Doubles, group_N: Ints, comm: Reductions | None
    ) -> "Grouped":
        """From samples that lie on any ranks; collective. Samples of weight 0 are left out."""
        counts = weight_N > 0.0
        columns = [column[counts] for column in (score_N, label_N, weight_N)]
        hash_N, (score_N, label_N, weight_N) = by_group(group_N[counts], columns, comm)
        order = np.argsort(hash_N)
        hash_N, (score_N, label_N, weight_N) = hash_N[order], (c[order] for c in (score_N, label_N, weight_N))
        group_G = starts_of(hash_N[1:] != hash_N[:-1])[: len(order)]
        number_N = np.repeat(np.arange(len(group_G)), np.diff(np.append(group_G, len(order))))
        packed_N = _pack(number_N, score_N, label_N, weight_N)
        if packed_N is not None:
            packed_N.sort()
            score_N, label_N = _unpack(packed_N)
        else:  # by weight and label too, so that sums have one order, whatever that of their coming
            order = np.lexsort((weight_N, label_N, -score_N, number_N))
            score_N, label_N, weight_N = (column[order] for column in (score_N, label_N, weight_N))
        tie_T = starts_of((number_N[1:] != number_N[:-1]) | (score_N[1:] != score_N[:-1]))[: len(order)]
        return cls(score_N, label_N, weight_N, group_G, tie_T, bucket_of(hash_N[group_G]))

    @cached_property
    def first_tie_G(self) -> Ints:
        """First tie of each group."""
        return np.searchsorted(self.tie_T, self.group_G)

    @cached_property
    def start_T(self) -> Ints:
        """Place in its group, from 0, of the first sample of each tie."""
        return self.tie_T - np.repeat(self.group_G, np.diff(np.append(self.first_tie_G, len(self.tie_T))))

    @cached_property
    def samples_T(self) -> Ints:
        """Samples of each tie."""
        return np.diff(np.append(self.tie_T, len(self.score_N)))

    @cached_property
    def samples_G(self) -> Ints:
        """Samples of each group."""
        return np.diff(np.append(self.group_G, len(self.score_N)))

    @cached_property
    def weight_G(self) -> Doubles:
        """Sum of the weights of each group's samples."""
        return _sums(self.weight_N, self.group_G)


def gauc(of: Grouped) -> tuple[Doubles, Doubles]:
    """AUC of each group, nan where it has one class, and what it weighs: the sum of its samples' weights; [G] both."""
    positive_T = _sums(of.weight_N * of.label_N, of.tie_T)
    negative_T = _sums(of.weight_N * (1.0 - of.label_N), of.tie_T)
    above_T = _running(positive_T, of.first_tie_G) - positive_T
    pairs_G = _sums(negative_T * (above_T + positive_T / 2.0), of.first_tie_G)
    all_G = _sums(positive_T, of.first_tie_G) * _sums(negative_T, of.first_tie_G)
    return np.minimum(_ratio(pairs_G, all_G), 1.0), of.weight_G


def ndcg(of: Grouped, k: int) -> tuple[Doubles, Doubles]:
    """NDCG of the first k samples of each group, nan where no label is above 0, and what it weighs; [G] both.

    The gain of a sample is its label, divided by log2(1 + place), places from 1 on.
    """
    most = min(k, int(of.samples_G.max(initial=0)))
    through = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, most + 2)))])  # of the first so many places
    discount_T = through[np.minimum(of.start_T + of.samples_T, most)] - through[np.minimum(of.start_T, most)]
    gain_G = _sums(_sums(of.label_N, of.tie_T) / of.samples_T * discount_T, of.first_tie_G)
    number_N = np.repeat(np.arange(len(of.group_G)), of.samples_G)
    best_N = of.label_N[np.lexsort((-of.label_N, number_N))]
    place_N = np.arange(len(best_N)) - np.repeat(of.group_G, of.samples_G)
    counted = place_N < most
    ideal_N = np.zeros(len(best_N))
    ideal_N[counted] = best_N[counted] / np.log2(place_N[counted] + 2.0)
    return np.minimum(_ratio(gain_G, _sums(ideal_N, of.group_G)), 1.0), _mean_weight(of)


def recall(of: Grouped, k: int) -> tuple[Doubles, Doubles]:
    """Labels of the first k samples of each group over all of its labels, nan where all are 0, and what it weighs."""
    label_T = _sums(of.label_N, of.tie_T)
    within_T = np.clip(k - of.start_T, 0, of.samples_T) / of.samples_T
    return _ratio(_sums(label_T * within_T, of.first_tie_G), _sums(label_T, of.first_tie_G)), _mean_weight(of)


def mrr(of: Grouped) -> tuple[Doubles, Doubles]:
    """1 over the place of the first sample of each group with a label above 0, nan where none has; and what it weighs.

    In a tie of n samples, m of them such, at places s + 1 to s + n, the first one is the j-th with the probability
    m / (n - j + 1) times that none of the j - 1 before is one.
    """
    hits_T = _sums((of.label_N > 0.0).astype(np.float64), of.tie_T)
    value_G = np.full(len(of.group_G), np.nan)
    if not np.any(hits_T):
        return value_G, _mean_weight(of)
    with_hit_X = np.flatnonzero(hits_T)
    group_X = np.searchsorted(of.first_tie_G, with_hit_X, side="right") - 1
    first_X = with_hit_X[starts_of(group_X[1:] != group_X[:-1])]  # of each group that has one
    group_X = group_X[starts_of(group_X[1:] != group_X[:-1])]
    m_X, n_X, start_X = hits_T[first_X], of.samples_T[first_X], of.start_T[first_X]
    for chosen, width in _alike(n_X):
        m, n, start = (of_X[chosen, None].astype(np.float64) for of_X in (m_X, n_X, start_X))
        before = np.arange(width, dtype=np.float64)  # j - 1
        left = np.maximum(n - before, 1.0)
        none_yet = np.cumprod(np.maximum(1.0 - m / left, 0.0), axis=1)
        none_before = np.concatenate([np.ones((len(m), 1)), none_yet[:, :-1]], axis=1)
        value_G[group_X[chosen]] = np.where(before < n, none_before * m / left / (start + before + 1.0), 0.0).sum(
            axis=1
        )
    return value_G, _mean_weight(of)


def over_groups(
    of: Grouped, found: tuple[Doubles, Doubles], comm: Reductions | None
) -> tuple[float | None, float | None]:
    """Mean of the groups of all ranks that have a value, and the share of the weight of those that have none.

    None where none has one; collective.
    """
    value_G, weight_G = found
    defined_G = ~np.isnan(value_G)
    products_G = np.where(defined_G, value_G, 0.0) * weight_G
    sums = total_by_bucket(np.stack([products_G, weight_G * defined_G, weight_G], axis=1), of.bucket_G, comm)
    value, defined, weight = (float(one) for one in sums)
    return (value / defined if defined > 0.0 else None), ((weight - defined) / weight if weight > 0.0 else None)


def _pack(number_N: Ints, score_N: Doubles, label_N: Doubles, weight_N: Doubles) -> UInts | None:
    """Number of the group, score and label in 64 bits, which sort as samples have to: in a fifth of the time.

    From the top: 31 bits of the number, 32 of the score, of which a float32 has all and the highest come first, and
    one of the label. None where a weight is not 1, a label not 0 or 1, or something does not fit.
    """
    short_N = score_N.astype(np.float32) + np.float32(0.0)  # no -0.0, which has other bits than 0.0
    if np.any(short_N != score_N) or np.any(weight_N != 1.0) or np.any((label_N != 0.0) & (label_N != 1.0)):
        return None
    if len(number_N) and number_N[-1] >> 31:
        return None
    bits_N = short_N.view(np.uint32)
    falling_N = np.where(bits_N >> np.uint32(31), bits_N, ~(bits_N | _SIGN))
    packed_N: UInts = number_N.astype(np.uint64) << np.uint64(33)
    packed_N |= falling_N.astype(np.uint64) << np.uint64(1)
    packed_N |= label_N.astype(np.uint64)
    return packed_N


def _unpack(packed_N: UInts) -> tuple[Doubles, Doubles]:
    """Scores and labels of ``_pack``."""
    falling_N = (packed_N >> np.uint64(1)).astype(np.uint32)
    bits_N = np.where(falling_N >> np.uint32(31), falling_N, ~falling_N & ~_SIGN)
    return bits_N.view(np.float32).astype(np.float64), (packed_N & np.uint64(1)).astype(np.float64)


def _mean_weight(of: Grouped) -> Doubles:
    return of.weight_G / of.samples_G


def _sums(values_N: Doubles, starts: Ints) -> Doubles:
    """Sums of consecutive pieces that begin at ``starts``."""
    return np.add.reduceat(values_N, starts) if len(starts) else np.zeros(0)


def _ratio(above: Doubles, below: Doubles) -> Doubles:
    """Quotients; nan where ``below`` is 0."""
    return np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0.0)


def _running(values_T: Doubles, first_G: Ints) -> Doubles:
    """Sum of each group's values up to and with each; ``first_G``: where groups begin.

    One sum over all, less what came before the group, would lose digits with every group.
    """
    counts_G = np.diff(np.append(first_G, len(values_T)))
    out = np.empty(len(values_T))
    for chosen, width in _alike(counts_G):
        places = first_G[chosen, None] + np.arange(width)
        inside = np.arange(width) < counts_G[chosen, None]
        padded = np.where(inside, values_T[np.minimum(places, len(values_T) - 1)], 0.0)
        out[places[inside]] = np.cumsum(padded, axis=1)[inside]
    return out


def _alike(counts: Ints) -> list[tuple[NDArray[np.int64], int]]:
    """Which of rows of such lengths are worked on together, made as long as the longest may be: a power of two.

    Rows of a length get the same width whatever else there is, so that sums over them have one order.
    """
    found: list[tuple[NDArray[np.int64], int]] = []
    width = 1
    while width < 2 * counts.max(initial=0):
        chosen = np.flatnonzero((counts <= width) & (counts > width // 2))
        most = max(1, _AT_ONCE // width)
        found += [(chosen[at : at + most], width) for at in range(0, len(chosen), most)]
        width *= 2
    return found
