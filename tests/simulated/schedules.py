"""A schedule: what is drawn for it, what it is made of, and what came of it. Knows nothing of what its ranks do."""

import contextlib
import errno
import io
import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulated.ranks import Job, Rank
from tests.simulated.scheduler import Process, Simulation, Task, WrongError
from tests.simulated.system import ERRORS, System, in_use

READ = ("open", "stat", "lstat", "listdir", "scandir")
MANY = (16, 33, 64)  # ranks, of a few schedules in a hundred
MOST_SHOWN = 60  # of the choices of a schedule that is wrong


@dataclass
class Done:
    """A schedule that is over.

    Attributes
    ----------
    identity : str
        The same for the same choices.
    ranks : int
        The most of a job.
    counted : bool
        Whether something of what was drawn for it took effect.
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
    """What may come between in a schedule: how many of each, and how likely at each point.

    Attributes
    ----------
    kills, faults, pauses, stops : int
        How many are left: ends of a process or of a job, errors of files, processes that stand still, signals to stop.
    kill_at : str
        At which calls processes are killed; empty: anywhere.
    pause_at : str
        At which calls they stand still; empty: anywhere.
    pauses_s : tuple of float
        How long they do, one of these.
    lasting : bool
        Whether a disk that is full remains so until the job has ended.
    calls : set of str
        Which calls fail.
    from_job : int
        In which job they begin to.
    on : bool
        Whether anything comes at all now.
    met : Counter of str
        Errors of files so far, by job.
    """

    random: random.Random
    kills: int = 0
    faults: int = 0
    pauses: int = 0
    stops: int = 0
    p: float = 0.01
    p_fault: float = 0.01
    kill_at: str = ""
    pause_at: str = ""
    pauses_s: tuple[float, ...] = (5.0, 40.0, 300.0)
    lasting: bool = False
    calls: frozenset[str] = frozenset(ERRORS)
    from_job: int = 0
    on: bool = True
    job: int = -1
    met: Counter[str] = field(default_factory=Counter)
    _lasts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int, **most: int) -> "Drawn":
        """As many of each, up to ``most``, as the seed says."""
        drawn = random.Random(f"drawn {seed}")
        return cls(
            random=random.Random(f"events {seed}"),
            p=drawn.choice((0.003, 0.01, 0.03)),
            p_fault=drawn.choice((0.01, 0.03, 0.1)),
            kill_at=drawn.choice(("", "", "", "rename", "rename", "fsync", "unlink", "bcast")),
            lasting=drawn.random() < 0.3,
            calls=frozenset(drawn.choice((tuple(ERRORS), READ, READ, (drawn.choice(tuple(ERRORS)),)))),
            from_job=drawn.choice((0, 0, 1, 1, 2)),
            pause_at=drawn.choice(("", "", "rename", "replace", "fsync", "listdir")),
            **{name: drawn.randint(0, n) for name, n in most.items()},
        )

    @property
    def any(self) -> bool:
        """Whether anything is to come."""
        return self.kills + self.faults + self.pauses + self.stops > 0

    def take(self, kind: str, at: str = "") -> bool:
        """Whether one comes now, at this scheduling point."""
        left, p = getattr(self, kind), self.p_fault if kind == "faults" else self.p
        if not self.on or left == 0:
            return False
        if where := {"kills": self.kill_at, "pauses": self.pause_at}.get(kind, ""):
            if where not in at:
                return False
            p = 0.1
        if self.random.random() >= p:
            return False
        setattr(self, kind, left - 1)
        return True

    def fault(self, task: Task, call: str, path: str) -> int:
        """For ``System``."""
        del path
        if not self.on or task.process.job is None or self.job < self.from_job or call not in self.calls:
            return 0
        if call in self._lasts:
            self.met[task.process.job.name] += 1
            return self._lasts[call]
        if not self.take("faults"):
            return 0
        self.met[task.process.job.name] += 1
        number = self.random.choice(ERRORS[call])
        if self.lasting and number in (errno.ENOSPC, errno.EDQUOT):
            self._lasts[call] = number
        return number

    def next_job(self) -> None:
        """A new one begins; the file server is well again."""
        self._lasts.clear()
        self.job += 1


class Schedule:
    """One schedule under way.

    Parameters
    ----------
    locks : str
        See ``System``.

    Attributes
    ----------
    said : str
        What it was drawn to be, for whoever reads that it is wrong.
    stopped, paused : set of str
        Names of jobs that were told to stop, and of those of which a process stood still.
    judge : callable
        Says at the end what is wrong with the folder.
    around : context manager
        What of hpcrec is replaced meanwhile.
    """

    def __init__(self, seed: int, drawn: Drawn, said: str = "", locks: str = "kept") -> None:
        self.random = random.Random(f"schedule {seed}")
        stick, tick_s = self.random.choice((0.0, 0.5, 0.9)), self.random.choice((0.0005, 0.01, 0.1))
        self.simulation = Simulation(seed, stick=stick, tick_s=tick_s)
        self.drawn, self.drew = drawn, drawn.any
        self.said = f"locks are {locks}; {said}"
        self.system = System(self.simulation, locks, drawn.fault)
        self.jobs: list[Job] = []
        self.stopped: set[str] = set()
        self.paused: set[str] = set()
        self.judge: Callable[[], str] = lambda: ""
        self.around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.simulation.at_point.append(self._at_point)

    @property
    def met(self) -> int:
        """Errors and kills so far."""
        return sum(n for kind, n in self.simulation.events.items() if kind.startswith(("fault", "kill")))

    def faults_of(self, job: Job) -> int:
        """How many errors of files its ranks have met."""
        return self.drawn.met[job.name]

    def start(self, size: int, program: Callable[[Rank], Any], hosts: Sequence[str] = ("host",)) -> Job:
        """A job of so many ranks."""
        number = len(self.jobs)
        self.drawn.next_job()
        job = Job(self.simulation, f"job-{number}", number + 1, size, program, hosts)
        job.launcher = "" if self.simulation.current is None else self.simulation.current.name
        self.jobs.append(job)
        for task in job.tasks:
            task.slow = self.random.random() < 0.1
        return job

    def launcher(self, name: str, work: Callable[[], Any]) -> Task:
        """A task that starts jobs."""
        return self.simulation.spawn(name, Process(len(self.simulation.tasks), name, "launcher"), work)

    def run(self, scenario: str) -> Done:
        """To its end."""
        simulation, wrong = self.simulation, ""
        with (
            in_use(self.system),
            self.around,
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            try:
                simulation.run()
                if errors := [t.error for t in simulation.tasks if t.error is not None and t.process.job is None]:
                    raise errors[0]
                if problem := self.judge():
                    raise WrongError(problem)
            except Exception as error:  # of a launcher, or of who judges: something is not as it can be
                what = str(error) if isinstance(error, WrongError) else "".join(traceback.format_exception(error))
                last = "\n".join(simulation.trace[-MOST_SHOWN:])
                wrong = f"{what}\n{self.said}\nthe last choices:\n{last}"
        took_effect = any(n for kind, n in simulation.events.items() if kind != "threads")
        most = max((job.size for job in self.jobs), default=0)
        counted = most > 1 and (took_effect or not self.drew)
        events = {kind: n for kind, n in simulation.events.items() if n}
        return Done(scenario, simulation.seed, simulation.identity(), most, counted, simulation.points, events, wrong)

    def _at_point(self, task: Task, at: str) -> None:
        job = task.process.job
        if job is None or not self.drawn.on:
            return
        if self.drawn.take("kills", at):
            self.simulation.events["kill"] += 1
            self.simulation.trace.append("kill")
            rank = next(rank for rank in job.ranks if rank.process is task.process)
            job.kill(None if self.drawn.random.random() < 0.3 else rank)
        elif self.drawn.take("pauses", at):
            self.simulation.events["pause"] += 1
            self.paused.add(job.name)
            task.process.paused_until_s = self.simulation.now_s + self.drawn.random.choice(self.drawn.pauses_s)
        elif self.drawn.take("stops"):
            self.simulation.events["stop"] += 1
            self.simulation.trace.append("stop")
            self.stopped.add(job.name)
