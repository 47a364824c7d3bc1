"""What is simulated: training runs that are killed, stopped and started again, and several on one folder.

``one(scenario, seed)`` runs a schedule in folders of the current one, which it clears. The same seed gives the same
schedule, in any process that has the same ``PYTHONHASHSEED``.
"""

import contextlib
import functools
import itertools
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from hpcrec.again import read_json_lines
from hpcrec.checkpoint.files import steps_in
from hpcrec.comm.board import Left
from hpcrec.errors import ConfigError, HpcrecError
from hpcrec.launcher import restarts as restarts_of
from hpcrec.launcher.relay import Heard
from hpcrec.launcher.restarts import Run, run_attempts
from hpcrec.training import attempts
from hpcrec.training.attempts import Allocation
from tests.simulated.preparing import prepare
from tests.simulated.ranks import Job
from tests.simulated.schedules import MANY, Done, Drawn, Schedule
from tests.simulated.stalling import stalls
from tests.simulated.system import LOCKS, unseen
from tests.simulated.training import RUN, Settings, Truth, program, stand_ins, told

SIZES = (3, 3, 4, 4, 5, 8)
ATTEMPTS = 12  # of a run; nothing comes between in the last two


def trained(seed: int, drawn: Drawn, settings: Settings, locks: str = "kept") -> tuple[Schedule, Truth]:
    """A schedule of training runs."""
    schedule = Schedule(seed, drawn, repr(settings), locks)
    truth = Truth(schedule, settings)
    schedule.judge, schedule.around = truth.final, stand_ins(truth)
    schedule.system.changed.append(truth.takes_away)
    return schedule, truth


def commit(seed: int) -> Schedule:
    """One job after the other, each on another number of ranks, until the run is finished."""
    choose = random.Random(f"commit {seed}")
    drawn = Drawn.of(seed, kills=3, faults=2, pauses=1, stops=1)
    settings = Settings(
        steps=choose.choice((4, 6, 9)),
        every=choose.choice((1, 2, 3)),
        keep=choose.choice((1, 2, 3)),
        full_every=choose.choice((1, 1, 2, 3)),
        keep_best=choose.random() < 0.5,
        background=choose.random() < 0.5,
        eval_every=choose.choice((0, 1, 2, 4, 5)),
        hdf5=choose.random() < 0.1,
        resume=choose.choice(("auto", "auto", "never")),
    )
    requeued = settings.resume == "never" or choose.random() < 0.5
    schedule, truth = trained(seed, drawn, settings)
    sizes = SIZES if choose.random() < 0.96 else MANY

    def launch() -> None:
        for attempt in range(ATTEMPTS):
            drawn.on = attempt < ATTEMPTS - 2
            before, commits = schedule.met, truth.commits
            job = schedule.start(choose.choice(sizes), program(truth, Allocation("7", attempt * requeued)))
            job.wait()
            met = schedule.met > before
            truth.ended(job)
            if finished(job):
                if not met:
                    truth.kept(job, saved=truth.commits > commits)
                return
            if not drawn.on or (not met and job.name not in schedule.stopped):
                schedule.simulation.fail(f"{job.name} met nothing, and failed:\n{told(job.errors)}")

    schedule.launcher("launcher", launch)
    return schedule


def finished(job: Job) -> bool:
    """Whether all ranks of a job did all steps."""
    return all(task.result == "finished" for task in job.tasks)


def claim(seed: int) -> Schedule:
    """Several jobs on one folder, which begin within a minute of each other."""
    choose = random.Random(f"claim {seed}")
    drawn = Drawn.of(seed, kills=1, faults=2, pauses=2, stops=1)
    settings = Settings(
        steps=6,
        every=choose.choice((1, 2)),
        keep=choose.choice((1, 2)),
        full_every=choose.choice((1, 2)),
        background=choose.random() < 0.5,
        eval_every=choose.choice((0, 2)),
        step_s=choose.choice((0.1, 3.0, 20.0, 60.0)),
        resume=choose.choice(("auto", "auto", "never")),
    )
    schedule, truth = trained(seed, drawn, settings, choose.choice(LOCKS))
    if choose.random() < 0.5:  # a holder stands still past the limit, where it is about to change what others see
        shown = ("rename checkpoints/", "replace", "fsync checkpoints/.step-", "listdir")
        drawn.pause_at = choose.choice(shown if settings.resume == "auto" else ("rename run/checkpoints", *shown))
        drawn.pauses, drawn.pauses_s = max(drawn.pauses, 1), (150.0, 300.0)
    schedule.simulation.at_point.append(truth.comes_to)
    schedule.system.changed.append(truth.changes)
    if settings.resume == "never":  # there is something to clear
        (RUN / "checkpoints" / "step-1").mkdir(parents=True)
    simulation, states = schedule.simulation, {}
    apart, squeue_fails = choose.random() < 0.9, choose.choice((0.0, 0.5, 1.0, 1.0))
    schedule.system.squeue = lambda: None if choose.random() < squeue_fails else dict(states)

    def launch(number: int, delay_s: float, size: int) -> None:
        name, restart = str(100 + number), 0
        hosts = (f"host-{number}" if apart else "host",)
        simulation.sleep(delay_s)
        while True:
            states[name] = "RUNNING"
            put_back = truth.put_back
            job = schedule.start(size, program(truth, Allocation(name, restart)), hosts)
            job.wait()
            del states[name]
            truth.ended(job)
            errors = [error for rank, error in enumerate(job.errors) if rank not in job.late]
            told_whose = all(isinstance(error, ConfigError) and "this run" in str(error) for error in errors)
            if finished(job) and job.name in truth.overtaken:
                simulation.fail(f"{job.name} finished, and had been overtaken")
            if finished(job) or (told_whose and not job.killed) or job.name in truth.overtaken:
                return  # one that was overtaken may also meet what the other one has removed
            stopped = all(task.result == "stopped" for task in job.tasks)
            if stopped and job.name not in schedule.stopped:
                simulation.fail(f"{job.name} was not told to stop, and did")
            if not stopped and not job.killed and not schedule.faults_of(job) and truth.put_back == put_back:
                simulation.fail(f"{job.name} met no error, and failed:\n{told(job.errors)}")
            if nameless := [error for error in errors if error is not None and not _names_a_file(error)]:
                simulation.fail(f"{job.name} ended, and did not say by which file:\n{told(nameless)}")
            restart += 1
            simulation.sleep(choose.choice((0.0, 10.0)))

    sizes = (3, 3, 4, 6) if choose.random() < 0.99 else MANY
    for number in range(choose.choice((2, 2, 3))):
        delay_s, size = choose.choice((0.0, 1.0, 50.0, 100.0)), choose.choice(sizes)
        schedule.launcher(f"launcher {number}", functools.partial(launch, number, delay_s, size))
    return schedule


def _names_a_file(error: BaseException) -> bool:
    """Whether whoever reads it learns of the file, or of the run, that it is about."""
    return isinstance(error, HpcrecError | OSError) and str(RUN) in str(error)


def restart(seed: int) -> Schedule:
    """A run that the launcher starts again; sometimes in a folder where there was one before."""
    choose = random.Random(f"restart {seed}")
    drawn = Drawn.of(seed, kills=5, faults=1, stops=1)
    settings = Settings(
        steps=6,
        every=choose.choice((1, 2, 3)),
        keep=choose.choice((1, 2)),
        background=choose.random() < 0.5,
        resume=choose.choice(("auto", "never", "never")),
    )
    schedule, truth = trained(seed, drawn, settings)
    restarts, again, sizes = (
        choose.choice((1, 3, 9)),
        choose.random() < 0.5,
        (3, 4, 5) if choose.random() < 0.97 else MANY,
    )
    starts: list[tuple[int | None, int]] = []  # of each: the last step, and the newest checkpoint after it
    codes: list[int] = []

    def start(arguments: Sequence[str], environment: Mapping[str, str], heard: Heard) -> int:
        job = schedule.start(choose.choice(sizes), program(truth, Allocation(), *arguments[2:]))
        code = job.wait()
        truth.ended(job)
        if job.name in schedule.stopped:
            heard.stopping = True
        starts.append((truth.steps.get(job.name), newest()))
        return 75 if all(task.result == "stopped" for task in job.tasks) else code

    def launch() -> None:
        if again:
            drawn.on = False
            job = schedule.start(choose.choice(sizes), program(truth, Allocation(), "auto"))
            schedule.simulation.wait("until it has saved", lambda: truth.commits > 0)
            schedule.stopped.add(job.name)
            job.wait()
            drawn.on = True
            if settings.resume == "never":
                truth.may_be_cleared()
        codes.append(run_attempts(start, ("train",), environment={}, run=Run(RUN, settings.resume), restarts=restarts))

    def judge() -> str:
        told, code = f"ended with {codes}, after {starts} of {restarts + 1} attempts", codes[0]
        twice = [one == other for one, other in itertools.pairwise(starts)]
        if any(twice[:-1]):
            return f"{told}: started again though it failed twice at the same step"
        if code not in (0, 75) and len(starts) <= restarts and not (twice and twice[-1]) and not schedule.stopped:
            return f"{told}: not started again"
        begins = [line["event"] for line in read_json_lines(RUN / attempts.FILE) if line["event"] in ("begin", "end")]
        if any(one == other for one, other in itertools.pairwise(begins)):
            return f"the record of attempts is {begins}"
        if code == 0 and newest() != settings.steps:
            return f"{told}, and the newest checkpoint is of step {newest()}"
        return truth.final()

    def newest() -> int:
        with unseen():
            return max(steps_in(RUN), default=-1)

    schedule.launcher("launcher", launch)
    schedule.judge, schedule.around = judge, _without_boards(schedule, truth)
    return schedule


@contextlib.contextmanager
def _without_boards(schedule: Schedule, truth: Truth) -> Iterator[None]:
    """What the launcher learns from ranks' boards it is told."""

    def boards() -> dict[int, Left]:
        job = schedule.jobs[-1]
        return {
            rank: Left(rank, job.size, rank, "host", "", truth.steps.get(job.name), {}, None, str(error or ""))
            for rank, error in enumerate(job.errors)
        }

    watch = SimpleNamespace(environment={}, last_words=lambda *_: None, boards=boards, all_left=lambda: False)
    watching = mock.patch.object(restarts_of, "Watch", lambda _: contextlib.nullcontext(watch))
    quiet = mock.patch.object(restarts_of, "say", lambda *_: None)  # else to this process's stderr, by a thread
    with watching, quiet, stand_ins(truth):
        yield


SCENARIOS: dict[str, Callable[[int], Schedule]] = {
    "commit": commit,
    "claim": claim,
    "prepare": prepare,
    "stall": stalls,
    "restart": restart,
}


def one(scenario: str, seed: int) -> Done:
    """Runs a schedule."""
    for path in Path().iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    return SCENARIOS[scenario](seed).run(scenario)


__all__ = ["SCENARIOS", "one"]
