"""Jobs that Slurm stops, requeues, preempts, cancels or loses a node of: the finished run is the uninterrupted one.

Each on 4 of 5 nodes, one rank a node, from the scripts in slurm/; all are compared with one uninterrupted run.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SCRATCH, BatchJob, site, slurm, submit, until
from tests.slurm.runs import ONE_KIND, TWO_KINDS, Run, data_in, job, under_way

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module", autouse=True)
def limited(shared: Path) -> Iterator[tuple[Run, BatchJob]]:
    """A job that comes near its time limit, of 2 minutes, while the first tests run."""
    run = Run(shared, "limited", held=True)
    with job(shared, run, "split", *ONE_KIND, "--time=2", "--signal=B:USR1@60") as batch:
        yield run, batch


def test_heterogeneous_job_is_one_run_and_goes_on_after_a_requeue(shared: Path, reference: Run) -> None:
    data = data_in(shared, "het-data")
    run = Run(shared, "het", held=True, data=data)
    with job(shared, run, "split-het", *TWO_KINDS, launcher="srun", HPCREC_SCRATCH=str(SCRATCH)) as batch:
        under_way(run, batch)
        slurm("scontrol", "requeue", batch.number)
        run.let_go()
        batch.wait_requeued()
        batch.wait_completed()
        assert len(batch.hosts()) == 4
        assert "resumed from step" in batch.said()
        assert batch.said().count(f"--data-copy {data}={SCRATCH}/hpcrec-{batch.number}-") == 4  # both parts, twice
    run.check_equals(reference)


def test_fused_job_trains_on_four_nodes_as_it_does_on_one(shared: Path) -> None:
    runs = [Run(shared, name, held=False, mode="fused") for name in ("fused-4", "fused-1")]
    with job(shared, runs[0], "fused", *ONE_KIND, launcher="srun") as batch:
        batch.wait_completed()
        assert len(batch.hosts()) == 4
    with job(shared, runs[1], "fused", "--nodes=1", "--ntasks-per-node=4", "--cpus-per-task=1") as batch:
        batch.wait_completed()
    runs[0].check_equals(runs[1])


def test_signal_before_the_time_limit_requeues_and_goes_on(limited: tuple[Run, BatchJob], reference: Run) -> None:
    run, batch = limited
    batch.wait_requeued()
    run.let_go()
    batch.wait_completed()
    assert "to be requeued, for the 1. time" in batch.said() and "resumed from step" in batch.said()
    assert "the ranks stop after this step and write a checkpoint" in batch.said()
    run.check_equals(reference)


def test_preempted_job_goes_on(shared: Path, reference: Run) -> None:
    run = Run(shared, "preempted", held=True)
    with job(shared, run, "split", *ONE_KIND, launcher="srun") as batch:
        under_way(run, batch)
        urgent = submit(
            ["-p", "urgent", "--nodes=5", "--exclusive", "--wrap", "sleep 1"],
            site(shared, "srun"),
            shared / "urgent.log",
        )
        batch.wait_requeued()
        run.let_go()
        urgent.wait_completed()
        batch.wait_completed()
        assert "resumed from step" in batch.said()
    run.check_equals(reference)


def test_cancelled_job_goes_on_when_submitted_again(shared: Path, reference: Run) -> None:
    run = Run(shared, "cancelled", held=True)
    with job(shared, run, "split", *ONE_KIND) as batch:
        under_way(run, batch)
        slurm("scancel", batch.number)
        until("cancel", batch.ended)
        assert batch.state == "CANCELLED" and batch.requeues == 0
    run.let_go()
    with job(shared, run, "split", *ONE_KIND) as batch:
        batch.wait_completed()
        assert "resumed from step" in batch.said()
    run.check_equals(reference)


def test_job_whose_node_goes_down_goes_on_on_others(shared: Path, reference: Run) -> None:
    run = Run(shared, "down", held=True)
    with job(shared, run, "split", *ONE_KIND) as batch:
        under_way(run, batch)
        lost = batch.hosts()[-1]
        slurm("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
        try:
            batch.wait_requeued()
            run.let_go()
            batch.wait_completed()
            assert lost not in batch.hosts()
            assert "resumed from step" in batch.said()
        finally:
            slurm("scontrol", "update", f"NodeName={lost}", "State=RESUME")
    run.check_equals(reference)
