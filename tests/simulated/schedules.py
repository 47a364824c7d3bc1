"""Scenarios, what is drawn for each schedule of them, and what comes of it.

``one(scenario, seed)`` runs a schedule in a folder ``run`` of the current folder, which it clears. The same seed gives
the same schedule, in any process that has the same ``PYTHONHASHSEED``.
"""

import contextlib
import errno
import functools
import io
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrec.errors import ConfigError
from hpcrec.training.attempts import Allocation
from tests.simulated.ranks import Job
from tests.simulated.scheduler import Process, Simulation, Task, WrongError
from tests.simulated.system import ERRORS, System, in_use
from tests.simulated.training import RUN, Settings, Truth, program, stand_ins, told

READ = ("open", "stat", "lstat", "listdir", "scandir")
LOCK_KINDS = ("kept", "ignored", "local", "refused")
MOST_SHOWN = 60  # of the choices of a schedule that is wrong


@dataclass
class Done:
    """A schedule.

    Attributes
    ----------
    identity : str
        The same for the same choices.
    ranks : int
        The most of a job.
    counted : bool
        Whether what was drawn for it took effect.
    events : dict of str to int
        What took effect.
    wrong : str
        What it found; empty where nothing.
    """

    scenario: str
    seed: int
    identity: str
    ranks: int
    counted: bool
    points: int
    events: dict[str, int] = field(default_factory=dict)
    wrong: str = ""


@dataclass
class Drawn:
    """What may come between in a schedule: how often, and how likely at each point."""

    random: random.Random
    kills: int = 0
    faults: int = 0
    pauses: int = 0
    stops: int = 0
    p: float = 0.01
    p_fault: float = 0.01
    lasting: bool = False
    calls: frozenset[str] = frozenset(ERRORS)
    from_job: int = 0
    on: bool = True
    job: int = -1
    _lasts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int, **most: int) -> "Drawn":
        """As many of each, up to ``most``, as the seed says."""
        drawn = random.Random(f"drawn {seed}")
        return cls(
            random=random.Random(f"events {seed}"),
            p=drawn.choice((0.003, 0.01, 0.03)),
            p_fault=drawn.choice((0.01, 0.03, 0.1)),
            lasting=drawn.random() < 0.3,
            calls=frozenset(drawn.choice((tuple(ERRORS), READ, READ, (drawn.choice(tuple(ERRORS)),)))),
            from_job=drawn.choice((0, 0, 1, 1, 2)),
            **{name: drawn.randint(0, n) for name, n in most.items()},
        )

    @property
    def any(self) -> bool:
        """Whether anything is to come."""
        return self.kills + self.faults + self.pauses + self.stops > 0

    def take(self, kind: str) -> bool:
        """Whether one comes now."""
        left = getattr(self, kind)
        if not self.on or left == 0 or self.random.random() >= (self.p_fault if kind == "faults" else self.p):
            return False
        setattr(self, kind, left - 1)
        return True

    def fault(self, task: Task, call: str, path: str) -> int:
        """For ``System``."""
        del task, path
        if not self.on or self.job < self.from_job or call not in self.calls:
            return 0
        if call in self._lasts:
            return self._lasts[call]
        if not self.take("faults"):
            return 0
        number = self.random.choice(ERRORS[call])
        if self.lasting and number in (errno.ENOSPC, errno.EDQUOT):
            self._lasts[call] = number
        return number

    def between(self) -> None:
        """A new attempt: the file server is well again."""
        self._lasts.clear()
        self.job += 1


class Schedule:
    """One schedule under way.

    Parameters
    ----------
    locks : str
        See ``System``.
    """

    def __init__(self, seed: int, drawn: Drawn, settings: Settings, locks: str = "kept") -> None:
        self.random = random.Random(f"schedule {seed}")
        stick, tick_s = self.random.choice((0.0, 0.5, 0.9)), self.random.choice((0.0005, 0.01, 0.1))
        self.simulation = Simulation(seed, stick=stick, tick_s=tick_s)
        self.drawn, self.settings = drawn, settings
        self.truth = Truth(self.simulation, settings)
        self.system = System(self.simulation, locks, drawn.fault)
        self.jobs: list[Job] = []
        self.most_ranks = 0
        self.simulation.at_point.append(self._at_point)

    @property
    def met(self) -> int:
        """Errors and kills so far."""
        return sum(n for kind, n in self.simulation.events.items() if kind.startswith(("fault", "kill")))

    def start(self, size: int, allocation: Allocation, hosts: Sequence[str] = ("host",)) -> Job:
        """A job of so many ranks."""
        number = len(self.jobs)
        job = Job(self.simulation, f"job-{number}", number + 1, size, program(self.truth, allocation), hosts)
        self.jobs.append(job)
        self.most_ranks = max(self.most_ranks, size)
        for task in job.tasks:
            task.slow = self.random.random() < 0.1
        return job

    def launcher(self, name: str, work: Callable[[], Any]) -> Task:
        """A task that starts jobs."""

        def run() -> Any:
            work()
            return "over"

        return self.simulation.spawn(name, Process(len(self.simulation.tasks), name, "launcher"), run)

    def _at_point(self, task: Task, at: str) -> None:
        del at
        job = task.process.job
        if job is None or not self.drawn.on:
            return
        if self.drawn.take("kills"):
            self.simulation.events["kill"] += 1
            self.simulation.trace.append("kill")
            rank = next(rank for rank in job.ranks if rank.process is task.process)
            job.kill(None if self.drawn.random.random() < 0.3 else rank)
        elif self.drawn.take("pauses"):
            self.simulation.events["pause"] += 1
            self.truth.paused.add(job.name)
            task.process.paused_until_s = self.simulation.now_s + self.drawn.random.choice((5.0, 40.0, 300.0))
        elif self.drawn.take("stops"):
            self.simulation.events["stop"] += 1
            self.simulation.trace.append("stop")
            self.truth.stop.add(job.name)


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
        eval_every=choose.choice((0, 1, 2)),
        hdf5=choose.random() < 0.1,
    )
    schedule = Schedule(seed, drawn, settings)
    sizes = (3, 3, 4, 4, 5, 8) if choose.random() < 0.96 else (16, 33, 64)

    def launch() -> None:
        for attempt in range(12):
            drawn.between()
            drawn.on = attempt < 10
            before, commits = schedule.met, schedule.truth.commits
            job = schedule.start(choose.choice(sizes), Allocation("7", 0))
            job.wait()
            met = schedule.met > before
            schedule.truth.ended(job)
            if all(task.result == "finished" for task in job.tasks):
                if not met:
                    schedule.truth.kept(job, saved=schedule.truth.commits > commits)
                return
            if not drawn.on or (not met and job.name not in schedule.truth.stop):
                schedule.simulation.fail(f"{job.name} met nothing, and failed:\n{told(job.errors)}")

    schedule.launcher("launcher", launch)
    return schedule


def claim(seed: int) -> Schedule:
    """Several jobs on one folder, which begin within a few minutes of each other."""
    choose = random.Random(f"claim {seed}")
    drawn = Drawn.of(seed, kills=1, faults=0, pauses=2)
    drawn.p = choose.choice((0.003, 0.01, 0.03))
    settings = Settings(
        steps=6,
        every=choose.choice((1, 2)),
        keep=choose.choice((1, 2)),
        full_every=choose.choice((1, 2)),
        background=choose.random() < 0.5,
        eval_every=choose.choice((0, 2)),
        step_s=choose.choice((0.1, 3.0, 20.0, 60.0)),
    )
    schedule = Schedule(seed, drawn, settings, choose.choice(LOCK_KINDS))
    simulation, n_jobs = schedule.simulation, choose.choice((2, 2, 3))
    apart, fails = choose.random() < 0.8, choose.random() < 0.3
    states: dict[str, str] = {}
    schedule.system.squeue = lambda: None if fails and choose.random() < 0.5 else dict(states)

    def launch(number: int, delay_s: float, size: int) -> None:
        name, restart = str(100 + number), 0
        hosts = (f"host-{number}" if apart else "host",)
        simulation.sleep(delay_s)
        while True:
            states[name] = "RUNNING"
            job = schedule.start(size, Allocation(name, restart), hosts)
            job.wait()
            del states[name]
            schedule.truth.ended(job)
            results = {task.result for task in job.tasks}
            ended = [error for rank, error in enumerate(job.errors) if rank not in job.late]
            told_all = all(isinstance(error, ConfigError) and "this run" in str(error) for error in ended)
            if results == {"finished"} and job.name in schedule.truth.overtaken:
                simulation.fail(f"{job.name} finished, and had been overtaken")
            if results == {"finished"} or (told_all and not job.killed):
                return
            if not job.killed:
                simulation.fail(f"{job.name} met no error, and failed:\n{told(job.errors)}")
            restart += 1
            simulation.sleep(choose.choice((0.0, 10.0)))

    for number in range(n_jobs):
        delay_s, size = choose.choice((0.0, 0.0, 1.0, 50.0)), choose.choice((3, 3, 4, 6))
        schedule.launcher(f"launcher {number}", functools.partial(launch, number, delay_s, size))
    return schedule


SCENARIOS: dict[str, Callable[[int], Schedule]] = {"commit": commit, "claim": claim}


def one(scenario: str, seed: int) -> Done:
    """Runs a schedule."""
    shutil.rmtree(RUN, ignore_errors=True)
    schedule = SCENARIOS[scenario](seed)
    simulation, wrong = schedule.simulation, ""
    with (
        in_use(schedule.system),
        stand_ins(schedule.truth),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            simulation.run()
            if errors := [task for task in simulation.tasks if task.error is not None and "launcher" in task.name]:
                raise errors[0].error  # type: ignore[misc]
            if problem := schedule.truth.final():
                raise WrongError(problem)
        except WrongError as error:
            wrong = f"{error}\nlocks are {schedule.system.locks}, {schedule.settings}\nthe last choices:\n" + "\n".join(
                simulation.trace[-MOST_SHOWN:]
            )
    took_effect = not schedule.drawn.any or bool(simulation.events)
    return Done(
        scenario,
        seed,
        simulation.identity(),
        schedule.most_ranks,
        took_effect and schedule.most_ranks > 1,
        simulation._points,
        dict(simulation.events),
        wrong,
    )
