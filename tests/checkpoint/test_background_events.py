"""What happens in training while rows are frozen changes nothing of what is written: as if training had waited.

Steps that are left out, evaluations, a stop; and an error of one saving thread that nobody foresaw.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.checkpoint import files as checkpoint_files
from hpcrec.checkpoint import saver
from hpcrec.checkpoint.checkpoint import CheckpointWriter, find_checkpoint, steps_in
from hpcrec.comm.failure import ExitCodes, watch
from hpcrec.config import Config
from hpcrec.errors import HpcrecError
from hpcrec.training import loop
from hpcrec.training.session import Session
from tests.checkpoint.test_background import CASES, STEPS, config_of, same_files, slow_down
from tests.devices import device_or_skip
from tests.training.learned import check_equal
from tests.training.runs import write_data
from tests.training.test_codistillation import RULES
from tests.training.test_codistillation import roles_for as groups_for
from tests.training.test_equivalence import roles_for

SPOILT = (4, 5, 9)  # steps before these: the first two while the checkpoint of step 4 is written, for two steps
TRIED = ("wide before its vectors", "split by columns", "dynamic", "replicated", "thresholded", "on a device")


def busy(folder: Path, run: str, background: bool, case: str) -> Config:
    """Two evaluations beside checkpoints, the second of which is better or not, and steps that are left out."""
    sections = CASES[case]
    roles = roles_for(MPI.COMM_WORLD.size)
    data = {"train": str(folder / "data.h5"), "validation": str(folder / "data.h5"), **sections.get("data", {})}
    train = {"nonfinite": "skip", "eval_every": 5, **sections.get("train", {})}
    topology = roles[len(case) % len(roles)]
    return config_of(folder, run, background, **{**sections, "topology": topology, "data": data, "train": train})


def noting(patched: pytest.MonkeyPatch) -> list[int]:
    """The step whose checkpoint this rank's thread writes, as long as it does; call it after ``slow_down``."""
    under_way: list[int] = []
    write = saver.Saver._write

    def noted(self: saver.Saver, *given: Any) -> None:
        under_way.append(given[0].step)
        write(self, *given)
        under_way.clear()

    patched.setattr(saver.Saver, "_write", noted)
    return under_way


def spoil(patched: pytest.MonkeyPatch, under_way: list[int], met: list[int]) -> None:
    """Losses that are not a number, on the last dense rank alone; counts those beside a checkpoint."""
    original = Session.default_losses

    def losses(self: Session, inputs: Any, samples: Any) -> torch.Tensor:
        found = original(self, inputs, samples)
        if self.topology.dense_index < len(self.topology.dense) - 1 or self.step not in SPOILT:
            return found
        met[0] += bool(under_way)
        return found * float("nan")

    patched.setattr(Session, "default_losses", losses)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("case", TRIED)
def test_steps_left_out_and_evaluations_beside_a_checkpoint_change_nothing_of_it(
    folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "store" in CASES[case]:
        device_or_skip("emulated")
    write_data(folder / "data.h5")
    met: dict[str, list[int]] = {"step left out": [0], "evaluation": [0], "step": [0]}
    for run, background in (("beside", True), ("waiting", False)):
        with monkeypatch.context() as patched:
            if background:
                slow_down(patched, [0], met["step"])
            spoil(patched, under_way := noting(patched), met["step left out"])

            def evaluates(self: Session, *given: Any, evaluate: Any = Session._evaluate, **options: Any) -> Any:
                met["evaluation"][0] += bool(under_way)
                return evaluate(self, *given, **options)

            patched.setattr(Session, "_evaluate", evaluates)
            assert commands.train(busy(folder, run, background, case)) == ExitCodes.FINISHED
    for what, counted in met.items():
        parallel_assert(max(MPI.COMM_WORLD.allgather(counted[0])) >= 1, msg=f"no {what} while one was written")
    beside, waiting = folder / "beside", folder / "waiting"
    parallel_assert(steps_in(beside) == steps_in(waiting) and {4, 8, 12, STEPS} <= set(steps_in(waiting)))
    for step in steps_in(waiting):
        same_files(*(run / f"checkpoints/step-{step}" for run in (beside, waiting)))
    told = [json.loads((run / "summary.json").read_text()) for run in (beside, waiting)]
    parallel_assert([t["skipped_steps"] for t in told] == [len(SPOILT)] * 2, msg=str(told))
    parallel_assert(told[0]["eval"] == told[1]["eval"])


OWN = {"share_embeddings": False}
GROUPS = {
    "shared tables": ({}, {"model": {"name": "deepfm"}}),
    "shared tables, by rows": ({}, CASES["split by rows"]),
    "tables of their own": (OWN, CASES["adam, folded"]),
    "dynamic tables of their own": (OWN, CASES["dynamic"]),
    "copies of their own": (OWN, CASES["replicated"]),
}


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("case", GROUPS)
def test_of_several_groups_the_same_is_written_beside_steps(
    folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder / "data.h5")
    rules, sections = GROUPS[case]
    roles = groups_for(MPI.COMM_WORLD.size)
    topology, groups = roles[len(case) % len(roles)]
    dense = {**sections.get("dense", {}), "codistillation": {"groups": groups, **RULES, **rules}}
    given = {**sections, "topology": topology, "dense": dense, "train": {"batch_size": 12}}
    behind = [0]
    with monkeypatch.context() as patched:
        slow_down(patched, [0], behind)
        assert commands.train(config_of(folder, "beside", True, **given)) == ExitCodes.FINISHED
    assert commands.train(config_of(folder, "waiting", False, **given)) == ExitCodes.FINISHED
    parallel_assert(max(MPI.COMM_WORLD.allgather(behind[0])) >= 2, msg="no step was made while one was written")
    for step in (4, 8, 12, STEPS):
        same_files(*(folder / run / f"checkpoints/step-{step}" for run in ("beside", "waiting")))
    names = {p.name for p in (folder / f"beside/checkpoints/step-{STEPS}").iterdir()}
    wanted = {f"dense-group-{g}.h5" for g in range(1, groups)} | ({"user@1"} if rules else set())
    parallel_assert(wanted <= names, msg=str(names))


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("case", ["wide before its vectors", "dynamic", "on a device"])
def test_a_stop_beside_a_checkpoint_leaves_both_whole_and_a_resume_ends_the_same(
    folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "store" in CASES[case]:
        device_or_skip("emulated")
    write_data(folder / "data.h5")
    original, asked = Session.default_losses, [0]

    def losses(self: Session, inputs: Any, samples: Any) -> torch.Tensor:
        if self.topology.dense_index == 0 and self.step == 4:
            asked[0] += bool(under_way)
            watch().requested = True  # as the handler does; on one rank only
        return original(self, inputs, samples)

    for run, background in (("beside", True), ("waiting", False)):
        with monkeypatch.context() as patched:
            if background:
                slow_down(patched, [0], [0])
            under_way = noting(patched)
            patched.setattr(Session, "default_losses", losses)
            assert commands.train(busy(folder, run, background, case)) == ExitCodes.STOPPED
    parallel_assert(max(MPI.COMM_WORLD.allgather(asked[0])) == 1, msg="the stop did not come while one was written")
    beside, waiting = folder / "beside", folder / "waiting"
    steps = steps_in(waiting)
    parallel_assert(steps_in(beside) == steps and len(steps) >= 2 and steps[-1] < STEPS, msg=str(steps))
    for step in steps:
        same_files(*(run / f"checkpoints/step-{step}" for run in (beside, waiting)))
    MPI.COMM_WORLD.Barrier()
    assert commands.train(busy(folder, "beside", True, case)) == ExitCodes.FINISHED
    assert commands.train(busy(folder, "whole", False, case)) == ExitCodes.FINISHED
    check_equal(beside / f"checkpoints/step-{STEPS}", folder / f"whole/checkpoints/step-{STEPS}")


PLACES = ["writing rows", "thawing", "the manifest", "after it is whole"]  # the last two are rank 0's


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_an_error_that_one_saving_thread_did_not_foresee_ends_every_rank_and_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, last: bool
) -> None:
    write_data(folder / "data.h5")
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    bad = 0 if place in PLACES[2:] else size - 1
    at = STEPS if last else 8  # of the checkpoint that fails
    owners = {"embedding": {"tables": {t: {"shard": "row"} for t in ("user", "item", "tag")}}}

    def config(run: str) -> Config:
        return config_of(folder, run, True, topology={"mode": "fused"}, **owners)

    with monkeypatch.context() as patched:
        step_of = noting(patched)

        def failing(owner: Any, name: str) -> None:
            original = getattr(owner, name)

            def instead(*given: Any, **options: Any) -> Any:
                if rank == bad and step_of == [at]:
                    raise KeyError("injected")
                return original(*given, **options)

            patched.setattr(owner, name, instead)

        if place == "writing rows":
            failing(CheckpointWriter, "write_table_part")
        elif place == "thawing":
            failing(saver.Saver, "_thaw")
        elif place == "the manifest":
            failing(checkpoint_files, "write_manifest")
        else:
            failing(loop, "prune")
        with pytest.raises((KeyError, HpcrecError), match="injected") as raised:
            commands.train(config("run"))
    mine = type(raised.value) is KeyError
    parallel_assert(MPI.COMM_WORLD.allgather(mine) == [r == bad for r in range(size)], msg=repr(raised.value))
    told = MPI.COMM_WORLD.allgather(str(raised.value))
    parallel_assert(
        all(text == f"rank {bad}: KeyError: 'injected'" for r, text in enumerate(told) if r != bad), str(told)
    )
    whole = [step for step in (4, 8, 12, STEPS) if step < at or (step == at and place == PLACES[-1])]
    parallel_assert(steps_in(folder / "run") == whole, msg=str(steps_in(folder / "run")))
    for step in whole:
        found = find_checkpoint(folder / "run", str(folder / f"run/checkpoints/step-{step}"))
        parallel_assert(found.step == step)
    MPI.COMM_WORLD.Barrier()
    assert commands.train(config("run")) == ExitCodes.FINISHED
    assert commands.train(config("other")) == ExitCodes.FINISHED
    same_files(*(folder / f"{run}/checkpoints/step-{STEPS}" for run in ("run", "other")))
    parallel_assert(not list((folder / "run/checkpoints").glob(".step-*")))
    summary = json.loads((folder / "run/summary.json").read_text())
    parallel_assert((summary["status"], summary["steps"], summary["attempts"]["number"]) == ("finished", STEPS, 2))
