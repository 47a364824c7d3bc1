"""Every pair of values of two axes occurs, in few cases."""

import itertools

from tests.pairs import covering, in_step


def test_every_pair_occurs() -> None:
    axes = ("abc", (1, 2), (None, True), "xyzw")
    cases = covering(*map(tuple, axes))
    for i, j in itertools.combinations(range(len(axes)), 2):
        assert {(case[i], case[j]) for case in cases} == set(itertools.product(axes[i], axes[j]))
    assert 12 <= len(cases) < 3 * 2 * 2 * 4 / 2
    assert covering(("a", "b")) == []  # no pairs
    assert covering((1,), (2,)) == [(1, 2)]


def test_every_pair_that_is_allowed_occurs_in_what_is() -> None:
    axes = ((1, 2, 3), (1, 2, 3), "ab", "xy")

    def allowed(i: int, j: int, name: str, kind: str) -> bool:
        return i != j and (name == "a" or kind == "x")

    cases = covering(*map(tuple, axes), allowed=allowed)
    assert all(allowed(*case) for case in cases)
    assert {case[:2] for case in cases} == {(i, j) for i in (1, 2, 3) for j in (1, 2, 3) if i != j}
    assert {case[2:] for case in cases} == {("a", "x"), ("a", "y"), ("b", "x")}
    assert len(cases) <= 8


def test_cases_in_step_have_each_value_and_the_others_are_slow() -> None:
    cases = in_step("abc", (1, 2))
    assert [case.values for case in cases if not case.marks] == [("a", 1), ("b", 2), ("c", 1)]
    assert [case.values for case in cases if case.marks] == [("a", 2), ("b", 1), ("c", 2)]
