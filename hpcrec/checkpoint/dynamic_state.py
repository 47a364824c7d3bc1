"""Dynamic tables in a run: what came of them, and their part in checkpoints, from one set of owners to another.

Every owner takes the ids that are dealt to it, whoever saved them. Knows the store and the checkpoint's verbs.
"""

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence

import h5py
import numpy as np

from hpcrec.checkpoint.checkpoint import Checkpoint
from hpcrec.checkpoint.deal import dealt_rows
from hpcrec.checkpoint.parts import PENDING, Admission, found_facts, n_ids_in, read_admission, read_hdf5
from hpcrec.comm.failure import agree
from hpcrec.embedding.dynamic import DynamicFigures, DynamicRows, IdState
from hpcrec.embedding.linked import RecordPart
from hpcrec.embedding.store import BLOCK_ROWS, Store
from hpcrec.errors import CheckpointError
from hpcrec.training.session import Session
from hpcrec.types import Ints

LOGGED = ("rows", "admitted", "evicted", "refused")  # of a dynamic table, in a line of metrics.jsonl
_FIGURES = [field.name for field in dataclasses.fields(DynamicFigures)]


def figures(session: Session) -> dict[str, dict[str, int]]:
    """What came of dynamic tables so far, by the widest of those that are read by the same ids; collective.

    Sums over owners, as ``DynamicFigures`` names them; empty, and nothing is sent, where no table is dynamic.
    """
    names = dynamic_tables(session)
    if not names:
        return {}
    return named_figures(names, session.parts.world.main.allreduce(figures_here(session, names)))


def dynamic_tables(session: Session) -> list[str]:
    """Names of tables that are dynamic, in their order."""
    return [name for name, table in session.parts.tables.items() if table.dynamic is not None]


def figures_here(session: Session, names: Sequence[str]) -> Ints:
    """What came of this rank's part of dynamic tables: int64 [tables, fields of ``DynamicFigures``]."""
    here_NF, store = np.zeros((len(names), len(_FIGURES)), np.int64), session.parts.store
    if store is not None:
        for held in store.dynamic.values():
            here_NF[names.index(named(store, held))] = dataclasses.astuple(held.figures())
    return here_NF


def named_figures(names: Sequence[str], total_NF: Ints) -> dict[str, dict[str, int]]:
    """``figures`` of a sum over ranks."""
    found = zip(names, total_NF.tolist(), strict=True)
    return {name: dict(zip(_FIGURES, row, strict=True)) for name, row in found if any(row)}


def admission_of(held: DynamicRows, known: IdState) -> Admission:
    """What is saved of an owner's part of a family, beside the ids that have rows."""
    used = len(known.counts) == len(known.ids)  # else no id loses its row
    return Admission(
        counts=known.counts if used else None,
        clocks=known.clocks if used else None,
        pending_ids=known.pending_ids,
        pending_counts=known.pending_counts,
        pending_clocks=known.pending_clocks,
        clock=known.clock,
        evicted=known.evicted,
        refused=held.refused,
    )


def load_dynamic(session: Session, checkpoint: Checkpoint, taken: Collection[str] = ()) -> None:
    """Takes over the rows of dynamic tables, and goes on from what was known of their ids; collective.

    But for those that are ``taken`` already.

    Raises
    ------
    CheckpointError
        An id is there twice, or not in all tables that are read by the same ids, or there is no room for it; on every
        rank.
    """
    store, main, error = session.parts.store, session.parts.world.main, None
    held = {} if store is None else {f: of for f, of in store.dynamic.items() if of.family.tables[0] not in taken}
    try:
        for of in held.values():
            of.load(*_joined(checkpoint, _named(session, of), of))
    except Exception as caught:
        error = caught
    agree(main, error)
    dealt_to: dict[str, float] = {}  # ids, by family
    dynamic = {
        name: spec.width
        for name, spec in session.parts.tables.items()
        if spec.dynamic is not None and name not in taken
    }
    for table in sorted(
        dynamic, key=lambda name: -dynamic[name]
    ):  # of a family the one that it is named by comes first
        mine = next((of for of in held.values() if table in of.family.tables), None)
        n_ids, wrong = _load_table(session, checkpoint, table, mine), None
        if mine is not None and dealt_to.setdefault(mine.family.name, n_ids) != n_ids:
            wrong = CheckpointError(
                f"{checkpoint.folder}: table {table!r} has not one row for each id of {_named(session, mine)!r}, which "
                "is read by the same ids. See docs/checkpoint.md."
            )
        agree(main, wrong)


def _load_table(session: Session, checkpoint: Checkpoint, table: str, held: DynamicRows | None) -> float:
    """Takes over one table's rows; returns ids that were dealt to this rank, NaN where one has not a whole row."""
    if held is None:
        for _ in dealt_rows(session, checkpoint, table):
            raise AssertionError("rows are dealt to those that hold them")
        return 0
    assert session.parts.store is not None, "it holds them"
    values_U, n_values, width = np.zeros(len(held), np.int64), 0, session.parts.tables[table].width
    for dealt in dealt_rows(session, checkpoint, table):
        rows, n_columns = held.find(dealt.ids), dealt.columns[1] - dealt.columns[0]
        values_U += n_columns * np.bincount(rows[rows < held.spare], minlength=len(held))
        n_values += n_columns * len(dealt.ids)
        session.parts.store.load(table, dealt.ids, dealt.rows, dealt.states, dealt.columns)
        del dealt  # else its memory would be there while the next is read
    return n_values / width if (values_U == width).all() else math.nan  # which equals nothing, itself included


def _named(session: Session, held: DynamicRows) -> str:
    assert session.parts.store is not None, "it holds them"
    return named(session.parts.store, held)


def named(store: Store, held: DynamicRows) -> str:
    """The table by whose name a family is called, and which is saved with what is known of the ids: its widest."""
    return max(held.family.tables, key=lambda table: _width(store, table))


def _joined(checkpoint: Checkpoint, table: str, held: DynamicRows) -> tuple[IdState, int]:
    """What all parts of a table know of the ids that are dealt to this owner's part; and ids refused, its share."""
    lists: dict[str, list[Ints]] = {name: [] for name in ("ids", "counts", "clocks", *PENDING)}
    clock = evicted = refused = 0
    for number, path in enumerate(checkpoint.part_paths(table)):
        found = read_hdf5(path, lambda file: _mine(file, held))
        if found is None:
            continue
        mine, known = found
        for name, values in mine.items():
            lists[name] += values
        clock = max(clock, known.clock)
        if number % held.family.row_parts == held.number % held.family.row_parts:
            evicted, refused = evicted + known.evicted, refused + known.refused
    joined = {name: np.concatenate([np.zeros(0, np.int64), *values]) for name, values in lists.items()}
    return IdState(rows=np.arange(len(joined["ids"])), **joined, clock=clock, evicted=evicted), refused


def _mine(file: h5py.File, held: DynamicRows) -> tuple[dict[str, list[Ints]], Admission] | None:
    """What a part knows of the ids that are dealt to an owner's part; None: another part of the table has them too."""
    if file.attrs["column_start"] > 0:
        return None
    known = read_admission(file)
    lists: dict[str, list[Ints]] = {name: [] for name in ("ids", "counts", "clocks")}
    for ids, counts, clocks in _used(file, known):
        mine = held.mine(ids)
        for name, values in (("ids", ids), ("counts", counts), ("clocks", clocks)):
            lists[name].append(values[mine])
    mine = held.mine(known.pending_ids)
    return {**lists, **{name: [getattr(known, name)[mine]] for name in PENDING}}, known


def _used(file: h5py.File, known: Admission) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Ids of a part, steps that have used them, and the last of them; zeros where nothing is said of that."""
    said = None if "ids" in file else found_facts(file)  # linked rows of a declared table: each has its id
    columns = int(file.attrs["column_start"]), int(file.attrs["column_stop"])
    part = None if said is None else RecordPart(str(file.attrs["table"]), int(file.attrs["rows"]), columns, said)
    n_ids = n_ids_in(file) if part is None else part.facts["rows"]
    for start in range(0, n_ids, BLOCK_ROWS):
        here = slice(start, min(start + BLOCK_ROWS, n_ids))
        if part is None:
            ids = np.asarray(file["ids"][here], np.int64)
        else:
            ids = part.ids(part.span[0] + np.arange(here.start, here.stop))
        zeros = np.zeros(len(ids), np.int64)
        yield (
            ids,
            zeros if known.counts is None else np.asarray(known.counts[here], np.int64),
            zeros if known.clocks is None else np.asarray(known.clocks[here], np.int64),
        )


def _width(store: Store, table: str) -> int:
    part = store.part(table)
    assert part is not None, "an owner of a family holds all of its tables"
    return part.width
