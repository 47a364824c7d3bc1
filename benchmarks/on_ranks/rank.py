"""Runs jobs of a benchmark on each rank, one after the other in one launch; a line of JSON for each.

    hpcrec run -n 4 -- benchmarks/on_ranks/rank.py JOBS OUT

JOBS is a list of objects, ``kind`` a function of this file, of ``links``, ``ways``, ``curves``, ``timeline`` or
``counting``, the rest its arguments. Knows sessions and their ledger; what is trained, and what is made of the figures,
is said above.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import counting
import curves
import links
import numpy as np
import one_process
import settle
import timeline
import ways
from clock import Clock

import hpcrec
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.comm import world as world_module
from hpcrec.comm.ledger import TAGS
from hpcrec.comm.sizes import padded_bytes
from hpcrec.comm.start import start
from hpcrec.comm.world import World
from hpcrec.training.session import Session
from hpcrec.training.update import update_dense
from hpcrec.types import Ints

ROUNDS = 10  # of messages sent again


class Sent:
    """Bytes that this rank sends while it exists, by tag and receiver: int64 [T, R]. The ledger knows no receivers."""

    def __init__(self, world: World) -> None:
        self.bytes_TR = np.zeros((len(TAGS), world.topology.size), np.int64)
        self._add, self._me = world.ledger.add, world.topology.rank
        world.ledger.add = self.add  # type: ignore[method-assign]

    def add(
        self, tag: str, ranks: Sequence[int] | Ints, n_bytes: Ints, n_messages: Ints | None = None, across: int = -1
    ) -> None:
        """As the ledger's, which it calls."""
        self._add(tag, ranks, n_bytes, n_messages, across)
        others = np.asarray(ranks) != self._me
        np.add.at(self.bytes_TR[TAGS.index(tag)], np.asarray(ranks)[others], n_bytes[others])


def train(
    config: str,
    settings: Sequence[str],
    warmup: int = 1,
    cooldown: int = 0,
    evaluate: bool = False,
    again: bool = False,
    clocked: bool = False,
    again_from: bool = False,
    settled: Mapping[str, Any] | None = None,
    leave_after: int | None = None,
    ranks_a_host: int | None = None,
) -> Any:
    """One run: bytes a step by tag, sender and receiver, and the mean time of a step.

    ``cpu_s`` is the processor time of a step, of all ranks, what they take while they wait for each other included.
    ``early_share`` is the part of a dense rank's bags that may be read early, where reads come in two parts; ``drains``
    are drain points within the run, and ``drained_s`` what steps have waited longer by them, on the rank that has most.

    Parameters
    ----------
    warmup, cooldown : int
        Steps at the beginning and at the end that are not timed. What is read and routed ahead is done in the first,
        and nothing is ahead in the last.
    evaluate : bool
        Whether the validation data are evaluated at the end, for ``auc``; 0 where that cannot be, of a model that has
        diverged.
    again : bool
        Whether the run's messages are sent again with nothing between them, for ``exchange_s``.
    clocked : bool
        Whether what compression takes is clocked: ``clocked_s`` is the processor time of each of ``clock.SECTIONS`` in
        a step, on the rank where all take most.
    again_from : bool
        Whether the run is saved at its end, and gone on with from that checkpoint: how long both take, and what there
        is. That it has the same rows is seen to.
    settled : mapping, optional
        What ``settle.fill`` is given, where copies of rows are to be there from the start.
    leave_after : int, optional
        Steps after which the run is left, without what its end would do.
    ranks_a_host : int, optional
        The run is told that so many ranks, one after the other, are on a host, wherever they are.
    """
    if ranks_a_host is not None:
        world_module.hosts_of = lambda comm: tuple(rank // ranks_a_host for rank in range(comm.size))
    clock = Clock() if clocked else None
    began_s, used_s = time.perf_counter(), 0.0
    with hpcrec.open_session(config, settings) as session:
        open_s = time.perf_counter() - began_s
        if settled is not None:
            settle.fill(session, **settled)
        sent, main, pipeline, early = Sent(session.parts.world), session.parts.world.main, session.parts.pipeline, []
        for step in session.steps():
            step.run()
            bags = step._ticket.routed.result().early
            if bags is not None and len(bags) and session.step > warmup:
                early.append(bags.mean())
            if session.step == warmup:
                main.barrier()
                began_s, used_s = time.perf_counter(), time.process_time()
                if clock is not None:
                    clock.begin()
            if session.step == (leave_after or session.total_steps) - cooldown:
                main.barrier()
                step_s = (time.perf_counter() - began_s) / (session.step - warmup)
                used_s = (time.process_time() - used_s) / (session.step - warmup)
                clocked_s = {} if clock is None else clock.of_slowest(main, session.step - warmup)
            if session.step == leave_after:
                break
        if session.stopped:  # by a signal: the jobs that follow are not to be begun
            sys.exit(curves.STOPPED)
        bytes_RTR = np.array(main.allgather(sent.bytes_TR))
        row = {
            "open_s": open_s,
            "step_s": step_s,
            "cpu_s": sum(main.allgather(used_s)),
            "samples_per_s": session.parts.splits["train"].order.batch_size / step_s,
            "path": session.parts.world.describe()["path"],
            "within": bool(session.parts.chosen and session.parts.chosen.found.get("tables_within_hosts")),
            "forms": dict(sorted(session.parts.exchange.layout.form_of.items())),  # copies are one of them
            "bytes_TRR": (bytes_RTR.transpose(1, 0, 2) / session.step).tolist(),
        }
        if clock is not None:
            clock.stop()
            row["clocked_s"] = clocked_s
        early_R = [shares for shares in main.allgather(early) if shares]  # of dense ranks
        if early_R:
            row["early_share"] = float(np.mean(early_R))
        row["drains"], row["drained_s"] = pipeline.drains
        row["drained_s"] = max(main.allgather(row["drained_s"]))
        if evaluate:
            row |= one_process.evaluated(session)
        if again_from:
            row |= saved_and_loaded(session)
        if again:
            row["exchange_s"] = sent_again(session, bytes_RTR // session.step)
    return row


def counted(config: str, settings: Sequence[str], marks: Sequence[int]) -> Any:
    """Bytes that have crossed so far by tag, sender and receiver, ``bytes_MTRR``, after each of so many steps."""
    with hpcrec.open_session(config, settings) as session:
        sent, main, found = Sent(session.parts.world), session.parts.world.main, []
        for step in session.steps():
            step.run()
            if session.step in marks:
                found.append(np.array(main.allgather(sent.bytes_TR)).transpose(1, 0, 2).tolist())
        if session.stopped:
            sys.exit(curves.STOPPED)
    return {"bytes_MTRR": found, "tags": TAGS}


def sought(config: str, settings: Sequence[str]) -> Any:
    """The ``staleness`` that is found where it is sought, and the part of time that was waited for rows at each."""
    with hpcrec.open_session(config, settings) as session:
        trials = session.parts.pipeline.trials
        assert trials is not None, "policy.staleness is auto"
        for step in session.steps():
            step.run()
            if trials.found:
                break
        assert trials.found, "train.steps are too few"
        return {"staleness": trials.staleness, "waited": trials.shares}


def saved_and_loaded(session: Session) -> dict[str, float]:
    """Rows that there are, their bytes and the checkpoint's, and seconds of saving and loading; of all ranks."""
    parts, main = session.parts, session.parts.world.main
    folder = Path(main.bcast(tempfile.mkdtemp(prefix="hpcrec-saved-")))
    try:
        began_s = time.perf_counter()
        state.save(session, folder, {})
        save_s, held = time.perf_counter() - began_s, parts.store.figures() if parts.store else {}
        n_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        began_s = time.perf_counter()
        state.load(session, find_checkpoint(folder, "last", main), resume=True)
        load_s = time.perf_counter() - began_s
        assert parts.store is None or held["rows"] == parts.store.figures()["rows"], "not all that was saved was loaded"
        rows, rows_bytes = (int(main.allreduce(np.array([held.get(n, 0)]))[0]) for n in ("rows", "bytes"))
    finally:
        main.barrier()
        shutil.rmtree(folder, ignore_errors=True)
    found = {"rows": rows, "rows_bytes": rows_bytes, "checkpoint_bytes": n_bytes}
    return {**found, "save_s": save_s, "load_s": load_s}


def dense_alone(config: str, settings: Sequence[str], warmup: int, steps: int) -> Any:
    """Mean seconds of a step of dense ranks by themselves: on the same rows again and again, which learn nothing."""
    with hpcrec.open_session(config, settings) as session:
        parts, main = session.parts, session.parts.world.main
        ticket = next(session.steps())._ticket
        inputs = parts.pipeline.inputs(ticket)
        for number in range(warmup + steps):
            if number == warmup:
                main.barrier()
                began_s = time.perf_counter()
            if inputs is None:
                continue
            for leaf in inputs.leaves:
                leaf.grad = None
            _, found = session._compute(ticket, inputs, None)
            assert session.guard.agree(here=found is None)
            update_dense(parts, number, 1.0)
        main.barrier()
        return {"step_s": (time.perf_counter() - began_s) / steps}


def sent_again(session: Session, bytes_RTR: Ints) -> float:
    """Seconds that a step's messages take by themselves, of the slowest rank: values, gradients and dense sums."""
    world, rank = session.parts.world, session.topology.rank
    taken_s = []
    for _ in range(ROUNDS):
        mine_s = 0.0
        for tag in ("values", "gradients"):
            bytes_RR = padded_bytes(bytes_RTR[:, TAGS.index(tag)])
            message = world.main.message(bytes_RR[rank], np.float32)
            world.main.barrier()
            began_s = time.perf_counter()
            world.main.alltoallv(message, bytes_RR[rank], bytes_RR[:, rank], tag)
            mine_s += time.perf_counter() - began_s
        if world.dense is not None:
            sent = int(bytes_RTR[:, TAGS.index("dense")].sum(axis=1).max())  # thresholded, ranks send differently many
            values = np.zeros(sent * world.dense.size // max(2 * (world.dense.size - 1), 1) // 4, np.float32)
            world.dense.barrier()
            began_s = time.perf_counter()
            world.dense.allreduce(values, "dense")
            mine_s += time.perf_counter() - began_s
        taken_s.append(max(world.main.allgather(mine_s)))
    return float(np.median(taken_s))


def pairs(config: str, settings: Sequence[str], variants: Mapping[str, Sequence[str]], n_pairs: int, steps: int) -> Any:
    """Runs at once that take turns: mean seconds of a step of each in each of ``n_pairs`` turns, and of set-up.

    ``variants`` are the settings in which they differ, by name. A turn is one step that is not timed, in which what
    another run had under way ends, and ``steps`` that are. Who comes first alternates; the first turn of each warms up.
    """
    total = (n_pairs + 1) * (steps + 1)
    every = [f"train.steps={total}", *settings]
    sessions, open_s = [], []
    for of_one in variants.values():
        began_s = time.perf_counter()
        sessions.append(hpcrec.open_session(config, [*every, *of_one]))
        open_s.append(time.perf_counter() - began_s)
    runs = [session.steps() for session in sessions]
    step_s: list[list[float]] = [[] for _ in variants]
    for pair in range(n_pairs + 1):
        order = range(len(variants)) if pair % 2 else reversed(range(len(variants)))
        for which in order:
            step_s[which].append(turn(sessions[which], runs[which], steps))
    for session, run in zip(sessions, runs, strict=True):
        next(run, None)  # which ends it
        session.close()
    steps_s = {name: of_one[1:] for name, of_one in zip(variants, step_s, strict=True)}
    return {"step_s": steps_s, "open_s": dict(zip(variants, open_s, strict=True))}


def turn(session: Session, run: Iterator[Any], steps: int) -> float:
    """Mean seconds of ``steps`` steps after one more, from barrier to barrier."""
    barrier = session.parts.world.main.barrier
    next(run).run()
    barrier()
    began_s = time.perf_counter()
    for _ in range(steps):
        next(run).run()
    barrier()
    return (time.perf_counter() - began_s) / steps


def in_one_process(config: str, settings: Sequence[str], ranks: int, staleness: int) -> Any:
    """A run of policy ``cached`` on so many dense ranks, computed by this one; ``auc`` of the validation data."""
    with hpcrec.open_session(config, [*settings, "policy.name=sync", "exchange.form=rows"]) as session:
        return one_process.run(session, ranks, staleness)


KINDS = {
    "train": train,
    "one process": in_one_process,
    "counted": counted,
    "sought": sought,
    "dense alone": dense_alone,
    "pairs": pairs,
    "links": links.measured,
    "stream": links.stream,
    "sums": ways.summed,
    "messages": ways.exchanged,
    "levels": ways.levelled,
    "curve": curves.curve,
    "timeline": timeline.recorded,
    "counting": counting.counting,
}


def main(jobs: str, out: str) -> None:
    rank = start(os.environ)
    for job in json.loads(Path(jobs).read_text()):
        row = KINDS[job.pop("kind")](**job)
        if rank == 0:
            with Path(out).open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
