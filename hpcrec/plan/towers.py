"""Finds towers: families of tables that belong together, by how alike or how entangled their features are [DMT].

Distances between families become points by stress (metric multidimensional scaling), points become clusters by k-means
whose assignment is a small integer program, so that the number of features, the bytes and the lookups of every tower
stay near their even share. The unit is a family: tables that share features cannot be in two towers. Knows matrices and
sizes; knows no model and no ranks.

Legend: ``F`` families, ``T`` towers, ``K`` coordinates, ``L`` loads that are bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]

from hpcrec.errors import ConfigError

LOADS = ("features", "bytes", "lookups")
_ROUNDS, _STRESS_ROUNDS = 50, 300


@dataclass(frozen=True, kw_only=True)
class FamilyLoad:
    """What is placed together, and what it weighs.

    Attributes
    ----------
    features : tuple of str
    n_bytes, lookups : float
        Of rows and optimizer state; ids a sample.
    """

    features: tuple[str, ...]
    n_bytes: float
    lookups: float


@dataclass(frozen=True, kw_only=True)
class FoundTowers:
    """Towers, and how even they are.

    Attributes
    ----------
    tower_of : int64 [F]
        Of each family, numbered in the order of their first family.
    loads_TL : float64 [T, 3]
        Each tower's share of an even one, of features, bytes and lookups.
    spread : float
        Sum of squared distances of points to the middle of their tower.
    reason : str
        Why they are less even than was asked for; empty where they are not.
    """

    tower_of: NDArray[np.int64]
    loads_TL: NDArray[np.float64]
    spread: float
    reason: str

    def features(self, families: Sequence[FamilyLoad]) -> list[list[str]]:
        """Of each tower, as ``model.options.towers`` has them."""
        towers: list[list[str]] = [[] for _ in range(len(self.loads_TL))]
        for family, tower in zip(families, self.tower_of.tolist(), strict=True):
            towers[tower] += family.features
        return towers


def find_towers(
    distance_FF: NDArray[np.float64],
    families: Sequence[FamilyLoad],
    n_towers: int,
    *,
    most_uneven: float = 0.15,
    starts: int = 20,
    seed: int = 0,
) -> FoundTowers:
    """Towers of families that are near each other.

    Parameters
    ----------
    distance_FF : float64 [F, F]
        Symmetric, 0 on the diagonal.
    families : sequence of FamilyLoad
    n_towers : int
    most_uneven : float
        How far a tower's features, bytes and lookups may be from an even share, as a share of it. Where no towers are
        so even, those are taken that are as even as can be, and ``reason`` says so.
    starts, seed : int
        Starts of k-means, of which the best is taken, and of their random numbers. The same give the same towers.

    Raises
    ------
    ConfigError
        There are fewer families than towers.
    """
    n = len(families)
    if distance_FF.shape != (n, n) or not np.allclose(distance_FF, distance_FF.T) or (np.diag(distance_FF) != 0).any():
        raise ValueError(f"distances are {distance_FF.shape} of {n} families, symmetric with zeros on the diagonal")
    if not 1 <= n_towers <= n:
        raise ConfigError(
            f"towers: {n_towers} of them are asked for, of {n} families of tables; a tower has one at least."
        )
    share_FL = _shares(families, n_towers)
    bound, reason = _even(share_FL, n_towers, most_uneven)
    points_FK = points_by_stress(distance_FF, min(n - 1, max(2, n_towers - 1)) if n > 1 else 1)
    rng, best = np.random.default_rng(seed), None
    for _ in range(starts):
        found = _clustered(points_FK, share_FL, bound, n_towers, rng)
        if best is None or found[1] < best[1] - 1e-12:
            best = found
    assert best is not None
    tower_of = _numbered(best[0])
    loads_TL = np.stack([share_FL[tower_of == tower].sum(0) for tower in range(n_towers)])
    return FoundTowers(tower_of=tower_of, loads_TL=loads_TL, spread=best[1], reason=reason)


def points_by_stress(distance_FF: NDArray[np.float64], n_coordinates: int) -> NDArray[np.float64]:
    """Points [F, K] whose distances are near those given: least stress, by majorization from the classical solution."""
    n = len(distance_FF)
    centred = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-centred @ np.square(distance_FF) @ centred / 2)
    order = np.argsort(values)[::-1][:n_coordinates]
    points_FK = vectors[:, order] * np.sqrt(np.maximum(values[order], 0))
    before = np.inf
    for _ in range(_STRESS_ROUNDS):
        now_FF = np.linalg.norm(points_FK[:, None] - points_FK[None], axis=2)
        stress = float(np.square(now_FF - distance_FF).sum())
        if before - stress <= 1e-9 * max(stress, 1e-12):
            break
        ratio_FF = np.divide(distance_FF, now_FF, out=np.zeros_like(now_FF), where=now_FF > 1e-12)
        guttman_FF = -ratio_FF
        guttman_FF[np.diag_indices(n)] = ratio_FF.sum(1)
        points_FK, before = guttman_FF @ points_FK / n, stress
    return points_FK


def adjusted_rand(one: Sequence[int] | NDArray[np.int64], other: Sequence[int] | NDArray[np.int64]) -> float:
    """How alike two clusterings are: 1 where they are the same, 0 in the mean over random ones."""
    _, a = np.unique(np.asarray(one), return_inverse=True)
    _, b = np.unique(np.asarray(other), return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)

    def pairs(counts: NDArray[np.float64]) -> float:
        return float((counts * (counts - 1) / 2).sum())

    both, in_a, in_b, every = pairs(table), pairs(table.sum(1)), pairs(table.sum(0)), len(a) * (len(a) - 1) / 2
    by_chance, most = in_a * in_b / max(every, 1), (in_a + in_b) / 2
    return 1.0 if most == by_chance else (both - by_chance) / (most - by_chance)


def _shares(families: Sequence[FamilyLoad], n_towers: int) -> NDArray[np.float64]:
    """Of each family and load: its part of an even tower's, [F, 3]."""
    loads_FL = np.array([[len(f.features), f.n_bytes, f.lookups] for f in families], np.float64)
    return loads_FL * n_towers / np.maximum(loads_FL.sum(0), 1e-300)


def _even(share_FL: NDArray[np.float64], n_towers: int, most_uneven: float) -> tuple[float, str]:
    """How far loads may be from an even share: as asked for, or as little as can be had; and why it is more."""
    n, n_loads = share_FL.shape
    each, n_free = _in_one_tower(n, n_towers), n * n_towers
    loads = np.vstack([np.kron(share_FL[:, load], np.eye(n_towers)) for load in range(n_loads)])
    slack = np.ones((len(loads), 1))
    found = milp(
        np.r_[np.zeros(n_free), 1.0],  # the largest distance of a load from 1
        constraints=[
            LinearConstraint(np.hstack([each, np.zeros((n, 1))]), 1, 1),
            LinearConstraint(np.hstack([loads, -slack]), -np.inf, 1),
            LinearConstraint(np.hstack([loads, slack]), 1, np.inf),
        ],
        integrality=np.r_[np.ones(n_free), 0],
        bounds=Bounds(np.zeros(n_free + 1), np.r_[np.ones(n_free), np.inf]),
    )
    least = float(found.x[-1])
    if least <= most_uneven:
        return most_uneven, ""
    heavy = [f"one family has {share_FL[:, i].max():.2f} of an even tower's {name}" for i, name in enumerate(LOADS)
             if share_FL[:, i].max() > 1 + most_uneven]  # fmt: skip
    return least, f"no {n_towers} towers of these families are nearer to even than {100 * least:.0f} %" + (
        ": " + ", ".join(heavy) if heavy else ""
    )


def _in_one_tower(n: int, n_towers: int) -> NDArray[np.float64]:
    """Rows of constraints: of each family, its places in towers, as ``_assigned`` lays them out."""
    rows: NDArray[np.float64] = np.kron(np.eye(n), np.ones(n_towers)).astype(np.float64)
    return rows


def _assigned(cost_FT: NDArray[np.float64], share_FL: NDArray[np.float64], most_uneven: float) -> NDArray[np.int64]:
    """The cheapest assignment of families to towers that are so even."""
    n, n_towers = cost_FT.shape
    loads = np.vstack([np.kron(share_FL[:, load], np.eye(n_towers)) for load in range(share_FL.shape[1])])
    found = milp(
        cost_FT.ravel(),
        constraints=[
            LinearConstraint(_in_one_tower(n, n_towers), 1, 1),
            LinearConstraint(loads, 1 - most_uneven - 1e-6, 1 + most_uneven + 1e-6),
        ],
        integrality=np.ones(n * n_towers),
        bounds=Bounds(0, 1),
    )
    assert found.x is not None, "there are towers that are so even"
    tower_of: NDArray[np.int64] = np.asarray(found.x).reshape(n, n_towers).argmax(1)
    return tower_of


def _clustered(
    points_FK: NDArray[np.float64],
    share_FL: NDArray[np.float64],
    most_uneven: float,
    n_towers: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], float]:
    """One start of k-means: towers, and the sum of squared distances to their middles."""
    middles_TK = points_FK[_far_apart(points_FK, n_towers, rng)]
    tower_of = np.full(len(points_FK), -1)
    for _ in range(_ROUNDS):
        cost_FT = np.square(points_FK[:, None] - middles_TK[None]).sum(2)
        found = _assigned(cost_FT, share_FL, most_uneven)
        if np.array_equal(found, tower_of):
            break
        tower_of = found
        middles_TK = np.stack([points_FK[tower_of == tower].mean(0) for tower in range(n_towers)])
    return tower_of, float(np.square(points_FK - middles_TK[tower_of]).sum())


def _far_apart(points_FK: NDArray[np.float64], n: int, rng: np.random.Generator) -> list[int]:
    """Points to begin with: each drawn by its squared distance to those before (k-means++)."""
    chosen = [int(rng.integers(len(points_FK)))]
    while len(chosen) < n:
        nearest_F = np.square(points_FK[:, None] - points_FK[chosen][None]).sum(2).min(1)
        left = [f for f in range(len(points_FK)) if f not in chosen]
        weight = nearest_F[left]
        chance = weight / weight.sum() if weight.sum() > 0 else None
        chosen.append(int(rng.choice(left, p=chance)))
    return chosen


def _numbered(tower_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same towers, numbered in the order of their first family."""
    order = list(dict.fromkeys(tower_of.tolist()))
    return np.array([order.index(tower) for tower in tower_of.tolist()], np.int64)
