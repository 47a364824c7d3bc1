"""Lists of cases in which every pair of values occurs, where all combinations would be too many. Knows no test."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest


def in_step(*axes: Sequence[Any]) -> list[Any]:
    """All combinations, as cases: those that go along all axes in step are run by ``make test``, others by the soak.

    Shorter axes begin anew, so that each value is in one of these.
    """
    quick = {tuple(i % len(axis) for axis in axes) for i in range(max(map(len, axes)))}
    places = itertools.product(*(range(len(axis)) for axis in axes))
    marks = {True: (), False: (pytest.mark.slow,)}
    return [
        pytest.param(*(axis[i] for axis, i in zip(axes, at, strict=True)), marks=marks[at in quick]) for at in places
    ]


def covering(*axes: tuple[Any, ...], allowed: Callable[..., bool] | None = None) -> list[tuple[Any, ...]]:
    """Combinations in which every pair of values of two axes occurs; each is the first of those with most new pairs.

    ``allowed`` is given the values of a combination; pairs that are in none of those allowed are left out.
    """
    pairs = list(itertools.combinations(range(len(axes)), 2))
    everything = np.indices([len(axis) for axis in axes]).reshape(len(axes), -1)
    if allowed is not None:
        good = [allowed(*(axis[k] for axis, k in zip(axes, of, strict=True))) for of in everything.T.tolist()]
        everything = everything[:, good]
    missing = {(i, j): np.zeros((len(axes[i]), len(axes[j])), dtype=np.int32) for i, j in pairs}
    for i, j in pairs:
        missing[i, j][everything[i], everything[j]] = 1
    chosen = []
    while any(each.any() for each in missing.values()):
        new = sum(missing[i, j][everything[i], everything[j]] for i, j in pairs)
        best = everything[:, np.argmax(new)]
        for i, j in pairs:
            missing[i, j][best[i], best[j]] = 0
        chosen.append(tuple(axis[k] for axis, k in zip(axes, best, strict=True)))
    return chosen
