"""Nodes that a Slurm job is left with: which, with which ranks and roles, and what becomes of the run on them.

Without a Slurm: ``squeue``, ``scontrol`` and ``srun`` are small scripts here. On a real one: tests/slurm.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import hpcrec.launcher.nodes as guarding
from hpcrec.cli.main import command_line
from hpcrec.errors import ConfigError, MissingError
from hpcrec.launcher import mpirun
from hpcrec.launcher.nodes import JobNodes, roles_of
from hpcrec.launcher.relay import Heard
from hpcrec.launcher.restarts import Run, run_attempts
from hpcrec.launcher.status import lines
from hpcrec.training import attempts
from tests.launcher.test_restarts import Job, fails, finishes

# squeue says what is in the file left, a line a question and the last one from then on; none: it fails.
SQUEUE = """#!/bin/sh
echo "$@" >> "$FAKE/asked"
[ "$(head -n 1 "$FAKE/left")" != fails ] || { [ "$(wc -l < "$FAKE/left")" -eq 1 ] || sed -i 1d "$FAKE/left"; exit 1; }
case "$*" in *%B*) printf '%s ' n1 ;; esac
head -n 1 "$FAKE/left"
[ "$(wc -l < "$FAKE/left")" -eq 1 ] || sed -i 1d "$FAKE/left"
"""
SCONTROL = """#!/bin/sh
[ "$1" != requeue ] || { echo "$2" >> "$FAKE/requeued"; exit; }
[ "$1 $2" = "show hostnames" ] || exit 1
case $3 in "n[1-4]") echo n1; echo n2; echo n3; echo n4 ;; *) echo "$3" | tr , '\\n' ;; esac
"""
SRUN = """#!/bin/sh
echo "$@" | tr '\\n' ' ' >> "$FAKE/steps"
echo >> "$FAKE/steps"
case "$*" in *guard*) while [ "$1" != sh ]; do shift; done; exec "$@" ;; esac
exit "$(cat "$FAKE/answers")"
"""
JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NTASKS": "8",
    "SLURM_TASKS_PER_NODE": "2(x4)",
    "SLURM_JOB_CPUS_PER_NODE": "4,8(x3)",
    "SLURMD_NODENAME": "n1",
}


class Slurm:
    """The job's nodes, as they are said; whether all answer; what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {"squeue": SQUEUE, "scontrol": SCONTROL, "srun": SRUN}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.environment = {**JOB, "PATH": f"{folder}:{os.environ['PATH']}", "FAKE": str(folder)}
        self.says("n[1-4]")
        self.all_answer(True)
        self.waits: list[float] = []

    def says(self, *left: str) -> None:
        (self.folder / "left").write_text("".join(f"{line}\n" for line in left))

    def all_answer(self, do: bool) -> None:
        (self.folder / "answers").write_text(f"{int(not do)}\n")

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def nodes(self, fewest: int = 2, ranks: int = 8, **roles: int) -> JobNodes:
        def wait(seconds_s: float) -> None:
            self.waits.append(seconds_s)
            time.sleep(0.05)  # for the step that asks nodes to end

        return JobNodes(self.environment, ranks=ranks, fewest=fewest, wait=wait, **roles)


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def silent(_: str) -> None:
    pass


def test_what_is_left_is_a_job_of_its_own(slurm) -> None:
    nodes = slurm.nodes(owners=2, dense=6)
    assert (nodes.names, nodes.ranks, nodes.environment, nodes.arguments) == (("n1", "n2", "n3", "n4"), 8, {}, ())
    assert not nodes.is_short()
    slurm.says("n1,n2,n4")
    assert nodes.is_short() and nodes.lose(silent) == ("n3",) and not nodes.is_short()
    assert (nodes.names, nodes.ranks, nodes.tasks, nodes.enough) == (("n1", "n2", "n4"), 6, (2, 2, 2), True)
    assert nodes.environment == {
        "SLURM_JOB_NODELIST": "n1,n2,n4",
        "SLURM_NODELIST": "n1,n2,n4",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NNODES": "3",
        "SLURM_NTASKS": "6",
        "SLURM_NPROCS": "6",
        "SLURM_TASKS_PER_NODE": "2,2,2",
        "SLURM_JOB_CPUS_PER_NODE": "4,8,8",
    }
    assert nodes.arguments == ("--set", "topology.owners=2", "--set", "topology.dense=4")
    slurm.says("n1")
    assert nodes.lose(silent) == ("n2", "n4") and not nodes.enough
    assert slurm.waits == [], "Slurm had its word"


@pytest.mark.parametrize(
    ("given", "before", "ranks", "wanted"),
    [
        ((None, None), 8, 6, {}),
        ((2, 2), 4, 3, {"owners": 2, "dense": 1}),
        ((1, 7), 8, 2, {"owners": 1, "dense": 1}),
        ((7, 1), 8, 2, {"owners": 1, "dense": 1}),
        ((4, 12), 16, 12, {"owners": 3, "dense": 9}),
        ((3, None), 8, 6, {"owners": 3}),
        ((None, 4), 8, 6, {"dense": 3}),
        ((8, 4), 8, 6, {"owners": 6, "dense": 3}),  # each owns rows, half of them are dense too
    ],
)
def test_fewer_ranks_have_the_roles_in_the_same_proportion(given, before, ranks, wanted) -> None:
    assert roles_of(*given, before, ranks) == wanted


def test_ranks_that_end_before_slurm_knows_why_wait_for_its_word(slurm) -> None:
    slurm.all_answer(False)
    slurm.says("n[1-4]", "n[1-4]", "fails", "n[1-4]", "n1,n2,n3")
    nodes = slurm.nodes()
    assert nodes.lose(silent) == ("n4",) and len(slurm.waits) == 4
    assert len(slurm.lines("steps")) == 1 and slurm.lines("steps")[0].endswith(
        "--nodelist n1,n2,n3,n4 --nodes 4 --ntasks 4 --ntasks-per-node=1 --cpus-per-task=1 true "
    )


def test_where_all_nodes_answer_none_is_lost_and_where_slurm_has_no_word_it_is_not_waited_for_for_ever(slurm) -> None:
    assert slurm.nodes().lose(silent) == ()
    slurm.all_answer(False)
    slurm.waits, said = [], []
    nodes = slurm.nodes()
    nodes._wait = slurm.waits.append
    assert nodes.lose(said.append) == () and 400 < sum(slurm.waits) < 410
    assert said == ["not all nodes of the job answer: waiting for Slurm's word, up to 400 s"]
    assert nodes.ranks == 8


def test_slurm_that_says_nothing_is_asked_five_times(slurm) -> None:
    nodes = slurm.nodes()
    slurm.says("fails")
    assert not nodes.is_short()
    (slurm.folder / "asked").unlink()
    assert nodes.lose(silent) is None and len(slurm.lines("asked")) == 5


def test_a_job_that_may_not_lose_nodes_so_is_refused(slurm) -> None:
    with pytest.raises(ConfigError, match=r"--min-nodes is 5\. Allowed: 1 to 4, the nodes of the job\."):
        slurm.nodes(fewest=5)
    with pytest.raises(ConfigError, match=r"--min-nodes with -n 7\. Allowed: -n 8, all tasks of the job"):
        slurm.nodes(ranks=7)
    for more in ({"SLURM_HET_SIZE": "2"}, {"SLURM_TASKS_PER_NODE": "8"}):
        slurm.environment = {**slurm.environment, **more}
        with pytest.raises(ConfigError, match="this is no Slurm job of several nodes of one kind"):
            slurm.nodes()
    slurm.environment = {**JOB, "PATH": "/nowhere"}
    with pytest.raises(MissingError, match=r"does not say which nodes this job has \(SLURM_JOB_NODELIST='n\[1-4\]'\)"):
        slurm.nodes()


# ---- what becomes of the run -----------------------------------------------------------------------------------------


def run(slurm: Slurm, *works: Callable[[Job], int], fewest: int = 2, restarts: int = 0) -> tuple[int, Job]:
    job = Job(slurm.folder / "run", *works)
    job.folder.mkdir()
    nodes = slurm.nodes(fewest, owners=2, dense=6)
    code = run_attempts(
        job.start,
        ("train", "x.toml"),
        environment=slurm.environment,
        run=Run(job.folder, "auto"),
        restarts=restarts,
        nodes=nodes,
    )
    return code, job


def loses(slurm: Slurm, left: str, work: Callable[[Job], int]) -> Callable[[Job], int]:
    def lost(job: Job) -> int:
        slurm.says(left)
        return work(job)

    return lost


@pytest.mark.parametrize("code", [137, 1, 0])  # 0: what mpirun ends with where it loses a host
def test_a_run_that_loses_a_node_goes_on_with_the_others_and_it_is_no_restart(slurm, capfd, code) -> None:
    found, job = run(slurm, loses(slurm, "n1,n2,n3", fails(35, 30, code=code)), finishes)
    assert found == 0
    roles = ("--set", "topology.owners=2", "--set", "topology.dense=4")
    assert job.lines == [("train", "x.toml"), ("train", "x.toml", *roles)]
    *first, said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hpcrec: ")]
    assert len(first) == (code == 0)
    assert said == ("hpcrec: started again on 6 ranks of n1, n2, n3, from the checkpoint of step 30: node n4 went down")
    ended = attempts.read(job.folder)[1]
    assert (ended["step"], ended["status"], ended["lost_nodes"]) == (35, "killed", ["n4"])
    assert attempts.rows(job.folder)[0][3] == "2 ranks on node; lost n4"
    (job.folder / "config.toml").write_text("")
    assert "lost nodes        n4" in lines(job.folder)


def test_a_run_with_too_few_nodes_asks_for_the_job_to_be_requeued(slurm, capfd) -> None:
    found, job = run(slurm, loses(slurm, "n1,n2", fails(35, 30)), fewest=3)
    assert found == 75 and len(job.lines) == 1
    assert capfd.readouterr().err == (
        "hpcrec: not started again in this job, which is to be requeued: nodes n3, n4 went down, 2 nodes are left, and "
        "--min-nodes is 3\n"
    )
    assert attempts.read(job.folder)[1]["lost_nodes"] == ["n3", "n4"]


def test_where_slurm_says_nothing_the_job_is_to_be_requeued(slurm, capfd) -> None:
    found, job = run(slurm, loses(slurm, "fails", fails(35, 30)))
    assert found == 75 and len(job.lines) == 1
    assert capfd.readouterr().err == (
        "hpcrec: not started again in this job, which is to be requeued: the ranks were ended, and Slurm does not say "
        "which nodes of the job are left, asked several times\n"
    )


def test_a_run_that_fails_on_whole_nodes_is_restarted_as_ever_also_after_a_loss(slurm, capfd) -> None:
    loss = loses(slurm, "n1,n2,n3", fails(40, begun=30))
    found, job = run(slurm, fails(35, 30), loss, fails(41, begun=30), finishes, restarts=2)
    assert found == 0 and [len(line) for line in job.lines] == [2, 2, 6, 6]
    said = capfd.readouterr().err
    assert "restart 1 of 2, from" in said and "restart 2 of 2, from" in said and "started again on 6 ranks" in said


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_run_that_could_not_note_its_end_has_ended_where_no_node_is_lost(slurm, restarts) -> None:
    def ends(job: Job) -> int:
        job.begin(0)
        job.note(50, leaves=True)
        return 0

    found, job = run(slurm, ends, restarts=restarts)
    assert found == 0 and len(job.lines) == 1 and attempts.read(job.folder)[-1]["event"] == "begin"


def test_an_attempt_on_fewer_nodes_that_is_refused_asks_for_the_job_to_be_requeued(slurm, capfd) -> None:
    """Rank 0 of the first one may be on the node that Slurm has lost, and write the run still."""
    found, job = run(slurm, loses(slurm, "n1,n2,n3", fails(35, 30)), lambda job: 2)
    assert found == 75 and len(job.lines) == 2
    assert "not gone on on fewer nodes, as is said above: the job is to be requeued" in capfd.readouterr().err


def test_a_configuration_that_cannot_be_run_is_none_for_a_requeue(slurm) -> None:
    assert run(slurm, lambda job: 2)[0] == 2


def test_a_run_that_ended_is_not_asked_after(slurm) -> None:
    found, _ = run(slurm, finishes)
    assert found == 0 and not [asked for asked in slurm.lines("asked") if "%B" not in asked]


def test_a_step_on_another_node_requeues_the_job_that_loses_the_node_of_its_script(slurm, monkeypatch) -> None:
    monkeypatch.setattr(guarding, "LOOK_S", 0.1)
    with slurm.nodes().guarded():
        time.sleep(1.0)
        assert not slurm.lines("requeued") and len(slurm.lines("asked")) > 1
        slurm.says("fails", "n[1-4]", "n2,n3,n4")
        end_s = time.monotonic() + 60
        while not slurm.lines("requeued"):
            assert time.monotonic() < end_s, slurm.lines("asked")
            time.sleep(0.1)
    assert slurm.lines("requeued") == ["7"]
    (step,) = slurm.lines("steps")
    assert "--overlap" in step and "--nodelist n2 --nodes 1 " in step


def test_nodes_of_a_job_are_known_also_where_squeue_is_told_to_leave_it_out(slurm, monkeypatch) -> None:
    hidden = """[ -z "$SQUEUE_PARTITION$SLURM_CLUSTERS" ] || exit 0
case " $* " in *' --all '*) ;; *) exit 0 ;; esac"""
    squeue = slurm.folder / "squeue"
    squeue.write_text(squeue.read_text().replace("\n", f"\n{hidden}\n", 1))
    slurm.environment |= {"SQUEUE_PARTITION": "x", "SLURM_CLUSTERS": "another"}
    slurm.says("n1,n2,n4")
    assert slurm.nodes().lose(silent) == ("n3",)
    monkeypatch.setattr(guarding, "LOOK_S", 0.1)
    slurm.says("n2,n3,n4")
    with slurm.nodes().guarded():
        end_s = time.monotonic() + 60
        while not slurm.lines("requeued"):
            assert time.monotonic() < end_s, slurm.lines("asked")
            time.sleep(0.1)


def test_one_node_has_no_other_to_guard_it_and_slurm_requeues_the_job_itself(slurm) -> None:
    slurm.says("n1")
    alone = slurm.nodes()
    assert alone.lose(silent) == ("n2", "n3", "n4")
    with alone.guarded():
        pass
    assert slurm.lines("steps") == []


def test_a_step_that_guards_ends_with_the_run(slurm, monkeypatch) -> None:
    monkeypatch.setattr(guarding, "LOOK_S", 0.1)
    with slurm.nodes().guarded():
        time.sleep(1.0)
    slurm.says("n2,n3,n4")
    time.sleep(1.0)
    assert slurm.lines("requeued") == [] and len(slurm.lines("asked")) > 1


def test_ranks_that_wait_for_a_lost_node_are_ended(monkeypatch) -> None:
    monkeypatch.setattr(mpirun, "LOOK_S", 0.1)
    looks = iter([False, True, False, True, True])
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as process:
        assert mpirun._wait(process, lambda: next(looks), Heard().all_left) == -15
    assert next(looks, None) is None


# ---- what is refused before ------------------------------------------------------------------------------------------


def toml(folder: Path, roles: str) -> str:
    (folder / "run.toml").write_text(
        f'[data]\ntrain = "train.h5"\n[topology]\n{roles}\n[checkpoint]\nevery = 9\n[run]\nfolder = "runs/x"\n'
    )
    return str(folder / "run.toml")


def submitted(tmp_path: Path, roles: str, *options: str) -> tuple[int, str]:
    line = ["submit", toml(tmp_path, roles), "--nodes", "4", "--ranks-per-node", "2", "--dry-run", *options]
    done = CliRunner().invoke(command_line, line)
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


def test_submit_asks_slurm_to_leave_the_job_alone(tmp_path) -> None:
    roles = 'mode = "split"\nowners = 2\ndense = 6'
    code, said = submitted(tmp_path, roles, "--min-nodes", "2")
    assert code == 0 and "#SBATCH --no-kill\n" in said and "\nHPCREC_MIN_NODES=2\n" in said
    code, said = submitted(tmp_path, roles)
    assert code == 0 and "#SBATCH --no-kill" not in said and "\nHPCREC_MIN_NODES=" not in said


@pytest.mark.parametrize(
    ("roles", "options", "why"),
    [
        ('mode = "split"\nowners = [0, 2]', ["--min-nodes", "2"], "topology.owners lists ranks"),
        ('mode = "fused"', ["--min-nodes", "4"], "--min-nodes is 4. Allowed: 1 to 3"),
        ('mode = "split"', ["--min-nodes", "2", "--owner-nodes", "1"], "none with --owner-nodes"),
        (
            'mode = "split"\n[dense.codistillation]\ngroups = 4\n',
            ["--min-nodes", "3"],
            "on 3 nodes this run could not go on: dense.codistillation.groups is 4, but there are 3 dense ranks",
        ),
    ],
)
def test_submit_refuses_what_could_not_go_on(tmp_path, roles, options, why) -> None:
    code, said = submitted(tmp_path, roles, *options)
    assert code != 0 and why in said.replace("\n", " "), said
