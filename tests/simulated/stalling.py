"""Stall watches on simulated ranks: who stands still is named and the job ended, who is slow or works is not.

Nor is a job that ends in between, by a signal or by a file that fails.
"""

import contextlib
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

from hpcrec.again import read_again
from hpcrec.comm import stall
from hpcrec.comm.failure import agree
from hpcrec.comm.progress import ASIDE, Progress
from hpcrec.comm.stall import StallLimits, StallWatch
from hpcrec.data.files import write_text
from hpcrec.errors import HpcrecError
from tests.simulated.ranks import Job, Rank, SimulatedRanks
from tests.simulated.scheduler import Killed, Simulation
from tests.simulated.schedules import MANY, Drawn, Schedule

REPORT_S, ABORT_S = 20.0, 60.0
ROUNDS = 6
LATE_S = 25.0  # beyond the limit: ticks, and the time that ranks have to answer, of several that are told in turn


class _Mail:
    """The communicator of the watches: messages between ranks, as far as a watch needs MPI."""

    def __init__(
        self,
        simulation: Simulation,
        boxes: list[list[tuple[int, int, bytes]]],
        arrived: set[int],
        ranks: SimulatedRanks,
    ) -> None:
        self._simulation, self._boxes, self._arrived = simulation, boxes, arrived
        self.rank, self.size = ranks.rank, ranks.size

    def Dup(self) -> "_Mail":
        return self

    def issend(self, thing: Any, rank: int, tag: int) -> Any:
        self._simulation.point(f"issend {tag} to {rank}")
        letter = (self.rank, tag, pickle.dumps(thing))
        self._boxes[rank].append(letter)
        return SimpleNamespace(Test=lambda: not any(letter is other for other in self._boxes[rank]))

    def improbe(self, status: Any = None) -> Any:
        if not self._boxes[self.rank]:
            return None
        source, tag, thing = self._boxes[self.rank].pop(0)
        if status is not None:
            status.source, status.tag = source, tag
        return SimpleNamespace(recv=lambda: pickle.loads(thing))

    def Ibarrier(self) -> Any:
        self._arrived.add(self.rank)
        return SimpleNamespace(Test=lambda: len(self._arrived) == self.size)

    def Free(self) -> None:
        pass


class _Status:
    source = tag = -1

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag


_MPI = SimpleNamespace(Query_thread=lambda: 3, THREAD_MULTIPLE=3, Status=_Status)


def stalls(seed: int) -> Schedule:
    """Rounds of work and collectives; in some schedules a rank stands still in one of them, or its process does."""
    choose = random.Random(f"stall {seed}")
    kind = choose.choice(("healthy", "healthy", "stands still", "stopped", "works", "works no more"))
    size = choose.choice((3, 4, 5, 9, 17) if choose.random() < 0.97 else MANY)
    drawn = Drawn.of(seed, faults=2, stops=1)
    drawn.from_job = 0  # there is one
    culprit, when = choose.randrange(size), choose.randrange(1, ROUNDS)
    schedule = Schedule(seed, drawn, f"{kind}: rank {culprit} in round {when}")
    simulation, boxes = schedule.simulation, [[] for _ in range(size)]  # type: ignore[var-annotated]
    arrived: set[int] = set()  # at the end of the watches
    simulation.tick_s = min(simulation.tick_s, 0.01)
    reports: list[tuple[float, bool, tuple[int, ...]]] = []  # when, whether the job was ended for it, and who
    began_s: list[float] = []  # when the culprit stood still

    def work(rank: Rank, at: int) -> None:
        if rank.number != culprit or at != when or kind == "healthy":
            simulation.sleep(choose.uniform(0.0, REPORT_S / 2 - 2.0))  # a wait is noted from half the limit on
            return
        simulation.events[kind] += 1
        began_s.append(simulation.now_s)
        if kind == "stopped":
            rank.process.paused_until_s = simulation.now_s + 1e5
            simulation.point("stopped")
        elif kind == "stands still":
            simulation.sleep(1e5)

    def noted(rank: Rank, at: int) -> HpcrecError | None:
        """Writes and reads a small file; why it cannot, which is to be said, and is no stall."""
        path = Path(f"round-{at}.txt")
        try:
            write_text(path, str(at))
            if read_again(path, path.read_text) != str(at):
                simulation.fail(f"rank {rank.number} read something else than {at}")
        except HpcrecError as error:
            return error
        return None

    def program(rank: Rank) -> str:
        progress = Progress()
        ranks = tuple(range(size))
        main, aside = progress.lane("main", ranks), progress.lane(ASIDE, ranks)
        mail = _Mail(simulation, boxes, arrived, rank.main)
        watch = StallWatch(mail, progress, {"main": ranks, ASIDE: ranks}, StallLimits(REPORT_S, ABORT_S))  # type: ignore[arg-type]
        for at in range(ROUNDS):
            work(rank, at)
            problem = noted(rank, at) if at % size == rank.number else None
            with main.inside("control"):
                agree(rank.main, problem)
                stops = any(rank.main.allgather(rank.job.name in schedule.stopped))
            if stops:
                watch.close()
                return "stopped"
            progress.step = at + 1
            if rank.number == culprit and at == when and kind in ("works", "works no more"):
                for piece in range(40):
                    aside.works("checkpoint")
                    simulation.sleep(5.0 if kind == "works" or piece < 5 else 1e5)
                aside.rests()
            with aside.inside("checkpoint"):
                rank.aside.allgather(at)
        watch.close()
        return "finished"

    def said(waits: Any, standings: Any) -> tuple[str, tuple[int, ...]]:
        text, blamed = describe(waits, standings)
        simulation.events["reports"] += 1
        reports.append((simulation.now_s, False, blamed))
        return text, blamed

    def end(comm: Any, text: str, code: int) -> NoReturn:
        when_s, _, blamed = reports.pop()
        reports.append((when_s, True, blamed))
        schedule.jobs[0].kill()
        raise Killed

    def judge() -> str:
        job, stalled = schedule.jobs[0], kind in ("stands still", "stopped", "works no more")
        results, errors = {task.result for task in job.tasks}, [error for error in job.errors if error is not None]
        stopped = results == {"stopped"} and bool(schedule.stopped)
        named_it = [isinstance(error, HpcrecError) and "round-" in str(error) for error in errors]
        failed = len(errors) == size and all(named_it) and bool(schedule.drawn.met)
        if stopped or failed:
            return "" if not reports else f"nobody stood still before all had ended, and {reports} were reported"
        if not stalled:
            right = not reports and all(task.result == "finished" for task in job.tasks)
            return "" if right else f"nobody stood still, and {reports} were reported"
        since_s = began_s[0] + (25.0 if kind == "works no more" else 0.0)
        named = [culprit in blamed and len(blamed) == 1 for _, _, blamed in reports]
        first = reports[0][0] - since_s if reports else float("inf")
        last = reports[-1][0] - since_s if reports and reports[-1][1] else float("inf")
        if all(named) and REPORT_S <= first <= REPORT_S + LATE_S and ABORT_S <= last <= ABORT_S + LATE_S:
            return ""
        told = [(round(at_s - since_s, 1), ended, blamed) for at_s, ended, blamed in reports]
        return f"rank {culprit} stood still, and what was reported is {told} (seconds since then, end of the job, who)"

    describe = stall.describe

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, by in (("MPI", _MPI), ("describe", said), ("end_job", end), ("say", lambda _: None)):
                stack.enter_context(mock.patch.object(stall, name, by))
            stack.enter_context(mock.patch.object(stall.atexit, "register", lambda *_: None))
            yield

    def launch() -> None:
        job: Job = schedule.start(size, program)
        job.wait()

    schedule.launcher("launcher", launch)
    schedule.judge, schedule.around = judge, around()
    return schedule
