"""Every pair of values of two axes occurs, in few cases."""

import itertools

from tests.pairs import covering


def test_every_pair_occurs() -> None:
    axes = ("abc", (1, 2), (None, True), "xyzw")
    cases = covering(*map(tuple, axes))
    for i, j in itertools.combinations(range(len(axes)), 2):
        assert {(case[i], case[j]) for case in cases} == set(itertools.product(axes[i], axes[j]))
    assert 12 <= len(cases) < 3 * 2 * 2 * 4 / 2
    assert covering(("a", "b")) == []  # no pairs
    assert covering((1,), (2,)) == [(1, 2)]
