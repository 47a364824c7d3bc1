"""A training run on simulated ranks: the product's claim, loop, saver, checkpoints and record of attempts, real.

What stands in is a session without a model: one table whose rows have, after each step, values that follow from the
step alone, so whatever checkpoint a run goes on from, all that it reads can be judged. ``Truth`` judges.
"""

import contextlib
import json
import threading
import traceback
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from hpcrec.api import commands as cli
from hpcrec.checkpoint import checkpoint as checkpoints
from hpcrec.checkpoint import files, saver
from hpcrec.checkpoint.checkpoint import Checkpoint, CheckpointWriter, find_checkpoint
from hpcrec.comm.failure import agree
from hpcrec.config import CheckpointConfig, TrainConfig
from hpcrec.data.files import synced
from hpcrec.training import attempts, lines, loop
from hpcrec.training.attempts import Allocation
from hpcrec.training.claim import claimed
from hpcrec.training.look_ahead import LookAhead
from hpcrec.training.loop import Loop
from hpcrec.training.ranks import on_root
from tests.simulated.ranks import Job, Rank
from tests.simulated.scheduler import Simulation, Task
from tests.simulated.schedules import Schedule
from tests.simulated.system import unseen

RUN = Path("run")
CHECKPOINTS = RUN / "checkpoints"
ROWS, WIDTH = 12, 2
NOTHING = contextlib.nullcontext()
LOOK_CALLS = 3  # of a look at the claim (it lists the folder and opens the claim), and the change that comes after it


def value(row: int, step: int) -> float:
    """Of a row after so many steps: the last of them that changed it, and which row it is."""
    while step > 0 and (row * 7 + step * 3) % 5:
        step -= 1
    return step + row / 64


def changed_since(row: int, base: int, step: int) -> bool:
    """Whether any of the steps after ``base`` changed a row."""
    return value(row, step) != value(row, base)


@dataclass
class Settings:
    """Of a run.

    Attributes
    ----------
    steps : int
        After which it ends.
    every, keep, full_every, keep_best, background, eval_every
        As the configuration has them.
    hdf5 : bool
        Whether tables are HDF5 files, as in a run; else they are JSON, which takes a fifth of the time.
    resume : str
        ``checkpoint.resume``.
    step_s : float
        How long a step takes.
    """

    steps: int = 8
    every: int = 2
    keep: int = 2
    full_every: int = 1
    keep_best: bool = True
    background: bool = False
    eval_every: int = 0
    hdf5: bool = False
    resume: str = "auto"
    step_s: float = 0.0


@dataclass
class Truth:
    """What is known of a run's folder, whatever the product says of it.

    Attributes
    ----------
    committed : int
        Newest step whose commit returned on any rank; -1: none.
    first : dict of job to dict of rank to step
        Where each rank of a job went on from.
    inside : list of Job
        Those that have claimed the folder, in that order, and have not given it back.
    steps : dict of str to int
        The last step that a job, by its name, began.
    overtaken : set of str
        Names of those that were stopped for so long that another one claimed it meanwhile.
    number : int
        Of the newest claim.
    put_back : int
        How often one that had been overtaken gave back what it had just taken away.
    numbers : dict of str to int
        Of each job's claim.
    """

    schedule: Schedule
    settings: Settings
    committed: int = -1
    commits: int = 0
    first: dict[str, dict[int, int]] = field(default_factory=dict)
    inside: list[Job] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    overtaken: set[str] = field(default_factory=set)
    number: int = 0
    put_back: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    _newest: dict[Task, deque[int]] = field(default_factory=dict)  # of a task's last calls: the newest claim then
    _away: set[str] = field(default_factory=set)  # names under which something was taken away
    _saved: set[str] = field(default_factory=set)  # launchers of whose jobs there is a checkpoint, or was until pruned
    _clearing: set[str] = field(default_factory=set)  # names of jobs that are to clear the folder
    _before_clear: tuple[int, set[str]] = (-1, set())  # committed, and who has saved, when the last took it away

    @property
    def simulation(self) -> Simulation:
        """Which fails where something is wrong."""
        return self.schedule.simulation

    def returned(self, step: int, number: int) -> None:
        """A commit has returned, of who has the claim of this number."""
        if number < self.number and self.settings.resume == "never":
            return  # the other one has cleared the folder since, as it was asked
        self.committed = max(self.committed, step)
        self.commits += 1
        self._saved |= {job.launcher for job in self.schedule.jobs if self.numbers.get(job.name) == number}

    def may_be_cleared(self) -> None:
        """By whom it is asked next, whoever has saved what is there."""
        self.committed, self._saved = -1, set()

    def claimed(self, rank: Rank, number: int) -> None:
        """A rank is past the claim, which has this number."""
        job = rank.job
        if rank.number or job in self.inside:
            return
        self.numbers[job.name] = number
        if number < self.number:  # it stood still once it had the claim, and another one took it over
            if job.name not in self.schedule.paused:
                self.simulation.fail(f"{job.name} has claim {number}, and did not stand still; {self.number} is there")
            self.overtaken.add(job.name)
            self.simulation.events["overtaken"] += 1
            return
        self.number = number
        for other in self.inside:
            other_holds = other.ranks[0].process.alive
            if other_holds and other.name not in self.schedule.paused:
                self.simulation.fail(f"two in one folder: {job.name} has claimed it, and {other.name} had, and goes on")
            if other_holds:
                self.overtaken.add(other.name)
                self.simulation.events["overtaken"] += 1
        self.inside.append(job)

    def clears(self, number: int) -> None:
        """The job of this claim is about to remove what is there, as it was asked; it may be killed on the way."""
        for job in self.schedule.jobs:
            if self.numbers.get(job.name) == number:
                self._clearing.add(job.name)
                if job.launcher in self._saved:
                    self.simulation.fail(f"{job.name} clears what {job.launcher} has saved before")

    def takes_away(self, task: Task, call: str, paths: list[str]) -> None:
        """A task is about to rename or to remove: what was committed goes, and may come back, with its folder."""
        job = task.process.job
        if call == "rename" and job is not None and job.name in self._clearing:
            if paths[0] == str(CHECKPOINTS):
                self._before_clear = self.committed, self._saved
                self.may_be_cleared()
            elif paths[1] == str(CHECKPOINTS):  # it was overtaken
                committed, saved = self._before_clear
                self.committed, self._saved = max(self.committed, committed), self._saved | saved

    def comes_to(self, task: Task, at: str) -> None:
        """A task has come to a call."""
        del at
        self._newest.setdefault(task, deque(maxlen=LOOK_CALLS)).append(self.number)

    def changes(self, task: Task, call: str, paths: list[str]) -> None:
        """A task is about to rename or to remove: who was overtaken so many calls ago has not looked since."""
        path, job = Path(paths[0]), task.process.job
        if job is None or job.name not in self.numbers or call not in ("rename", "replace", "unlink", "rmdir"):
            return
        its_own = any(name.startswith(".") for name in path.parent.parts) or "claim" in path.name
        if its_own or (len(paths) == 1 and path.name.startswith(".")):
            return
        newest, mine = self._newest[task], self.numbers[job.name]
        if paths[0] in self._away:
            self.put_back += self.number > mine
        elif len(newest) == LOOK_CALLS and newest[0] > mine:
            self.simulation.fail(f"{job.name} was overtaken, did not look again, and is in {call} {' to '.join(paths)}")
        if len(paths) == 2 and Path(paths[1]).name.startswith("."):
            self._away.add(paths[1])  # and may be put back

    def left(self, rank: Rank) -> None:
        """A rank gives the claim back."""
        if rank.number == 0 and rank.job in self.inside:
            self.inside.remove(rank.job)

    def final(self) -> str:
        """What is wrong with the folder at the end; empty where nothing is."""
        if found := [path.name for path in RUN.glob("checkpoints/damaged-*")]:
            return f"{found}: nothing was damaged\n{listing()}"
        if self.committed < 0:
            return ""
        found = find_checkpoint(RUN)
        if found.step < self.committed:
            return f"step {self.committed} was committed, and the newest whole one is of {found.step}\n{listing()}"
        rows = dict(_rows(found, hdf5=self.settings.hdf5))
        right = {row: value(row, found.step) for row in range(ROWS)}
        return "" if rows == right else f"step {found.step} has {rows}; right is {right}"

    def loaded(self, step: int, found: dict[int, float], state: dict[str, Any]) -> None:
        """A rank has read a checkpoint."""
        right = {row: value(row, step) for row in range(ROWS)}
        if found != right or state["step"] != step:
            self.simulation.fail(f"step {step}: read {found}, state of step {state['step']}; right is {right}")

    def resumed(self, rank: Rank, step: int) -> None:
        """A rank goes on from a step."""
        before = self.committed
        self.first.setdefault(rank.job.name, {})[rank.number] = step
        if len(set(self.first[rank.job.name].values())) > 1:
            self.simulation.fail(f"{rank.job.name}: ranks go on from {self.first[rank.job.name]}")
        if step < max(before, 0) and rank.job.name not in self.overtaken:  # it has to end
            self.simulation.fail(f"{rank.job.name} goes on from step {step}, and {before} was committed\n{listing()}")

    def ended(self, job: Job) -> None:
        """All ranks of a job have."""
        if job.killed:
            return
        errors = job.errors
        if job.left_alone:
            self.simulation.fail(f"{job.name}: ranks {job.left_alone} waited for ranks that failed:\n{told(errors)}")
        kinds = {_kind(error) for rank, error in enumerate(errors) if rank not in job.late}
        if len(kinds) > 1:
            self.simulation.fail(f"{job.name}: ranks ended otherwise than others:\n{told(errors)}")

    def kept(self, job: Job, *, saved: bool) -> None:
        """What is there after a job that finished, and met no error: what is to be kept, and nothing else.

        One that has ``saved`` nothing has removed nothing.
        """
        with unseen():
            problem = self._kept(job, saved=saved)
        if problem:
            self.simulation.fail(problem)

    def _kept(self, job: Job, *, saved: bool) -> str:
        found = sorted(path.name for path in files.checkpoints_in(RUN).iterdir())
        steps = files.steps_in(RUN)
        best = _state(steps[-1])["progress"]["best_step"]  # which is protected, noted or not
        if left := [name for name in found if not name.startswith("step-") and name != files.BEST]:
            return f"{job.name} has left {left}"
        wanted = set(steps[-self.settings.keep :]) | ({best} & set(steps))
        bases: set[Any] = {_base(step) for step in wanted}
        wanted |= bases - {None}
        if set(steps) != wanted if saved else not wanted <= set(steps):
            return f"{job.name}: kept {steps}, best is {best}, bases are {bases}"
        if steps[-1] != self.settings.steps:
            return f"{job.name} finished, and the newest checkpoint is of step {steps[-1]}"
        return ""


def _kind(error: BaseException | None) -> str:
    """What ``agree`` makes the same on every rank: hpcrec's classes; others are unforeseen, HpcrecError elsewhere."""
    if error is None:
        return "none"
    name = type(error).__name__
    return name if name in ("CheckpointError", "ConfigError", "DataError", "OutputError") else "HpcrecError"


def told(errors: list[BaseException | None]) -> str:
    """Each error once, with the ranks that had it and where it was."""
    ranks: dict[str, list[int]] = {}
    for rank, error in enumerate(errors):
        told = "no error" if error is None else "".join(traceback.format_exception(error))
        ranks.setdefault(told.strip(), []).append(rank)
    return "\n".join(f"ranks {who}: {told}" for told, who in ranks.items())


def _state(step: int) -> dict[str, Any]:
    return dict(json.loads((files.step_folder(RUN, step) / files.STATE).read_text()))


def _base(step: int) -> int | None:
    manifest = json.loads((files.step_folder(RUN, step) / files.MANIFEST).read_text())
    return None if manifest.get("base") is None else int(manifest["base"]["step"])


def listing() -> str:
    """All names in the folder of checkpoints."""
    with unseen():
        return "\n".join(sorted(str(path) for path in files.checkpoints_in(RUN).rglob("*"))) or "nothing"


class _Untimed:
    """In place of ``PhaseTimer``."""

    def __call__(self, phase: str) -> contextlib.AbstractContextManager[None]:
        return NOTHING

    def add(self, phase: str, seconds: float) -> None: ...


class Session:
    """What the loop and the saver ask of a session."""

    def __init__(self, rank: Rank, truth: Truth) -> None:
        self.rank, self.truth, self.settings = rank, truth, truth.settings
        self.step, self.stopped, self.last_logits = 0, False, None
        self.total_steps, self.batches_per_epoch = truth.settings.steps, 1
        self.tracked = 0  # since which step it is known what changes
        order = SimpleNamespace(n_batches=1, batch_range=lambda _: (0, 1), samples=1, batch_size=1)
        splits = {"train": SimpleNamespace(order=order)}
        if truth.settings.eval_every:
            splits["validation"] = SimpleNamespace(order=order)
        main = rank.main
        main.ledger = SimpleNamespace(paused=lambda: NOTHING)  # type: ignore[attr-defined]
        self.topology = SimpleNamespace(
            rank=rank.number, dense=(0,), describe=lambda: {"ranks": main.size}, owner=True, size=main.size
        )
        world = SimpleNamespace(
            main=main,
            aside=rank.aside,
            ledger=SimpleNamespace(paused=lambda: NOTHING, counts_for=lambda _: None, keep_by_line=lambda _: None),
            topology=self.topology,
            total_wire_bytes=lambda: np.zeros(1),
        )
        pipeline = SimpleNamespace(
            in_flight=1,
            trials=None,
            ages=np.zeros(0, np.int64),
            rest=lambda: None,
            rested=lambda: True,
            settle=lambda: None,
            drain_after=lambda _: None,
        )
        self.save_failed = False
        self.parts = SimpleNamespace(
            save_failed=threading.Event(),
            look_ahead=LookAhead(0, 0, 0, lambda: 0.0, lambda number: number),
            world=world,
            pipeline=pipeline,
            policy="sync",
            affinity=None,
            exchange=SimpleNamespace(record=lambda: None),
            signal=SimpleNamespace(name="SIGUSR1"),  # of those that stop
            links_rows=False,
            splits=splits,
            store=SimpleNamespace(track=self._track, thaw=lambda: None, freeze=lambda *_: None),
            tables={},
            dense=None,
            chosen=None,
            timer=_Untimed(),
            schedule=SimpleNamespace(multiplier=lambda _: 1.0),
        )
        self.guard = SimpleNamespace(in_a_row=0, skipped=0)

    def _track(self) -> None:
        self.tracked = self.step

    def steps(self) -> Iterator[Any]:
        """See ``hpcrec.training.session.Session``."""
        while self.step < self.total_steps:
            stop, failed = self.rank.job.name in self.truth.schedule.stopped, self.parts.save_failed.is_set()
            everyone = self.rank.main.allgather((stop, failed))
            if any(stop for stop, _ in everyone):
                self.stopped = True
                return
            self.save_failed = any(failed for _, failed in everyone)
            yield SimpleNamespace(number=self.step, batch=None, run=self._run)

    def _run(self) -> float:
        if self.settings.step_s:
            self.rank.job.simulation.sleep(self.settings.step_s)
        self.step += 1
        steps = self.truth.steps
        steps[self.rank.job.name] = max(self.step, steps.get(self.rank.job.name, 0))
        return 0.5

    def evaluate(self, split: str, batches: int | None = None) -> dict[str, Any]:
        """Some number that follows from the step."""
        del batches
        self.rank.main.allgather(split)
        return {"auc": (self.step * 37 % 11) / 11}

    evaluate_unless_stopped = evaluate

    # What is saved, and read again.

    def writes(self, said: dict[str, Any], *, some: bool) -> list[Any]:
        """Of this rank, as things are now."""
        number, size, step = self.rank.number, self.rank.main.size, self.step
        held = list(range(number, ROWS, size))
        ids = [row for row in held if not some or changed_since(row, self.tracked, step)]
        values = np.array([[value(row, step)] * WIDTH for row in ids], np.float32).reshape(-1, WIDTH)
        block = (np.array(ids, np.int64), values, {})
        facts = {"n_ids": len(ids), "rows": ROWS, "width": WIDTH, "columns": (0, WIDTH)}
        writes = []
        if held:
            writes.append(lambda writer: writer.write_table_part("user", number, [block] if ids else [], **facts))
        if number == 0:
            writes.append(lambda writer: writer.write_state({**said, "model": "none"}))
        if number == size - 1 and self.settings.hdf5:
            writes.append(lambda writer: writer.write_dense({"weight": np.full(2, step)}, {}))
        return writes

    def load(self, checkpoint: Checkpoint) -> None:
        """Reads all of a checkpoint, on the first and the last rank, and has it judged."""
        problem: Exception | None = None
        try:
            if self.rank.number in (0, self.rank.main.size - 1):
                found = dict(_rows(checkpoint, hdf5=self.settings.hdf5))
                self.truth.loaded(checkpoint.step, found, checkpoint.state)
        except Exception as error:
            problem = error
        agree(self.rank.main, problem)
        self.step = checkpoint.step


def _rows(checkpoint: Checkpoint, *, hdf5: bool) -> Iterator[tuple[int, float]]:
    """Rows and their values, those of the base first."""
    if hdf5:
        for block in checkpoint.whole_table("user", ROWS, WIDTH):
            yield from zip(block.ids.tolist(), block.rows[:, 0].tolist(), strict=True)
        return
    if checkpoint.base is not None:
        yield from _rows(checkpoint.base, hdf5=False)
    for path in checkpoint.part_paths("user"):
        yield from json.loads(path.read_text())


def _write_part(path: Path, describe: Any, blocks: Any, n_ids: int) -> tuple[int, int]:
    """As ``parts.write_part``, in JSON."""
    del describe, n_ids
    rows = [[int(i), float(v[0])] for ids, values, _ in blocks for i, v in zip(ids, values, strict=True)]
    data = json.dumps(rows).encode()
    with synced(path) as file:
        file.write(data)
    return len(data), zlib.crc32(data)


@contextlib.contextmanager
def stand_ins(truth: Truth) -> Iterator[None]:
    """What of hpcrec is replaced: what a session is saved as and read from; and commits are noted."""
    commit, clear = CheckpointWriter.commit, cli.clear

    def told_of(run: Path, claim: Any, comes_on: Any) -> None:
        truth.clears(claim.number)
        clear(run, claim, comes_on)

    def noted(self: CheckpointWriter, *args: Any, **more: Any) -> Path:
        done = commit(self, *args, **more)
        truth.returned(self.step, getattr(self._claim, "number", truth.number))
        return done

    with contextlib.ExitStack() as stack:

        def put(where: Any, name: str, by: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, by))

        put(CheckpointWriter, "commit", noted)
        put(saver, "parts_of", lambda session, said, *, some=False: session.writes(said, some=some))
        put(saver, "frozen_parts_of", lambda session, said, _, *, some=False: session.writes(said, some=some))
        put(saver.state, "identity", lambda _: {})
        put(loop.state, "load", lambda session, checkpoint, *, resume: session.load(checkpoint))
        put(lines, "Kept", lambda _: SimpleNamespace(more=lambda: (0, 0)))
        put(lines, "Work", lambda _: _WORK)
        put(loop, "evaluated_otherwise", lambda *_: {})
        put(cli, "to_toml", lambda _: "")
        put(cli, "clear", told_of)
        if not truth.settings.hdf5:
            put(checkpoints, "write_part", _write_part)
        yield


_SAID = ("log", "step", "stepped", "evaluated", "saved")
_NOTHING = SimpleNamespace(goes_on_from=None, **dict.fromkeys(_SAID, lambda *_, **__: None))
_TOLD = _NOTHING, _NOTHING  # telemetry and stop time
_WORK = SimpleNamespace(**dict.fromkeys(("begin_step", "end_step"), lambda *_: None))


def program(truth: Truth, allocation: Allocation, resume: str | None = None) -> Any:
    """What each rank of a job does: as ``hpcrec.api.commands.train``, from the claim on.

    ``resume`` stands for ``checkpoint.resume`` where it is given on the command line.
    """
    settings = truth.settings
    checkpoint = CheckpointConfig(
        every=settings.every,
        keep=settings.keep,
        full_every=settings.full_every,
        keep_best=settings.keep_best,
        background=settings.background,
        resume=resume or settings.resume,
    )
    train = TrainConfig(steps=settings.steps, eval_every=settings.eval_every, log_every=0)
    config = SimpleNamespace(
        checkpoint=checkpoint,
        data=SimpleNamespace(train=str(RUN.parent / "data" / "train.h5")),  # not there: a run has nothing to take along
        train=train,
        run=SimpleNamespace(folder=str(RUN)),
    )

    def run(rank: Rank) -> str:
        session = Session(rank, truth)
        began, main = attempts.now(), rank.main

        def lost() -> None:
            truth.schedule.stopped.add(rank.job.name)

        with claimed(RUN, allocation, main, when_lost=lost) as claim:
            truth.claimed(rank, claim.number)
            which = on_root(main, lambda: cli._prepare_folder(RUN, config, allocation, claim, main.comes_on))  # type: ignore[arg-type]
            trained = Loop(session, RUN, train, replace(checkpoint, resume=which), {}, claim)  # type: ignore[arg-type]
            first = trained.resume()
            truth.resumed(rank, first)
            cli._begin_attempt(session, RUN, began, first, allocation, claim)  # type: ignore[arg-type]
            outcome = trained.run(*_TOLD)  # type: ignore[arg-type]
            on_root(main, claim.check)
            on_root(main, lambda: attempts.end(RUN, session.step, outcome.status))
            truth.left(rank)
        return outcome.status

    return run
