"""One checkpoint written as another: cut into other parts, in another type, or without optimizer states.

Rows go through in bounded memory. Ids of a dynamic table keep their order, in which they would lose their rows. A
checkpoint that needs others to be read becomes a whole one. Knows checkpoints; what loads them is for others.
"""

import itertools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.checkpoint.checkpoint import CheckpointWriter
from hpcrec.checkpoint.dense import dense_file
from hpcrec.checkpoint.find import problem_of
from hpcrec.checkpoint.parts import PENDING, Admission, TableBlock, n_ids_in, opened, read_admission
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.checkpoint.residuals import Unsent
from hpcrec.checkpoint.tools.by_id import in_order, ranges_of, whole
from hpcrec.checkpoint.tools.look import checkpoint_at
from hpcrec.checkpoint.tools.tables import TableFacts, table_facts
from hpcrec.comm.ranks import Alone
from hpcrec.data.files import sync, temporary_beside, writing
from hpcrec.data.hdf5_lookup import found_in
from hpcrec.dense.residuals import Piece, Residuals
from hpcrec.errors import CheckpointError
from hpcrec.types import Floats, Ints


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What is to change.

    Attributes
    ----------
    parts : int
        Of each table.
    shard : str
        ``row``: a part has some ids, all columns. ``column``: the other way; not of dynamic tables.
    dtype : str or None
        ``float32`` or ``float64``, of rows, parameters and states; None as they are.
    without_optimizer : bool
        Leave out the states of tables' optimizers and of the dense one: for evaluation, not to train on.
    """

    parts: int = 1
    shard: str = "row"
    dtype: str | None = None
    without_optimizer: bool = False


def convert(path: Path, out: Path, wanted: Conversion, scratch: Path | None = None) -> Checkpoint:
    """Writes the checkpoint at ``path``, or the newest of a run folder, as another at ``out``.

    Parameters
    ----------
    out : Path
        The new checkpoint's folder, which is not there yet: whole or absent.
    scratch : Path, optional
        Folder with room for a large table whose columns lie apart; beside ``out`` by default.

    Raises
    ------
    CheckpointError
        The first cannot be read, or ``out`` is there.
    OutputError
        ``out`` cannot be written.
    """
    source = Checkpoint(checkpoint_at(path))
    if damage := problem_of(source.folder, Alone()):
        raise CheckpointError(f"{damage}. Convert one that is whole.")
    if out.exists():
        raise CheckpointError(f"{out}: is there already. Give a folder that is not.")
    run = temporary_beside(out)
    try:
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            writer = CheckpointWriter(run, source.step)
            writer.begin()
        for table in source.tables:
            _write_table(writer, source, table_facts(source, table), wanted, scratch or run)
        _write_dense(writer, source, wanted)
        writer.write_state(_state(source, wanted))
        written = writer.commit()
        with writing(out):
            written.rename(out)
            sync(out.parent)
    finally:
        shutil.rmtree(run, ignore_errors=True)
    return Checkpoint(out)


def _state(source: Checkpoint, wanted: Conversion) -> dict[str, Any]:
    changed = {} if wanted.dtype is None or "dtype" not in source.state else {"dtype": f"torch.{wanted.dtype}"}
    return {**source.state, **changed}


# ---- tables ----------------------------------------------------------------------------------------------------------


def _write_table(
    writer: CheckpointWriter, source: Checkpoint, facts: TableFacts, wanted: Conversion, scratch: Path
) -> None:
    if not facts.dynamic and facts.ids != facts.rows:
        raise CheckpointError(
            f"{source.folder}: the parts of table {facts.name!r} have {facts.ids} of its {facts.rows} rows. "
            "'hpcrec checkpoint verify' says what is missing."
        )
    by_column = wanted.shard == "column" and not facts.dynamic
    pieces = facts.width if by_column else max(facts.ids, 1)
    parts = min(wanted.parts, pieces)
    cuts = [pieces * k // parts for k in range(parts + 1)]
    write = partial(
        writer.write_table_part,
        facts.name,
        rows=facts.rows,
        width=facts.width,
        dynamic=facts.dynamic,
        hashed=facts.hashed,
    )
    if by_column:
        for part, columns in enumerate(itertools.pairwise(cuts)):
            cut = (_cut(block, columns) for block in _whole_rows(source, facts, scratch))
            write(part, (_as(block, wanted) for block in cut), n_ids=facts.ids, columns=columns)
        return
    stream = _Stream(_whole_rows(source, facts, scratch))
    for part, (start, stop) in enumerate(itertools.pairwise(cuts)):
        known = _admission(source, facts, start, stop, first=part == 0) if facts.dynamic else None
        blocks = (_as(block, wanted) for block in stream.take(stop - start))
        write(part, blocks, n_ids=max(min(stop, facts.ids) - start, 0), columns=(0, facts.width), admission=known)
    if not writer.failed and not stream.is_over():
        raise CheckpointError(f"{source.folder}: table {facts.name!r} holds more ids than its files say.")


def _whole_rows(source: Checkpoint, facts: TableFacts, scratch: Path) -> Iterator[TableBlock]:
    """Rows with all columns: in the order of the parts where these have them, else by id."""
    if facts.columns <= 1:
        whole_of = source.whole_table(facts.name, facts.rows, facts.width)
        yield from in_order(source, facts, scratch) if facts.dynamic else whole_of
        return
    for found in ranges_of(source, facts, scratch):
        yield whole(found, source, facts.name)


class _Stream:
    """Blocks that are taken by numbers of ids."""

    def __init__(self, blocks: Iterator[TableBlock]) -> None:
        self._blocks = blocks
        self._left: TableBlock | None = None

    def take(self, n_ids: int) -> Iterator[TableBlock]:
        """The next so many ids; fewer where there are no more."""
        while n_ids > 0:
            block = self._left or next(self._blocks, None)
            if block is None:
                return
            self._left = _ids(block, n_ids, None) if len(block.ids) > n_ids else None
            block = _ids(block, 0, n_ids)
            n_ids -= len(block.ids)
            yield block

    def is_over(self) -> bool:
        """Whether all are taken: whoever gives them looks at them as a whole."""
        return self._left is None and next(self._blocks, None) is None


def _ids(block: TableBlock, start: int, stop: int | None) -> TableBlock:
    here = slice(start, stop)
    states = {name: values[here] for name, values in block.states.items()}
    return TableBlock(ids=block.ids[here], rows=block.rows[here], states=states, columns=block.columns)


def _cut(block: TableBlock, columns: tuple[int, int]) -> TableBlock:
    here = slice(*columns)
    states = {name: values if values.ndim == 1 else values[:, here] for name, values in block.states.items()}
    return TableBlock(ids=block.ids, rows=block.rows[:, here], states=states, columns=columns)


def _as(block: TableBlock, wanted: Conversion) -> tuple[Any, Any, dict[str, Any]]:
    """A block as the writer takes it."""
    states = {} if wanted.without_optimizer else block.states
    return block.ids, _cast(block.rows, wanted), {name: _cast(values, wanted) for name, values in states.items()}


def _cast(values: Floats, wanted: Conversion) -> Floats:
    return values if wanted.dtype is None else values.astype(wanted.dtype, copy=False)


def _admission(source: Checkpoint, facts: TableFacts, start: int, stop: int, *, first: bool) -> Admission | None:
    """What is known of ids number ``start`` to ``stop`` in the order of the parts; of the rest, all in the first part.

    None where nothing is known of this table.
    """
    counts: list[Ints] = []
    clocks: list[Ints] = []
    waiting: dict[str, list[Ints]] = {name: [] for name in PENDING}
    at = clock = evicted = refused = 0
    used = anything = False
    for path in source.part_paths(facts.name):
        with opened(path) as file:
            known, n_ids = read_admission(file), n_ids_in(file)
            anything |= found_in(file, "admission") is not None
        here = slice(max(start - at, 0), max(stop - at, 0))
        used |= known.counts is not None
        zeros = np.zeros(n_ids, np.int64)
        counts.append((zeros if known.counts is None else known.counts)[here])
        clocks.append((zeros if known.clocks is None else known.clocks)[here])
        for name in PENDING if first else ():
            waiting[name].append(getattr(known, name))
        clock = max(clock, known.clock)
        evicted, refused, at = evicted + known.evicted, refused + known.refused, at + n_ids
    if not anything:
        return None
    none = [np.zeros(0, np.int64)]
    return Admission(
        counts=np.concatenate(counts) if used else None,
        clocks=np.concatenate(clocks) if used else None,
        pending_ids=np.concatenate(none + waiting["pending_ids"]),
        pending_counts=np.concatenate(none + waiting["pending_counts"]),
        pending_clocks=np.concatenate(none + waiting["pending_clocks"]),
        clock=clock,
        evicted=evicted if first else 0,
        refused=refused if first else 0,
    )


# ---- dense -----------------------------------------------------------------------------------------------------------


def _write_dense(writer: CheckpointWriter, source: Checkpoint, wanted: Conversion) -> None:
    groups = int(source.state.get("groups", 1))
    for group in range(groups):
        if group == 0 and not (source.folder / dense_file(0)).exists():
            continue  # tables alone
        state = source.dense(group)
        optimizer = {} if wanted.without_optimizer else state.optimizer
        writer.write_dense(
            {name: _number(value, wanted) for name, value in state.parameters.items()},
            {
                name: {k: _number(v, wanted) if k != "step" else v for k, v in states.items()}
                for name, states in optimizer.items()
            },
            {name: _number(value, wanted) for name, value in state.extra.items()},
            group=group,
        )
        if (snapshot := source.snapshot(group)) is not None:
            writer.write_snapshot(group, {name: _number(value, wanted) for name, value in snapshot.items()})
    for part in range(0 if wanted.without_optimizer else source.residual_ranks):
        writer.write_residuals(_unsent(source.unsent(part), wanted), part=part, ranks=source.residual_ranks)


def _number(value: Any, wanted: Conversion) -> Any:
    """A value of the dense part in the type that is wanted; whole numbers and plain numbers stay what they are."""
    return _cast(value, wanted) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


def _unsent(unsent: Unsent, wanted: Conversion) -> Unsent:
    def cast(pieces: Mapping[str, Piece]) -> dict[str, Piece]:
        return {name: Piece(piece.start, _cast(piece.left, wanted), piece.tau) for name, piece in pieces.items()}

    residuals = Residuals(cast(unsent.residuals.first), cast(unsent.residuals.second))
    return Unsent(residuals, unsent.counts, unsent.density)
