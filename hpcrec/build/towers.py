"""Finds the towers of a data set by a short flat run: signals of pairs of features, then towers of families.

The run is a DLRM on the configuration's data, ranks and optimizers. All ranks compute the same towers. Knows sessions
and ``plan.towers``; writes no files.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpcrec.build.session import open_session
from hpcrec.build.tables import make_model
from hpcrec.config import Config
from hpcrec.config.keys import ModelConfig, StoreConfig
from hpcrec.embedding.place import row_elements
from hpcrec.errors import ConfigError, HpcrecError
from hpcrec.plan.towers import FamilyLoad, FoundTowers, find_towers
from hpcrec.training.pair_signals import PairSignals, signals_of
from hpcrec.training.ranks import on_root
from hpcrec.training.session import Session

Signal = Literal["interactions", "coherent", "diverse"]
SIGNALS: tuple[Signal, ...] = ("interactions", "coherent", "diverse")
_FREE_STARTS = 5  # of towers that are only looked at


@dataclass(frozen=True)
class Inside:
    """What is inside towers, of all pairs of features.

    Attributes
    ----------
    signal : float
        Share of their signal; 0 where they have none.
    pairs : float
        Share of the pairs: the share of the signal that any towers of these sizes have in the mean.
    """

    signal: float
    pairs: float


@dataclass(frozen=True, kw_only=True)
class PlannedTowers:
    """What was found.

    Attributes
    ----------
    features : tuple of str
        F of them, in the order of the matrices.
    strength_FF, cosine_FF : float64 [F, F]
        ``training.pair_signals``.
    near_FF : float64 [F, F]
        The signal that towers were found by: the larger, the nearer.
    towers : list of list of str
    found : FoundTowers
    inside, inside_any : Inside
        What is inside these towers; and inside towers whose loads may be any.
    steps : int
        Of the short run.
    """

    features: tuple[str, ...]
    strength_FF: NDArray[np.float64]
    cosine_FF: NDArray[np.float64]
    near_FF: NDArray[np.float64]
    towers: list[list[str]]
    found: FoundTowers
    inside: Inside
    inside_any: Inside
    steps: int


def plan_towers(
    config: Config,
    n_towers: int,
    *,
    steps: int = 700,
    batches: int = 50,
    signal: Signal = "interactions",
    most_uneven: float = 0.15,
    seed: int = 0,
) -> PlannedTowers:
    """Trains for so many steps, looks at the last ``batches`` of them, and finds towers; collective.

    Parameters
    ----------
    config : Config
        Of which the model is replaced by a DLRM of the same width and pooling, the store by memory; nothing is saved.
    n_towers : int
    signal : str
        ``interactions``: features that move the logit together are near each other. ``coherent``: those whose vectors
        are alike, ``diverse``: those whose vectors are not [DMT].
    most_uneven, seed
        As of ``plan.towers.find_towers``.

    Raises
    ------
    ConfigError
        There are fewer families of tables than towers, or more than one group of dense ranks.
    HpcrecError
        A signal ended the short run.
    """
    if signal not in SIGNALS:
        raise ConfigError(f"towers: the signal is {signal!r}; allowed are {', '.join(SIGNALS)}.")
    if config.dense.codistillation.groups > 1:
        raise ConfigError("towers: groups of codistillation train models of their own. Plan with groups = 1.")
    flat = _flat(config, steps)
    with open_session(flat) as session:
        _, operators = make_model(flat, session.parts.splits["train"].dataset)
        features = tuple(lookup.feature for lookup in operators["block"].lookups)
        sums = _watched(session, len(features), batches)
        families, main, done = _families(session), session.parts.world.main, session.step
        if session.stopped or not sums[0]:
            what = f"it was stopped after {done} of {steps} steps" if session.stopped else "no sample was looked at"
            raise HpcrecError(f"towers: {what}, so that nothing is known of pairs of features.")
        strength_FF, cosine_FF = signals_of(sums)
        near_FF = {"interactions": strength_FF, "coherent": cosine_FF, "diverse": 1 - cosine_FF}[signal]
        distance_FF = _between(near_FF, features, families)
        # on one rank, for a solver's time is not the same everywhere
        found, free = on_root(
            main,
            lambda: [
                find_towers(distance_FF, families, n_towers, most_uneven=most_uneven, seed=seed),
                find_towers(distance_FF, families, n_towers, most_uneven=math.inf, starts=_FREE_STARTS, seed=seed),
            ],
        )
    return PlannedTowers(
        features=features,
        strength_FF=strength_FF,
        cosine_FF=cosine_FF,
        near_FF=near_FF,
        towers=found.features(families),
        found=found,
        inside=_inside(near_FF, features, found.features(families)),
        inside_any=_inside(near_FF, features, free.features(families)),
        steps=steps,
    )


def _flat(config: Config, steps: int) -> Config:
    """The short run: rows in memory, nothing of an earlier run, and no table settings that a DLRM does not read."""
    read = {name: of for name, of in config.embedding.tables.items() if not name.endswith(".wide")}
    path = "levels" if config.exchange.path == "auto" else config.exchange.path  # which an earlier run may have chosen
    return replace(
        config,
        model=ModelConfig(name="dlrm", width=config.model.width, pooling=config.model.pooling),
        train=replace(config.train, steps=steps),
        store=StoreConfig(),
        checkpoint=replace(config.checkpoint, resume="never"),
        embedding=replace(config.embedding, tables=read),
        exchange=replace(config.exchange, path=path),
    )


def _watched(session: Session, n_features: int, batches: int) -> NDArray[np.float64]:
    """Trains to the end; sums over the last batches of all dense ranks."""
    signals = None if session.model is None else PairSignals(session.model, n_features)
    mine = np.zeros(1 + 2 * n_features**2)
    for step in session.steps():
        if signals is not None and step.number >= session.total_steps - batches:
            with signals.watching():
                step.run()
        else:
            step.run()
    if signals is not None:
        mine = signals.sums
    return session.parts.world.main.allreduce(mine)


def _families(session: Session) -> list[FamilyLoad]:
    """In the order of their first feature."""
    layout, tables = session.parts.exchange.layout, session.parts.tables
    dataset, found = session.parts.splits["train"].dataset, {}
    for family in layout.family_of.values():
        elements = family.rows * sum(row_elements(tables[t]) for t in family.tables)
        n_bytes = float(elements * session.parts.exchange.dtype.itemsize)
        lookups = float(sum(dataset.feature(f).mean_ids for f in family.features))
        found[family.name] = FamilyLoad(features=family.features, n_bytes=n_bytes, lookups=lookups)
    return list(found.values())


def _between(
    near_FF: NDArray[np.float64], features: tuple[str, ...], families: list[FamilyLoad]
) -> NDArray[np.float64]:
    """Distances of families, from 0 to 1: the mean over pairs of their features, the nearest pair of all at 0."""
    at = {name: f for f, name in enumerate(features)}
    places = [[at[name] for name in family.features] for family in families]
    near = np.array([[near_FF[np.ix_(a, b)].mean() for b in places] for a in places])
    off = ~np.eye(len(families), dtype=bool)
    most = near[off].max() if off.any() else 1.0
    distance = 1 - near / (most if most > 0 else 1.0)
    np.fill_diagonal(distance, 0)
    return np.maximum((distance + distance.T) / 2, 0)


def _inside(near_FF: NDArray[np.float64], features: tuple[str, ...], towers: list[list[str]]) -> Inside:
    """Of these towers; of one feature, or without a signal, nothing."""
    tower_of = {name: number for number, tower in enumerate(towers) for name in tower}
    number_F = np.array([tower_of[name] for name in features])
    pair_FF = ~np.eye(len(features), dtype=bool)
    inside_FF = pair_FF & (number_F[:, None] == number_F)
    every, n_pairs = float(near_FF[pair_FF].sum()), int(pair_FF.sum())
    return Inside(float(near_FF[inside_FF].sum()) / every if every > 0 else 0.0, inside_FF.sum() / max(1, n_pairs))
