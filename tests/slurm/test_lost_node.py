"""A node lost in training, in a job that Slurm leaves alone (``--no-kill``): the run goes on and loses nothing saved.

Each on 4 of 5 nodes, one rank a node.
"""

from pathlib import Path

import pytest

from hpcrec.training import attempts
from hpcrec.training.telemetry import read_metrics
from tests.counts import keep_counts
from tests.slurm.cluster import SCRATCH, last_checkpoint, slurm, summary, until
from tests.slurm.lost import lost, noticed_s
from tests.slurm.runs import ONE_KIND, STEPS, Run, data_in, job, under_way
from tests.training.learned import check_learned, check_told

pytestmark = pytest.mark.slurm

NODE_S = 60.0  # from Slurm's notice to the first step of the new attempt


@pytest.fixture(scope="module")
def whole(shared: Path) -> dict[str, Run]:
    """Uninterrupted runs on 4 ranks, by mode."""
    runs = {mode: Run(shared, f"whole-{mode}", held=False, mode=mode, exact=True) for mode in ("split", "fused")}
    for mode, run in runs.items():
        with job(shared, run, mode, *ONE_KIND, launcher="srun") as batch:
            batch.wait_completed()
    return runs


def check_close(run: Run, reference: Run) -> None:
    """What was learned, to rounding, and what was counted and measured."""
    check_learned(run.folder, reference.folder, STEPS)
    check_told(summary(run.folder), summary(reference.folder))


def steps_done(run: Run) -> int:
    """By what the ranks of the attempt under way note."""
    return max((left.step or 0 for left in run.boards().values()), default=0)


@pytest.mark.parametrize(("launcher", "mode"), [("srun", "split"), ("mpirun", "fused")])
def test_job_that_loses_a_node_goes_on_with_the_others(
    shared: Path, whole: dict[str, Run], launcher: str, mode: str
) -> None:
    run = Run(shared, f"lost-{launcher}", held=True, mode=mode, exact=True, data=data_in(shared, f"by-{launcher}"))
    options = [*ONE_KIND, "--no-kill"]
    site = {"launcher": launcher, "HPCREC_MIN_NODES": "2", "HPCREC_SCRATCH": str(SCRATCH)}
    with job(shared, run, mode, *options, **site) as batch:
        under_way(run, batch)
        hosts = batch.hosts()
        until("steps past a checkpoint", lambda: steps_done(run) >= last_checkpoint(run.folder) + 2, every_s=0.05)
        with lost(hosts[3]):
            until("Slurm's notice", lambda: noticed_s(hosts[3]) is not None)
            since_s = noticed_s(hosts[3])
            newest = last_checkpoint(run.folder)
            until("another attempt", lambda: len(attempts.read(run.folder)) == 3 or batch.ended())
            run.let_go()
            batch.wait_completed()
            assert batch.hosts() == hosts[:3] and batch.requeues == 0
            left = ["find", str(SCRATCH), "-mindepth", "1", "-maxdepth", "1", "-name", f"hpcrec-{batch.number}-*"]
            assert slurm("srun", "--nodes=3", "--ntasks-per-node=1", f"--nodelist={','.join(hosts[:3])}", *left) == ""
    first, ended, second, last = attempts.read(run.folder)
    assert (first["ranks"], second["ranks"], second["hosts"]) == (4, 3, hosts[:3])
    assert (ended["status"], ended["lost_nodes"]) == ("killed", [hosts[3]])
    assert 0 < newest == second["step"] <= ended["step"] and last["step"] == STEPS
    assert f"started again on 3 ranks of {', '.join(hosts[:3])}, from the checkpoint of step {newest}" in batch.said()
    steps = [line for line in read_metrics(run.folder) if "loss" in line]
    assert since_s is not None
    node_s = min(line["time"] for line in steps if line["step"] > newest and line["time"] > since_s) - since_s
    keep_counts(f"node-{launcher}", {"node_s": round(node_s, 2), "ranks": [4, 3]})
    assert 0.0 < node_s < NODE_S, batch.said()
    check_close(run, whole[mode])


def test_job_that_loses_the_node_of_its_script_is_requeued_and_goes_on(shared: Path, reference: Run) -> None:
    run = Run(shared, "lost-script", held=True)
    options = [*ONE_KIND, "--no-kill"]
    with job(shared, run, "split", *options, launcher="srun", HPCREC_MIN_NODES="2") as batch:
        under_way(run, batch)
        hosts = batch.hosts()
        with lost(hosts[0]):
            batch.wait_requeued()
            run.let_go()
            batch.wait_completed()
            assert hosts[0] not in batch.hosts() and len(batch.hosts()) == 4
    assert "resumed from step" in batch.said()
    run.check_equals(reference)


def test_job_with_too_few_nodes_left_requeues_itself_and_goes_on(shared: Path, reference: Run) -> None:
    run = Run(shared, "lost-few", held=True)
    options = [*ONE_KIND, "--no-kill"]
    with job(shared, run, "split", *options, launcher="srun", HPCREC_MIN_NODES="4") as batch:
        under_way(run, batch)
        hosts = batch.hosts()
        with lost(hosts[3]):
            batch.wait_requeued()
            run.let_go()
            batch.wait_completed()
            assert hosts[3] not in batch.hosts() and len(batch.hosts()) == 4
    assert f"node {hosts[3]} went down, 3 nodes are left, and --min-nodes is 4" in batch.said()
    run.check_equals(reference)
