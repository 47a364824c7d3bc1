"""Finds columns that give the label away: what one column says alone of the labels of rows that it was not fitted on.

A column is fitted on one half of the sample and held to the other, both ways. Knows no tables. Shapes: N rows, D
distinct values, B bins.
"""

from dataclasses import dataclass

import numpy as np

from hpcrec.drafts.sample import Column
from hpcrec.preparation.numbering import Mask
from hpcrec.types import Floats, Ints

SUSPECT = 0.95  # AUC of one column alone above which it is taken to know the label
_FEWEST = 20  # rows of either label that a verdict takes
_BINS = 64
_PRIOR = 2.0  # rows that the mean counts for beside those of a value


@dataclass(frozen=True)
class Leak:
    """A column that gives the label away.

    Attributes
    ----------
    sentence : str
        What it does, as one would say it to a user.
    auc : float
        Of held-out rows, by this column alone.
    """

    sentence: str
    auc: float


def enough(labels_N: Mask) -> bool:
    """Whether there are enough rows of either label for a verdict."""
    return min(int(labels_N.sum()), int((~labels_N).sum())) >= _FEWEST


def look(column: Column, labels_N: Mask, numbers_D: Floats | None) -> Leak | None:
    """Whether a column gives the label away.

    Parameters
    ----------
    column : Column
    labels_N : bool
    numbers_D : float64 or None
        The column's values where they are numbers.
    """
    if not enough(labels_N):
        return None
    present_N = column.codes_N >= 0
    n, n_missing = len(labels_N), int((~present_N).sum())
    for label, word in ((1, "1"), (0, "0")):
        missing_label = ~labels_N if label else labels_N
        if n_missing and bool((present_N != missing_label).all()):
            return Leak(f"it is filled exactly where the label is {word}, and empty everywhere else", 1.0)
    halves_N = np.random.default_rng(0).permutation(n) % 2 == 0
    found = {"whether it is empty": _by_code(present_N.astype(np.int64), labels_N, halves_N)} if n_missing else {}
    found["its value"] = _by_code(column.codes_N, labels_N, halves_N)
    if numbers_D is not None and len(column.texts) > 2:
        found["how large it is"] = _by_code(_bins(column.codes_N, numbers_D), labels_N, halves_N)
    words, auc = max(found.items(), key=lambda item: item[1])
    if auc - 2 * _deviation(auc, labels_N) <= SUSPECT:
        return None
    return Leak(f"{words} alone ranks rows of the sample that it was not fitted on with an AUC of {auc:.3f}", auc)


def _by_code(codes_N: Ints, labels_N: Mask, halves_N: Mask) -> float:
    """AUC of the mean label of each value, of one half of the rows on the other; the mean of both ways."""
    codes_N = codes_N - codes_N.min()
    found = []
    for fitted_N in (halves_N, ~halves_N):
        mean = labels_N[fitted_N].mean()
        size = int(codes_N.max()) + 1
        seen = np.bincount(codes_N[fitted_N], minlength=size)
        positive = np.bincount(codes_N[fitted_N], weights=labels_N[fitted_N], minlength=size)
        score = (positive + _PRIOR * mean) / (seen + _PRIOR)
        found.append(auc(score[codes_N[~fitted_N]], labels_N[~fitted_N]))
    return float(np.mean(found))


def _bins(codes_N: Ints, numbers_D: Floats) -> Ints:
    """The bin of each row's number; those that are none are in one of their own."""
    numbers_N = np.where(codes_N < 0, np.nan, numbers_D[np.maximum(codes_N, 0)])
    known = np.isfinite(numbers_N)
    borders = np.unique(np.quantile(numbers_N[known], np.linspace(0, 1, _BINS + 1)[1:-1])) if known.any() else [0.0]
    return np.where(known, 1 + np.searchsorted(borders, np.where(known, numbers_N, 0.0), side="right"), 0)


def auc(score_N: Floats, labels_N: Mask) -> float:
    """The chance that a row of label 1 is scored above one of label 0, ties half; 0.5 where one of them has no row."""
    positive = int(labels_N.sum())
    negative = len(labels_N) - positive
    if not positive or not negative:
        return 0.5
    _, place_N, count = np.unique(score_N, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2
    return float((rank[place_N][labels_N].sum() - positive * (positive + 1) / 2) / (positive * negative))


def _deviation(found: float, labels_N: Mask) -> float:
    """Standard deviation of an AUC of so many rows, by Hanley and McNeil."""
    positive, negative = int(labels_N.sum()), int((~labels_N).sum())
    q1, q2 = found / (2 - found), 2 * found * found / (1 + found)
    variance = found * (1 - found) + (positive - 1) * (q1 - found**2) + (negative - 1) * (q2 - found**2)
    return float(np.sqrt(max(variance, 0.0) / (positive * negative)))
