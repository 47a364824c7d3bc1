"""Lists of cases in which every pair of values occurs, where all combinations would be too many. Knows no test."""

import itertools
from typing import Any

import numpy as np


def covering(*axes: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Combinations in which every pair of values of two axes occurs; each is the first of those with most new pairs."""
    pairs = list(itertools.combinations(range(len(axes)), 2))
    missing = {(i, j): np.ones((len(axes[i]), len(axes[j])), dtype=np.int32) for i, j in pairs}
    everything = np.indices([len(axis) for axis in axes]).reshape(len(axes), -1)
    chosen = []
    while any(each.any() for each in missing.values()):
        new = sum(missing[i, j][everything[i], everything[j]] for i, j in pairs)
        best = everything[:, np.argmax(new)]
        for i, j in pairs:
            missing[i, j][best[i], best[j]] = 0
        chosen.append(tuple(axis[k] for axis, k in zip(axes, best, strict=True)))
    return chosen
