"""What a checkpoint of a session holds, as a list of writes; to be done at once, or by another thread beside steps.

For the latter, rows are frozen where they lie (``embedding.frozen``), and all that is small is copied. Knows a session
and the writer's verbs; knows no files. What is read again is for ``state``.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hpcrec.checkpoint import files
from hpcrec.checkpoint.checkpoint import CheckpointWriter
from hpcrec.checkpoint.dynamic_state import admission_of, named
from hpcrec.checkpoint.residual_state import unsent_of
from hpcrec.comm.failure import agree
from hpcrec.dense.optimizer import optimizer_state
from hpcrec.embedding.blocks import Part
from hpcrec.embedding.held_rows import Picked
from hpcrec.embedding.linked import LinkedRows
from hpcrec.embedding.store import Store
from hpcrec.training.parts import Parts
from hpcrec.training.session import Session

Write = Callable[[CheckpointWriter], None]


def parts_of(session: Session, state: dict[str, Any], *, some: bool = False) -> list[Write]:
    """Writes of this rank, before the next step; collective.

    Parameters
    ----------
    state : dict
        What ``state.json`` is to hold beside what is counted here.
    some : bool
        Of declared tables, only rows that have changed since ``store.track``.
    """
    return [*_tables(session.parts, None, some=some), *_others(session, state)]


def frozen_parts_of(
    session: Session, state: dict[str, Any], writer: CheckpointWriter, *, some: bool = False
) -> list[Write]:
    """The same, for a thread beside the steps to come: whoever has done them calls ``store.thaw``."""
    return [*_tables(session.parts, writer, some=some), *(_copied(write) for write in _others(session, state))]


def _tables(parts: Parts, writer: CheckpointWriter | None, *, some: bool) -> list[Write]:
    """Of the rows; frozen, where there is a writer, or in files that are to be linked. Collective."""
    store, kept = parts.store, _kept(parts)
    if store is None:
        return []
    held = {family: (rows, rows.save()) for family, rows in store.dynamic.items()}
    writes: list[Write] = []
    name = files.folder_of_links(parts.world.topology.rank)
    if kept is not None:
        writes.append(partial(_write_links, name, kept))
    tables: dict[str, Picked] = {}
    for table in store.tables:
        part = store.part(table)
        assert part is not None
        if part.family.kind == "replicate" and part.number > 0:
            continue  # every copy is the same
        admission = known = None
        if part.family.dynamic is not None:
            rows, known = held[part.family.name]
            admission = admission_of(rows, known) if table == named(store, rows) else None
        shape = {
            "rows": parts.tables[table].rows,
            "width": part.width,
            "columns": part.columns,
            "dynamic": known is not None,
            "hashed": part.family.hashed,
            "admission": admission,
        }
        if kept is not None and table in kept.facts:
            facts = {**kept.facts[table], "folder": name}
            shape["held"] = None if known is None else (known.ids, known.rows)
            shape["finite"] = table not in kept.nonfinite
            writes.append(partial(_write_linked, table, part.number, facts, shape))
            continue
        mask = store.changed(table) if known is None and some else None
        picked: Picked = known if mask is None else mask
        tables[table] = picked
        n_ids = len(known.ids) if known is not None else part.rows if mask is None else int(mask.sum())
        writes.append(partial(_write_table, store, part, picked, {**shape, "n_ids": n_ids}))
    if writer is not None:
        store.freeze(tables, writer.hidden / f"kept-{parts.world.topology.rank}")
    return writes


def _kept(parts: Parts) -> LinkedRows | None:
    """Rows of this rank that are to be linked; collective: what one rank cannot write, all learn of."""
    kept, error = None, None
    if parts.links_rows:
        try:
            kept = None if parts.store is None else parts.store.keep()
        except Exception as caught:
            error = caught
        agree(parts.world.main, error)
    return kept


def _write_links(name: str, kept: LinkedRows, writer: CheckpointWriter) -> None:
    try:
        writer.write_links(name, kept)
    finally:
        kept.drop()


def _write_linked(table: str, part: int, facts: Any, shape: dict[str, Any], writer: CheckpointWriter) -> None:
    writer.write_linked_part(table, part, facts, **shape)


def _write_table(store: Store, part: Part, picked: Picked, facts: dict[str, Any], writer: CheckpointWriter) -> None:
    writer.write_table_part(part.table, part.number, store.export(part.table, picked), **facts)


def _others(session: Session, state: dict[str, Any]) -> list[Write]:
    """Dense parameters, what is unsent of gradients, and the position; collective."""
    parts, world, topology = session.parts, session.parts.world, session.topology
    writes: list[Write] = []
    away = parts.slices.gather() if parts.slices.away else {}
    if parts.dense is not None and topology.place == 0:
        dense = parts.dense
        trained = dict(dense.named_parameters)
        others = {n: t for n, t in dense.model.state_dict().items() if n not in trained}
        states = {**optimizer_state(dense.optimizer, dense.trained), **away}
        values = {n: p.detach() for n, p in trained.items()}
        writes.append(partial(_write_dense, values, states, others, topology.group))
        if dense.codistillation is not None and dense.codistillation.taken:  # all other groups have the same of one
            of = (topology.group + 1) % topology.groups
            writes.append(partial(_write_snapshot, of, dense.codistillation.snapshot(of)))
    if (unsent := unsent_of(parts)) is not None:
        writes.append(partial(_write_unsent, unsent, topology.dense_index, len(topology.dense)))
    remembered = parts.exchange.masks
    by_rank = world.main.allgather({} if remembered is None else remembered.saved())
    wire = {"wire_bytes": world.total_wire_bytes().tolist()}
    if (messages_T2 := world.total_wire_messages()) is not None:
        wire["wire_messages"] = messages_T2.tolist()
    dropped = sum(world.main.allgather(session.guard.dropped))
    if topology.rank == 0:
        skipped = {"skipped_steps": session.guard.skipped, "skipped_in_a_row": session.guard.in_a_row}
        skipped |= {"dropped_features": dropped} if dropped else {}
        thresholds: dict[str, Any] = {"thresholds": by_rank} if any(by_rank) else {}
        if thresholds and world.by_levels:
            thresholds["uncoded_inside"] = True  # vectors, in hosts
        if thresholds and parts.exchange.layout.added:
            thresholds["summed"] = sorted(parts.exchange.layout.added)
        trials = parts.pipeline.trials
        found = {"staleness": trials.staleness} if trials is not None and trials.found else {}
        writes.append(partial(_write_state, {**state, **skipped, **wire, **thresholds, **found}))
    return writes


def _write_dense(values: Any, states: Any, others: Any, group: int, writer: CheckpointWriter) -> None:
    writer.write_dense(values, states, others, group=group)


def _write_snapshot(group: int, values: Any, writer: CheckpointWriter) -> None:
    writer.write_snapshot(group, values)


def _write_unsent(unsent: Any, part: int, ranks: int, writer: CheckpointWriter) -> None:
    writer.write_residuals(unsent, part=part, ranks=ranks)


def _write_state(state: Any, writer: CheckpointWriter) -> None:
    writer.write_state(state)


def _copied(write: Any) -> Write:
    """The same of copies: what it was given changes in the next step. Tensors become arrays of the host."""
    return partial(write.func, *(_copy_of(thing) for thing in write.args))


def _copy_of(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return thing.detach().cpu().numpy().copy()
    if isinstance(thing, dict):
        return {key: _copy_of(value) for key, value in thing.items()}
    return copy.deepcopy(thing)
