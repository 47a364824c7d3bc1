"""What the commands ``train``, ``evaluate`` and ``predict`` do on every rank, from a checked configuration on.

Knows sessions and run folders; does not parse a command line (``cli.main``).
"""

import contextlib
import json
import math
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcrec.again import is_there, names_in, read_again
from hpcrec.build.auto import drain_points
from hpcrec.build.reading import open_for_reading
from hpcrec.build.session import open_session
from hpcrec.build.tables import make_keeping
from hpcrec.checkpoint.files import ComesOn, clear, move, steps_in
from hpcrec.comm.failure import ExitCodes, say, tell
from hpcrec.comm.ledger import describe
from hpcrec.comm.ranks import Ranks
from hpcrec.comm.topology import Topology
from hpcrec.comm.world import versions as mpi_versions
from hpcrec.config import (
    Config,
    EvaluationConfig,
    to_toml,
    with_absolute_paths,
    with_copied_data,
)
from hpcrec.cores import cores_here, cores_of_host
from hpcrec.data.carried import FOLDER, carry
from hpcrec.data.files import write_text, writing
from hpcrec.data.predictions import Beside, asked_columns, format_of, predictions
from hpcrec.embedding.load import Load, imbalance
from hpcrec.errors import HpcrecError, OutputError, UnreadableError
from hpcrec.report_page.page import write_report
from hpcrec.training import advice, attempts, report, screen, telemetry
from hpcrec.training.attempts import Allocation
from hpcrec.training.bar import columns_of
from hpcrec.training.callbacks import tell as tell_callbacks
from hpcrec.training.claim import Claim, claimed
from hpcrec.training.compression import compression, vectors
from hpcrec.training.copies import copies_advice, copies_summary
from hpcrec.training.ended import BY_ERROR
from hpcrec.training.loop import Loop, Outcome
from hpcrec.training.ranks import on_root
from hpcrec.training.session import Session
from hpcrec.training.stop_time import StopTime, seconds_left, seconds_left_at_start, stop_seconds
from hpcrec.training.times import role_of, times_of

EVALUATED = ("auc", "logloss", "normalized_entropy", "calibration")
NOT_TOLD = ("samples",)  # of an evaluation, in summary.json


def train(
    config: Config,
    *,
    copies: Sequence[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
    callbacks: Sequence[Any] = (),
    goes_on: bool = False,
) -> ExitCodes:
    """Trains as the configuration says, into its run folder; collective.

    Parameters
    ----------
    copies : sequence of (folder, copy)
        Data sets in ``folder`` are read from ``copy``; the run folder remembers ``folder``, which outlives the job.
    environment : mapping of str to str, optional
        Where it has Slurm's variables, the record of attempts has the job. Where the same job began this run in an
        earlier allocation, it goes on from what is saved since, whatever ``checkpoint.resume`` says. With
        ``HPCREC_STOP_S`` too, the run stops by itself where a stop takes longer than that. ``HPCREC_TERMINAL`` says
        that stderr ends at a terminal of so many columns; without it an mpirun on this host is asked (``bar``).
    callbacks : sequence
        See ``training.callbacks.Callback``.
    goes_on : bool
        Whether the process, if it is the only rank, goes on after an error.

    Returns
    -------
    ExitCodes
        ``FINISHED``, or ``STOPPED`` where a signal ended it: started again, it goes on.

    Raises
    ------
    LastCheckpointError
        It stopped by itself and could not write its last checkpoint: a failure, but started again it goes on from an
        earlier one. It ends with the exit code of ``STOPPED``.
    """
    environment = environment or {}
    config, allocation = with_absolute_paths(config), Allocation.of(environment)
    stop_s, columns = stop_seconds(environment), columns_of(environment)
    run, began = Path(config.run.folder), attempts.now()
    if config.exchange.chooses:  # what the checkpoint says that this attempt goes on from
        config = replace(config, checkpoint=replace(config.checkpoint, resume=_resume_of(run, config, allocation)))
    with (
        open_session(with_copied_data(config, copies)) as session,
        _claimed(session, run, allocation, goes_on=goes_on) as claim,
    ):
        main, root = session.parts.world.main, session.topology.rank == 0
        with session.parts.timer("set_up"):
            resume = on_root(main, lambda: _prepare_folder(run, config, allocation, claim, main.comes_on))
            software = {**telemetry.versions(), **mpi_versions()}
            loop = Loop(session, run, config.train, replace(config.checkpoint, resume=resume), software, claim)
            first = loop.resume()
            _begin_attempt(session, run, began, first, allocation, claim)
            if root and first:
                _tell_resumed(first, session.total_steps, loop.differences)
            told = _telemetry(config, session, columns, callbacks)
        with told:

            def note(said: str) -> None:
                """The end of a run that failed, by whichever rank knows of it; of one that has lost it, nothing."""
                if claim.lost():
                    return
                failed = {**_failed(session, told, software, said), **_seen(loop), **_attempts(run)}
                telemetry.write_summary(run, failed)
                attempts.end(run, session.step, "failed")
                write_report(run, failed)

            with session.parts.world.noting_stalls(note):
                try:
                    told.begin(first)
                    with _stop_time(session, environment, first, config.checkpoint.every, stop_s) as stop_time:
                        outcome = loop.run(told, stop_time, partial(_note_staleness, main, run, config, claim))
                except Exception as error:
                    # The first error is what helps, where the disk is full, or what it left cannot be shown as a page.
                    with contextlib.suppress(OSError, HpcrecError):
                        note(str(error) if isinstance(error, HpcrecError) else f"{type(error).__name__}: {error}")
                    _tell_failure(callbacks if root else (), run)
                    raise
                summary = _summary(session, outcome, told, software)
                held = on_root(session.parts.world.main, lambda: _is_held(claim))
        if root and held:
            summary |= {**_seen(loop), **_attempts(run)}
            summary["advice"] = _advice(session, config, summary, first)
            _write_end(run, session.step, summary)
            tell(screen.of_end(summary))
            tell(f"run folder: {run}")
            tell_callbacks(callbacks, "on_end", telemetry.as_json(summary))
    return ExitCodes.STOPPED if outcome.status == "stopped" else ExitCodes.FINISHED


@contextlib.contextmanager
def _claimed(session: Session, run: Path, allocation: Allocation, *, goes_on: bool) -> Iterator[Claim]:
    """The claim of a run's folder, whose taking is part of the set-up; see ``claimed``."""
    lost = partial(session.parts.signal.request, "claim lost")
    with contextlib.ExitStack() as held:
        with session.parts.timer("set_up"):
            main = session.parts.world.main
            claim = held.enter_context(claimed(run, allocation, main, when_lost=lost, goes_on=goes_on))
        yield claim


def _telemetry(config: Config, session: Session, columns: int | None, callbacks: Sequence[Any]) -> telemetry.Telemetry:
    """Of this rank; it writes on rank 0 alone."""
    return telemetry.Telemetry(
        Path(config.run.folder),
        active=session.topology.rank == 0,
        first_step=session.step,
        total_steps=session.total_steps,
        tensorboard=config.run.tensorboard,
        progress=config.run.progress,
        columns=columns,
        parts=session.parts.timer.parts if session.topology.is_dense else dict,  # an owner waits most of the time
        callbacks=callbacks,
    )


def _tell_failure(callbacks: Sequence[Any], run: Path) -> None:
    """A run that failed has ended: what its summary says. What callbacks raise then is not what helps."""
    with contextlib.suppress(Exception):
        tell_callbacks(callbacks, "on_end", read_summary(run))


def read_summary(run: Path) -> dict[str, Any]:
    """What summary.json of a run says."""
    path = run / "summary.json"
    return dict(json.loads(read_again(path, path.read_text)))


def _tell_resumed(first: int, total: int, differences: Sequence[str]) -> None:
    """Says that the run goes on, and in what its ranks and software are not as they were."""
    tell(f"resumed from step {first} of {total}")
    for difference in differences:
        tell(f"not as before, so not bit for bit: {difference}")


def evaluate(config: Config, *, data: str | None = None, checkpoint: str = "best") -> dict[str, Any]:
    """Metrics of a run's checkpoint on ``data``, by default its test or validation data; collective.

    ``checkpoint`` is ``best`` (``last`` where none was marked), ``last`` or a path.
    """
    with open_for_reading(config, data, checkpoint) as session:
        result = session.evaluate("test")
        attainable = _attainable(session, "test")
    return {**result, **attainable}


def _attainable(session: Session, split: str) -> dict[str, float]:
    """The AUC that a data set says can be had, where it does; what is no number says nothing."""
    known = session.parts.splits[split].dataset.attributes.get("attainable_auc")
    is_number = isinstance(known, int | float) and not isinstance(known, bool) and math.isfinite(known)
    return {"attainable_auc": float(known)} if known is not None and is_number else {}


def measuring_nothing(config: Config) -> Config:
    """A run's configuration for predictions alone: nothing is measured, so no code of the run's for it is run."""
    without = EvaluationConfig(metrics=(), by=())
    return replace(config, evaluation=without, train=replace(config.train, early_stop=None))


def predict(
    config: Config,
    *,
    data: str,
    out: Path,
    checkpoint: str = "best",
    columns: Sequence[str] = (),
    kind: str | None = None,
    beside: Beside | None = None,
) -> int:
    """Writes probabilities of a data set's samples, in its order, and columns of it beside them; collective.

    One rank writes. It gathers no more than a batch of probabilities, and reads the columns itself, piece by piece.

    Parameters
    ----------
    columns : sequence of str
        As of ``data.predictions.asked_columns``.
    kind : str, optional
        ``hdf5``, ``parquet`` or ``csv``; by the end of the name of ``out`` by default.
    beside : Beside, optional
        As of ``data.predictions.predictions``.

    Returns
    -------
    int
        Samples written.

    Raises
    ------
    ConfigError
        The file's name ends in another way, or the data set has no such column; on every rank.
    """
    kind = format_of(out, kind)
    with open_for_reading(measuring_nothing(config), data, checkpoint) as session:
        topology, dense = session.topology, session.parts.world.dense
        dataset = session.parts.splits["test"].dataset
        asked = asked_columns(dataset, columns)
        writes = topology.is_dense and topology.dense_index == 0
        file = partial(predictions, out, kind, dataset, asked, step=session.step, beside=beside)
        with file() if writes else contextlib.nullcontext() as output:
            for first, _, logits in session.outputs("test"):
                assert dense is not None
                parts = dense.gather_arrays(torch.sigmoid(logits).to(torch.float32).numpy())
                if output is not None and parts is not None:
                    output.write(first, np.concatenate(parts))
        return dataset.samples


def _prepare_folder(run: Path, config: Config, allocation: Allocation, claim: Claim, comes_on: ComesOn) -> str:
    """Makes a run's folder ready; returns ``checkpoint.resume`` as it is for this attempt."""
    resume = _resume_of(run, config, allocation)
    if resume != config.checkpoint.resume:
        tell(f"checkpoint.resume = {config.checkpoint.resume!r} was for the first allocation of job {allocation.job}")
    with writing(run):
        _clean_folder(run, config, resume, claim, comes_on)
    return resume


def _resume_of(run: Path, config: Config, allocation: Allocation) -> str:
    """``checkpoint.resume`` as it is for this attempt; changes nothing."""
    first, resume = attempts.first_step_of(run, allocation), config.checkpoint.resume
    if first is not None and resume != "auto" and (resume == "never" or max(steps_in(run), default=first) > first):
        return "auto"
    return resume


def _clean_folder(run: Path, config: Config, resume: str, claim: Claim, comes_on: ComesOn) -> None:
    if resume == "never":  # what the run has left that this one replaces
        clear(run, claim, comes_on)
        if is_there(run / attempts.FILE):
            away = run / f".{attempts.FILE}.{claim.token}.old"
            move(run / attempts.FILE, away, claim)
        for name in names_in(run):
            if name.startswith(f".{attempts.FILE}.") and name.endswith(".old"):
                (run / name).unlink(missing_ok=True)
        claim.check()
        shutil.rmtree(run / "tensorboard", ignore_errors=True)
    for name in ("summary.json", "report.html"):  # what an earlier run ended with is not what this one will
        claim.check()
        (run / name).unlink(missing_ok=True)
    write_text(run / "config.toml", to_toml(config), claim.check)
    claim.check()
    try:
        carry(Path(config.data.train).parent, run / FOLDER)
    except OSError as error:  # a run is not to fail for what only predictions of raw values need
        say(f"hpcrec: {run / FOLDER}: {error}; predictions of raw values will need the folder of the data set\n")


def _begin_attempt(session: Session, run: Path, began: str, step: int, allocation: Allocation, claim: Claim) -> None:
    """Notes that the run goes on from ``step``, before its metrics past it are dropped; collective."""
    main = session.parts.world.main
    with session.parts.world.ledger.paused():
        hosts = list(dict.fromkeys(main.allgather(socket.gethostname())))
        on_root(main, claim.check)
        on_root(main, lambda: attempts.begin(run, began, step, main.size, hosts, allocation))
        on_root(main, claim.check)  # what is told next replaces metrics.jsonl


def _is_held(claim: Claim) -> bool:
    """Whether this attempt may tell of its end; its checkpoints are whole, so a look that fails is no failure of it."""
    try:
        claim.check()
    except UnreadableError as error:
        say(f"hpcrec: {error} The run has ended well; its summary is not written.\n")
        return False
    return True


def _write_end(run: Path, step: int, summary: Mapping[str, Any]) -> None:
    """Writes what tells of a run that has ended, whose checkpoints are whole.

    What the disk refuses here, and what cannot be shown as a page, is said and changes no exit status.
    """
    for write in (
        lambda: attempts.end(run, step, summary["status"]),
        lambda: telemetry.write_summary(run, summary),
        lambda: write_report(run, summary),
    ):
        try:
            write()
        except (OSError, HpcrecError) as error:
            say(f"hpcrec: {error}\n")


def _stop_time(
    session: Session, environment: Mapping[str, str], first: int, every: int, given_s: float | None
) -> StopTime:
    """When this run has to begin its stop by itself, which rank 0 sees to."""
    job = Allocation.of(environment).job if session.topology.rank == 0 else None
    return StopTime(
        session.parts.signal,
        job=job,
        given_s=given_s,
        first_step=first,
        interval=every,
        steps=session.parts.look_ahead.most
        + 2,  # the one under way, those that are submitted, and the one that brings the word
        left_s=lambda: seconds_left(job or "", environment),
        left_at_start_s=lambda: seconds_left_at_start(environment),
    )


def _note_staleness(
    main: Ranks, run: Path, config: Config, claim: Claim, staleness: int, shares: Mapping[int, float]
) -> None:
    """What was sought is found, or known from the checkpoint: says so, and makes it the run's; collective."""

    def note() -> None:
        waited = ", ".join(f"{share:.1%} of the time with {tried}" for tried, share in shares.items())
        why = f"dense ranks waited for rows {waited}" if waited else "as the checkpoint has it"
        tell(f'policy.staleness = "auto" is {staleness}: {why}')
        settled = replace(config, policy=replace(config.policy, staleness=staleness))
        try:
            write_text(run / "config.toml", to_toml(settled), claim.check)
        except (OutputError, UnreadableError) as error:
            say(f"hpcrec: {error} The run goes on; checkpoints have the staleness.\n")

    on_root(main, note)


def _advice(session: Session, config: Config, summary: Mapping[str, Any], first: int) -> list[str]:
    """What to change: what steps were held up by, and where they drained often or copies may lack much.

    Of a run that was resumed not all gradients of copies are known.
    """
    try:
        keeping = make_keeping(config, {}, session.topology.dense)
        copies = "" if first else copies_advice(summary, keeping.staleness, keeping.most_missing)
        said = (advice.advice(summary), report.drains_advice(summary, drain_points(config)), copies)
    except Exception as error:  # of a run that has ended: its summary is worth more than a sentence
        say(f"hpcrec: what held the steps up cannot be said ({type(error).__name__}: {error})\n")
        return []
    return [sentence for sentence in said if sentence]


def _seen(loop: Loop) -> dict[str, Any]:
    """What ``summary.json`` says of what was seen from line to line of the metrics."""
    ages = {str(age): int(rows) for age, rows in enumerate(loop.lines.read_age)}
    return {"slow_ranks": loop.lines.slow_ranks, "read_age": ages}


def _attempts(run: Path) -> dict[str, Any]:
    """What ``summary.json`` says of all attempts of the run, this one being under way; nothing if it cannot be read."""
    try:
        return {"attempts": attempts.figures(run)}
    except UnreadableError as error:
        say(f"hpcrec: {error} The summary says nothing of attempts.\n")
        return {}


def _failed(session: Session, told: telemetry.Telemetry, software: dict[str, str], error: str) -> dict[str, Any]:
    """``summary.json`` of a run that ends by this rank's error: what this rank knows."""
    rank, chosen = session.topology.rank, session.parts.chosen
    order = session.parts.splits["train"].order
    epochs, batches = divmod(session.step, order.n_batches)
    return {
        "status": "failed",
        "error": error,
        "ended": {"by": BY_ERROR, "total_steps": session.total_steps},
        "steps": session.step,
        "skipped_steps": session.guard.skipped,
        "dropped_features": session.guard.dropped,
        "samples": epochs * order.samples + batches * order.batch_size,
        "eval": dict.fromkeys(EVALUATED),
        "throughput": told.throughput(),
        "wire_bytes": {},
        "wire_messages": {},
        "dense_compression": {},
        "exchange_thresholds": {},
        "exchange": {} if chosen is None else {**chosen.found, "counted_bytes_per_step": {}},
        "time": times_of({rank: (_role(session.topology), session.parts.timer.times())}),
        "phase_s": session.parts.timer.seconds(),
        "drains": dict(zip(("number", "s"), session.parts.pipeline.drains, strict=True)),
        "peak_rss_bytes": {str(rank): telemetry.peak_rss_bytes()},
        "owners": {},
        "imbalance": {},
        "copies": {},
        "rows_ahead": {},
        "dynamic_tables": {},
        "threads": {},
        "topology": _topology(session),
        "versions": software,
        "advice": [],
    }


def _summary(session: Session, outcome: Outcome, told: telemetry.Telemetry, software: dict[str, str]) -> dict[str, Any]:
    """``summary.json``, as design says; collective."""
    main, timer = session.parts.world.main, session.parts.timer
    with timer("telemetry"):
        throughput = told.throughput()
    times = timer.times()  # before what is asked of other ranks
    dense = session.topology.is_dense
    mine = (session.parts.timer.seconds(), telemetry.peak_rss_bytes(), dense)
    everyone = main.allgather(mine)
    threads = {str(rank): of for rank, of in enumerate(main.allgather(_threads(session))) if of is not None}
    times_R = dict(enumerate(main.allgather((_role(session.topology), times))))
    drains_R = main.allgather(session.parts.pipeline.drains)
    owners = {str(rank): found for rank, found in enumerate(main.allgather(_owner(session))) if found is not None}
    chosen, messages = session.parts.chosen, session.parts.world.total_wire_messages()
    split = next((s for s in ("test", "validation") if s in session.parts.splits), None)
    evaluation: dict[str, Any] = dict.fromkeys(EVALUATED)
    if outcome.evaluation is not None:
        evaluation = {name: value for name, value in outcome.evaluation.items() if name not in NOT_TOLD}
    evaluation |= {} if split is None else _attainable(session, split)
    return {
        "status": outcome.status,
        "ended": outcome.ended,
        "steps": session.step,
        "skipped_steps": session.guard.skipped,
        "dropped_features": sum(main.allgather(session.guard.dropped)),
        "samples": outcome.progress.samples,
        "eval": evaluation,
        "throughput": throughput,
        "wire_bytes": describe(session.parts.world.total_wire_bytes()),
        "wire_messages": {} if messages is None else describe(messages),
        "dense_compression": compression(session),
        "exchange_thresholds": vectors(session),
        "exchange": {} if chosen is None else chosen.record(session.step),
        "time": times_of(times_R),
        "phase_s": _phases(everyone),
        "drains": {"number": drains_R[0][0], "s": np.mean([drains_R[r][1] for r in session.topology.dense])},
        "peak_rss_bytes": {str(rank): rss for rank, (_, rss, _) in enumerate(everyone)},
        "owners": owners,
        "imbalance": imbalance(list(owners.values())),
        "copies": _copies(session),
        "rows_ahead": dict(session.parts.look_ahead.record()),
        "dynamic_tables": outcome.dynamic,
        "threads": threads,
        "topology": _topology(session),
        "versions": software,
    }


def _threads(session: Session) -> dict[str, Any] | None:
    """This rank's threads for what it computes, the cores that it may use, and how many its host has.

    None where its model is on a GPU.
    """
    dense = session.parts.dense
    if dense is not None and not dense.place.is_host:
        return None
    return {"threads": torch.get_num_threads(), "cores": cores_here(), "of_host": cores_of_host()}


def _owner(session: Session) -> dict[str, float] | None:
    """This rank's figures if it is an owner: zeros where it holds no rows."""
    if not session.topology.is_owner:
        return None
    store, load = session.parts.store, session.parts.load
    held = {"rows": 0, "bytes": 0} if store is None else store.figures()
    return {**held, **(load or Load()).figures()}


def _copies(session: Session) -> dict[str, Any]:
    """What forms that keep copies of rows say of them, over all ranks; collective."""
    exchange = session.parts.exchange
    return copies_summary(session.parts.world.main.allgather((exchange.figures(), exchange.record())))


def _role(topology: Topology) -> str:
    return role_of(owner=topology.is_owner, dense=topology.is_dense)


def _phases(everyone: list[tuple[dict[str, float], int, bool]]) -> dict[str, float]:
    """Mean seconds by phase over the dense ranks; phases of ranks that only own rows under ``owner.<phase>``.

    Threads are added up, so that these overlap: shares of ``step``, the time of steps, are taken of them.
    """
    out: dict[str, float] = {}
    for prefix, wanted in (("", True), ("owner.", False)):
        phases = [seconds for seconds, _, dense in everyone if dense == wanted]
        for name in sorted({n for seconds in phases for n in seconds}):
            out[prefix + name] = sum(s.get(name, 0.0) for s in phases) / len(phases)
    return out


def _topology(session: Session) -> dict[str, Any]:
    """What the records of a run say of its ranks, and of what owners add before it crosses."""
    exchange = session.parts.exchange
    adds: dict[str, Any] = {"reduce": exchange.reduction.way, "added": sorted(exchange.layout.added)}
    adds["merged"] = sorted(exchange.layout.merged)
    adds["at_owners"] = list(exchange.layout.substituted)
    return {**session.parts.world.describe(), **adds}
