"""The auction that makes parts of a batch: sizes are kept, sums are high, and equal numbers give equal parts."""

import itertools

import numpy as np
import pytest

from hpcrec.data.auction import assign


@pytest.mark.parametrize("sizes", [[17], [17, 17], [17, 16, 16], [0, 9, 0, 4], [5, 0, 0], [0, 0, 0], [8] * 8])
def test_parts_have_their_sizes_whatever_the_scores(sizes: list[int]) -> None:
    n, parts = sum(sizes), len(sizes)
    rng = np.random.default_rng(n)
    for scores in (
        np.zeros((n, parts), np.int64),
        rng.integers(-(1 << 30), 1 << 30, (n, parts)),
        np.eye(parts, dtype=np.int64)[np.zeros(n, int)],  # all want the first
        rng.integers(0, 3, (n, parts)),
    ):
        before = scores.copy()
        found = assign(scores, np.array(sizes))
        assert np.bincount(found, minlength=parts).tolist() == sizes
        assert np.array_equal(scores, before), "what it is given is not changed"
        assert np.array_equal(found, assign(scores, np.array(sizes)))


def test_few_samples_are_dealt_almost_as_well_as_can_be() -> None:
    rng = np.random.default_rng(1)
    found, best = 0, 0
    for sizes in ([5, 5], [3, 7]):
        for _ in range(30):
            scores = rng.integers(0, 2000, (10, 2))
            found += scores[np.arange(10), assign(scores, np.array(sizes))].sum()
            chosen = (set(of) for of in itertools.combinations(range(10), sizes[0]))
            best += max(sum(scores[n, int(n not in first)] for n in range(10)) for first in chosen)
    assert 0.99 * best <= found <= best


def test_a_sample_that_loses_most_elsewhere_goes_first() -> None:
    scores = np.array([[9, 8], [9, 1], [9, 5], [0, 0]])
    assert assign(scores, np.array([2, 2])).tolist() == [1, 0, 0, 1]
    assert assign(scores, np.array([1, 3])).tolist() == [1, 0, 1, 1]


def test_numbers_of_the_largest_batches_do_not_pass_64_bits() -> None:
    """As the docstring allows: the sum of all magnitudes is just below 2^58."""
    one = np.array([[(1 << 57) - 1, 0], [0, (1 << 57) - 1]])
    assert assign(one, np.array([1, 1])).tolist() == [0, 1]
    assert assign(-one, np.array([1, 1])).tolist() == [1, 0]
