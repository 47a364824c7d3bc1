"""What a job does by itself: stages data sets, starts a killed run again, requeues one that hangs, stops early.

Each on 4 nodes, one rank a node, from the scripts in slurm/; finished runs are compared with one uninterrupted run.
"""

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrec.config import load_config
from hpcrec.training import attempts
from tests.slurm.cluster import SCRATCH, BatchJob, last_checkpoint, slurm, until
from tests.slurm.lost import full, on_disk
from tests.slurm.runs import EVERY, ONE_KIND, STEPS, Run, data_in, job, under_way

pytestmark = pytest.mark.slurm

SAID_BYTES = 24 << 10  # of a step: three fill the pipes of a launcher


@pytest.fixture(scope="module", autouse=True)
def long_stop(shared: Path) -> Iterator[tuple[Run, BatchJob]]:
    """A job whose stop takes longer than the 5 s that it is given, and which comes near its end meanwhile."""
    run = Run(shared, "long-stop", held=True, save_s=15.0)
    with job(shared, run, "split", *ONE_KIND, "--time=5", "--signal=B:USR1@35", HPCREC_STOP_S="5") as batch:

        def let_go_once_requeued() -> None:  # soon, whatever the tests before its own take: it would stop once more
            batch.wait_requeued(limit_s=1200)
            run.let_go()

        threading.Thread(target=let_go_once_requeued, daemon=True).start()
        yield run, batch


def left_of(batch: BatchJob) -> str:
    """What a job has left on the nodes' own disks."""
    found = ["find", str(SCRATCH), "-mindepth", "1", "-maxdepth", "1", "-name", f"hpcrec-{batch.number}-*"]
    return slurm("srun", "--nodes=5", "--ntasks-per-node=1", *found)


def test_staged_job_trains_from_its_nodes_copies_and_leaves_none(shared: Path, reference: Run) -> None:
    data = data_in(shared, "far")
    run = Run(shared, "staged", held=True, data=data)
    with job(shared, run, "split", *ONE_KIND, launcher="srun", HPCREC_SCRATCH=str(SCRATCH)) as batch:
        under_way(run, batch)
        slurm("scancel", "--batch", "--signal=USR1", batch.number)  # as ahead of the time limit
        batch.wait_requeued()
        until("second attempt", lambda: len(attempts.read(run.folder)) == 3)
        data.rename(shared / "farther")  # nothing but the copies is left
        run.let_go()
        batch.wait_completed()
        assert "resumed from step" in batch.said()
    run.check_equals(reference)
    assert left_of(batch) == ""
    assert load_config(run.folder / "config.toml").data == load_config(run.config).data  # which outlive the job


def test_scratch_that_is_missing_or_too_small_ends_the_job_before_it_trains(shared: Path) -> None:
    data = data_in(shared, "large")
    (data / "more.h5").write_bytes(b"1" * (9 << 20))
    run = Run(shared, "unstaged", held=False, data=data)
    for scratch, why in [
        (SCRATCH, f"takes no copy of {data}"),
        (SCRATCH / "nosuch", "is no folder that can be written to"),
    ]:
        with job(shared, run, "split", *ONE_KIND, launcher="srun", HPCREC_SCRATCH=str(scratch)) as batch:
            until(f"end of {batch.number}", batch.ended)
            for node in batch.hosts():
                assert f"{node}: HPCREC_SCRATCH={scratch} {why}" in batch.said()
            assert "Name in env.sh a folder that is on each node" in batch.said()
            assert f"job {batch.number}: not run, for its data sets were not copied" in batch.said()
            assert (batch.state, batch.field("ExitCode")) == ("FAILED", "1:0")
        assert not run.folder.exists() and left_of(batch) == ""


def test_job_starts_a_run_whose_rank_is_killed_again(shared: Path, reference: Run) -> None:
    run = Run(shared, "killed", held=True)
    with job(shared, run, "split", *ONE_KIND, launcher="srun", HPCREC_RESTARTS="2") as batch:
        under_way(run, batch)
        lost = run.boards()[3]
        assert lost.host == batch.hosts()[3]  # not where the script and its launcher run
        os.kill(lost.pid, signal.SIGKILL)
        run.let_go()
        batch.wait_completed()
        assert batch.requeues == 0 and "restart 1 of 2, from the checkpoint of step" in batch.said()
        assert "restart 2" not in batch.said()
    # Where srun hears first of a rank that lost the killed one, both that were waited for may be it.
    (told,) = re.findall(r"hpcrec: error: (.*)", batch.said())
    surely = rf"rank 3 on {lost.host} \(dense rank, process {lost.pid}\) was killed by signal 9"
    assert re.match(surely, told) or re.match(r"rank [23] on .*\(by the positions of the others", told), told
    assert "ranks 0, 1 waited" in batch.said() and "for ranks 2, 3\n" in batch.said()
    run.check_equals(reference)
    begins = [event for event in attempts.read(run.folder) if event["event"] == "begin"]
    assert [event["job"] for event in begins] == [batch.number] * 2
    assert not list(run.folder.glob(".boards-*"))


def test_warned_job_that_hangs_is_killed_requeued_and_goes_on(shared: Path, reference: Run) -> None:
    run = Run(shared, "hung", held=True)
    with job(shared, run, "split", *ONE_KIND, HPCREC_STOP_S="2") as batch:
        under_way(run, batch)
        hung = run.boards()[2].pid
        os.kill(hung, signal.SIGSTOP)
        run.let_go()
        slurm("scancel", "--batch", "--signal=USR1", batch.number)  # as ahead of the time limit
        batch.wait_requeued()
        until("end of the stopped process", lambda: not Path(f"/proc/{hung}").exists())
        batch.wait_completed()
        assert "hpcrec: killing the ranks" in batch.said() and "resumed from step" in batch.said()
    run.check_equals(reference)
    ends = [event["status"] for event in attempts.read(run.folder) if event["event"] == "end"]
    assert ends == ["killed", "finished"]


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_job_whose_log_takes_no_more_goes_on_and_stops_by_its_warning_and_is_requeued(
    shared: Path, reference: Run, launcher: str
) -> None:
    run = Run(shared, f"full-log-{launcher}", held=True, said_bytes=SAID_BYTES)
    log = SCRATCH / f"full-{launcher}.log"
    with job(shared, run, "split", *ONE_KIND, f"--output={log}", launcher=launcher) as batch:
        until("its nodes", lambda: batch.state == "RUNNING" or batch.ended())
        first = batch.hosts()[0]
        batch.log = on_disk(first, log)
        under_way(run, batch)
        with full(first, SCRATCH):
            written, since = batch.log.stat().st_size, last_checkpoint(run.folder)
            # each of two ranks says more than a pipe holds until the second one from now
            until("steps that nobody reads of", lambda: last_checkpoint(run.folder) >= since + 3 * EVERY)
            slurm("scancel", "--batch", "--signal=USR1", batch.number)  # as ahead of the time limit
            batch.wait_requeued()
            run.let_go()
            batch.wait_completed()
            assert batch.hosts()[0] == first and batch.log.stat().st_size <= written + 4096
    begins = [event for event in attempts.read(run.folder) if event["event"] == "begin"]
    ends = [event for event in attempts.read(run.folder) if event["event"] == "end"]
    assert [event["status"] for event in ends] == ["stopped", "finished"]
    assert begins[1]["step"] == ends[0]["step"] < STEPS and batch.requeues == 1
    run.check_equals(reference)


def test_job_whose_stop_takes_longer_than_it_is_given_stops_by_itself_and_goes_on(
    long_stop: tuple[Run, BatchJob], reference: Run
) -> None:
    run, batch = long_stop
    batch.wait_requeued(limit_s=400)
    batch.wait_completed()
    said = batch.said()
    assert batch.requeues == 1 and "to be requeued, for the 1. time" in said
    assert re.search(r"a stop may take \d\d s, .*; HPCREC_STOP_S gives 5 s", said), said
    assert re.search(
        rf"job {batch.number} ends in \d+ s, and a stop may take \d\d s, .*: the ranks stop after", said
    ), said
    assert "Ctrl-C (again) kills them" not in said and "killing the ranks" not in said, said  # no warning had come
    ends = [event for event in attempts.read(run.folder) if event["event"] == "end"]
    begins = [event for event in attempts.read(run.folder) if event["event"] == "begin"]
    assert [event["status"] for event in ends] == ["stopped", "finished"]
    assert [event["lost_steps"] for event in begins] == [0, 0] and begins[1]["step"] == ends[0]["step"]
    run.check_equals(reference)


def test_job_whose_allocations_bring_no_checkpoint_is_not_requeued_for_ever(shared: Path) -> None:
    run = Run(shared, "fruitless", held=True)
    run.hold.write_text("start")
    with job(shared, run, "split", *ONE_KIND, launcher="srun", HPCREC_STOP_S="1") as batch:
        for allocation in range(2):
            until("start", lambda: bool(run.boards()) or batch.ended())
            slurm("scancel", "--batch", "--signal=USR1", batch.number)
            if allocation == 0:
                batch.wait_requeued()
        until("end", batch.ended)
        assert (batch.state, batch.requeues) == ("FAILED", 1)
        assert f"job {batch.number}: not requeued, for its last two allocations brought no checkpoint" in batch.said()
        assert "Give it a longer --time" in batch.said()
