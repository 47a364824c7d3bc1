"""The evaluation that ends a run: of the best checkpoint, of the last step where that one is damaged."""

import contextlib
import json
import os
from pathlib import Path

import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.config import Config
from hpcrec.training.loop import Loop
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import roles_for

HARMS = {  # of the checkpoint; its note is not needed, for the run knows its best one
    "rows": lambda checkpoints: os.truncate(checkpoints / "step-2/user/part-0.h5", 900),
    "manifest": lambda checkpoints: (checkpoints / "step-2/manifest.json").unlink(),
}


def config(folder: Path, run: str, *, keep_best: bool) -> Config:
    """The first evaluation, after step 2, stays the best: no other is better by 1."""
    return config_for(
        folder,
        topology=roles_for(MPI.COMM_WORLD.size)[-1],
        data={"train": str(folder / "data.h5"), "validation": str(folder / "data.h5")},
        train={"dtype": "float32", "steps": 7, "eval_every": 2, "early_stop": {"patience": 9, "min_delta": 1.0}},
        checkpoint={"keep_best": keep_best},
        run={"folder": str(folder / run)},
    )


def evaluated(folder: Path, run: str) -> dict[str, float]:
    MPI.COMM_WORLD.Barrier()
    return dict(json.loads((folder / run / "summary.json").read_text())["eval"])


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_a_damaged_best_checkpoint_leaves_the_last_step_to_evaluate(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_data(folder / "data.h5")
    assert commands.train(config(folder, "whole", keep_best=True)) == 0
    assert commands.train(config(folder, "last", keep_best=False)) == 0
    best, last = evaluated(folder, "whole"), evaluated(folder, "last")
    parallel_assert((best["step"], last["step"]) == (2, 7) and best["auc"] != last["auc"], msg=f"{best} {last}")
    original = Loop._final_evaluation
    for name, harm in HARMS.items():

        def harmed(loop, run=name, harm=harm):
            if MPI.COMM_WORLD.rank == 0:
                harm(folder / run / "checkpoints")
            return original(loop)

        root = MPI.COMM_WORLD.rank == 0
        with monkeypatch.context() as patched:
            patched.setattr(Loop, "_final_evaluation", harmed)
            warned = pytest.warns(UserWarning, match=r"the last step, 7, is evaluated instead of the best: .*/check")
            with warned if root else contextlib.nullcontext():
                assert commands.train(config(folder, name, keep_best=True)) == 0
        parallel_assert(evaluated(folder, name) == last, msg=name)

    def harmed_note(loop):
        if MPI.COMM_WORLD.rank == 0:
            (folder / "note/checkpoints/best.json").write_text("{")
        return original(loop)

    monkeypatch.setattr(Loop, "_final_evaluation", harmed_note)
    assert commands.train(config(folder, "note", keep_best=True)) == 0
    parallel_assert(evaluated(folder, "note") == best)
