"""Lines of metrics.jsonl that tell of training steps: what each rank gives, summed over all ranks beside later steps.

Ranks are steps apart where steps are in flight, and a sum on the spot would hold the fastest until the slowest has
come. So a line is of what its step, and those before it, did, and is written later: its sum begins when the step is
learned here for certain, and ends when it is learned on every rank. With one step in flight that is at once. Knows what
a line consists of; when one is due is for the configuration, how it is written for ``telemetry``.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hpcrec.checkpoint.dynamic_state import LOGGED, dynamic_tables, figures_here, named_figures
from hpcrec.comm.collectives import Started
from hpcrec.training.compression import Kept, density
from hpcrec.training.copies import CopiesLines
from hpcrec.training.metrics import RunningMetrics
from hpcrec.training.session import Session, Step
from hpcrec.training.telemetry import Telemetry
from hpcrec.training.work import Work
from hpcrec.types import Floats, Ints


@dataclass
class _Line:
    """Of a step, not yet written.

    Attributes
    ----------
    number : int
        Steps before it.
    same : dict
        What every rank knows of it.
    of_steps : int
        For which it tells bytes.
    parts : list of float arrays, or None
        What this rank gives, in the order in which ``Lines._values`` has it; None where nothing is to be summed.
    total : float64 [sizes of the parts] or None
        Of all ranks, when ``sum`` has ended.
    sum : Started or None
        Under way.
    most : float64 [tables] or None
        Of shadow reads, over all ranks.
    """

    number: int
    same: dict[str, Any]
    of_steps: int = 0
    parts: list[Floats] | None = None
    total: Floats | None = None
    sum: Started | None = None
    most: Floats | None = None


class Lines:
    """Collective in all of its verbs, which every rank calls in the same order.

    Parameters
    ----------
    session : Session
    every : int
        Steps for a line; 0: none but those of batches that are left out.

    Attributes
    ----------
    read_age : int64 [steps in flight]
        Over all lines so far: how many rows lacked 0, 1, ... updates when they were read.
    """

    def __init__(self, session: Session, every: int) -> None:
        parts = session.parts
        self._session, self._every = session, every
        self._running, self._work = RunningMetrics(), Work(session)
        self._lag = 0 if parts.pipeline.in_flight == 1 else parts.pipeline.in_flight
        self._waiting = deque[_Line]()
        self._dynamic = dynamic_tables(session)
        self._figures: dict[int, Ints] = {}  # of dynamic tables here, by the step that was learned
        self.read_age = np.zeros_like(parts.pipeline.ages)
        record = parts.exchange.record()
        self._copies = None if record is None else CopiesLines(record)
        self._counted: dict[int, tuple[Floats, Floats]] = {}  # of copies here, likewise
        if self._dynamic or self._copies is not None:
            parts.pipeline.on_logged = self._learned

    def begin(self, telemetry: Telemetry) -> None:
        """The session is about to train, from its step on; lines go to ``telemetry``."""
        self._telemetry, self._kept = telemetry, Kept(self._session)
        self._told_to = self._session.step  # steps of which lines tell

    @property
    def slow_ranks(self) -> list[dict[str, Any]]:
        """Those that are or were slow, as summary.json has them."""
        return [asdict(rank) for rank in self._work.slow_ranks.found]

    def begin_step(self) -> None:
        """A step begins, with the wait for its batch."""
        self._count_for(self._session.step)
        self._work.begin_step()

    def end_step(self, step: Step) -> None:
        """It has been run."""
        session = self._session
        with session.parts.timer("telemetry"):
            self._work.end_step(0 if step.batch is None else len(step.batch.label))
            if session.last_logits is not None and step.batch is not None:
                self._running.update(session.last_logits.cpu().numpy(), step.batch.label, step.batch.weight)

    def write(self, loss: float) -> None:
        """The line of the step that was run last, where it is to have one, and those of earlier steps that are due.

        ``loss`` is this rank's share of the step's.
        """
        session = self._session
        number, skipped = session.step - 1, session.guard.skipped
        self._count_for(session.step)  # what lines themselves send, too
        with session.parts.timer("telemetry"):
            if self._every and session.step % self._every == 0:
                self._waiting.append(self._line(number, loss))
            elif session.guard.in_a_row:
                self._waiting.append(_Line(number, {"time": _now(), "skipped_steps": skipped}))
            self._go_on(number)

    def tell(self, values: dict[str, Any]) -> None:
        """A line of its own, of the steps so far, of what every rank knows; among the others."""
        self._waiting.append(_Line(self._session.step - 1, {"time": _now(), **values}))

    def settle(self) -> None:
        """Writes those of all steps so far, which are learned then."""
        parts = self._session.parts
        with parts.timer("drain"):
            parts.pipeline.settle()
        with parts.timer("telemetry"):
            self._go_on(None)

    def _line(self, number: int, loss: float) -> _Line:
        """That of a step, but for what is not known here until it is learned."""
        session = self._session
        parts, topology = session.parts, session.topology
        auc = self._running.read()["auc"] if topology.rank == topology.dense[0] else 0.0  # of its samples alone
        same = {
            "time": _now(),
            "skipped_steps": session.guard.skipped,
            "lr_scale": parts.schedule.multiplier(number),
            "epoch": session.step / session.batches_per_epoch,
        }
        of_steps, self._told_to = session.step - self._told_to, session.step
        own = [loss, np.nan if auc is None else auc, session.guard.dropped, *self._kept.more()]
        ages = parts.pipeline.ages.astype(np.float64)
        return _Line(number, same, of_steps, [np.array(own), self._work.more(), ages])

    def _learned(self, number: int) -> None:
        """A step has been learned here, of which a line tells. By whatever thread does, before rows change again."""
        if self._dynamic:
            self._figures[number] = figures_here(self._session, self._dynamic)
        record = self._session.parts.exchange.record()
        if self._copies is not None and record is not None:
            self._counted[number] = self._copies.here(record)

    def _go_on(self, number: int | None) -> None:
        """What may be begun and ended when the step of this number has been run; None: everything."""

        def is_past(line: _Line, lags: int) -> bool:
            return number is None or number >= line.number + lags * self._lag

        for line in self._waiting:
            if line.parts is not None and line.sum is None and is_past(line, 1):
                self._begin(line, line.parts)
        while self._waiting and (self._waiting[0].parts is None or is_past(self._waiting[0], 2)):
            line = self._waiting.popleft()
            self._telemetry.log(line.number + 1, self._values(line))

    def _begin(self, line: _Line, given: list[Floats]) -> None:
        """Begins its sum: the step is learned here."""
        world = self._session.parts.world
        given.append(np.array([world.ledger.take(self._of(line.number))], np.float64))
        if self._dynamic:
            given.append(self._figures.pop(line.number).ravel().astype(np.float64))
        if self._copies is not None:
            counted, most = self._counted.pop(line.number)
            given.append(counted)
            line.most = world.main.allreduce(most, "control", op="max") if len(most) else most
        line.total = np.concatenate(given)
        line.sum = world.main.start_allreduce(line.total, "control")

    def _values(self, line: _Line) -> dict[str, Any]:
        """What it says; when its sum has ended."""
        if line.parts is None:
            return line.same
        assert line.sum is not None and line.total is not None, "it was begun before"
        line.sum.wait()
        ends = np.cumsum([len(part) for part in line.parts])[:-1]
        (loss, auc, dropped, kept, entries), work, ages, (n_bytes,), *more = np.split(line.total, ends)
        copies = {} if self._copies is None or line.most is None else self._copies.values(more.pop(), line.most)
        return {
            "loss": float(loss),
            "train_auc": float(auc),
            "wire_bytes_per_step": float(n_bytes) / line.of_steps,
            **line.same,
            **({"dropped_features": int(dropped)} if dropped else {}),
            **density(kept, entries),
            **self._work.take(work, line.number + 1, line.of_steps),
            **self._take_ages(ages),
            **copies,
            **self._dynamic_values(more),
        }

    def _take_ages(self, rows_A: Floats) -> dict[str, Any]:
        """What a line has of the rows that lacked 0, 1, ... updates when they were read, over all ranks."""
        self.read_age += rows_A.astype(np.int64)
        n = rows_A.sum()
        if n == 0:
            return {}
        mean = float(rows_A @ np.arange(len(rows_A)) / n)
        return {"read_age": {str(age): int(rows) for age, rows in enumerate(rows_A)}, "read_age_mean": mean}

    def _dynamic_values(self, total: Sequence[Floats]) -> dict[str, int]:
        if not total:
            return {}
        found = named_figures(self._dynamic, total[0].astype(np.int64).reshape(len(self._dynamic), -1))
        return {f"{table}.{name}": of[name] for table, of in found.items() for name in LOGGED}

    def _count_for(self, number: int) -> None:
        """What is sent from now on, by threads that have no step of their own, is for the line of this step."""
        ledger = self._session.parts.world.ledger
        ledger.counts_for(self._of(number))
        ledger.keep_by_line(self._of(number))

    def _of(self, number: int) -> int:
        """The number of the line that tells of a step."""
        return number // self._every if self._every else 0


def _now() -> float:
    return round(time.time(), 3)
