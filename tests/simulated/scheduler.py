"""Tasks of one process that run one at a time, in an order drawn from a seed, by a clock of their own.

A task is a greenlet: it runs until it comes to a scheduling point (``Simulation.point``), waits (``Simulation.wait``)
or ends; then the next one is drawn. The clock moves a little with each point, and to the next sleeper where nobody can
run. Where nobody can and none sleeps, the schedule is a deadlock. The same seed gives the same choices.

Knows neither files (``system``) nor collectives (``ranks``).
"""

import hashlib
import random
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import greenlet

MOST_POINTS = 200_000  # of a schedule; more is a loop that never ends


class Killed(BaseException):
    """The process of this task is gone; no handler of it may do anything any more."""


class WrongError(Exception):
    """What a schedule found: a deadlock, a mismatch, a lost checkpoint, ..."""


class Process:
    """What tasks of one rank have in common: they end together, and with them its locks and descriptors.

    Attributes
    ----------
    number : int
        As ``os.getpid``.
    host : str
    alive : bool
    job : Job or None
    paused_until_s : float
        Until then it is stopped: none of its tasks runs past its next scheduling point.
    """

    def __init__(self, number: int, name: str, host: str) -> None:
        self.number, self.name, self.host = number, name, host
        self.alive = True
        self.job: Any = None
        self.paused_until_s = 0.0
        self.tasks: list[Task] = []
        self.at_end: list[Callable[[], None]] = []

    def end(self) -> None:
        """No task of it does anything from now on."""
        if self.alive:
            self.alive = False
            for call in self.at_end:
                call()
            for task in self.tasks:
                task.interrupt()


class Task:
    """One thread of a process.

    Attributes
    ----------
    result, error
        What its function returned, or raised.
    at : str
        The scheduling point that it came to last.
    """

    def __init__(self, simulation: "Simulation", number: int, name: str, process: Process, work: Callable[[], Any]):
        self.simulation, self.number, self.name, self.process = simulation, number, name, process
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.at = ""
        self.until_s: float | None = None
        self.check: Callable[[], bool] | None = None
        self.slow = False
        self.ready = True
        self.at_end: Callable[[Task], None] | None = None
        self._work = work
        self.greenlet = greenlet.greenlet(self._run, simulation.hub)

    def _run(self) -> None:
        try:
            if self.process.alive:
                self.result = self._work()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self.simulation.ended(self)
        if self.at_end is not None:
            self.at_end(self)

    def interrupt(self) -> None:
        """Lets it find out that its process is gone."""
        if not self.done:
            self.simulation.wake(self)

    def stack(self) -> str:
        """Where it is."""
        frame = self.greenlet.gr_frame
        return "".join(traceback.format_stack(frame)[-12:]) if frame is not None else "  (runs, or has ended)\n"


class Simulation:
    """One schedule.

    Parameters
    ----------
    seed : int
        All that is drawn comes from it.
    stick : float
        How often a task goes on at a scheduling point although others could run.
    tick_s : float
        What the clock moves by at each scheduling point.

    Attributes
    ----------
    now_s : float
        The clock.
    events : Counter of str
        What was drawn and took effect, by kind.
    points : int
        Scheduling points so far.
    trace : list of str
        Each choice: the task and the point that it goes on from; and events.
    """

    def __init__(self, seed: int, *, stick: float = 0.5, tick_s: float = 0.001) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.stick, self.tick_s = stick, tick_s
        self.hub = greenlet.getcurrent()
        self.now_s = 1_000_000.0
        self.current: Task | None = None
        self.tasks: list[Task] = []
        self.events: Counter[str] = Counter()
        self.trace: list[str] = []
        self.at_point: list[Callable[[Task, str], None]] = []  # called where a task goes on: may end it, or its process
        self._ready: list[Task] = []
        self._waiting: list[Task] = []
        self._watched: list[Task] = []  # of the waiting ones those that end by the clock, or by what they check
        self._failure: WrongError | None = None
        self.points = 0

    # Tasks.

    def spawn(self, name: str, process: Process, work: Callable[[], Any]) -> Task:
        """A new task, which can run from now on."""
        task = Task(self, len(self.tasks), name, process, work)
        self.tasks.append(task)
        process.tasks.append(task)
        self._ready.append(task)
        return task

    def ended(self, task: Task) -> None:
        """Takes a task out whose function has ended."""
        (self._ready if task.ready else self._waiting).remove(task)
        if task in self._watched:
            self._watched.remove(task)
        if task.process.tasks[0] is task:  # the main thread of it
            task.process.end()

    def wake(self, task: Task) -> None:
        """Lets a waiting task run again."""
        if not task.ready:
            self._waiting.remove(task)
            self._ready.append(task)
            if task.check is not None or task.until_s is not None:
                self._watched.remove(task)
            task.ready, task.check, task.until_s = True, None, None

    def run(self) -> None:
        """Until all tasks have ended.

        Raises
        ------
        WrongError
            What a task failed by (``fail``), a deadlock, or a schedule without end.
        """
        try:
            while self._failure is None and (task := self._choose()) is not None:
                self.current = task
                task.greenlet.switch()
                self.current = None
        finally:
            self._end_all()
        if self._failure is not None:
            raise self._failure

    def fail(self, text: str) -> None:
        """Ends the schedule: it is wrong. Called by a task, it does not return."""
        self._failure = self._failure or WrongError(text)
        if self.current is not None and self.current.greenlet is greenlet.getcurrent():
            self.current = None
            self.hub.switch()
            raise Killed

    def identity(self) -> str:
        """Which schedule it was: the same choices give the same."""
        return hashlib.blake2b("\n".join(self.trace).encode(), digest_size=10).hexdigest()

    # What tasks call.

    def point(self, at: str) -> None:
        """A scheduling point: others may run before it returns."""
        task = self.current
        assert task is not None
        if not task.process.alive:
            raise Killed
        task.at = at
        self.points += 1
        self.now_s += self.tick_s
        if self.points > MOST_POINTS:
            self.fail(f"no end after {MOST_POINTS} scheduling points\n{self.stacks()}")
        if self._watched:
            self._wake_due()
        if len(self._ready) > 1 and self.random.random() >= self.stick:
            self._switch(self._choose())
        self.trace.append(f"{task.number} {at}")
        for call in self.at_point:
            call(task, at)
        while task.process.alive and task.process.paused_until_s > self.now_s:
            self.wait("paused", timeout_s=task.process.paused_until_s - self.now_s)
        if not task.process.alive:
            raise Killed

    def wait(self, at: str, check: Callable[[], bool] | None = None, timeout_s: float | None = None) -> bool:
        """Until ``check`` holds, or somebody wakes it, or the time is over; whether it is not over."""
        task = self.current
        assert task is not None
        if not task.process.alive:
            raise Killed
        task.at, task.check = at, check
        until_s = None if timeout_s is None else self.now_s + max(timeout_s, 0.0)
        task.until_s = until_s
        self._ready.remove(task)
        self._waiting.append(task)
        task.ready = False
        if check is not None or until_s is not None:
            self._watched.append(task)
        self._wake_due()
        self._switch(self._choose())
        self.trace.append(f"{task.number} {at}")
        if not task.process.alive:
            raise Killed
        return until_s is None or self.now_s < until_s or (check is not None and check())

    def sleep(self, seconds: float) -> None:
        """Until the clock has moved by so much."""
        self.wait(f"sleep {seconds:g}", timeout_s=seconds)

    def busy(self, process: Process) -> bool:
        """Whether any task of a process does more than to wait for others."""
        return any(not task.done and (task.ready or task.until_s is not None) for task in process.tasks)

    def stacks(self) -> str:
        """Of all tasks that have not ended."""
        return "".join(
            f"task {task.number} {task.name} at {task.at}\n{task.stack()}" for task in self.tasks if not task.done
        )

    # Choices.

    def _switch(self, task: Task | None) -> None:
        if task is None:
            self.current = None
            self.hub.switch()
        elif task is not self.current:
            self.current = task
            task.greenlet.switch()

    def _choose(self) -> Task | None:
        """Who runs next; None where that was the end."""
        while not self._ready:
            if not self._waiting:
                return None
            self._wake_due()
            if self._ready:
                break
            sleeping = [task.until_s for task in self._watched if task.until_s is not None]
            if not sleeping:
                self._failure = self._failure or WrongError(f"deadlock: nobody can run\n{self.stacks()}")
                return None
            self.now_s = max(self.now_s, min(sleeping))
        if self._failure is not None:
            return None
        chosen = self._ready[int(self.random.random() * len(self._ready))]
        if chosen.slow and len(self._ready) > 1 and self.random.random() < 0.9:
            self.events["slow"] = 1
            chosen = self._ready[int(self.random.random() * len(self._ready))]
        return chosen

    def _wake_due(self) -> None:
        for task in tuple(self._watched):
            due = task.until_s is not None and task.until_s <= self.now_s
            if due or (task.check is not None and task.check()):
                self.wake(task)

    def _end_all(self) -> None:
        """Unwinds what is left, without any effect."""
        for task in self.tasks:
            task.process.end()
        for task in self.tasks:
            while not task.done and task.greenlet:
                self.current = task
                task.greenlet.throw(Killed)
            task.done = True
        self.current = None
