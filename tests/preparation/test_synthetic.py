"""Synthetic clicks: deterministic by seed and block, with power-law ids and a known attainable AUC."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from hpcrec.errors import ConfigError
from hpcrec.preparation.convert import prepare_synthetic
from hpcrec.preparation.schema import Columns, DataSet
from hpcrec.preparation.synthetic import BLOCK_SAMPLES, SyntheticSpec, Teacher, auc

SAMPLES = 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic")
    prepare_synthetic(out, samples=SAMPLES, seed=5)
    return out


def same(one: Columns, other: Columns) -> bool:
    pairs = [(one.label, other.label), (one.dense, other.dense)]
    for name, column in one.sparse.items():
        pairs.append((column.ids, other.sparse[name].ids))
        if column.offsets is not None:
            pairs.append((column.offsets, other.sparse[name].offsets))
    return all(np.array_equal(a, b) for a, b in pairs)


def test_blocks_depend_on_seed_and_number_alone() -> None:
    one, other = Teacher(SyntheticSpec(), 1), Teacher(SyntheticSpec(), 1)
    other.block(0)
    columns, probability = one.block(3, 500)
    again, whole = other.block(3)
    assert np.array_equal(probability, whole[:500]) and len(whole) == BLOCK_SAMPLES
    assert same(columns, Columns(again.label[:500], again.dense[:500], columns.sparse))
    assert np.array_equal(
        columns.sparse["history"].ids, again.sparse["history"].ids[: len(columns.sparse["history"].ids)]
    )
    assert not same(columns, one.block(4, 500)[0]) and not same(columns, Teacher(SyntheticSpec(), 2).block(3, 500)[0])


def test_files_are_deterministic_and_start_alike(folder: Path, tmp_path: Path) -> None:
    prepare_synthetic(tmp_path, samples=SAMPLES // 2, seed=5)
    with DataSet(folder / "train.h5") as large, DataSet(tmp_path / "train.h5") as small:
        assert same(small.read(0, SAMPLES // 2), large.read(0, SAMPLES // 2))
        assert [f.cardinality for f in large.features] == [f.cardinality for f in SyntheticSpec().features]
        for feature, spec in zip(large.features, SyntheticSpec().features, strict=True):
            assert feature.mean_ids == pytest.approx(spec.mean_ids, rel=0.02)


def test_attainable_auc_is_that_of_the_true_probabilities(folder: Path) -> None:
    """Recomputed from the generator's blocks, by another implementation."""
    teacher, total = Teacher(SyntheticSpec(), 5), SAMPLES * 12 // 10
    blocks = [teacher.block(number) for number in range(-(-total // BLOCK_SAMPLES))]
    label = np.concatenate([columns.label for columns, _ in blocks])[:total]
    probability = np.concatenate([p for _, p in blocks])[:total]
    for name, start, stop in (("validation", 100_000, 105_000), ("test", 105_000, 120_000)):
        with DataSet(folder / f"{name}.h5") as data:
            np.testing.assert_array_equal(data.read(0, data.samples).label, label[start:stop])
            wanted = roc_auc_score(label[start:stop], probability[start:stop])
            assert data.attributes["attainable_auc"] == pytest.approx(wanted, abs=1e-12)
            assert 0.75 < data.attributes["attainable_auc"] < 0.85
    assert "attainable_auc" not in DataSet(folder / "train.h5").attributes
    # labels are drawn from the probabilities: tenths of them agree within 4 standard deviations
    for tenth in np.array_split(np.argsort(probability), 10):
        p = probability[tenth]
        assert abs(label[tenth].sum() - p.sum()) < 4 * np.sqrt((p * (1 - p)).sum())


def test_ids_follow_a_power_law(folder: Path) -> None:
    with DataSet(folder / "train.h5") as data:
        block = data.read(0, SAMPLES)
    spec = {feature.name: feature for feature in SyntheticSpec().features}
    for name in ("user", "campaign", "tags"):
        counts = np.sort(np.bincount(block.sparse[name].ids, minlength=spec[name].cardinality))[::-1]
        wanted = (np.arange(spec[name].cardinality) + 5.0) ** -spec[name].exponent
        wanted *= counts.sum() / wanted.sum()
        for head in (10, 100):
            assert counts[:head].sum() == pytest.approx(wanted[:head].sum(), rel=0.03)
        assert block.sparse[name].ids.mean() > spec[name].cardinality / 20  # frequent ids are not the small ones


@pytest.mark.parametrize("ties", [False, True])
def test_auc_equals_scikit_learn(ties: bool) -> None:
    rng = np.random.default_rng(0)
    label, score = rng.integers(0, 2, 999).astype(np.float32), rng.random(999)
    if ties:
        score = np.round(score, 1)
    assert auc(label, score) == pytest.approx(roc_auc_score(label, score), abs=1e-12)
    assert auc(label, np.zeros(999)) == 0.5
    assert np.isnan(auc(np.ones(3), np.arange(3.0)))


def test_refuses_too_few_samples(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="samples is 39"):
        prepare_synthetic(tmp_path, samples=39)
