"""Synthetic clicks with a planted truth: power-law ids, and labels drawn from known probabilities.

The truth (`Teacher`) is a logit: main effects of ids, low-rank interactions between pairs of features, and terms in
the dense inputs. Features interact through latent vectors with zero mean, so a linear model sees nothing of them; rare
ids have small vectors, so that what a million samples cannot teach does not matter much. Since the probabilities are
known, so is the best AUC that any model can expect on a file's labels: `auc` of the probabilities.

Everything is a function of (spec, seed, block): blocks may be made in any order, and the first N samples do not depend
on how many are asked for. Knows nothing of files: `prepare_synthetic` writes them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcrec.data.gather import ends
from hpcrec.data.layout import Column, Columns
from hpcrec.types import Feature, Floats, Ints

BLOCK_SAMPLES = 1 << 16
_TRUTH, _PILOT, _SAMPLES = 1, 2, 3  # random streams under a seed


@dataclass(frozen=True, kw_only=True)
class SyntheticFeature:
    """A categorical input to generate.

    Attributes
    ----------
    name : str
    cardinality : int
    exponent : float
        The r-th most frequent id has probability proportional to ``(r + 5) ** -exponent``. Which id that is, is random.
    mean_ids : float
        Above 1: multi-hot, with a Poisson number of ids (none is possible).
    """

    name: str
    cardinality: int
    exponent: float = 1.2
    mean_ids: float = 1.0

    @property
    def jagged(self) -> bool:
        """Whether samples have any number of ids."""
        return self.mean_ids > 1.0


def _default_features() -> tuple[SyntheticFeature, ...]:
    return (
        SyntheticFeature(name="user", cardinality=100_000, exponent=2.0),
        SyntheticFeature(name="item", cardinality=50_000, exponent=2.0),
        SyntheticFeature(name="site", cardinality=20_000, exponent=2.0),
        SyntheticFeature(name="campaign", cardinality=5_000, exponent=1.7),
        SyntheticFeature(name="city", cardinality=2_000, exponent=1.7),
        SyntheticFeature(name="category", cardinality=500, exponent=1.5),
        SyntheticFeature(name="device", cardinality=200, exponent=1.3),
        SyntheticFeature(name="hour", cardinality=50, exponent=0.5),
        SyntheticFeature(name="history", cardinality=20_000, exponent=2.0, mean_ids=5.0),
        SyntheticFeature(name="tags", cardinality=1_000, exponent=1.7, mean_ids=3.0),
    )


def _default_pairs() -> tuple[tuple[str, str], ...]:
    return (("campaign", "city"), ("category", "device"), ("device", "hour"), ("tags", "device"), ("item", "category"))


@dataclass(frozen=True, kw_only=True)
class SyntheticSpec:
    """What to generate. The defaults are the data set of `hpcrec prepare synthetic`.

    Attributes
    ----------
    features : tuple of SyntheticFeature
    pairs : tuple of (str, str)
        Features that interact.
    pair_weights : tuple of float
        What each pair's product is multiplied by; empty: by one.
    groups : tuple of tuple of str
        Features of each planted group, where there are any (``groups``).
    n_dense : int
        Standard normal inputs.
    rank : int
        Length of the latent vectors.
    main_std, pair_std, dense_std : float
        Standard deviation of the logit's three terms over samples.
    bias : float
    rare_count : float
        An id expected this often in a million samples has half the size of a frequent id's vector and effect.
    """

    features: tuple[SyntheticFeature, ...] = _default_features()
    pairs: tuple[tuple[str, str], ...] = _default_pairs()
    pair_weights: tuple[float, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    n_dense: int = 8
    rank: int = 1
    main_std: float = 1.2
    pair_std: float = 1.2
    dense_std: float = 0.5
    bias: float = -1.3
    rare_count: float = 5000.0


@dataclass(frozen=True)
class _Truth:
    """One feature's truth: id of each frequency rank, cumulated probability, effect and vector of each id."""

    id_of_rank: Ints
    cumulated: NDArray[np.float64]
    effect: Floats
    vector: Floats


class Teacher:
    """The planted truth of one seed, and the samples drawn from it.

    Parameters
    ----------
    spec : SyntheticSpec
    seed : int
    """

    def __init__(self, spec: SyntheticSpec, seed: int = 0) -> None:
        self.spec, self.seed = spec, seed
        self._truths = [self._draw_truth(number, feature) for number, feature in enumerate(spec.features)]
        self._number = {feature.name: number for number, feature in enumerate(spec.features)}
        rng = self._rng(_TRUTH, len(spec.features))
        self._slopes = rng.standard_normal(spec.n_dense).astype(np.float32)
        self._scales = (1.0, 1.0, 1.0)
        self._scales = self._measure_scales()

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features as a data set describes them."""
        return tuple(Feature(name=f.name, cardinality=f.cardinality, mean_ids=f.mean_ids) for f in self.spec.features)

    def block(self, number: int, n: int = BLOCK_SAMPLES) -> tuple[Columns, NDArray[np.float64]]:
        """The first `n` samples of block `number`, and the probability of each one's label being 1; float64 [n]."""
        return self._draw(self._rng(_SAMPLES, number), n)

    def _rng(self, stream: int, number: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, stream, number])))

    def _draw_truth(self, number: int, feature: SyntheticFeature) -> _Truth:
        rng, n = self._rng(_TRUTH, number), feature.cardinality
        frequency = (np.arange(n) + 5.0) ** -feature.exponent
        frequency /= frequency.sum()
        id_of_rank = rng.permutation(n)
        count = 1e6 * frequency * feature.mean_ids
        size = np.empty(n, dtype=np.float32)
        size[id_of_rank] = count / (count + self.spec.rare_count)
        vector = rng.standard_normal((n, self.spec.rank)).astype(np.float32) * size[:, None]
        effect = rng.standard_normal(n).astype(np.float32) * size
        weight = np.empty(n)
        weight[id_of_rank] = frequency
        # Zero mean over samples, so that one feature's vector tells nothing without the other's.
        vector -= (weight @ vector).astype(np.float32)
        vector /= np.sqrt((weight @ np.square(vector)).sum() * feature.mean_ids)
        effect -= np.float32(weight @ effect)
        effect /= np.sqrt((weight @ np.square(effect)) * feature.mean_ids)
        return _Truth(id_of_rank, np.cumsum(frequency), effect, vector)

    def _measure_scales(self) -> tuple[float, float, float]:
        columns, _ = self._draw(self._rng(_PILOT, 0), BLOCK_SAMPLES)
        wanted = (self.spec.main_std, self.spec.pair_std, self.spec.dense_std)
        found = (float(term.std()) or 1.0 for term in self._terms(columns.sparse, columns.dense))
        main, pair, dense = (want / have for want, have in zip(wanted, found, strict=True))
        return main, pair, dense

    def _draw(self, rng: np.random.Generator, n: int) -> tuple[Columns, NDArray[np.float64]]:
        total = BLOCK_SAMPLES  # draw whole blocks, so that the first samples do not depend on n
        sparse = {
            feature.name: self._draw_ids(rng, feature, truth, total)
            for feature, truth in zip(self.spec.features, self._truths, strict=True)
        }
        dense = rng.standard_normal((total, self.spec.n_dense), dtype=np.float32)
        chance = rng.random(total)
        terms = self._terms(sparse, dense)
        logit = self.spec.bias + sum(scale * term for scale, term in zip(self._scales, terms, strict=True))
        probability = 1.0 / (1.0 + np.exp(-logit))
        label = (chance < probability).astype(np.float32)
        return Columns(label[:n], dense[:n], {name: _head(c, n) for name, c in sparse.items()}), probability[:n]

    def _draw_ids(self, rng: np.random.Generator, feature: SyntheticFeature, truth: _Truth, n: int) -> Column:
        offsets = ends(rng.poisson(feature.mean_ids, n)) if feature.jagged else None
        k = n if offsets is None else int(offsets[-1])
        rank = np.searchsorted(truth.cumulated, rng.random(k), side="right")
        return Column(truth.id_of_rank[np.minimum(rank, feature.cardinality - 1)], offsets)

    def _terms(
        self, sparse: dict[str, Column], dense: Floats
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Main effects, interactions and dense terms of the logit, unscaled; float64 [n] each."""
        main = np.zeros(len(dense))
        vectors = []
        for feature, truth in zip(self.spec.features, self._truths, strict=True):
            column = sparse[feature.name]
            main += _pool(truth.effect, column)
            vectors.append(_pool(truth.vector, column))
        pair = np.zeros(len(dense))
        weights = self.spec.pair_weights or (1.0,) * len(self.spec.pairs)
        for (one, other), weight in zip(self.spec.pairs, weights, strict=True):
            pair += weight * np.einsum("ij,ij->i", vectors[self._number[one]], vectors[self._number[other]])
        curved = np.abs(dense[:, 0]) if self.spec.n_dense else 0.0
        return main, pair, (dense @ self._slopes + curved).astype(np.float64)


def auc(label: Floats, score: Floats) -> float:
    """Area under the ROC curve: the chance that a positive outscores a negative, ties counting half (mid-rank).

    nan where there is only one class.
    """
    _, group, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[group]
    positives = float(np.count_nonzero(label))
    negatives = len(label) - positives
    if not positives or not negatives:
        return float("nan")
    return float((rank[np.asarray(label) > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _head(column: Column, n: int) -> Column:
    if column.offsets is None:
        return Column(column.ids[:n])
    return Column(column.ids[: column.offsets[n]], column.offsets[: n + 1])


def _pool(table: Floats, column: Column) -> Floats:
    """Sum of a table's entries over each bag; [n] or [n, rank]."""
    entries = table[column.ids]
    if column.offsets is None:
        return entries
    padded = np.concatenate([entries, np.zeros_like(entries[:1])])  # an offset may equal the number of ids
    sums = np.add.reduceat(padded, column.offsets[:-1], axis=0)
    sums[np.diff(column.offsets) == 0] = 0
    return sums
