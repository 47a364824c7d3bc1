"""``hpcrec submit`` and ``hpcrec status`` against a real queue, and data preparation as an array."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import ROOT, SCRATCH, BatchJob, site, slurm, submit, until
from tests.slurm.runs import STEPS, TWO_KINDS, Run, under_way

pytestmark = pytest.mark.slurm


def hpcrec(*arguments: str, code: int = 0) -> str:
    """What a command of hpcrec prints."""
    command = [sys.executable, "-m", "hpcrec", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (command, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def status(run: Run) -> dict:
    return json.loads(hpcrec("status", str(run.folder), "--json"))


def test_submit_status_requeue_and_end(shared: Path) -> None:
    run = Run(shared, "submitted", held=True)
    command = ["submit", str(run.config), "--nodes", "4", "--owner-nodes", "2", "--cpus-per-rank", "1", "--time", "5"]
    command += ["--env", str(site(shared, "srun")), "--owner-option=--constraint=memory", "--dense-option=--gres=none"]
    command += ["--option=--mem=100"]
    said = hpcrec(*command)
    number = said.split()[1].rstrip(":")
    batch = BatchJob(number, run.folder / f"slurm-{number}.out")
    assert "2 + 2 ranks on 4 nodes" in said
    try:
        assert f"job {number} for {run.folder} is in the queue" in hpcrec(*command, code=1)
        under_way(run, batch)
        found = status(run)
        assert (found["state"], found["job"], found["total_steps"]) == ("running", number, STEPS)
        assert found["checkpoint_step"] > 0 and found["allocation_left"].startswith("4:")
        slurm("scancel", "--batch", "--signal=USR1", number)  # as ahead of the time limit
        batch.wait_requeued()
        run.let_go()
        until("the job waits or runs", lambda: status(run)["state"] in ("requeued", "running", "finished"))
        batch.wait_completed()
    finally:
        batch.cancel()
        until("end", batch.ended)
    found = status(run)
    assert (found["state"], found["step"], found["checkpoint_step"], found["job"]) == ("finished", STEPS, STEPS, None)
    assert found["log"] == str(batch.log) and "resumed from step" in batch.said()


def test_what_sbatch_refuses_is_said(shared: Path) -> None:
    run = Run(shared, "refused", held=False)
    said = hpcrec("submit", str(run.config), "--nodes", "4", "--partition", "nosuch", code=1)
    assert "sbatch refuses" in said and "invalid partition specified: nosuch" in said


def test_preparation_as_an_array_with_a_requeue_makes_the_same_data(shared: Path) -> None:
    sources = []
    for day in range(2):
        sources.append(shared / f"day-{day}.txt")
        rows = (
            "\t".join([str(n % 2), *(str(n + day + i) for i in range(13)), *(f"{n % 7 + i:08x}" for i in range(26))])
            for n in range(3000)
        )
        sources[-1].write_text("\n".join(rows) + "\n")
    parts = shared / "sources.txt"
    parts.write_text("".join(f"{source}\n" for source in sources))
    out, options = shared / "prepared", ["--rows", "1000", "--split", "hash:0.9,0.1,0"]
    script = ["--array=0-1", "--ntasks-per-node=2", "slurm/prepare-array.sbatch", str(parts), str(out), "criteo"]
    batch = submit([*script, *options], site(shared, "srun"), shared / "prepare-%a.log")
    first = BatchJob(f"{batch.number}_0", shared / "prepare-0.log")
    second = BatchJob(f"{batch.number}_1", shared / "prepare-1.log")
    until("start", lambda: first.state == "RUNNING")
    slurm("scontrol", "requeue", first.number)
    for task in (first, second):
        task.wait_completed()
    assert first.requeues == 1
    for number, source in enumerate(sources):
        alone = shared / f"alone-{number}"
        hpcrec("prepare", "criteo", "--out", str(alone), *options, str(source))
        for name in ("train.h5", "validation.h5"):
            assert (out / f"{number:03d}" / name).read_bytes() == (alone / name).read_bytes(), name
    subprocess.run([sys.executable, "-c", "\n".join(joining()), str(out)], cwd=ROOT, check=True, env=os.environ)
    whole = json.loads((out / "train.index.json").read_text())
    assert [file["path"] for file in whole["files"]] == ["000/train.h5", "001/train.h5"]


def joining() -> list[str]:
    """The lines of Python that the script's comment tells to run after the array."""
    text = (ROOT / "slurm/prepare-array.sbatch").read_text()
    inside = text.split("python -c '")[1].split("' OUT")[0]
    return [line.lstrip("# ") for line in inside.splitlines()]


@pytest.mark.parametrize("ready", [True, False])
def test_doctor_says_whether_nodes_of_two_kinds_are_ready_for_a_run(shared: Path, ready: bool) -> None:
    run = Run(shared, f"examined-{ready}", held=False)
    kinds = [option if option != "--mem=100" or not ready else "--mem=1000" for option in TWO_KINDS]
    kinds += ["--mem=1000"] if ready else ["--mem=100"]
    env_sh = site(shared, "srun", **({} if ready else {"HPCREC_SCRATCH": str(SCRATCH)}))  # of 8 MB
    log = shared / f"doctor-{ready}.log"
    batch = submit([*kinds, "slurm/doctor.sbatch", "--config", str(run.config)], env_sh, log)
    try:
        until("end", batch.ended)
    finally:
        batch.cancel()
    said = batch.said()
    verdicts = [line for line in said.splitlines() if line.startswith(("ready", "not ready"))]  # srun may say more
    assert len(verdicts) == 1 and verdicts[0].startswith("ready" if ready else "not ready"), said
    assert batch.field("ExitCode") == ("0:0" if ready else "1:0")
    assert f"job {batch.number}, partition batch, 4 nodes" in said and "warned by --signal" in said
    assert "6 pairs of 4 hosts" in said and "topology        4 ranks: 2 owners, 2 dense" in said
    for node in batch.hosts():
        assert (f"FAIL  memory of a run 1 ranks on {node}" in said) != ready, said
    assert (f"FAIL  local scratch   {SCRATCH}: every rank cannot write to it" in said) != ready
