"""Towers from distances: planted groups are found, bounds are kept, and what cannot be even says why."""

import itertools
import time

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from hpcrec.errors import ConfigError
from hpcrec.plan.towers import FamilyLoad, adjusted_rand, find_towers, points_by_stress


def families(sizes: list[int], n_bytes: list[float] | None = None, lookups: list[float] | None = None) -> list:
    names = itertools.count()
    n_bytes, lookups = n_bytes or [1.0] * len(sizes), lookups or [1.0] * len(sizes)
    return [
        FamilyLoad(features=tuple(f"f{next(names)}" for _ in range(size)), n_bytes=b, lookups=n)
        for size, b, n in zip(sizes, n_bytes, lookups, strict=True)
    ]


def planted(group_of: np.ndarray, near: float, far: float, noise: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    distance = np.where(group_of[:, None] == group_of[None], near, far) + noise * rng.random((len(group_of),) * 2)
    distance = (distance + distance.T) / 2
    np.fill_diagonal(distance, 0)
    return distance


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_found(seed: int) -> None:
    group_of = np.random.default_rng(seed).permutation(np.repeat(np.arange(4), 4))
    found = find_towers(planted(group_of, 0.5, 0.9, 0.2, seed), families([1] * 16), 4, seed=seed)
    assert adjusted_rand(found.tower_of, group_of) == 1.0
    assert (found.loads_TL == 1).all()
    towers = found.features(families([1] * 16))
    assert sorted(itertools.chain(*towers)) == sorted(f"f{n}" for n in range(16)) and towers[0][0] == "f0"


def test_the_same_seed_gives_the_same_towers() -> None:
    distance = planted(np.zeros(10, int), 0.2, 0.9, 0.8, 3)
    one, again = (find_towers(distance, families([1] * 10), 3, seed=5, starts=4) for _ in range(2))
    assert one.tower_of.tolist() == again.tower_of.tolist() and one.spread == again.spread
    assert one.tower_of[0] == 0 and sorted(np.bincount(one.tower_of)) == [3, 3, 4]


def test_bytes_and_lookups_are_bounded_as_well_as_numbers() -> None:
    """Two near families are too heavy for one tower, of bytes; two others are, of lookups."""
    distance = planted(np.array([0, 0, 1, 1, 2, 2]), 0.1, 0.9, 0.0, 0)
    loose = find_towers(distance, families([1] * 6), 3)
    assert loose.tower_of.tolist() == [0, 0, 1, 1, 2, 2]
    heavy = families([1] * 6, n_bytes=[5, 5, 1, 1, 5, 1], lookups=[1, 1, 4, 4, 1, 4])
    found = find_towers(distance, heavy, 3)
    assert found.tower_of[0] != found.tower_of[1] and found.tower_of[2] != found.tower_of[3]
    assert (np.abs(found.loads_TL - 1) <= 0.15 + 1e-6).all(), found.loads_TL


def test_by_brute_force_no_towers_are_nearer() -> None:
    rng = np.random.default_rng(8)
    distance, some = planted(np.zeros(7, int), 0.2, 0.9, 0.9, 8), families([2, 1, 1, 1, 2, 1, 1])
    points = points_by_stress(distance, 2)
    found = find_towers(distance, some, 3, most_uneven=0.4, starts=40, seed=int(rng.integers(9)))
    loads = np.array([[len(f.features), 1.0, 1.0] for f in some])
    loads *= 3 / loads.sum(0)
    best = np.inf
    for towers in itertools.product(range(3), repeat=7):
        of = np.array(towers)
        each = np.stack([loads[of == t].sum(0) for t in range(3)])
        if (np.abs(each - 1) <= 0.4 + 1e-9).all():
            middles = np.stack([points[of == t].mean(0) for t in range(3)])
            best = min(best, float(np.square(points - middles[of]).sum()))
    assert found.spread == pytest.approx(best, rel=1e-9)


def test_what_cannot_be_so_even_is_as_even_as_it_can_be_and_says_why() -> None:
    distance = planted(np.arange(4), 0, 1, 0.1, 0)
    heavy = find_towers(distance, families([1] * 4, [9, 1, 1, 1]), 2)
    assert heavy.reason.startswith("bytes are even to 67 %") and heavy.reason.endswith(
        "(one family has 1.50 of an even share)"
    )
    assert heavy.loads_TL[:, 1].max() == pytest.approx(5 / 3)
    assert (np.abs(heavy.loads_TL[:, [0, 2]] - 1) < 1e-9).all(), "which does not loosen the others"
    uneven = find_towers(distance, families([1] * 4, [4, 4, 4, 0.1]), 2)
    assert uneven.reason.startswith("bytes are even to 3") and uneven.loads_TL[:, 1].max() == pytest.approx(8 / 6.05)
    assert not find_towers(distance, families([1] * 4), 2).reason


def test_no_tower_is_empty_and_one_heavy_table_leaves_the_rest_even() -> None:
    few = find_towers(np.zeros((4, 4)), families([1] * 4, [9, 0.01, 0.01, 0.01]), 3)
    assert sorted(np.bincount(few.tower_of)) == [1, 1, 2]
    rng = np.random.default_rng(1)
    n_bytes = [float(x) for x in rng.pareto(0.6, 26) + 0.1]
    found = find_towers(planted(np.zeros(26, int), 0.2, 0.9, 0.8, 3), families([1] * 26, n_bytes), 8, starts=2)
    assert set(np.bincount(found.tower_of)) <= {2, 3, 4} and "bytes" in found.reason and "features" in found.reason


def test_as_many_families_as_criteo_has_columns() -> None:
    began_s = time.monotonic()
    found = find_towers(planted(np.repeat(np.arange(8), 5)[:39], 0.3, 0.9, 0.3, 5), families([1] * 39), 8, starts=3)
    assert time.monotonic() - began_s < 60
    assert sorted(np.bincount(found.tower_of)) == [4, *[5] * 7]


@pytest.mark.parametrize("n_towers", [0, 3])
def test_so_many_towers_cannot_be_had(n_towers: int) -> None:
    with pytest.raises(ConfigError, match=f"{n_towers} of them are asked for, of 2 families of tables"):
        find_towers(planted(np.arange(2), 0, 1, 0.1, 0), families([1, 1]), n_towers)


def test_points_have_the_distances_where_there_are_such_points() -> None:
    points = np.random.default_rng(2).random((9, 3))
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    found = points_by_stress(distance, 3)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found[None], axis=2), distance, rtol=0, atol=1e-6)
    few = points_by_stress(distance, 2)
    flat = np.linalg.norm(few[:, None] - few[None], axis=2)
    assert np.square(flat - distance).sum() < np.square(distance).sum() / 4


def test_adjusted_rand_is_scikit_learn_s() -> None:
    rng = np.random.default_rng(4)
    for n in (2, 5, 30):
        for _ in range(20):
            one, other = rng.integers(0, 4, n), rng.integers(0, 3, n)
            assert adjusted_rand(one, other) == pytest.approx(adjusted_rand_score(one, other), abs=1e-12)
