"""A run whose stop takes longer than its job script gives begins it by itself, early enough, and says so.

The numbers by a simulated clock; then whole runs beside a ``squeue`` that is a small script here. On a real Slurm:
tests/slurm.
"""

import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.checkpoint.checkpoint import CheckpointWriter
from hpcrec.comm.failure import ExitCodes, StopSignal, exit_code, unwatch, watch
from hpcrec.config import Config
from hpcrec.errors import CheckpointError, ConfigError, HpcrecError
from hpcrec.training import attempts, loop
from hpcrec.training import stop_time as module
from hpcrec.training.session import Session
from hpcrec.training.stop_time import (
    AGAIN_S,
    SPARE_S,
    StopTime,
    seconds_left,
    seconds_left_at_start,
    stop_seconds,
)
from tests.checkpoint.test_background import Full
from tests.training.learned import check_equal
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import roles_for


class Job:
    """A job of a simulated Slurm, which ends at ``ends_s``: it is asked, and the time of day is set, by the test."""

    def __init__(self, signal: StopSignal, ends_s: float, **more: Any) -> None:
        self.now_s, self.ends_s, self.asked = 1000.0, 1000.0 + ends_s, 0
        self.problem: str | None = None
        self.left_at_start_s: float | None = None
        given = {"job": "7", "given_s": 90.0, "first_step": 10, "interval": 5, "steps": 4, **more}
        self.stop_time = StopTime(
            signal,
            left_s=self.left_s,
            left_at_start_s=lambda: self.left_at_start_s,
            clock=lambda: self.now_s,
            **given,
        )
        self.signal = signal

    def left_s(self) -> float:
        self.asked += 1
        if self.problem is not None:
            raise HpcrecError(self.problem)
        return self.ends_s - self.now_s

    def train(self, until_s: float) -> float:
        """Looks as the thread does, until the stop is begun or ``until_s`` has passed; seconds since the start."""
        while self.now_s < 1000 + until_s and not self.signal.requested:
            wait_s = self.stop_time.look()
            if not self.signal.requested:
                self.now_s = min(self.now_s + (until_s if wait_s is None else wait_s), 1000 + until_s)
        return self.now_s - 1000


@pytest.fixture
def flag() -> Iterator[StopSignal]:
    with StopSignal() as signal:
        yield signal


def test_needed_is_two_checkpoints_the_steps_to_the_last_and_an_evaluation_that_no_stop_ends(flag: StopSignal) -> None:
    stop_time = Job(flag, 3600).stop_time
    assert stop_time.needed_s == 0
    stop_time.stepped(2.0)
    stop_time.saved(15, 50.0)
    assert stop_time.needed_s == 2 * 50 + 4 * 2
    stop_time.saved(20, 30.0)  # one of changed rows; the next may be of all again
    stop_time.evaluated(20.0)
    stop_time.evaluated(5.0)
    assert stop_time.needed_s == 2 * 50 + 4 * 2 + 20
    stop_time.saved(25, 60.0)
    assert stop_time.needed_s == 2 * 60 + 4 * 2 + 20
    for _ in range(500):  # a step that took long by chance is forgotten
        stop_time.stepped(0.5)
    assert stop_time.needed_s == 2 * 60 + 4 * 0.5 + 20


def test_squeue_is_asked_few_times_though_it_counts_in_whole_seconds(flag: StopSignal) -> None:
    job = Job(flag, 900.7)
    exact = job.left_s

    def counted() -> float:
        job.now_s += 0.02  # so long it takes
        return float(math.floor(exact()))

    job.stop_time._left_s = counted
    job.stop_time.saved(15, 49.975)
    at_s = job.train(until_s=900)
    assert 900.7 - 100 - 120 - 1.7 <= at_s <= 900.7 - 100 - 120 + 1.0
    assert job.asked <= 900 / 120 + 4


def test_stop_begins_so_long_before_the_end_as_it_takes(flag: StopSignal, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(flag, 3600)
    job.stop_time.stepped(0.25)
    job.stop_time.saved(15, 100.0)
    assert job.train(3600) == 3600 - 201 - SPARE_S
    assert flag.requested and flag.name == "time limit"
    told, begun = capsys.readouterr().err.splitlines()
    assert told == (
        "hpcrec: a stop may take 201 s, for the checkpoint under way and a last one (up to 100.0 s each) and the steps "
        "before it; HPCREC_STOP_S gives 90 s. Job 7 ends in 3600 s: this run begins its stop by itself, 321 s before "
        "that. With HPCREC_STOP_S=252 and #SBATCH --signal=B:USR1@282 the warning comes in time."
    )
    assert begun == (
        "hpcrec: job 7 ends in 321 s, and a stop may take 201 s, for the checkpoint under way and a last one (up to "
        "100.0 s each) and the steps before it; HPCREC_STOP_S gives 90 s: the ranks stop after this step and write a "
        "checkpoint"
    )
    assert job.stop_time.look() is None  # it is begun once
    assert job.stop_time.goes_on_from == 15


def test_a_stop_that_a_signal_began_is_the_signals(flag: StopSignal) -> None:
    job = Job(flag, 3600)
    job.stop_time.saved(15, 100.0)
    assert job.stop_time.goes_on_from is None
    signal.raise_signal(signal.SIGUSR1)
    job.now_s += 3500
    job.stop_time.look()
    assert flag.name == "SIGUSR1" and job.stop_time.goes_on_from is None


def test_a_stop_that_the_warning_leaves_time_for_is_not_begun_nor_is_slurm_asked(flag: StopSignal) -> None:
    job = Job(flag, 3600)
    job.stop_time.saved(15, 45.0)  # 90 s of two
    assert job.train(7200) == 7200
    assert not flag.requested and job.asked == 0


def test_a_checkpoint_that_takes_longer_is_said_again_and_the_stop_begins_earlier(
    flag: StopSignal, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(flag, 3600)
    for step, took_s in ((15, 40.0), (20, 100.0), (25, 110.0), (30, 130.0)):
        job.stop_time.saved(step, took_s)
        job.stop_time.look()
    assert re.findall(r"may take (\d+) s", capsys.readouterr().err) == ["200", "260"]
    assert job.train(3600) == 3600 - 260 - SPARE_S


def test_a_limit_that_was_changed_is_heard_of(flag: StopSignal) -> None:
    job = Job(flag, 3600)
    job.stop_time.saved(15, 100.0)
    job.train(3000)
    assert not flag.requested and 3000 / AGAIN_S <= job.asked <= 3000 / AGAIN_S + 2
    job.ends_s += 1800  # by an administrator, just before the stop
    assert job.train(7200) == 5400 - 200 - SPARE_S


def test_a_limit_that_was_lowered_is_heard_of_within_the_time_between_two_questions(flag: StopSignal) -> None:
    job = Job(flag, 3600)
    job.stop_time.saved(15, 100.0)
    job.train(600)
    job.ends_s = 1000 + 1200
    assert 1200 - 200 - SPARE_S <= job.train(3600) <= 1200 - 200 - SPARE_S + AGAIN_S


def test_a_job_without_a_limit_is_let_be_and_nothing_is_said(
    flag: StopSignal, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(flag, math.inf)
    job.stop_time.saved(15, 100.0)
    assert job.train(36000) == 36000
    assert not flag.requested and job.asked > 0 and capsys.readouterr().err == ""


def test_where_squeue_says_nothing_it_is_said_once_and_it_is_asked_again(
    flag: StopSignal, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(flag, 3600)
    job.problem = "squeue: Unable to contact slurm controller"
    job.stop_time.saved(15, 100.0)
    job.train(1000)
    assert not flag.requested and job.asked > 3
    (told,) = capsys.readouterr().err.splitlines()
    assert "When job 7 ends is not known (squeue: Unable to contact slurm controller)" in told
    assert "With HPCREC_STOP_S=250 and #SBATCH --signal=B:USR1@280 the warning comes in time." in told
    job.problem = None
    job.train(2000)
    job.problem = "squeue: timed out"  # what it said stands
    assert job.train(3600) == 3600 - 200 - SPARE_S
    assert capsys.readouterr().err.count("is not known") == 0


def test_where_squeue_has_never_said_it_the_limit_of_the_start_is_taken(
    flag: StopSignal, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(flag, 3600)
    job.problem, job.left_at_start_s = "squeue: no such file", 3000.0
    job.stop_time.saved(15, 100.0)
    job.train(1000)
    told, needs = capsys.readouterr().err.splitlines()
    assert told == "hpcrec: warning: squeue: no such file. The time limit that job 7 had at its start is taken."
    assert "Job 7 ends in 3000 s" in needs
    job.problem, job.left_at_start_s = None, 0.0
    assert job.train(3600) == 3600 - 200 - SPARE_S  # what squeue says stands above it
    job.problem = "squeue: no such file"
    assert capsys.readouterr().err.count("at its start") == 0


def test_a_log_that_blocks_holds_up_no_stop(flag: StopSignal, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = threading.Event()
    monkeypatch.setattr(module, "say", lambda text: blocked.wait(60))
    monkeypatch.setattr(module, "SAY_LIMIT_S", 0.05)
    job = Job(flag, 3600)
    job.stop_time.saved(15, 100.0)
    began_s = time.monotonic()
    assert job.train(3600) == 3600 - 200 - SPARE_S
    blocked.set()
    assert flag.requested and time.monotonic() - began_s < 50


def test_the_limit_at_the_start_is_what_slurm_sets() -> None:
    assert seconds_left_at_start({}) is None and seconds_left_at_start({"SLURM_JOB_END_TIME": "Unknown"}) is None
    left_s = seconds_left_at_start({"SLURM_JOB_END_TIME": f"{time.time() + 1000:.0f}"})
    assert left_s is not None and 900 < left_s <= 1001


def test_an_allocation_that_is_too_short_makes_an_interval_of_progress_first(
    flag: StopSignal, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(flag, 300)
    job.stop_time.saved(10, 100.0)  # of the step that it began with, after an evaluation that was owed
    assert job.train(50) == 50
    job.stop_time.saved(12, 100.0)  # the best one, not a whole interval after it
    assert job.train(100) == 100
    assert not flag.requested and job.asked == 0
    job.stop_time.saved(15, 100.0)
    assert job.train(300) == 100
    assert flag.requested
    (told,) = capsys.readouterr().err.splitlines()
    assert "no time for more than the 5 steps to its checkpoint of step 15" in told
    assert told.endswith("Give the job a longer --time.")


@pytest.mark.parametrize("missing", [{"job": None}, {"given_s": None}])
def test_without_a_job_of_our_scripts_nothing_is_done(flag: StopSignal, missing: dict[str, None]) -> None:
    job = Job(flag, 300, **missing)
    with job.stop_time:
        job.stop_time.saved(15, 500.0)
        time.sleep(0.2)
    assert not flag.requested and job.asked == 0


def test_a_signal_after_the_stop_was_begun_is_the_first_one(flag: StopSignal) -> None:
    job = Job(flag, 300)
    with job.stop_time:
        job.stop_time.saved(15, 500.0)
        until_s = time.monotonic() + 60
        while not flag.requested and time.monotonic() < until_s:
            time.sleep(0.01)
    assert flag.requested
    os.kill(os.getpid(), 15)  # Slurm's, at the limit: it would end this process
    assert flag.name == "time limit"


SQUEUE = """#!/bin/sh
echo "$@" >> {folder}/asked
{body}
"""


def fake_squeue(folder: Path, body: str) -> dict[str, str]:
    """The environment of a job in which squeue is a script."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "squeue").write_text(SQUEUE.format(folder=folder, body=body))
    (programs / "squeue").chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "12"}


@pytest.mark.parametrize(
    ("rows", "left_s"),
    [
        (["12|12|3:05"], 185),
        (["12|12|0:07"], 7),
        (["12|12|1:02:03"], 3723),
        (["12|12|2-01:00:05"], 2 * 86400 + 3605),
        (["12|12|UNLIMITED"], math.inf),
        (["12|12|INVALID"], 0),  # past its limit, which OverTimeLimit allows
        (["12+0|12|20:00", "12+1|13|10:00"], 600),  # a heterogeneous job
        (["12_3|12|20:00", "12_1|11|10:00"], 1200),  # a task of an array, whose last one has the array's number
    ],
)
def test_time_left_as_squeue_prints_it(tmp_path: Path, rows: list[str], left_s: float) -> None:
    environment = fake_squeue(tmp_path, "\n".join(f"echo '{row}'" for row in rows))
    assert seconds_left("12", environment) == left_s
    assert (tmp_path / "asked").read_text() == "--all --noheader -j 12 -o %i|%A|%L\n"


def test_a_hidden_job_and_settings_of_squeue_keep_no_time_back(tmp_path: Path) -> None:
    hidden = "case \" $* \" in *' --all '*) echo '12|12|3:05' ;; esac"
    environment = fake_squeue(tmp_path, f'[ -n "$SQUEUE_PARTITION$SQUEUE_STATES$SLURM_CLUSTERS" ] || {hidden}')
    for settings in ({}, {"SQUEUE_PARTITION": "x", "SQUEUE_STATES": "PD"}, {"SLURM_CLUSTERS": "another"}):
        assert seconds_left("12", {**environment, **settings}) == 185


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "squeue: slurm_load_jobs error: Inv"),
        ("", "squeue does not say how much time job 12 has left: ''"),
        ("echo '12|12|NOT_SET'", r"has left: '12\|12\|NOT_SET'"),
        ("exec sleep 60", "timed out after 0.5 seconds"),
    ],
)
def test_a_squeue_that_does_not_say_is_an_error_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    monkeypatch.setattr(module, "ASK_LIMIT_S", 0.5 if "sleep" in body else 30.0)
    with pytest.raises(HpcrecError, match=why):
        seconds_left("12", fake_squeue(tmp_path, body))
    with pytest.raises(HpcrecError, match=r"squeue: .*No such file"):
        seconds_left("12", {"PATH": str(tmp_path)})


def test_stop_seconds_are_a_number(tmp_path: Path) -> None:
    assert stop_seconds({}) is None
    assert stop_seconds({"HPCREC_STOP_S": "570"}) == 570
    assert stop_seconds({"HPCREC_STOP_S": "1.5"}) == 1.5
    with pytest.raises(ConfigError, match=r"HPCREC_STOP_S is '2m'\. Allowed: a number of seconds, as 90"):
        stop_seconds({"HPCREC_STOP_S": "2m"})


# ---- whole runs ------------------------------------------------------------------------------------------------------

COUNTS_DOWN = """
[ -f {ends} ] || echo $(($(date +%s) + {left_s})) > {ends}
left=$(($(cat {ends}) - $(date +%s)))
if [ $left -lt 0 ]; then echo '12|12|INVALID'; else printf '12|12|%d:%02d\\n' $((left / 60)) $((left % 60)); fi
"""
STEPS, EVERY = 200, 4
SAVE_S, STEP_S = 1.0, 0.1
LEFT_S = 15  # from a run's first checkpoint, when it first asks, to when a stop that takes no time has to begin


def config(folder: Path, run: str, *, background: bool, steps: int = STEPS) -> Config:
    return config_for(
        folder,
        topology=roles_for(MPI.COMM_WORLD.size)[-1],
        train={"dtype": "float32", "steps": steps},
        checkpoint={"every": EVERY, "keep": 2, "background": background},
        run={"folder": str(folder / run)},
    )


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and checkpoints take as long as above."""
    step, commit = Session.run_step, CheckpointWriter.commit

    def slow_step(self: Session, *given: Any) -> float:
        time.sleep(STEP_S)
        return step(self, *given)

    def slow_commit(self: CheckpointWriter, *given: Any) -> Path:
        time.sleep(SAVE_S)
        return commit(self, *given)

    monkeypatch.setattr(Session, "run_step", slow_step)
    monkeypatch.setattr(CheckpointWriter, "commit", slow_commit)


def environment_of(folder: Path, left_s: int, stop_s: float) -> dict[str, str]:
    """Of a job that has ``left_s`` when squeue is first asked; ``folder/ends`` says its end from then on."""
    body = COUNTS_DOWN.format(ends=folder / "ends", left_s=left_s)
    found = fake_squeue(folder, body) if MPI.COMM_WORLD.rank == 0 else {"PATH": "", "SLURM_JOB_ID": "12"}
    return {**found, "HPCREC_STOP_S": f"{stop_s:g}"}


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.usefixtures("slow")
def test_a_run_whose_checkpoints_take_long_stops_by_itself_before_the_end(
    folder: Path, background: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    write_data(folder / "data.h5")
    environment = environment_of(folder, int(SPARE_S) + LEFT_S, stop_s=1)
    code = commands.train(config(folder, "run", background=background), environment=environment)
    ended_s, said = time.time(), capfd.readouterr().err
    parallel_assert(code == ExitCodes.STOPPED, msg=str(code))
    told = json.loads((folder / "run/summary.json").read_text())
    manifest = folder / f"run/checkpoints/step-{told['steps']}/manifest.json"
    parallel_assert(told["status"] == "stopped" and manifest.exists(), msg=str(told["steps"]))
    left_s = int((folder / "ends").read_text()) - ended_s
    parallel_assert(left_s > SPARE_S - 30, msg=f"{left_s} s left")  # which a script and an early warning may take
    if MPI.COMM_WORLD.rank == 0:
        needed, reserved, stops, takes = (
            float(text)
            for pattern in (
                r"a stop may take (\d+) s, .* HPCREC_STOP_S gives 1 s\. Job 12 ends .* by itself, (\d+) s before that",
                r"job 12 ends in (\d+) s, and a stop may take (\d+) s, .*: the ranks stop after this step and write a",
            )
            for text in re.search(pattern, said).groups()  # type: ignore[union-attr]
        )
        assert needed >= 2 * SAVE_S and abs(reserved - needed - SPARE_S) <= 1
        assert -20 < stops - takes - SPARE_S <= 1, said  # neither before it has to be, nor late
        assert 2 <= len((folder / "asked").read_text().splitlines()) <= 9


@pytest.mark.parallel([2])
@pytest.mark.usefixtures("slow")
def test_allocations_that_are_too_short_take_a_run_to_its_end_all_the_same(folder: Path) -> None:
    write_data(folder / "data.h5")
    steps, stopped = 5 * EVERY, list[int]()
    for _ in range(steps):
        environment = environment_of(folder, 0, stop_s=1)
        code = commands.train(config(folder, "run", background=False, steps=steps), environment=environment)
        if code == ExitCodes.FINISHED:
            break
        assert code == ExitCodes.STOPPED
        stopped.append(json.loads((folder / "run/summary.json").read_text())["steps"])
    parallel_assert(code == ExitCodes.FINISHED)
    gains = [after - before for before, after in zip([0, *stopped], stopped, strict=False)]
    parallel_assert(len(stopped) >= 1 and min(gains) >= EVERY, msg=str(stopped))
    assert commands.train(config(folder, "whole", background=False, steps=steps)) == ExitCodes.FINISHED
    check_equal(folder / f"run/checkpoints/step-{steps}", folder / f"whole/checkpoints/step-{steps}")


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("by_itself", [True, False])
@pytest.mark.usefixtures("slow")
def test_a_stop_by_itself_that_can_write_no_last_checkpoint_asks_to_be_started_again(
    folder: Path, by_itself: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its failure is told as one; only that no job script was warned makes another exit code of it."""
    write_data(folder / "data.h5")
    run, first = folder / "run", folder / f"run/checkpoints/step-{EVERY}"
    monkeypatch.setattr(loop, "_LAST_PAUSES_S", (0.1, 0.2))
    environment = environment_of(folder, 0, stop_s=1) if by_itself else {}

    def disk_is_full() -> bool:
        if not by_itself and first.exists():
            watch().request("SIGUSR1")
        return first.exists()

    with monkeypatch.context() as patched, pytest.raises(CheckpointError, match="No space left on device") as caught:
        Full(patched, disk_is_full)
        commands.train(config(folder, "run", background=False), environment=environment)
    unwatch()  # the stop was that run's alone; elsewhere its process ends
    said = capfd.readouterr().err
    code, again = exit_code(caught.value), f"ahead of its job's time limit: started again, it goes on from step {EVERY}"
    parallel_assert(code == (ExitCodes.STOPPED if by_itself else ExitCodes.ERROR), msg=str(code))
    parallel_assert((again in str(caught.value)) == by_itself, msg=str(caught.value))
    if MPI.COMM_WORLD.rank == 0:
        assert said.count("; tried again, for it is the last one") == 2, said
        told = json.loads((run / "summary.json").read_text())
        assert (told["status"], told["error"]) == ("failed", str(caught.value))
        assert [event.get("status") for event in attempts.read(run)] == [None, "failed"]
        assert [path.name for path in first.parent.glob("step-*")] == [first.name]
    MPI.COMM_WORLD.Barrier()
    assert commands.train(config(folder, "run", background=False, steps=2 * EVERY)) == ExitCodes.FINISHED
    parallel_assert([event["step"] for event in attempts.read(run) if event["event"] == "begin"] == [0, EVERY])


@pytest.mark.parallel([2])
@pytest.mark.usefixtures("slow")
def test_a_stop_that_the_script_leaves_time_for_is_left_to_the_warning(folder: Path) -> None:
    write_data(folder / "data.h5")
    environment = environment_of(folder, 0, stop_s=500)
    assert commands.train(config(folder, "run", background=False, steps=9), environment=environment) == 0
    parallel_assert(not (folder / "asked").exists())
