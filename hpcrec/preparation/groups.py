"""Synthetic clicks whose features interact in planted groups: what towers, and how they are found, are measured on.

Every pair of features has a weight of its own, sign included, so that no projection of a group's vectors carries what
crosses groups. Knows ``synthetic``; knows no models.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hpcrec.errors import ConfigError
from hpcrec.preparation.synthetic import SyntheticFeature, SyntheticSpec

_GROUPS = 4  # random stream under a seed, of those that ``synthetic`` has


@dataclass(frozen=True, kw_only=True)
class PlantedGroups:
    """Which groups are planted.

    Attributes
    ----------
    groups, size : int
        How many groups, and how many features each has.
    rank : int
        Length of the latent vectors.
    cross : float
        Share of the interactions' variance that is between features of different groups, from 0 to 1.
    cardinality : int
        Of each feature.
    mean_ids : float
        Of each feature; above 1 multi-hot.
    """

    groups: int = 4
    size: int = 4
    rank: int = 8
    cross: float = 0.05
    cardinality: int = 40
    mean_ids: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("groups", 1), ("size", 1), ("rank", 1), ("cardinality", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"planted groups: {name} is {getattr(self, name)}; it must be at least {least}.")
        if not 0 <= self.cross <= 1:
            raise ConfigError(f"planted groups: cross is {self.cross}; it must be a share, from 0 to 1.")
        if self.cross > 0 and self.groups == 1:
            raise ConfigError("planted groups: with one group nothing is across groups: cross has to be 0.")
        if self.cross < 1 and self.size == 1:
            raise ConfigError("planted groups: in groups of one feature nothing is within: cross has to be 1.")


def planted(how: PlantedGroups, seed: int = 0) -> SyntheticSpec:
    """Data of a seed: features ``f0``, ``f1``, ... in random groups, which ``SyntheticSpec.groups`` names."""
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _GROUPS])))
    n = how.groups * how.size
    names = [f"f{number}" for number in range(n)]
    group_of = np.empty(n, np.int64)
    group_of[rng.permutation(n)] = np.arange(n) // how.size
    pairs = list(combinations(range(n), 2))
    across_P = np.array([group_of[a] != group_of[b] for a, b in pairs], bool)
    weight_P = rng.uniform(0.5, 1.5, len(pairs)) * rng.choice([-1.0, 1.0], len(pairs))
    # products of different pairs are uncorrelated, and each has the same variance
    for some_P, share in ((across_P, how.cross), (~across_P, 1 - how.cross)):
        if some_P.any():
            weight_P[some_P] *= np.sqrt(share / np.square(weight_P[some_P]).sum())
    kept = [(names[a], names[b], weight) for (a, b), weight in zip(pairs, weight_P.tolist(), strict=True) if weight]
    features = (
        SyntheticFeature(name=name, cardinality=how.cardinality, exponent=0.5, mean_ids=how.mean_ids) for name in names
    )
    return SyntheticSpec(
        features=tuple(features),
        pairs=tuple((a, b) for a, b, _ in kept),
        pair_weights=tuple(weight for *_, weight in kept),
        groups=tuple(tuple(names[f] for f in np.flatnonzero(group_of == g)) for g in range(how.groups)),
        n_dense=4,
        rank=how.rank,
        main_std=0.6,
        pair_std=1.6,
        dense_std=0.5,
    )
