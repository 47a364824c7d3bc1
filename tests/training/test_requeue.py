"""A job that Slurm puts back in its queue goes on in its folder, also where its configuration was to start anew."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.config import Config
from hpcrec.training import attempts
from tests.training.learned import check_equal
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import roles_for

STEPS = 6


def config(folder: Path, run: str, resume: str) -> Config:
    roles: Any = roles_for(MPI.COMM_WORLD.size)[-1]
    return config_for(
        folder,
        topology=roles,
        data={"train": str(folder / "data.h5")},
        train={"dtype": "float32", "steps": STEPS},
        checkpoint={"every": 2, "keep": 9, "resume": resume},
        run={"folder": str(folder / run)},
    )


def allocation(config: Config, restart: int, steps: int, job: str = "7") -> list[int]:
    """Trains up to ``steps`` as job's allocation; steps from which all attempts in the folder began."""
    variables = {"SLURM_JOB_ID": job, **({"SLURM_RESTART_COUNT": str(restart)} if restart else {})}
    assert commands.train(replace(config, train=replace(config.train, steps=steps)), environment=variables) == 0
    MPI.COMM_WORLD.Barrier()
    return [event["step"] for event in attempts.read(Path(config.run.folder)) if event["event"] == "begin"]


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_never_is_for_the_first_allocation_of_a_job(folder: Path) -> None:
    write_data(folder / "data.h5")
    never, run = config(folder, "run", "never"), folder / "run"
    assert commands.train(config(folder, "whole", "auto")) == 0
    allocation(never, 0, STEPS, job="6")  # what an earlier job has left goes
    parallel_assert(allocation(never, 0, 3) == [0])
    parallel_assert(allocation(never, 1, 5) == [0, 3])
    parallel_assert((run / "checkpoints/step-2").is_dir())
    parallel_assert(allocation(never, 2, STEPS) == [0, 3, 5])
    check_equal(run / f"checkpoints/step-{STEPS}", folder / f"whole/checkpoints/step-{STEPS}")
    parallel_assert(allocation(never, 0, 1, job="8") == [0])
    parallel_assert(not (run / "checkpoints/step-2").exists())


@pytest.mark.parallel([1])
def test_a_job_that_is_requeued_to_a_newer_version_keeps_what_the_older_one_saved(folder: Path) -> None:
    write_data(folder / "data.h5")
    never, record = config(folder, "run", "never"), folder / "run/attempts.jsonl"
    assert allocation(never, 0, 3) == [0]
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    record.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "restart"}) + "\n" for line in lines))
    assert allocation(never, 1, STEPS) == [0, 3]
    assert (folder / "run/checkpoints/step-2").is_dir()


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_a_given_checkpoint_is_for_what_has_saved_nothing_since(folder: Path) -> None:
    write_data(folder / "data.h5")
    assert commands.train(config(folder, "whole", "auto")) == 0
    given = config(folder, "run", str(folder / "whole/checkpoints/step-2"))
    parallel_assert(allocation(given, 0, 2) == [2])  # it saves nothing: it is there already
    parallel_assert(allocation(given, 1, 4) == [2, 2])
    parallel_assert(allocation(given, 2, STEPS) == [2, 2, 4])
    check_equal(folder / f"run/checkpoints/step-{STEPS}", folder / f"whole/checkpoints/step-{STEPS}")
