"""What the job scripts of ``slurm/`` run, and what they do when a run ends, allocation by allocation.

Without a Slurm: ``hpcrec`` and ``scontrol`` are small scripts here. On a real one: tests/slurm.
"""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import ANY

import pytest

from hpcrec.comm.failure import exit_code
from hpcrec.errors import LastCheckpointError
from hpcrec.launcher.submit import scripts_folder
from hpcrec.toml.write import dump_value

HPCREC = """#!/bin/sh
echo "$@" >> "$RUN.commands"
case "$*" in *--resume*) echo 'Error: No such option: --resume' >&2; exit 2 ;; esac
case $1 in
  config) printf '[data]\\ntrain = "t.h5"\\n[run]\\nfolder = %s\\n[x]\\nfolder = "no"\\n' "$FOLDER" ;;
  run)
    echo "$HPCREC_STOP_S" > "$RUN.stop_s"
    [ -z "$BRINGS" ] || mkdir -p "$RUN/checkpoints/step-$BRINGS"
    [ -z "$TAKEN" ] || kill -TERM $PPID
    exit "${CODE:-75}"
    ;;
esac
"""
RUN = r'a "run" of C:\new'
PARTS = {"SLURM_HET_SIZE": "2", "SLURM_NTASKS_HET_GROUP_0": "2", "SLURM_NTASKS_HET_GROUP_1": "8"}


@dataclass(frozen=True)
class Ended:
    """A script's status, whether it asks for the job to be requeued, what it says, and the hpcrec commands it ran."""

    code: int
    again: bool
    said: str
    commands: list[str]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Ended]:
    """Runs a script once."""
    programs, run = tmp_path / "bin", tmp_path / RUN
    programs.mkdir()
    for name, text in {"hpcrec": HPCREC, "scontrol": '#!/bin/sh\necho "$@" >> "$RUN.requeues"\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    # a site's settings of before: some that scripts know today are not there
    (tmp_path / "env.sh").write_text("HPCREC_LAUNCHER=mpirun HPCREC_RESTARTS=0 HPCREC_REQUEUES=9 HPCREC_STOP_S=1\n")
    requeues, commands = tmp_path / f"{RUN}.requeues", tmp_path / f"{RUN}.commands"

    def once(name: str, *arguments: str, log: str = "", **more: str) -> Ended:
        for path in (requeues, commands):
            path.unlink(missing_ok=True)
        variables = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HPCREC_ENV": str(tmp_path / "env.sh"),
            "RUN": str(run),
            "FOLDER": dump_value(str(run)),
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS": "2",
            **more,
        }
        command = ["bash", str(scripts_folder() / f"{name}.sbatch"), *arguments]
        if log:
            command = ["bash", "-c", f'exec "$@" > {log} 2>&1', "log", *command]
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not requeues.exists() or requeues.read_text() == f"requeue {variables['SLURM_JOB_ID']}\n"
        ran = commands.read_text().splitlines() if commands.exists() else []
        return Ended(done.returncode, requeues.exists(), done.stdout + done.stderr, ran)

    return once


@pytest.fixture(params=["fused", "split", "split-het"])
def allocation(request: pytest.FixtureRequest, script: Callable[..., Ended]) -> Callable[..., Ended]:
    """Runs a script of training once."""
    parts = PARTS if request.param == "split-het" else {}
    return lambda *arguments, **more: script(request.param, "x.toml", *arguments, **parts, **more)


def test_two_allocations_in_a_row_without_a_checkpoint_are_the_last(allocation):
    for brings in ("8", "", "16", "", "24"):  # one without is not two
        ended = allocation(BRINGS=brings)
        assert (ended.code, ended.again, ended.said) == (75, True, "job 7: to be requeued, for the 1. time\n")
    assert allocation().again
    ended = allocation()
    assert (ended.code, ended.again) == (75, False)
    assert ended.said == (
        "job 7: not requeued, for its last two allocations brought no checkpoint: one more would not either. Give it a "
        "longer --time. Submit it again to go on.\n"
    )
    assert allocation(SLURM_JOB_ID="8").again, "another job begins anew"
    assert not allocation(SLURM_JOB_ID="8").again


def test_a_run_folder_whose_name_begins_as_an_option_is_a_folder(allocation):
    assert allocation(FOLDER='"-run"', SLURM_RESTART_COUNT="0").again
    found = allocation(FOLDER='"-run"', SLURM_RESTART_COUNT="1")
    assert not found.again and "its last two allocations brought no checkpoint" in found.said


@pytest.mark.parametrize("name", ["fused", "split", "split-het", "prepare-array"])
def test_a_warning_while_the_environment_is_set_up_requeues_without_a_run(name, script, tmp_path):
    (tmp_path / "list").write_text("source\n")
    arguments = ["x.toml"] if name != "prepare-array" else ["list", "out", "criteo"]
    more = {**PARTS, "SLURM_ARRAY_TASK_ID": "0"} if name == "split-het" else {"SLURM_ARRAY_TASK_ID": "0"}
    settings = tmp_path / "env.sh"
    text = settings.read_text()
    for signal, again in (("USR1", True), ("TERM", False)):  # TERM: Slurm takes the nodes, and requeues it by itself
        settings.write_text(f"{text}kill -{signal} $$\nmodules=loaded\n")
        found = script(name, *arguments, **more)
        assert (found.again, found.code) == (again, 138), found.said
        assert not any(line.startswith("run") for line in found.commands)


def test_an_allocation_that_slurm_ended_in_between_may_have_brought_a_checkpoint(allocation):
    assert allocation().again
    assert not allocation(BRINGS="8", TAKEN="yes").again, "Slurm does it"
    assert allocation().again, "the last but one brought some"
    ended = allocation()
    assert not ended.again and "its last two allocations brought no checkpoint" in ended.said


def test_a_stop_that_could_write_no_last_checkpoint_is_requeued_as_often_as_others(allocation):
    code = int(exit_code(LastCheckpointError("no space left")))
    said = "job 7: to be requeued, for the 1. time\n"
    assert allocation(CODE=str(code), BRINGS="8") == Ended(code, True, said, ANY)  # the one before the last
    assert allocation(CODE=str(code)).again
    ended = allocation(CODE=str(code))
    assert not ended.again and "its last two allocations brought no checkpoint" in ended.said


def test_only_what_was_stopped_or_warned_is_requeued(allocation):
    for code in (0, 1):
        ended = allocation(CODE=str(code))
        assert (ended.code, ended.again) == (code, False)
    ended = allocation(SLURM_RESTART_COUNT="9")
    assert (ended.code, ended.again) == (75, False)
    assert ended.said == "job 7: not requeued, HPCREC_REQUEUES=9. Submit it again to go on.\n"


def test_a_run_folder_that_cannot_be_written_is_no_reason_to_stop(allocation, tmp_path):
    (tmp_path / RUN).write_text("")
    ended = allocation()
    assert (ended.code, ended.again) == (75, True) and "to be requeued" in ended.said


def test_a_configuration_is_read_once_and_before_the_run(allocation):
    assert [command.split()[0] for command in allocation().commands] == ["config", "run"]


def test_a_run_is_told_how_long_a_warned_one_has(allocation, tmp_path):
    allocation()
    assert (tmp_path / f"{RUN}.stop_s").read_text() == "1\n"  # of env.sh, which does not export it


def test_a_job_that_may_have_lost_nodes_copies_to_those_that_squeue_shows_whatever_it_is_told_to(script, tmp_path):
    fakes = {
        "squeue": """[ -z "$SQUEUE_PARTITION$SLURM_CLUSTERS" ] || exit 0
case " $* " in *' --all '*) echo 3 ;; esac""",
        "srun": 'echo "$*" >> "$RUN.steps"',
    }
    for name, body in fakes.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    settings = {"SQUEUE_PARTITION": "x", "SQUEUE_STATES": "PD", "SLURM_CLUSTERS": "another"}
    nodes = {"HPCREC_MIN_NODES": "3", "SLURM_JOB_NUM_NODES": "4", "HPCREC_SCRATCH": str(tmp_path)}
    for more in ({}, settings):
        (tmp_path / f"{RUN}.steps").unlink(missing_ok=True)
        assert script("fused", "x.toml", BRINGS=f"{len(more) + 1}", **nodes, **more).again
        steps = (tmp_path / f"{RUN}.steps").read_text().splitlines()
        steps = [step for step in steps if step.startswith("--input")]
        assert len(steps) == 2 and all(step.startswith("--input=none -N 3 -n 3 ") for step in steps), steps


def test_copies_that_do_not_go_hold_up_no_requeue(script, tmp_path):
    fakes = {"squeue": "echo 3", "srun": 'case " $* " in *" sh -c "*) ;; *" rm "*) exec sleep 300 ;; esac'}
    for name, body in fakes.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    nodes = {"HPCREC_MIN_NODES": "3", "SLURM_JOB_NUM_NODES": "4", "HPCREC_SCRATCH": str(tmp_path)}
    began_s = time.monotonic()
    assert script("fused", "x.toml", BRINGS="1", **nodes).again
    assert time.monotonic() - began_s < 30.0


def test_a_job_that_may_lose_nodes_says_so_to_the_run(script):
    assert script("fused", "x.toml", HPCREC_MIN_NODES="3").commands[-1] == (
        "run -n 2 --launcher mpirun --min-nodes 3 -- train x.toml --set topology.mode=fused"
    )
    assert "--min-nodes" not in script("fused", "x.toml", HPCREC_MIN_NODES="").commands[-1]


def test_an_option_with_which_a_requeued_job_would_not_go_on_is_refused(allocation):
    ended = allocation("--resume", "never")
    assert (ended.code, ended.again) == (2, False)
    assert ended.said == (
        "Error: No such option: --resume\n"
        "job 7: not run, as hpcrec says above. Behind CONFIG.toml only --set and --unset are taken: with --resume a "
        "requeued job would not go on where it was stopped.\n"
    )
    assert [command.split()[0] for command in ended.commands] == ["config"]


def test_the_doctor_is_told_the_roles_that_a_run_on_two_kinds_of_nodes_has(script):
    roles = "--set topology.mode=split --set topology.owners=2 --set topology.dense=8"
    for arguments in (("--config", "my.toml"), ("--config=my.toml", "--json")):
        given = " ".join(arguments)
        ran = script("doctor", *arguments, **PARTS).commands
        assert ran == [f"run -n 10 --launcher srun -- doctor {given} {roles}"]
    assert script("doctor", **PARTS).commands == ["run -n 10 --launcher srun -- doctor"]
    ran = script("doctor", "--config", "my.toml").commands
    assert ran == ["run -n 2 --launcher mpirun -- doctor --config my.toml"]


def test_a_log_that_takes_no_more_is_no_reason_to_stop(allocation):
    assert allocation(log="/dev/full").again
    ended = allocation(log="/dev/full", SLURM_RESTART_COUNT="9")
    assert (ended.code, ended.again) == (75, False)
