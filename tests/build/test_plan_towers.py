"""Towers from a short run on ranks: planted groups are found, the same on every number of ranks."""

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI

from hpcrec.build.towers import Inside, _inside, plan_towers
from hpcrec.cli.towers import check_plan, towers
from hpcrec.config import to_toml, validate
from hpcrec.errors import ConfigError
from hpcrec.models import make_options
from hpcrec.plan.towers import adjusted_rand
from hpcrec.preparation.convert import prepare_synthetic
from hpcrec.preparation.groups import PlantedGroups, planted
from tests.together import on_every_rank

HOW = PlantedGroups(groups=3, size=3, cross=0.0, cardinality=12, rank=4)


def config_of(folder: Path, **sections: Any) -> Any:
    return validate(
        {
            "data": {"train": str(folder / "train.h5")},
            "run": {"folder": str(folder / "run")},
            "train": {"batch_size": 256},
            "model": {"width": 8, "name": "dmt_dlrm"},
            "embedding": {"optimizer": {"name": "rowwise_adagrad", "lr": 0.1}},
            "dense": {"reducer": "mpi", "optimizer": {"name": "Adam", "lr": 0.01}},
            **sections,
        },
        "a test",
    )


@pytest.mark.parallel([1, 2, 3])
def test_planted_groups_are_found_on_any_number_of_ranks(folder: Path) -> None:
    if MPI.COMM_WORLD.rank == 0:
        prepare_synthetic(folder, samples=40_000, seed=2, spec=planted(HOW, 2))
    MPI.COMM_WORLD.barrier()
    spec = planted(HOW, 2)
    found = plan_towers(config_of(folder), 3, steps=150, batches=20)
    group_of = {name: g for g, names in enumerate(spec.groups) for name in names}
    tower_of = {name: t for t, names in enumerate(found.towers) for name in names}
    with on_every_rank():
        assert found.features == tuple(f.name for f in spec.features)
        names = sorted(group_of)
        assert adjusted_rand([tower_of[n] for n in names], [group_of[n] for n in names]) == 1.0, found.towers
        assert found.towers[0][0] == "f0" and not found.found.reason
        assert found.inside == found.inside_any
        assert found.inside.signal > 0.8 and found.inside.pairs == 0.25  # 9 of 36
        everyone = MPI.COMM_WORLD.allgather((found.towers, found.strength_FF.tobytes()))
        assert all(one == everyone[0] for one in everyone)
        assert (np.diag(found.cosine_FF) > 0.9).all()


@pytest.mark.parallel([2])
def test_features_of_one_table_are_in_one_tower_and_what_cannot_be_planned_is_refused(folder: Path) -> None:
    if MPI.COMM_WORLD.rank == 0:
        prepare_synthetic(folder, samples=3000, seed=2, spec=planted(HOW, 2))
    MPI.COMM_WORLD.barrier()
    shared = config_of(folder, embedding={"share": {"f8": "f0", "f4": "f0"}})
    found = plan_towers(shared, 3, steps=5, batches=3, most_uneven=0.5)
    with on_every_rank():
        pairs = [(a, b) for a in range(9) for b in range(9) if a != b]
        of = {f"f{n}": tower for tower in found.towers for n in range(9) if f"f{n}" in tower}
        at = {name: f for f, name in enumerate(found.features)}
        near = {(a, b): found.near_FF[at[f"f{a}"], at[f"f{b}"]] for a, b in pairs}
        inside = sum(near[a, b] for a, b in pairs if f"f{b}" in of[f"f{a}"])
        np.testing.assert_allclose(found.inside.signal, inside / sum(near.values()), rtol=1e-12)
        (tower,) = [tower for tower in found.towers if "f0" in tower]
        assert {"f0", "f4", "f8"} <= set(tower)
    with pytest.raises(ConfigError, match="8 of them are asked for, of 7 families of tables"):
        plan_towers(shared, 8, steps=2)
    with pytest.raises(ConfigError, match="the signal is 'no'; allowed are interactions, coherent, diverse"):
        plan_towers(shared, 2, signal="no")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="groups of codistillation"):
        plan_towers(
            replace(shared, dense=replace(shared.dense, codistillation=replace(shared.dense.codistillation, groups=2))),
            2,
        )


def test_the_command_writes_what_a_run_reads(tmp_path: Path) -> None:
    prepare_synthetic(tmp_path, samples=3000, seed=2, spec=planted(HOW, 2))
    file, out, page = tmp_path / "my.toml", tmp_path / "towers.toml", tmp_path / "towers.html"
    file.write_text(to_toml(config_of(tmp_path)))
    line = [
        sys.executable,
        "-m",
        "hpcrec",
        "towers",
        "plan",
        str(file),
        "--towers",
        "2",
        "--steps",
        "4",
        "--batches",
        "2",
    ]
    for more in (["--out", str(out), "--page", str(page)], []):
        done = subprocess.run([*line, *more], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert "tower 0: " in done.stderr and "of an even share" in done.stderr
        assert "signal of pairs of features inside towers: " in done.stderr and " % of the pairs" in done.stderr
        text = out.read_text() if more else done.stdout
        model = tomllib.loads(text)["model"]
        towers = make_options(model["name"], model["options"]).towers
        assert sorted(name for tower in towers for name in tower) == [f"f{n}" for n in range(9)] and len(towers) == 2
        assert "They are less even" not in done.stderr
    assert "<h1>2 towers of 9 features</h1>" in page.read_text() and "nearest f" in page.read_text()
    assert (
        "less even than was asked for: features are even to 1"
        in subprocess.run([*line, "--uneven", "0.05"], capture_output=True, text=True, timeout=200).stderr
    )


def test_what_is_inside_towers_by_hand() -> None:
    near_FF = np.array([[9.0, 3.0, 1.0], [3.0, 9.0, 0.0], [1.0, 0.0, 9.0]])
    assert _inside(near_FF, ("a", "b", "c"), [["b", "a"], ["c"]]) == Inside(0.75, 1 / 3)
    assert _inside(0 * near_FF, ("a", "b", "c"), [["b", "a"], ["c"]]) == Inside(0.0, 1 / 3)
    assert _inside(near_FF[:1, :1], ("a",), [["a"]]) == Inside(0.0, 0.0)


def test_files_that_could_not_be_written_are_refused_before_the_run(tmp_path: Path) -> None:
    file, there = tmp_path / "my.toml", str(tmp_path / "towers.toml")
    file.write_text(to_toml(config_of(tmp_path)))
    for words, said in (
        (["--page", str(tmp_path / "no" / "towers.html")], f"there is no folder {tmp_path}/no. Make it first."),
        (["--out", there, "--page", there], f"--out and --page are both {there}. Give them files of their own."),
    ):
        line = ["plan", str(file), "--towers", "2", *words]
        done = CliRunner().invoke(towers, line)
        assert done.exit_code == 2 and said in " ".join(done.output.split()), done.output
        with pytest.raises(click.UsageError):
            check_plan(line)
