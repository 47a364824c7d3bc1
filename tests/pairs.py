"""Lists of cases in which every pair of values occurs, where all combinations would be too many. Knows no test."""

import itertools
from typing import Any


def covering(*axes: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Combinations in which every pair of values of two axes occurs."""
    chosen, missing = [], set()
    places = list(itertools.combinations(range(len(axes)), 2))
    for i, j in places:
        missing |= {(i, j, a, b) for a in range(len(axes[i])) for b in range(len(axes[j]))}
    everything = list(itertools.product(*(range(len(axis)) for axis in axes)))
    while missing:
        best = max(everything, key=lambda c: sum((i, j, c[i], c[j]) in missing for i, j in places))
        missing -= {(i, j, best[i], best[j]) for i, j in places}
        chosen.append(tuple(axis[k] for axis, k in zip(axes, best, strict=True)))
    return chosen
