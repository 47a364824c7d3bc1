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
_SOLVE_S = 5.0  # of a program; those of a hundred families and towers that can be had take some hundredths


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
    bound_L, reason = _even(share_FL, n_towers, most_uneven)
    points_FK = points_by_stress(distance_FF, min(n - 1, max(2, n_towers - 1)) if n > 1 else 1)
    rng, best = np.random.default_rng(seed), None
    for _ in range(starts):
        found = _clustered(points_FK, share_FL, bound_L, n_towers, rng)
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


def _even(share_FL: NDArray[np.float64], n_towers: int, most_uneven: float) -> tuple[NDArray[np.float64], str]:
    """How far each load may be from an even share [L]: as asked for, or as little as can be had; and why.

    What cannot be had of one load does not loosen the others: numbers of features come first, then bytes, then lookups.
    """
    bound_L, reasons = np.full(len(LOADS), most_uneven), []
    if _solved(share_FL, n_towers, bound_L) is not None:
        return bound_L, ""
    bound_L[:] = np.inf
    for load, name in enumerate(LOADS):
        bound_L[load] = most_uneven
        if _solved(share_FL, n_towers, bound_L) is None:
            bound_L[load] = _least(share_FL, n_towers, bound_L, load)
            heavy = share_FL[:, load].max()
            reasons.append(
                f"{name} are even to {100 * bound_L[load]:.0f} % at best"
                + (f" (one family has {heavy:.2f} of an even share)" if heavy > 1 + most_uneven else "")
            )
    return bound_L, "; ".join(reasons)


def _least(share_FL: NDArray[np.float64], n_towers: int, bound_L: NDArray[np.float64], load: int) -> float:
    """The least unevenness of a load, the others within their bounds; to a hundredth, by bisection."""
    low, high = 0.0, float(max(n_towers, share_FL[:, load].max()))
    while high - low > 0.01:
        middle = (low + high) / 2
        tried = bound_L.copy()
        tried[load] = middle
        low, high = (middle, high) if _solved(share_FL, n_towers, tried) is None else (low, middle)
    return high


def _in_one_tower(n: int, n_towers: int) -> NDArray[np.float64]:
    """Rows of constraints: of each family, its places in towers, as ``_assigned`` lays them out."""
    rows: NDArray[np.float64] = np.kron(np.eye(n), np.ones(n_towers)).astype(np.float64)
    return rows


def _solved(
    share_FL: NDArray[np.float64],
    n_towers: int,
    bound_L: NDArray[np.float64],
    cost_FT: NDArray[np.float64] | None = None,
) -> NDArray[np.int64] | None:
    """The cheapest towers within bounds, none of them empty; without costs any. None where none was found in time."""
    n = len(share_FL)
    each = _in_one_tower(n, n_towers)
    filled = np.kron(np.ones(n), np.eye(n_towers))
    constraints = [LinearConstraint(each, 1, 1), LinearConstraint(filled, 1, np.inf)]
    for load in np.flatnonzero(np.isfinite(bound_L)).tolist():
        rows = np.kron(share_FL[:, load], np.eye(n_towers))
        constraints.append(LinearConstraint(rows, 1 - bound_L[load] - 1e-6, 1 + bound_L[load] + 1e-6))
    upper = np.ones((n, n_towers))
    if cost_FT is None:  # towers are alike then: family f is in one of the first f + 1
        upper = np.tril(upper)
    found = milp(
        np.zeros(n * n_towers) if cost_FT is None else cost_FT.ravel(),
        constraints=constraints,
        integrality=np.ones(n * n_towers),
        bounds=Bounds(0, upper.ravel()),
        options={"time_limit": _SOLVE_S, "mip_rel_gap": 1e-4},
    )
    return None if found.x is None else np.asarray(found.x).reshape(n, n_towers).argmax(1)


def _clustered(
    points_FK: NDArray[np.float64],
    share_FL: NDArray[np.float64],
    bound_L: NDArray[np.float64],
    n_towers: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], float]:
    """One start of k-means: towers, and the sum of squared distances to their middles."""
    middles_TK, tower_of = points_FK[_far_apart(points_FK, n_towers, rng)], None
    for _ in range(_ROUNDS):
        cost_FT = np.square(points_FK[:, None] - middles_TK[None]).sum(2)
        found = _solved(share_FL, n_towers, bound_L, cost_FT)
        if found is None or (tower_of is not None and np.array_equal(found, tower_of)):
            break  # not in time: the towers of the round before
        tower_of = found
        middles_TK = _middles(points_FK, tower_of, n_towers)
    if tower_of is None:
        tower_of = _solved(share_FL, n_towers, bound_L)
        assert tower_of is not None, "there are towers within these bounds"
    return tower_of, float(np.square(points_FK - _middles(points_FK, tower_of, n_towers)[tower_of]).sum())


def _middles(points_FK: NDArray[np.float64], tower_of: NDArray[np.int64], n_towers: int) -> NDArray[np.float64]:
    """Of the points of each tower."""
    return np.stack([points_FK[tower_of == tower].mean(0) for tower in range(n_towers)])


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
