"""A stop signal ends an evaluation too: nothing of it is kept, and a resumed run makes up for it, to the same bits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.comm.failure import ExitCodes, watch
from hpcrec.config import Config
from hpcrec.training.session import Session
from hpcrec.training.telemetry import read_metrics
from tests.training.learned import check_equal
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import roles_for

STEPS = 9


def config(folder: Path, run: str, roles: dict[str, Any]) -> Config:
    return config_for(
        folder,
        topology=roles,
        data={"train": str(folder / "data.h5"), "validation": str(folder / "data.h5")},
        train={"dtype": "float32", "steps": STEPS, "eval_every": 4},
        checkpoint={"every": 3, "keep": 9},
        run={"folder": str(folder / run)},
    )


def summary(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "summary.json").read_text()))


def validations(run: Path) -> list[dict[str, Any]]:
    lines = [line for line in read_metrics(run) if "validation_auc" in line]
    return [{key: value for key, value in line.items() if key != "time"} for line in lines]


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("which", [0, 2, 3])  # after step 4, after the last step, and of the best checkpoint at the end
def test_a_signal_in_an_evaluation_ends_it_and_a_resume_makes_up_for_it(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    which: int,
) -> None:
    write_data(folder / "data.h5", samples=150)
    roles = roles_for(MPI.COMM_WORLD.size)[1]
    assert commands.train(config(folder, "whole", roles)) == ExitCodes.FINISHED
    original, begun, seen = Session._outputs, [0], [0]

    def outputs(self, *given, **options):
        begun[0] += 1
        for output in original(self, *given, **options):
            seen[0] += begun[0] == which + 1
            if begun[0] == which + 1 and self.topology.dense_index == 0:
                watch().requested = True  # as the handler does; on one rank only
            yield output

    with monkeypatch.context() as patched:
        patched.setattr(Session, "_outputs", outputs)
        assert commands.train(config(folder, "stopped", roles)) == ExitCodes.STOPPED
    whole, stopped = folder / "whole", folder / "stopped"
    step = [4, 8, STEPS, STEPS][which]
    told = summary(stopped)
    parallel_assert((told["status"], told["steps"], told["eval"]["auc"]) == ("stopped", step, None), msg=str(told))
    parallel_assert((stopped / f"checkpoints/step-{step}/manifest.json").exists())
    parallel_assert(validations(stopped) == validations(whole)[:which])
    dense = max(MPI.COMM_WORLD.allgather(seen[0]))
    parallel_assert(1 <= dense < 5, msg=str(dense))  # of 12 batches
    MPI.COMM_WORLD.Barrier()
    assert commands.train(config(folder, "stopped", roles)) == ExitCodes.FINISHED
    parallel_assert(validations(stopped) == validations(whole), msg=str(validations(stopped)))
    parallel_assert(summary(stopped)["eval"] == summary(whole)["eval"])
    check_equal(stopped / f"checkpoints/step-{STEPS}", whole / f"checkpoints/step-{STEPS}")
    assert np.isfinite(summary(whole)["eval"]["auc"])
