"""The Slurm job that the doctor runs in: its environment and a ``scontrol`` that are made up."""

import datetime as dt
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcrec.doctor import allocation
from hpcrec.doctor.allocation import job_fields, judge_allocation, measure_allocation, nodes_in, signal_of
from tests.doctor.site import only, site_of
from tests.training.runs import config_for

END = "2026-11-23T12:00:00"
SHOWN = (
    "JobId=12 JobName=a b UserId=me(1000) GroupId=me(1000) JobState=RUNNING Reason=None Requeue={requeue} Restarts=1 "
    "BatchFlag={batch} ExitCode=0:0 RunTime=00:10:00 TimeLimit=01:00:00 StartTime=2026-11-23T11:00:00 "
    f"EndTime={END} Partition=batch NodeList=h[1-2] NumNodes=2 NumTasks=4 CPUs/Task=2 ReqB:S:C:T=0:0:*:* "
    "TRES=cpu=8,mem=10000M,node=2,billing=8 Command=/home/me/run.sbatch WorkDir=/home/me StdOut=/home/me/12.out"
)
SCRIPT = "#!/bin/bash\n#SBATCH -N 2\n{signal}\nmpirun hpcrec train run.toml\n"
GIVEN = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_CPUS_PER_TASK": "2",
    "OMP_NUM_THREADS": "2",
}
HOSTS = ["h1", "h1", "h2", "h2"]


def seconds_before_end(seconds):
    return dt.datetime.fromisoformat(END).timestamp() - seconds


@pytest.fixture
def scontrol(tmp_path):
    """A ``scontrol`` that shows a job and its script; its folder."""

    def make(requeue=1, batch=1, signal="#SBATCH --signal=B:USR1@120", code=0):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (tmp_path / "job").write_text(SHOWN.format(requeue=requeue, batch=batch) + "\n")
        (tmp_path / "script").write_text(SCRIPT.format(signal=signal))
        text = (
            f'#!/bin/sh\n[ {code} = 0 ] || {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}\n'
            f'case "$*" in\n"show job -o 12") cat {tmp_path}/job;;\n'
            f'"write batch_script 12 -") cat {tmp_path}/script;;\n*) exit 3;;\nesac\n'
        )
        (folder / "scontrol").write_text(text)
        (folder / "scontrol").chmod(0o755)
        return f"{folder}:/usr/bin:/bin"

    return make


def findings(path, *, left_s=3000.0, hosts=HOSTS, found=None, config=None, **given):
    environment = {**GIVEN, "PATH": path, **given}
    site = site_of(hosts, environment, config=config, found=found or {})
    first = {**measure_allocation(site), "now_s": seconds_before_end(left_s)}
    rest = {**first, "job": None, "script": None}
    return list(judge_allocation([first, *[rest] * (len(hosts) - 1)], site))


def test_what_the_job_is(scontrol):
    (found,) = findings(scontrol())
    assert (found.level, found.what) == ("ok", "allocation")
    assert found.found == (
        "job 12, partition batch, 2 nodes, tasks a node 2(x2), 2 cpus a task, 0:50:00 left, restarted 1 times, is "
        "requeued after a failure or preemption, warned by --signal=B:USR1@120"
    )
    assert found.data["scontrol"]["TRES"] == "cpu=8,mem=10000M,node=2,billing=8" and found.data["left_s"] == 3000.0


def test_without_scontrol_the_environment_counts(scontrol, tmp_path):
    end = str(int(seconds_before_end(0)))
    (found,) = findings(str(tmp_path), SLURM_JOB_END_TIME=end, left_s=600.0)
    assert "0:10:00 left" in found.found and "requeue not known: no scontrol here" in found.found
    (found,) = findings(scontrol(code=1))
    assert "not known: scontrol: slurm_load_jobs error: Invalid job id" in found.found and "left" not in found.found


def test_outside_slurm_nothing_is_said(scontrol):
    site = site_of(HOSTS, {"PATH": scontrol()})
    answer = measure_allocation(site)
    assert "job" not in answer and list(judge_allocation([answer] * 4, site)) == []


def test_a_job_that_is_not_requeued(scontrol):
    assert only(findings(scontrol(requeue=0)), "warn").what == "requeue"
    # salloc: there is nothing to start again, and no script
    assert [f.level for f in findings(scontrol(requeue=0, batch=0, signal=""))] == ["ok"]


def test_a_signal_that_is_missing_or_late(scontrol):
    none = only(findings(scontrol(signal=""), found={"checkpoint_s": 100.0}), "warn")
    assert none.what == "signal" and "#SBATCH --signal=B:USR1@200" in none.do
    late = only(findings(scontrol(), found={"checkpoint_s": 130.0}), "warn")
    assert late.found == "--signal=B:USR1@120 leaves 120 s; a checkpoint takes about 130 s"
    assert [f.level for f in findings(scontrol(), found={"checkpoint_s": 119.0})] == ["ok"]


def test_time_left_against_checkpoints(scontrol):
    soon = only(findings(scontrol(), left_s=500.0, found={"checkpoint_s": 20.0, "every_s": 600.0}), "warn")
    assert (
        soon.what == "time limit"
        and "500 s are left of the job; the first checkpoint is whole after about 620 s" in (soon.found)
    )
    once = only(findings(scontrol(), left_s=10.0, found={"checkpoint_s": 20.0}), "warn")
    assert once.found == "10 s are left of the job; writing one checkpoint takes about 20 s"
    fine = {"checkpoint_s": 20.0, "every_s": 600.0}
    assert [f.level for f in findings(scontrol(), left_s=700.0, found=fine)] == ["ok"]


def test_threads_against_cpus_a_task(scontrol):
    assert "4 for 2 cpus a task" in only(findings(scontrol(), OMP_NUM_THREADS="4"), "warn").found
    assert "2 for 8 cpus a task" in only(findings(scontrol(), SLURM_CPUS_PER_TASK="8"), "warn").found


def test_nodes_without_ranks_and_a_component_that_was_not_started(scontrol):
    few = only(findings(scontrol(), SLURM_JOB_NUM_NODES="4"), "warn")
    assert few.what == "nodes" and few.found == "the job has 4 nodes, ranks are on 2"
    components = {"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "h[1-2]"}
    half = only(findings(scontrol(), SLURM_JOB_NODELIST_HET_GROUP_1="g[1,3]", **components), "FAIL")
    assert (
        half.what == "launch" and "2 components with 4 nodes, but ranks are on 2 hosts: mpirun starts the" in half.found
    )
    assert "--het-group=0,1" in half.do
    whole = findings(scontrol(), hosts=["h1", "h2", "g1", "g3"], SLURM_JOB_NODELIST_HET_GROUP_1="g[1,3]", **components)
    assert [f.level for f in whole] == ["ok"] and "4 nodes" in whole[0].found


def test_gpus_that_the_run_needs(scontrol):
    config = config_for(Path("/nowhere"))
    on_gpu = replace(config, dense=replace(config.dense, device="cuda"))
    missing = only(findings(scontrol(), config=on_gpu), "warn")
    assert missing.what == "gpus" and "Slurm gave none to every rank" in missing.found
    (fine,) = findings(scontrol(), config=on_gpu, SLURM_GPUS_ON_NODE="2")
    assert "2 GPUs a node" in fine.found
    (fine,) = findings(scontrol(), config=on_gpu, SLURM_JOB_GPUS="0,1,3")
    assert "3 GPUs a node" in fine.found


@pytest.mark.parametrize(
    ("nodelist", "nodes"),
    [("h1", 1), ("h[1-4]", 4), ("h[1,3-5],g7", 5), ("r[1-2]n[01-04]", 8), ("a,b,c", 3), ("h[009-011]-ib", 3), ("", 0)],
)
def test_nodes_of_a_list(nodelist, nodes):
    assert nodes_in(nodelist) == nodes


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("#SBATCH --signal=B:USR1@300", ("--signal=B:USR1@300", 300.0)),
        ("#SBATCH -N 2 --signal USR1", ("--signal USR1", 60.0)),
        ("#SBATCH --signal=R:10@90 --requeue", ("--signal=R:10@90", 90.0)),
        ("# --signal=USR1@3", None),
        ("mpirun --signal=USR1@3", None),
    ],
)
def test_the_signal_of_a_script(line, found):
    assert signal_of(f"#!/bin/bash\n{line}\ntrue\n") == found


def test_fields_of_a_job():
    assert job_fields("") == {}
    two = job_fields("JobId=1 HetJobOffset=0 A:B=c=d\nJobId=2 HetJobOffset=1\n")
    assert two == {"JobId": "1", "HetJobOffset": "0", "A:B": "c=d"}


def test_scontrol_that_hangs_is_left(tmp_path, monkeypatch):
    def hang(line, timeout, **_):
        raise subprocess.TimeoutExpired(line, timeout)

    monkeypatch.setattr(allocation, "subprocess", SimpleNamespace(run=hang, TimeoutExpired=subprocess.TimeoutExpired))
    (tmp_path / "scontrol").write_text("#!/bin/sh\n")
    (tmp_path / "scontrol").chmod(0o755)
    (found,) = findings(str(tmp_path))
    assert "not known: scontrol: Command" in found.found and "timed out after 5.0 seconds" in found.found
