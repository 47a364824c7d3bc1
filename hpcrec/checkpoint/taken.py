"""Rows that are links to a store's files, taken over by stores of the same geometry: files get names, none is read.

Either all owners take theirs over, or none does, and rows are read and dealt as any. Knows a session and a checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcrec.checkpoint.checkpoint import Checkpoint
from hpcrec.checkpoint.dynamic_state import named
from hpcrec.checkpoint.linked import linked_ids
from hpcrec.checkpoint.parts import found_facts, part_facts, read_admission, read_hdf5
from hpcrec.comm.failure import agree
from hpcrec.embedding.dynamic import DynamicRows, IdState
from hpcrec.training.ranks import on_root
from hpcrec.training.session import Session

_PLACE = ("folder", "generation")  # of facts: where rows are, not what they are


@dataclass(frozen=True)
class _Mine:
    """The files of this rank's rows, how many parts they are of, and tables with values that are not finite."""

    folder: str
    generation: int
    parts: int
    nonfinite: frozenset[str] = frozenset()


def taken_over(session: Session, checkpoint: Checkpoint) -> frozenset[str]:
    """Tables whose rows this session's stores have as they were in a checkpoint, now; collective.

    Raises
    ------
    CheckpointError, TierError, OutputError
        Files cannot be taken over; on every rank.
    """
    main, store = session.parts.world.main, session.parts.store

    def linked_parts() -> dict[str, int]:
        found = {t: [part_facts(p)["linked"] for p in checkpoint.part_paths(t)] for t in session.parts.tables}
        return {t: len(of) for t, of in found.items() if all(said is not None for said in of)}

    linked = on_root(main, linked_parts)
    if not linked:
        return frozenset()
    error, mine, fits = None, None, False
    try:
        mine = _mine(session, checkpoint, linked)
        fits = mine is not None and (not mine.parts or _takes(session, checkpoint, mine))
    except Exception as caught:
        error = caught
    agree(main, error)
    parts_R = main.allgather(mine.parts if mine is not None and fits else -1)
    if min(parts_R) < 0 or sum(parts_R) != sum(linked.values()):
        return frozenset()
    try:
        if store is not None and mine is not None and mine.parts:
            store.take(checkpoint.folder / mine.folder, mine.generation, mine.nonfinite)
            for held in store.dynamic.values():
                if held.family.tables[0] in linked:
                    _take_ids(session, checkpoint, held)
    except Exception as caught:
        error = caught
    agree(main, error)
    return frozenset(linked)


def _takes(session: Session, checkpoint: Checkpoint, mine: _Mine) -> bool:
    store = session.parts.store
    assert store is not None, "it has parts"
    return store.takes(checkpoint.folder / mine.folder, mine.generation)


def _mine(session: Session, checkpoint: Checkpoint, linked: Mapping[str, int]) -> _Mine | None:
    """Of this rank, where the checkpoint has each of its parts as it would save it; else None."""
    store = session.parts.store
    if store is None:
        return _Mine("", 0, 0)
    wanted, places, nonfinite = store.linked_facts(), set[tuple[str, int]](), set[str]()
    if any(table in linked and table not in wanted for table in store.tables):
        return None
    if any(len({table in linked for table in held.family.tables}) > 1 for held in store.dynamic.values()):
        return None  # an id has the same row in all of them, and those that are not linked give rows anew
    for table, facts in wanted.items():
        part = store.part(table)
        assert part is not None, "it says what its part is"
        name = f"part-{part.number}.h5"
        path = next((p for p in checkpoint.part_paths(table) if p.name == name), None)
        said = None if path is None or table not in linked else read_hdf5(path, found_facts)
        if said is None or {n: v for n, v in said.items() if n not in _PLACE} != facts:
            return None
        places.add((str(said["folder"]), int(said["generation"])))
        nonfinite |= {table} if str(path) in checkpoint.nonfinite else set()
    if len(places) > 1:
        return None
    return _Mine(*places.pop(), len(wanted), frozenset(nonfinite)) if places else _Mine("", 0, 0)


def _take_ids(session: Session, checkpoint: Checkpoint, held: DynamicRows) -> None:
    """Ids of a family have the rows that they had."""
    store = session.parts.store
    assert store is not None, "it has the family"
    table = named(store, held)
    path = next(p for p in checkpoint.part_paths(table) if p.name == f"part-{held.number}.h5")
    rows, ids = linked_ids(path)
    known = read_hdf5(path, read_admission)
    zeros = np.zeros(len(ids), np.int64)
    state = IdState(
        rows=rows,
        ids=ids,
        counts=zeros if known.counts is None else known.counts,
        clocks=zeros if known.clocks is None else known.clocks,
        pending_ids=known.pending_ids,
        pending_counts=known.pending_counts,
        pending_clocks=known.pending_clocks,
        clock=known.clock,
        evicted=known.evicted,
    )
    held.load(state, known.refused, keep_rows=True)
