"""A session's state on disk and back: rows, dense parameters, their optimizers and the position.

Random numbers need no state: rows start from (seed, table, id), the order of samples is a function of (seed, epoch),
and dropout is seeded by the step. Knows a session and the checkpoint's verbs; the format is ``checkpoint``'s.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcrec.checkpoint import saved
from hpcrec.checkpoint.checkpoint import Checkpoint, CheckpointWriter
from hpcrec.checkpoint.deal import dealt_rows
from hpcrec.checkpoint.dense import check_values
from hpcrec.checkpoint.dynamic_state import load_dynamic
from hpcrec.checkpoint.image import parts_of
from hpcrec.checkpoint.residual_state import load_residuals
from hpcrec.checkpoint.taken import taken_over
from hpcrec.comm.failure import agree
from hpcrec.dense.optimizer import load_optimizer_state
from hpcrec.embedding.sets import name_in
from hpcrec.embedding.store import row_states
from hpcrec.errors import CheckpointError
from hpcrec.training.parts import Parts
from hpcrec.training.session import Session


def save(session: Session, folder: Path, extra: dict[str, Any]) -> Path:
    """Writes a checkpoint of the session into a run's folder; collective. Returns the checkpoint's folder.

    Parameters
    ----------
    extra : dict
        What else a resumed run needs to know, JSON-like.
    """
    session.parts.pipeline.rest()
    writer = CheckpointWriter(folder, session.step, session.parts.world.main)
    writer.begin()
    for write in parts_of(session, {**said(session), **extra}):
        write(writer)
    return writer.commit()


def load(session: Session, checkpoint: Checkpoint, *, resume: bool) -> dict[str, Any]:
    """Takes a checkpoint over; collective. Returns the ``extra`` that was saved, among the rest of the state.

    Parameters
    ----------
    resume : bool
        Also goes on from its position, which takes the same data, seed and batch size; else only weights are taken.

    Raises
    ------
    CheckpointError
        It is of another model, or of a run that cannot be gone on with; on every rank.
    """
    session.parts.pipeline.drain()  # what a loop that was left has under way would be learned over it
    error, trials = None, session.parts.pipeline.trials
    try:
        _check(session, checkpoint, resume=resume)
        if resume:
            wire_bytes, wire_messages = saved.wire_bytes(checkpoint), saved.wire_messages(checkpoint)
            skipped = saved.skipped(checkpoint)
            staleness = None if trials is None else saved.staleness(checkpoint, trials.allowed)
    except Exception as caught:
        error = caught
    agree(session.parts.world.main, error)
    with session.parts.world.ledger.paused():
        _load_rows(session, checkpoint)
    try:
        if session.parts.dense is not None or session.parts.slices.own:
            _load_dense(session.parts, checkpoint)
        if session.parts.dense is not None and session.parts.dense.codistillation is not None:
            session.parts.dense.codistillation.restore(_snapshots(session, checkpoint) if resume else {})
        if resume:
            load_residuals(session.parts, checkpoint)
    except Exception as caught:
        error = caught
    agree(session.parts.world.main, error)
    if session.parts.exchange.masks is not None:
        by_rank, topology = checkpoint.state.get("thresholds", []), session.topology
        session.parts.exchange.masks.restore(by_rank, topology.rank if len(by_rank) == topology.size else None)
    if resume:
        session.step = checkpoint.step
        session.guard.skipped, session.guard.in_a_row, dropped = skipped
        session.guard.dropped = dropped if session.topology.rank == 0 else 0
        if trials is not None and staleness is not None:
            trials.take(staleness)
        ledger = session.parts.world.ledger
        if wire_messages is None:
            ledger.forget_messages()
        if session.topology.rank == 0:
            ledger.restore(wire_bytes, ledger.messages() if wire_messages is None else wire_messages)
    return checkpoint.state


EXCHANGE = "exchange"  # what a run with exchange.path "auto", or with towers of form "auto", has chosen


def said(session: Session) -> dict[str, Any]:
    """What state.json says of a run besides its position."""
    chosen = session.parts.chosen
    return {**identity(session), **({} if chosen is None or not chosen.saved else {EXCHANGE: chosen.found})}


def identity(session: Session) -> dict[str, Any]:
    """What must be equal for a run to go on as if it had not stopped."""
    order, dataset = session.parts.splits["train"].order, session.parts.splits["train"].dataset
    return {
        "seed": session.parts.seed,
        "batch_size": order.batch_size,
        "chunk": order.chunk,
        "window": order.window_chunks,
        "shuffle": order.shuffle,
        "data": dataset.fingerprint,
        "dtype": str(session.parts.dtype),
        "groups": session.topology.groups,
        "share_embeddings": not session.topology.own_tables,
    }


_KEYS = {
    "seed": "train.seed",
    "batch_size": "train.batch_size",
    "chunk": "data.chunk",
    "window": "data.window",
    "shuffle": "data.shuffle",
    "data": "data.train (its content)",
    "dtype": "train.dtype",
    "groups": "dense.codistillation.groups",
    "share_embeddings": "dense.codistillation.share_embeddings",
}
_UNSAID = {"groups": 1, "share_embeddings": True}  # of a checkpoint that says nothing of it


def _check(session: Session, checkpoint: Checkpoint, *, resume: bool) -> None:
    if resume:
        for key in _UNSAID:  # else files would be missing
            _check_same(session, checkpoint, key)
    checkpoint.check_tables(session.parts.tables, [] if resume else _of_other_groups(session, checkpoint))
    for name, table in session.parts.tables.items():
        states, dynamic = row_states(table.optimizer), table.dynamic is not None
        if not resume and checkpoint.without_states(name):
            states = {}
        checkpoint.check_table(
            name, rows=table.rows, width=table.width, states=states, dynamic=dynamic, hashed=table.hashed
        )
    if session.parts.dense is not None:
        trained = dict(session.parts.dense.named_parameters)
        others = {n: v for n, v in session.parts.dense.model.state_dict().items() if n not in trained}
        checkpoint.check_dense(_shapes(trained), _shapes(others), group=session.topology.group)
    elif session.parts.slices.own:
        wholes = session.parts.slices.wholes
        trained = {n: p for n, p in wholes.items() if p.requires_grad}
        others = {n: p for n, p in wholes.items() if n not in trained}
        checkpoint.check_dense(_shapes(trained), _shapes(others), some=True)
    if not resume:
        if any(t.hashed for t in session.parts.tables.values()) and checkpoint.state.get("seed") != session.parts.seed:
            raise CheckpointError(
                f"{checkpoint.folder}: was trained with train.seed = {checkpoint.state.get('seed')}, by which ids of "
                f"hashed tables find their rows; this is {session.parts.seed}. Set it back."
            )
        return
    for key in identity(session):
        _check_same(session, checkpoint, key)


def _of_other_groups(session: Session, checkpoint: Checkpoint) -> list[str]:
    """Tables that groups other than the first had for themselves: who only reads a run leaves them."""
    groups = checkpoint.state.get("groups", 1)
    if checkpoint.state.get("share_embeddings", True) or not isinstance(groups, int):
        return []
    return [name_in(g, table) for g in range(1, groups) for table in session.parts.tables]


def _check_same(session: Session, checkpoint: Checkpoint, key: str) -> None:
    then, now = checkpoint.state.get(key, _UNSAID.get(key)), identity(session)[key]
    if then != now:
        raise CheckpointError(
            f"{checkpoint.folder}: was written with {_KEYS[key]} = {then!r}, this run has {now!r}, so it cannot go "
            "on where that one stopped. Set it back, or start anew with checkpoint.resume = 'never' in another "
            "run.folder."
        )


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _snapshots(session: Session, checkpoint: Checkpoint) -> dict[int, Mapping[str, Any]]:
    """What this rank's group had of the others; empty where the checkpoint has not all of them."""
    dense, topology = session.parts.dense, session.topology
    assert dense is not None
    wanted = _shapes(dense.model.state_dict())
    found: dict[int, Mapping[str, Any]] = {}
    for group in range(topology.groups):
        if group != topology.group and (values := checkpoint.snapshot(group)) is not None:
            check_values(checkpoint.folder, f"value in the snapshot of group {group},", wanted, values)
            found[group] = values
    return found if len(found) == topology.groups - 1 else {}


def _load_rows(session: Session, checkpoint: Checkpoint) -> None:
    """Takes over what this rank holds; collective."""
    store, taken = session.parts.store, taken_over(session, checkpoint)
    for table, spec in session.parts.tables.items():
        if spec.dynamic is None and table not in taken:
            for dealt in dealt_rows(session, checkpoint, table):
                assert store is not None, "rows are dealt to those that hold them"
                store.load(table, dealt.ids, dealt.rows, dealt.states, dealt.columns)
                del dealt  # else its memory would be there while the next is read
    load_dynamic(session, checkpoint, taken)


def _load_dense(parts: Parts, checkpoint: Checkpoint) -> None:
    found, dense = checkpoint.dense(parts.world.topology.group), parts.dense
    values = {n: torch.as_tensor(v) for n, v in {**found.extra, **found.parameters}.items()}
    states = {
        name: {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in state.items()}
        for name, state in found.optimizer.items()
    }
    parts.slices.take(values, states)
    if dense is not None:
        dense.model.load_state_dict(values)
        load_optimizer_state(
            dense.optimizer, dense.trained, {n: s for n, s in states.items() if n not in parts.slices.away}
        )
