"""Ranks of a job as tasks of a simulation: what they say to each other, and how a job of them ends.

``SimulatedRanks`` has the verbs of ``comm.collectives.Collectives`` that files need, and those of ``comm.aside.Aside``.
Nothing is shared between ranks: what is said is pickled. A rank that comes to another collective than the others is
what a schedule fails by.
"""

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.simulated.scheduler import Killed, Process, Simulation, Task

TOGETHER_S = 1.5  # ranks that fail by the same cause end within this; what is left then is ended


class _Call:
    """One collective."""

    def __init__(self, kind: str, size: int) -> None:
        self.kind = kind
        self.given: list[bytes | None] = [None] * size
        self.missing = size
        self.left = size
        self.waiting: list[Task] = []


class Communicator:
    """What the ranks of one have in common."""

    def __init__(self, simulation: Simulation, name: str, size: int) -> None:
        self.simulation, self.name, self.size = simulation, name, size
        self.calls: dict[int, _Call] = {}

    def call(self, number: int, kind: str, rank: int) -> _Call:
        """A rank comes to its collective ``number``."""
        call = self.calls.setdefault(number, _Call(kind, self.size))
        if call.kind != kind:
            there = [i for i, given in enumerate(call.given) if given is not None]
            self.simulation.fail(
                f"mismatch: in collective {number} of {self.name}, rank {rank} is in {kind}, {there} in {call.kind}\n"
                + self.simulation.stacks()
            )
        return call


class SimulatedRanks:
    """One rank's view of a communicator.

    Attributes
    ----------
    rank, size : int
    """

    def __init__(self, communicator: Communicator, rank: int) -> None:
        self._communicator, self._simulation = communicator, communicator.simulation
        self.rank, self.size = rank, communicator.size
        self._number = 0

    def allgather(self, thing: Any) -> list[Any]:
        """See ``Ranks``."""
        return [pickle.loads(part) for part in self._all("allgather", thing)]

    def bcast(self, thing: Any, root: int = 0) -> Any:
        """See ``Ranks``; the root does not wait for the others."""
        call = self._enter(f"bcast {root}")
        if self.rank == root:
            call.given[root] = pickle.dumps(thing)
            self._wake(call)
        else:
            call.given[self.rank] = b""
            while not call.given[root]:
                call.waiting.append(self._task)
                self._simulation.wait(f"{self._communicator.name} bcast")
        said = call.given[root]
        self._leave(call)
        assert said is not None
        return pickle.loads(said)

    def barrier(self) -> None:
        """Waits for every rank."""
        self._all("barrier", None)

    def allreduce(self, values: Any, tag: str = "control", op: str = "sum") -> Any:
        """Sum or maximum over the ranks."""
        del tag
        parts = [pickle.loads(part) for part in self._all(f"allreduce {op}", values)]
        return np.sum(parts, axis=0) if op == "sum" else np.max(parts, axis=0)

    # As ``Aside``.

    @contextlib.contextmanager
    def working(self, tag: str) -> Iterator[None]:
        """See ``Aside``."""
        del tag
        yield

    def comes_on(self) -> None:
        """See ``Aside``."""

    @property
    def _task(self) -> Task:
        assert self._simulation.current is not None
        return self._simulation.current

    def _enter(self, kind: str) -> _Call:
        self._simulation.point(f"{self._communicator.name} {kind}")
        self._number += 1
        return self._communicator.call(self._number, kind, self.rank)

    def _all(self, kind: str, thing: Any) -> list[bytes]:
        call = self._enter(kind)
        call.given[self.rank] = pickle.dumps(thing)
        call.missing -= 1
        if not call.missing:
            self._wake(call)
        while call.missing:
            call.waiting.append(self._task)
            self._simulation.wait(f"{self._communicator.name} {kind}")
        said = [part for part in call.given if part is not None]
        self._leave(call)
        return said

    def _wake(self, call: _Call) -> None:
        for task in call.waiting:
            self._simulation.wake(task)
        call.waiting.clear()

    def _leave(self, call: _Call) -> None:
        call.left -= 1
        if not call.left:
            del self._communicator.calls[self._number]


class Rank:
    """What one rank of a job is given."""

    def __init__(self, job: "Job", number: int, process: Process) -> None:
        self.job, self.number, self.process = job, number, process
        self.main = SimulatedRanks(job.main, number)
        self.aside = SimulatedRanks(job.aside, number)


class Job:
    """Ranks that are started together, and end together.

    Parameters
    ----------
    program : callable
        What each rank does with its ``Rank``.
    hosts : sequence of str
        Ranks are dealt to these.

    Attributes
    ----------
    ranks : list of Rank
    errors : list of exceptions or None
        By rank; of those that were killed, None.
    killed : bool
        Whether a rank was, by what was drawn.
    late : set of int
        Ranks that had to be ended because others had failed.
    left_alone : list of int
        Ranks that waited when others had failed, and would have for ever.
    launcher : str
        Name of the task that has started it; whoever does sets it.
    """

    launcher = ""

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        number: int,
        size: int,
        program: Callable[[Rank], Any],
        hosts: Sequence[str] = ("host",),
    ) -> None:
        self.simulation, self.name, self.number, self.size = simulation, name, number, size
        self.main = Communicator(simulation, "main", size)
        self.aside = Communicator(simulation, "aside", size)
        self.ranks: list[Rank] = []
        self.tasks: list[Task] = []
        self.killed = self.one_died = False
        self.n_left = size
        self.late: set[int] = set()
        self.left_alone: list[int] = []
        for rank in range(size):
            process = Process(number * 1000 + rank, f"{name} rank {rank}", hosts[rank % len(hosts)])
            process.job = self
            given = Rank(self, rank, process)
            self.ranks.append(given)
            task = simulation.spawn(process.name, process, lambda given=given: program(given))
            task.at_end = self._ended
            self.tasks.append(task)

    @property
    def errors(self) -> list[BaseException | None]:
        """By rank."""
        return [task.error for task in self.tasks]

    @property
    def alive(self) -> list[Rank]:
        """Ranks that have not ended."""
        return [rank for rank, task in zip(self.ranks, self.tasks, strict=True) if not task.done]

    def kill(self, rank: Rank | None = None) -> None:
        """As by SIGKILL: of one rank, or of all."""
        self.killed = True
        for one in self.ranks if rank is None else [rank]:
            one.process.end()

    def wait(self) -> int:
        """As ``mpirun``: until all ranks have ended, or one has that had not to; returns the exit status."""
        simulation, tasks = self.simulation, self.tasks

        simulation.wait("mpirun", lambda: self.n_left == 0 or self.one_died)
        if any(task.done and task.error is None and not self._returned(task) for task in tasks):  # killed
            if self.alive:
                simulation.wait("mpirun ends the others", lambda: not self.alive, simulation.random.choice((0.0, 0.3)))
            self.kill()
            simulation.wait("mpirun", lambda: not self.alive)
            return 137
        if self.alive and not simulation.wait("failing together", lambda: not self.alive, TOGETHER_S):
            self.late = {rank.number for rank in self.alive}
            self.left_alone = [rank.number for rank in self.alive if not simulation.busy(rank.process)]
            simulation.events["late"] += len(self.alive) - len(self.left_alone)
            for rank in self.ranks:
                rank.process.end()
            simulation.wait("mpirun", lambda: not self.alive)
        return int(any(self.errors))

    def _ended(self, task: Task) -> None:
        self.n_left -= 1
        self.one_died = self.one_died or task.error is not None or not self._returned(task)

    @staticmethod
    def _returned(task: Task) -> bool:
        return task.result is not None


__all__ = ["Communicator", "Job", "Killed", "Rank", "SimulatedRanks"]
