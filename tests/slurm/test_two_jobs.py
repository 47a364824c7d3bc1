"""Two jobs on different nodes that would write one run: one goes on, the other ends naming it, and nothing is lost."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.slurm.cluster import slurm, until
from tests.slurm.runs import Run, job, under_way
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
