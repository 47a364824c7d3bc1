"""Two jobs on different nodes that would write one run: one goes on, the other ends naming it, and nothing is lost."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcrec.checkpoint.files import hidden_folder, step_folder, steps_in
from hpcrec.checkpoint.find import problem_of
from hpcrec.comm.ranks import Alone
from hpcrec.training.claim import Holder
from tests.slurm.cluster import BatchJob, last_checkpoint, slurm, until
from tests.slurm.lost import cut_off
from tests.slurm.runs import EVERY, STEPS, Run, job, under_way
from tests.slurm.stopped import before_rename_of, is_stopped
from tests.training.test_claim import written

pytestmark = pytest.mark.slurm

ONE_NODE = ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--exclusive"]
WAIT_S = 210  # 120 s for the other one, and a job's start


@pytest.fixture(scope="module")
def alone(shared: Path) -> Run:
    """The same run by one job."""
    run = Run(shared, "alone", held=False, mode="fused")
    with job(shared, run, "fused", *ONE_NODE) as batch:
        batch.wait_completed()
    return run


def test_of_two_jobs_one_goes_on(shared: Path, alone: Run) -> None:
    run = Run(shared, "two", held=True, mode="fused")
    with job(shared, run, "fused", *ONE_NODE) as first:
        under_way(run, first)
        holder = written(run.folder)[-1]
        os.kill(holder.process, signal.SIGSTOP)  # it renews nothing, but Slurm says that it is there
        with job(shared, run, "fused", *ONE_NODE, log="two-second") as second:
            until("the second job's end", second.ended, WAIT_S)
            assert second.state == "FAILED" and second.field("ExitCode") == "2:0", second.said()
            said = f"another one (job {first.number}, process "
            assert said in second.said() and "is writing this run, and two would spoil it" in second.said()
            assert second.hosts() != first.hosts()
        os.kill(holder.process, signal.SIGCONT)
        assert first.state == "RUNNING", first.said()
        run.let_go()
        first.wait_completed()
    run.check_equals(alone)


def test_job_that_was_suspended_past_the_limit_ends_and_changes_nothing(shared: Path, alone: Run) -> None:
    run, programs = Run(shared, "suspended", held=True, mode="fused"), shared / "no-squeue"
    programs.mkdir()
    (programs / "squeue").write_text("#!/bin/sh\nexit 1\n")  # it says nothing, so age decides
    (programs / "squeue").chmod(0o755)
    with job(shared, run, "fused", *ONE_NODE) as first:
        under_way(run, first)
        holder = written(run.folder)[-1]
        assert holder.job == first.number
        os.kill(holder.process, signal.SIGSTOP)
        with job(shared, run, "fused", *ONE_NODE, log="suspended-second", PATH=f"{programs}:$PATH") as second:
            until("takeover", lambda: written(run.folder)[-1].job == second.number or second.ended(), WAIT_S)
            run.let_go()
            second.wait_completed()
            assert first.state == "RUNNING"
        kept = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
        os.kill(holder.process, signal.SIGCONT)
        until("the first job's end", first.ended)
        assert first.state == "FAILED" and first.field("ExitCode") == "2:0", first.said()
        assert f"another one (job {second.number}, process " in first.said() and "taken this run over" in first.said()
        assert all(path.read_bytes() == content for path, content in kept.items())
    run.check_equals(alone)
    assert json.loads((run.folder / "summary.json").read_text())["status"] == "finished"
    assert slurm("squeue", "-h", "-j", second.number, "-t", "all", "-o", "%T").strip() == "COMPLETED"


@contextmanager
def stopped_and_lost(shared: Path, run: Run, path: str) -> Iterator[tuple[BatchJob, Holder]]:
    """A job whose rank 0 stands between its look at the claim and a rename of ``path``, and whose node Slurm has lost.

    Nothing can end that process: its job has ended for Slurm, which does not reach the node, and its launcher and its
    job script live there and hear of nothing. The file system is there still, as one on a network of its own is.
    """
    preload = before_rename_of(path, shared)
    given = " ".join(f"-x {name}={value}" for name, value in preload.items())
    options = f"'--bind-to none {given}'"
    with job(shared, run, "fused", *ONE_NODE, "--no-requeue", HPCREC_MPIRUN_OPTIONS=options) as first:
        under_way(run, first)
        holder = written(run.folder)[-1]
        until("stop before the rename", lambda: is_stopped(holder.process))
        assert holder.job == first.number and first.state == "RUNNING", first.said()
        with cut_off(first.hosts()[0]):
            until("Slurm's notice", first.ended)
            assert first.state == "NODE_FAIL"
            try:
                yield first, holder
            finally:
                if is_stopped(holder.process):  # a test that failed before it came back
                    os.kill(holder.process, signal.SIGKILL)


def contents(run: Run) -> dict[Path, bytes]:
    """What the checkpoints hold that have their names, and who has written the run."""
    files = [path for path in run.folder.glob("checkpoints/step-*/**/*") if path.is_file()]
    return {path: path.read_bytes() for path in [*files, run.folder / "config.toml", run.folder / "attempts.jsonl"]}


def whole(run: Run) -> list[int]:
    """Steps of the checkpoints that have their names, all of which are whole."""
    steps = steps_in(run.folder)
    assert [problem_of(step_folder(run.folder, step), Alone()) for step in steps] == [None] * len(steps)
    return steps


def come_back(first: BatchJob, holder: Holder, second: BatchJob) -> None:
    """The stopped process goes on with its rename, and ends naming the other job."""
    os.kill(holder.process, signal.SIGCONT)
    until("the first one's end", lambda: not Path(f"/proc/{holder.process}").exists())
    named = f"another one (job {second.number}, process "
    until("its last words", lambda: named in first.said() and "has taken this run over" in first.said(), 30)
    assert "goes on" not in first.said() and "tried again" not in first.said(), first.said()


def test_checkpoint_of_a_job_that_was_lost_before_its_rename_does_not_become_the_other_ones(
    shared: Path, alone: Run
) -> None:
    """The first job stands before it gives the checkpoint of step 9 its name; the second one is writing that step."""
    run = Run(shared, "back-publish", held=False, mode="fused", save_s=300.0)
    with stopped_and_lost(shared, run, f"*/.step-{3 * EVERY}.*tmp") as (first, holder):
        assert whole(run) == [EVERY, 2 * EVERY] and hidden_folder(run.folder, 3 * EVERY, token=holder.token).is_dir()
        run.hold.touch()
        with job(shared, run, "fused", *ONE_NODE, log="back-publish-second") as second:
            until("takeover", lambda: f"resumed from step {2 * EVERY} " in second.said() or second.ended())
            # what the first one was writing is removed by now
            until("its checkpoint", lambda: bool(list(run.folder.glob("checkpoints/.step-*"))) or second.ended())
            assert second.state == "RUNNING", second.said()
            (hidden,) = run.folder.glob("checkpoints/.step-*")
            kept = contents(run)
            come_back(first, holder, second)
            assert contents(run) == kept and whole(run) == [EVERY, 2 * EVERY] and hidden.is_dir(), second.said()
            run.let_go()
            second.wait_completed()
    assert len(whole(run)) >= 2 and not list(run.folder.glob("checkpoints/.*"))
    run.check_equals(alone)


def test_job_that_was_lost_before_it_took_a_checkpoint_away_takes_none_from_the_other(shared: Path, alone: Run) -> None:
    """The first job keeps 2 and stands before it takes the one of step 3 away; the second one keeps all."""
    run = Run(shared, "back-remove", held=False, mode="fused")
    with stopped_and_lost(shared, run, f"*/step-{EVERY}") as (first, holder):
        assert whole(run) == [EVERY, 2 * EVERY, 3 * EVERY]
        run.hold.touch()
        keeps_all = {"checkpoint.keep": STEPS}
        with job(shared, run, "fused", *ONE_NODE, log="back-remove-second", settings=keeps_all) as second:
            # its first steps are not held, and the next one takes some seconds
            until("checkpoints of its own", lambda: last_checkpoint(run.folder) >= 5 * EVERY or second.ended())
            kept = contents(run)
            assert whole(run) == list(range(EVERY, 5 * EVERY + 1, EVERY)), second.said()
            come_back(first, holder, second)
            assert kept.items() <= contents(run).items() and set(whole(run)) >= set(range(EVERY, 5 * EVERY + 1, EVERY))
            assert second.state == "RUNNING", second.said()
            run.let_go()
            second.wait_completed()
            assert f"resumed from step {3 * EVERY}" in second.said()
    assert whole(run) == list(range(EVERY, STEPS + 1, EVERY)) and not list(run.folder.glob("checkpoints/.*"))
    run.check_equals(alone)
