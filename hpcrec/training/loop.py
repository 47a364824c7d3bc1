"""The training loop: what happens every n steps around ``Session.steps`` (logging, evaluation, checkpoints, stopping).

Every rank runs it; rank 0 writes. Knows when; how a step is done is for ``session``, what is written for ``telemetry``,
``state`` and ``checkpoint``.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.checkpoint import damaged, saved, state
from hpcrec.checkpoint.checkpoint import find_checkpoint, mark_best, prune, read_best, steps_in, unmark_best
from hpcrec.checkpoint.dynamic_state import figures
from hpcrec.checkpoint.files import step_folder
from hpcrec.checkpoint.resume import resumed_from
from hpcrec.checkpoint.retry import MOST_INTERVALS, Retry
from hpcrec.checkpoint.saved import Progress
from hpcrec.checkpoint.saver import Saver
from hpcrec.clock import Idles
from hpcrec.comm.failure import say
from hpcrec.config import CheckpointConfig, TrainConfig
from hpcrec.errors import CheckpointError, LastCheckpointError, NonFiniteError, OutputError, UnreadableError
from hpcrec.training import attempts, ended
from hpcrec.training.claim import Claim
from hpcrec.training.compression import evaluated_otherwise
from hpcrec.training.lines import Lines
from hpcrec.training.metrics import flat
from hpcrec.training.ranks import on_root
from hpcrec.training.session import Session
from hpcrec.training.stop_time import StopTime
from hpcrec.training.telemetry import Telemetry

_LAST_PAUSES_S = (1.0, 4.0, 15.0)  # between tries of the last checkpoint
OnStaleness = Callable[[int, Mapping[int, float]], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended, ``finished`` or ``stopped``, and why; what it measured last, of which data and weights.

    ``evaluation`` has the metrics, and before them ``split``, ``checkpoint`` (``best`` or ``last``) and ``step``.
    """

    status: str
    ended: dict[str, Any]
    evaluation: dict[str, Any] | None
    progress: Progress
    dynamic: dict[str, dict[str, int]]


class Loop:
    """Trains a session to its end.

    Parameters
    ----------
    session : Session
    folder : Path
        The run's folder.
    train : TrainConfig
        When to log, to evaluate and to end early.
    checkpoint : CheckpointConfig
        When to save, what is kept, and what the run goes on from.
    software : dict of str to str
        Versions, processor and threads: what the bits of a result depend on.
    claim : Claim
        Of the folder.

    Attributes
    ----------
    differences : list of str
        In what a resumed run's ranks and software are not those of its checkpoint.
    lines : Lines
        Of metrics.jsonl that tell of steps.
    """

    def __init__(
        self,
        session: Session,
        folder: Path,
        train: TrainConfig,
        checkpoint: CheckpointConfig,
        software: dict[str, str],
        claim: Claim,
    ) -> None:
        self.differences: list[str] = []
        self._software = software
        self._session = session
        self._folder = folder
        self._train = train
        self._checkpoint = checkpoint
        self._claim = claim
        self._saver = Saver(
            session, folder, background=checkpoint.background, full_every=checkpoint.full_every, claim=claim
        )
        self._retry = Retry(checkpoint.every or train.eval_every, session.parts.look_ahead.most + 1)
        self._progress = Progress()
        self.lines = Lines(session, train.log_every)
        self._saved_at = self._judged_at = -1
        self._begun_at = 0  # the step of the checkpoint that was begun last
        self._improved: tuple[float, int] | None = None  # the last evaluation that was the best, and its step
        # A best checkpoint that is whole and could not be noted, and its value; on rank 0.
        self._unnoted: tuple[int, float] | None = None
        self._since_s = 0.0  # when the last step, and what followed it, had ended

    def resume(self) -> int:
        """Goes on from a checkpoint where there is one; collective. Returns the steps done before."""
        world, which = self._session.parts.world, self._checkpoint.resume
        checkpoint = resumed_from(self._folder, which, world.main, self._claim)
        if checkpoint is None:
            return 0
        with damaged.told(self._folder):  # footers of rows that are linked are read here
            state.load(self._session, checkpoint, resume=True)
        self._progress, then = on_root(world.main, lambda: (saved.progress(checkpoint), saved.ran_on(checkpoint)))
        self.differences = _differences({"policy": "sync", "deal": "order", **then}, self._ran_on())
        self._saved_at = self._session.step
        self._judged_at = self._progress.evaluations[-1]["step"] if self._progress.evaluations else -1
        if self._checkpoint.keep_best:
            self._find_best()
        return self._session.step

    def _ran_on(self) -> dict[str, Any]:
        """Software, policy, how batches are dealt, and ranks, as a checkpoint keeps them."""
        parts, trials = self._session.parts, self._session.parts.pipeline.trials
        policy = parts.policy
        if trials is not None and trials.found:  # as one of that staleness is from here on
            policy = policy.replace("auto", str(trials.staleness))
        deal = "order" if parts.affinity is None else "affinity"
        return {**self._software, "policy": policy, "deal": deal, **self._session.topology.describe()}

    def _find_best(self) -> None:
        """Makes the note of the best checkpoint what this run knows of it; collective.

        It may be of a checkpoint that was killed before it was noted, was set aside, or is in another folder, where the
        run began: then there is no best one until the next evaluation.
        """
        progress, main = self._progress, self._session.parts.world.main
        step, value, metric = progress.best_step, progress.best_value, self._train.best_metric
        if step is None or value is None or step not in on_root(main, lambda: steps_in(self._folder)):
            progress.best_value, progress.best_step, progress.misses = None, None, 0
            on_root(main, lambda: unmark_best(self._folder, self._claim))
        else:
            on_root(main, lambda: mark_best(self._folder, step, metric, value, self._claim))

    def run(self, telemetry: Telemetry, stop_time: StopTime, on_staleness: OnStaleness = lambda *_: None) -> Outcome:
        """Trains, evaluates and saves as the options say; collective.

        ``on_staleness`` is called once on every rank where a staleness is sought, when it is known: with it, and what
        was waited under each that was tried.
        """
        self._telemetry, self._stop_time, self._on_staleness = telemetry, stop_time, on_staleness
        with damaged.told(self._folder):
            try:
                return self._run(telemetry)
            except BaseException:
                if self._session.topology.size == 1:  # whose process may go on
                    self._saver.end()
                raise

    def _run(self, telemetry: Telemetry) -> Outcome:
        session = self._session
        self._sought = session.parts.pipeline.trials
        if self._sought is not None and self._sought.found:  # by the run that is gone on with
            self._is_found(self._sought.staleness, {})
        with session.parts.timer("telemetry"):
            self.lines.begin(telemetry)
        if session.step > 0 and self._owes_evaluation():  # the stop that ended the last run interrupted it
            self._progress.ended = self._judge()
        if not self._progress.ended and not session.stopped:
            self._to_the_end()
            self.lines.settle()
        if not session.stopped and "validation" in session.parts.splits and self._judged_at != session.step:
            self._judge()
        with session.parts.timer("checkpoint"):
            self._save_last()
        with session.parts.timer("telemetry"):
            dynamic = figures(session)  # of the last step, whichever is evaluated
        evaluation = None if session.stopped else self._final_evaluation()
        status = "stopped" if session.stopped else "finished"  # the last evaluation may have been interrupted
        return Outcome(status, self._ended(), evaluation, self._progress, dynamic)

    def _ended(self) -> dict[str, Any]:
        """Why it ends here, the same on every rank; collective."""
        session, total = self._session, self._session.total_steps
        if session.stopped:
            with session.parts.world.ledger.paused():
                names = session.parts.world.main.allgather(session.parts.signal.name)
            return ended.stop(total, next((name for name in names if name), "unknown"))
        if self._progress.ended and session.step < total:
            return ended.early_stop(total, self._train.best_metric, self._progress.misses)
        return {"by": ended.BY_STEPS, "total_steps": total}

    def _to_the_end(self) -> None:
        """All steps that are left, with what is due after each."""
        session = self._session
        if session.parts.chosen is not None and session.step < session.total_steps:
            self._telemetry.log(session.step, session.parts.chosen.found)
        self._since_s = time.perf_counter()
        self.lines.begin_step()
        for step in session.steps():
            self._one(step)
            if session.save_failed and not session.stopped:  # before an evaluation, which is the best by what is noted
                self._wait_for_save()
            if self._owes_evaluation() and self._judge():
                self._progress.ended = True
                return
            if session.stopped:
                return
            if self._due(self._checkpoint.every) or session.step == self._retry.due_at:
                self.save()
            self._tell_of_checkpoint()
            self._since_s = time.perf_counter()
            self.lines.begin_step()

    def _tell_of_checkpoint(self) -> None:
        """The store may begin with what it has to do for the next one."""
        parts, every, left = self._session.parts, self._checkpoint.every, self._session.total_steps - self._session.step
        if parts.links_rows and parts.store is not None:
            parts.store.will_keep(min(every - self._session.step % every, left) if every else left)

    def _owes_evaluation(self) -> bool:
        session = self._session
        due = self._due(self._train.eval_every) and "validation" in session.parts.splits
        return due and self._judged_at != session.step

    def _final_evaluation(self) -> dict[str, Any] | None:
        """Of the best checkpoint where one is kept, else of the last step; on the test data, else the validation's."""
        session = self._session
        split = next((s for s in ("test", "validation") if s in session.parts.splits), None)
        if split is None:
            return None
        with session.parts.timer("evaluate"), session.parts.world.ledger.paused():
            step, checkpoint = self._take_best()
            found = session.evaluate_unless_stopped(split)
            otherwise = None if found is None else evaluated_otherwise(session, split)
        of = {"split": split, "checkpoint": checkpoint, "step": step}
        return None if found is None or otherwise is None else {**of, **found, **otherwise}

    def _take_best(self) -> tuple[int, str]:
        """Loads the best checkpoint where one is kept and whole.

        Returns the step whose weights there are then, and whether they are the ``best`` ones or the ``last``.
        """
        session, main, last = self._session, self._session.parts.world.main, self._session.step
        if not self._checkpoint.keep_best or self._progress.best_step in (None, last):
            return last, "best" if self._checkpoint.keep_best and self._progress.best_step == last else "last"
        best, problem = None, None
        try:
            best = find_checkpoint(self._folder, str(step_folder(self._folder, self._progress.best_step)), main)
        except (CheckpointError, UnreadableError) as error:
            problem = str(error)
        problem = next((text for text in main.allgather(problem) if text), None)
        if best is None or problem is not None:  # what was trained is all there: no reason to fail
            if main.rank == 0:
                warnings.warn(f"the last step, {last}, is evaluated instead of the best: {problem}", stacklevel=4)
            return last, "last"
        state.load(session, best, resume=False)
        return best.step, "best"

    def _one(self, step: Any) -> None:
        session = self._session
        try:
            loss = step.run()
        except NonFiniteError:  # of every rank alike
            self.lines.settle()
            raise
        self.lines.end_step(step)
        took_s = time.perf_counter() - self._since_s  # with the wait for its batch, which came before ``run``
        order = session.parts.splits["train"].order
        start, stop = order.batch_range(step.number % order.n_batches)
        self._progress.samples += stop - start
        session.parts.timer.add("step", took_s)
        with session.parts.timer("telemetry"):
            self._telemetry.step(took_s, stop - start)
            self._stop_time.stepped(took_s)
        self.lines.write(loss)
        if self._sought is not None and self._sought.found:
            self.lines.tell({"staleness": self._sought.staleness, "waited_for_rows": self._sought.shares})
            self._is_found(self._sought.staleness, self._sought.shares)

    def _is_found(self, staleness: int, shares: Mapping[int, float]) -> None:
        self._sought = None
        self._on_staleness(staleness, shares)

    def _due(self, every: int) -> bool:
        return every > 0 and self._session.step % every == 0

    def _judge(self) -> bool:
        """Evaluates the validation data; says whether to end early. Collective, same answer on every rank.

        Nothing is kept of an evaluation during which the ranks agreed to stop. Where steps are in flight it does not
        end by that: training stops soon after, when these are learned.
        """
        session, train, progress = self._session, self._train, self._progress
        self.lines.settle()
        stoppable, began_s = session.parts.pipeline.rested(), time.monotonic()
        evaluate = session.evaluate_unless_stopped if stoppable else session.evaluate
        with session.parts.timer("evaluate"), session.parts.world.ledger.paused():
            found = evaluate("validation", train.eval_batches)
        if not stoppable:
            self._stop_time.evaluated(time.monotonic() - began_s)
        if found is None:
            return False
        self._judged_at = session.step
        self._saved_at = -1  # a checkpoint of this step does not know of the evaluation
        progress.evaluations.append({"step": session.step, **found})
        self._telemetry.log(session.step, {f"validation_{k}": v for k, v in flat(found).items()}, evaluation=True)
        metric, stop = train.best_metric, train.early_stop
        value = found.get(metric)
        if value is None or not math.isfinite(_mean(value)):
            return False
        value = _mean(value)
        best = progress.best_value
        sign = 1 if train.best_rises else -1
        if best is None or sign * (value - best) > (stop.min_delta if stop else 0.0):
            if self._checkpoint.keep_best:
                self._wait_for_save()  # first: where it has failed, the best is what was noted before
            progress.best_value, progress.best_step, progress.misses = value, session.step, 0
            self._improved = value, session.step
            if self._checkpoint.keep_best:
                self.save()
        else:
            progress.misses += 1
        return stop is not None and progress.misses >= stop.patience

    def save(self) -> None:
        """Writes a checkpoint unless this step has one, and removes those that are not to be kept; collective.

        Where it, or the one before, cannot be written, that is said and tried again later.

        Raises
        ------
        CheckpointError
            None could be written for several intervals of checkpoints; on every rank.
        """
        session = self._session
        if self._saved_at == session.step:
            return
        self.lines.settle()  # no line of a step before may be missing where the checkpoint is there
        self._wait_for_save()
        try:
            self._write()
        except CheckpointError as error:
            self._save_failed(error)

    def _write(self) -> None:
        """Writes a checkpoint of this step, or begins to, beside the next ones; collective."""
        session, progress = self._session, self._progress
        if self._improved is not None and self._improved[1] == session.step:  # also where a try before this one failed
            progress.best_value, progress.best_step = self._improved
        with session.parts.timer("checkpoint"), session.parts.world.ledger.paused():
            extra = {"progress": progress.__dict__, "ran_on": self._ran_on()}
            whole = self._saver.save(extra, self._mark_and_prune(session.step))
        self._saved_at = self._begun_at = session.step
        if whole:
            self._retry.succeeded()
            self._telemetry.saved(self._begun_at, step_folder(self._folder, self._begun_at))

    def _is_written(self) -> bool:
        """``Saver.wait``, and whoever asked for it is told of a checkpoint that is whole now."""
        written = self._saver.wait()
        if written:
            self._telemetry.saved(self._begun_at, step_folder(self._folder, self._begun_at))
        return written

    def _wait_for_save(self) -> None:
        """The checkpoint under way is whole, or it is decided what comes of that it is not; collective."""
        try:
            with self._session.parts.timer("checkpoint"):
                if self._is_written():
                    self._retry.succeeded()
        except CheckpointError as error:
            self._save_failed(error)

    def _save_failed(self, error: CheckpointError) -> None:
        """Says so on rank 0, and when it is tried again; raises where there is no other try. The same on every rank."""
        session, main = self._session, self._session.parts.world.main
        self._saved_at = -1
        self._look()
        if not self._retry.failed(session.step):
            raise CheckpointError(
                f"{error}. No checkpoint could be written for {MOST_INTERVALS} times checkpoint.every, so the run ends "
                "here, with those that it has. See to the disk, and start it again."
            ) from error
        assert self._retry.due_at is not None, "there is another try"
        session.parts.pipeline.drain_after(self._retry.due_at)
        if self._checkpoint.keep_best:
            self._best_as_noted()
        if main.rank == 0:
            with contextlib.suppress(OSError):  # the same disk, perhaps
                attempts.note_retry(self._folder, session.step, self._retry.due_at, str(error))
            say(f"hpcrec: {error}; training goes on, tried again after step {self._retry.due_at}\n")

    def _look(self) -> None:
        """Raises where another attempt has taken over, which has then removed what this one was writing. Collective."""
        with contextlib.suppress(CheckpointError, UnreadableError):  # on every rank alike; the first error is reported
            on_root(self._session.parts.world.main, self._claim.check)

    def _best_as_noted(self) -> None:
        """The best checkpoint is the last that was noted, which is there still; collective.

        Where the best is whole and the note alone has failed, it is noted now, or with the next checkpoint.
        """
        progress = self._progress
        newest = None if progress.best_step is None else (progress.best_step, progress.best_value)

        def noted() -> tuple[int | None, float | None]:
            best, there = read_best(self._folder), steps_in(self._folder)
            for one in (newest, self._unnoted):
                if one is None or one[1] is None:
                    continue
                if best is not None and best["step"] == one[0]:
                    return one
                if one[0] in there:
                    self._note(one[0], one[1])
                    return one
            return (None, None) if best is None else (best["step"], best["value"])

        # An error is on every rank, and what may be the best is not given up then.
        with contextlib.suppress(CheckpointError, UnreadableError):
            progress.best_step, progress.best_value = on_root(self._session.parts.world.main, noted)

    def _note(self, step: int, value: float) -> None:
        """Notes the best checkpoint, or has it noted later: one that is whole is no failed one for that. On rank 0."""
        try:
            mark_best(self._folder, step, self._train.best_metric, value, self._claim)
            self._unnoted = None
        except (OutputError, UnreadableError) as error:
            if self._unnoted != (step, value):
                say(f"hpcrec: {error}; step {step}, the best, is noted later\n")
            self._unnoted = step, value

    def _save_last(self) -> None:
        """The checkpoint of the last step is whole; collective. It is tried a few times, with pauses.

        Raises
        ------
        LastCheckpointError
            It cannot be written, and the run has begun its stop by itself: no job script was warned, which would have
            the job requeued. On every rank.
        CheckpointError
            It cannot be written otherwise; on every rank.
        """
        for pause_s in (*_LAST_PAUSES_S, None):
            try:
                self._is_written()
                if self._saved_at != self._session.step:
                    self._write()
                    self._is_written()
            except CheckpointError as error:
                self._saved_at = -1
                self._look()
                if self._checkpoint.keep_best:
                    self._best_as_noted()
                if pause_s is None:
                    step = on_root(self._session.parts.world.main, lambda: self._stop_time.goes_on_from)
                    if step is None:
                        raise
                    raise LastCheckpointError(
                        f"{error}. The run stops ahead of its job's time limit: started again, it goes on from step "
                        f"{step}"
                    ) from error
                if self._session.topology.rank == 0:
                    say(f"hpcrec: {error}; tried again, for it is the last one\n")
                with Idles():
                    time.sleep(pause_s)
            else:
                break
        on_root(self._session.parts.world.main, self._note_last)

    def _note_last(self) -> None:
        """The best checkpoint is noted, if that can be had within a few tries."""
        for pause_s in _LAST_PAUSES_S:
            if self._unnoted is None:
                return
            with Idles():
                time.sleep(pause_s)
            self._note(*self._unnoted)
        if self._unnoted is not None:
            folder = step_folder(self._folder, self._unnoted[0])
            say(f"hpcrec: the best checkpoint could not be noted: it is {folder}, to be named to --checkpoint\n")

    def _mark_and_prune(self, step: int) -> Callable[[Callable[[], None]], None]:
        """What rank 0 does when this step's checkpoint is whole: the best one is noted before the one before may go."""
        best, value, kept = self._progress.best_step, self._progress.best_value, self._checkpoint

        def do(comes_on: Callable[[], None]) -> None:
            again = self._unnoted is not None and self._unnoted[0] == best
            if kept.keep_best and best is not None and value is not None and (best == step or again):
                self._note(best, value)
            prune(self._folder, kept.keep, [] if best is None else [best], self._claim, comes_on, kept.keep_bytes)
            self._stop_time.saved(step, time.monotonic() - self._saver.began_s)

        return do


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [f"{key} was {then.get(key)}, is {now.get(key)}" for key in now if then.get(key) != now[key]]


def _mean(value: float | Mapping[str, float] | list[float]) -> float:
    """A metric's value; its mean over labels where there are several."""
    return float(np.mean(value)) if isinstance(value, list) else float(value)  # type: ignore[arg-type]
