"""Planted groups: the shares of variance that were asked for, weights of each pair's own, features shuffled."""

import json
from itertools import combinations
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hpcrec.cli.main import command_line
from hpcrec.errors import ConfigError
from hpcrec.preparation.groups import PlantedGroups, planted
from hpcrec.preparation.synthetic import Teacher


@pytest.mark.parametrize("cross", [0.0, 0.05, 0.5, 1.0])
def test_variance_across_groups_is_the_share_that_was_asked_for(cross: float) -> None:
    spec = planted(PlantedGroups(groups=3, size=3, cross=cross), seed=7)
    teacher, group_of = Teacher(spec, 7), {name: g for g, names in enumerate(spec.groups) for name in names}
    columns, probability = teacher.block(0)
    vectors = {
        f.name: truth.vector[columns.sparse[f.name].ids]
        for f, truth in zip(spec.features, teacher._truths, strict=True)
    }
    parts = [np.zeros(len(columns.label)), np.zeros(len(columns.label))]
    for (a, b), weight in zip(spec.pairs, spec.pair_weights, strict=True):
        parts[group_of[a] != group_of[b]] += weight * (vectors[a] * vectors[b]).sum(1)
    inside, across = (part.var() for part in parts)
    assert across / (inside + across) == pytest.approx(cross, abs=0.02)
    assert (inside + across) == pytest.approx(1 / 8, rel=0.05)  # of vectors of 8 elements, of length 1 in the mean
    assert 0.1 < probability.mean() < 0.5


def test_groups_are_shuffled_and_of_the_seed() -> None:
    one, again, other = (planted(PlantedGroups(), seed=seed) for seed in (1, 1, 2))
    assert one == again and one.groups != other.groups
    names = [f.name for f in one.features]
    assert sorted(name for group in one.groups for name in group) == sorted(names)
    assert any(names.index(group[0]) + 3 != names.index(group[-1]) for group in one.groups)
    assert list(one.pairs) == list(combinations(names, 2))
    assert len(planted(PlantedGroups(cross=0.0)).pairs) == 4 * 6, "pairs of weight 0 are left out"
    weights = np.array(one.pair_weights)
    assert 0.3 < (weights > 0).mean() < 0.7 and len(set(np.abs(weights))) == len(weights)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"groups": 0}, "groups is 0; it must be at least 1"),
        ({"cross": 1.5}, "cross is 1.5; it must be a share"),
        ({"groups": 1}, "with one group nothing is across groups"),
        ({"size": 1}, "in groups of one feature nothing is within"),
        ({"cardinality": 1}, "cardinality is 1"),
    ],
)
def test_what_cannot_be_planted_is_refused(how: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlantedGroups(**how)


def test_the_command_writes_them(tmp_path: Path) -> None:
    run = ["prepare", "synthetic", "--out", str(tmp_path / "data"), "--samples", "2000", "--seed", "3"]
    done = CliRunner().invoke(command_line, [*run, "--groups", "2x3", "--cross", "0.2", "--rank", "2"])
    assert done.exit_code == 0, done.output
    wanted = planted(PlantedGroups(groups=2, size=3, cross=0.2, rank=2), seed=3)
    for part in ("train", "validation", "test"):
        with h5py.File(tmp_path / "data" / f"{part}.h5") as file:
            assert json.loads(file.attrs["planted_groups"]) == [list(group) for group in wanted.groups]
    for wrong, said in ((["--groups", "2x"], "not two numbers, as 4x4"), (["--cross", "0.1"], "are of --groups")):
        done = CliRunner().invoke(command_line, [*run, *wrong])
        assert done.exit_code == 2 and said in done.output, done.output
