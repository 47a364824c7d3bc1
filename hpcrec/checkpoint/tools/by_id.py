"""Tables of a checkpoint, whole rows by rising id in bounded memory, whatever parts and order they are saved in.

What takes more memory than is allowed goes through a scratch folder: each block is cut by ranges of ids, one file a
range, and one range at a time is put together. Knows checkpoints; what is done with the rows is for others.

Legend: ``U`` ids in a block or range, ``D`` its columns, ``W`` width of the table.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hpcrec.checkpoint import files
from hpcrec.checkpoint.linked import linked_ids
from hpcrec.checkpoint.parts import TableBlock, part_facts
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.checkpoint.stretch import Stretch
from hpcrec.checkpoint.tools.tables import TableFacts, ids_in
from hpcrec.data.files import writing
from hpcrec.errors import CheckpointError
from hpcrec.types import Ints
from hpcrec.units import MiB

RANGE_BYTES = 64 * MiB  # of rows and states put together at a time; up to five times that is the memory
_SAMPLED_IDS = 1 << 20  # of a dynamic table, by which its ranges are cut

Blocks = Callable[[], Iterable[TableBlock]]


@dataclass(frozen=True)
class IdRange:
    """Whole rows of the ids in ``[start, stop)``; None is without end.

    Attributes
    ----------
    block : TableBlock
        By rising id, all columns. What is missing or there twice is zeros, or any of both, and is in ``problems``.
    problems : list of str
        Ids that have not each column once.
    """

    start: int | None
    stop: int | None
    block: TableBlock
    problems: list[str]


def edges_of(facts: TableFacts, ids: Callable[[], Iterable[Ints]], range_bytes: int = RANGE_BYTES) -> Ints:
    """Ids at which ranges of about so many bytes meet; ``ids`` gives those of a dynamic table."""
    n_ranges = -(-max(facts.ids, 1) * facts.row_bytes // range_bytes)
    if n_ranges < 2:
        return np.zeros(0, np.int64)
    if not facts.dynamic:
        step = -(-facts.rows // n_ranges)
        return np.arange(step, facts.rows, step, dtype=np.int64)
    stride = -(-facts.ids // _SAMPLED_IDS)
    seen = np.sort(np.concatenate([np.zeros(0, np.int64), *(some[::stride] for some in ids())]))
    return np.unique(seen[np.arange(1, n_ranges) * len(seen) // n_ranges])


def in_ranges(blocks: Blocks, edges: Ints, scratch: Path | None = None) -> Iterator[list[TableBlock]]:
    """Blocks of each range of ids, in order; all of a range are in memory.

    Parameters
    ----------
    edges : int64, rising
        Ranges are below the first, from one to the next, and from the last on.
    scratch : Path, optional
        Where there is room for all of it, if there is more than one range; the system's folder for temporary files by
        default.

    Raises
    ------
    OutputError
        There is none.
    """
    if not len(edges):
        yield list(blocks())
        return
    with tempfile.TemporaryDirectory(prefix="hpcrec-", dir=scratch) as folder:
        names = [Path(folder) / str(k) for k in range(len(edges) + 1)]
        for block in blocks():
            with writing(Path(folder)):
                _deal(block, np.searchsorted(edges, block.ids, side="right"), names)
        for name in names:
            pieces = []
            if name.exists():
                with name.open("rb") as file:
                    while (piece := _read_piece(file)) is not None:
                        pieces.append(piece)
                name.unlink()
            yield pieces


def by_id(checkpoint: Checkpoint, facts: TableFacts, edges: Ints, scratch: Path | None = None) -> Iterator[IdRange]:
    """A table's whole rows by rising id, a range at a time."""
    bounds = [None if facts.dynamic else 0, *edges.tolist(), None if facts.dynamic else facts.rows]
    pieces_of = in_ranges(lambda: checkpoint.table_parts(facts.name), edges, scratch)
    for pieces, (start, stop) in zip(pieces_of, itertools.pairwise(bounds), strict=True):
        yield together(pieces, facts, start, stop)


def ranges_of(
    checkpoint: Checkpoint, facts: TableFacts, scratch: Path | None = None, range_bytes: int = RANGE_BYTES
) -> Iterator[IdRange]:
    """``by_id`` with ranges of about so many bytes."""
    return by_id(checkpoint, facts, edges_of(facts, lambda: ids_in(checkpoint, facts.name), range_bytes), scratch)


def in_order(checkpoint: Checkpoint, facts: TableFacts, scratch: Path | None = None) -> Iterator[TableBlock]:
    """Rows of a dynamic table in the order of its ids in its parts, also where they are linked, in another order.

    Raises
    ------
    CheckpointError
        An id has no row, or two.
    """
    for path in checkpoint.part_paths(facts.name):
        stretches = [s for s in checkpoint.stretches(facts.name) if s.path == path]
        if part_facts(path)["linked"] is None:
            yield from map(checkpoint.block, stretches)
            continue
        _, ids = linked_ids(path)
        rising = np.argsort(ids)
        blocks = partial(_at_places, checkpoint, stretches, ids, rising)
        n_ranges = max(1, -(-len(ids) * facts.row_bytes // RANGE_BYTES))
        edges = np.array([len(ids) * k // n_ranges for k in range(1, n_ranges)], np.int64)
        start = 0
        for pieces, stop in zip(in_ranges(blocks, edges, scratch), [*edges, len(ids)], strict=True):
            block = together(pieces, facts, None, None).block
            if not np.array_equal(block.ids, np.arange(start, stop)):
                raise CheckpointError(
                    f"{path}: table {facts.name!r} has {len(block.ids)} rows for {stop - start} ids. 'hpcrec "
                    "checkpoint verify' lists all that is wrong."
                )
            if stop > start:
                yield replace(block, ids=ids[start:stop])
            start = int(stop)


def _at_places(checkpoint: Checkpoint, stretches: list[Stretch], ids: Ints, rising: Ints) -> Iterator[TableBlock]:
    """Blocks whose ids are places in a list, which ``rising`` puts in order."""
    in_order_of_ids = ids[rising]
    for stretch in stretches:
        block = checkpoint.block(stretch)
        yield replace(block, ids=rising[np.searchsorted(in_order_of_ids, block.ids)])


def together(pieces: list[TableBlock], facts: TableFacts, start: int | None, stop: int | None) -> IdRange:
    """Whole rows out of pieces of some ids and columns each."""
    ids = np.unique(np.concatenate([np.zeros(0, np.int64), *(piece.ids for piece in pieces)]))
    dtype = pieces[0].rows.dtype if pieces else np.dtype(facts.dtype)
    rows = np.zeros((len(ids), facts.width), dtype)
    states = {n: np.zeros(rows.shape[: 1 if dims == 1 else 2], dtype) for n, dims in facts.states.items()}
    times_of: dict[tuple[int, int], Ints] = {}  # by columns: how often each id is there
    for piece in pieces:
        at, columns = np.searchsorted(ids, piece.ids), slice(*piece.columns)
        times_of.setdefault(piece.columns, np.zeros(len(ids), np.int64))
        times_of[piece.columns] += np.bincount(at, minlength=len(ids))
        rows[at, columns] = piece.rows
        for name, values in piece.states.items():
            if values.ndim == 1:
                states[name][at] = values
            else:
                states[name][at, columns] = values
    problems = _not_once(ids, times_of, facts.width)
    if not facts.dynamic and start is not None and stop is not None and len(ids) != stop - start:
        here = np.zeros(stop - start, bool)
        here[ids - start] = True
        problems.append(f"{(~here).sum()} ids are in no part, the first of them id {start + int(np.argmin(here))}")
    return IdRange(start, stop, TableBlock(ids=ids, rows=rows, states=states, columns=(0, facts.width)), problems)


def _not_once(ids_U: Ints, times_of: Mapping[tuple[int, int], Ints], width: int) -> list[str]:
    """What is wrong where ids have not each column once; ``times_of``: how often each has some columns."""
    cuts = sorted({0, width, *(cut for columns in times_of for cut in columns)})
    pieces = [
        (start, sum((n for (a, b), n in times_of.items() if a <= start < b), np.zeros(len(ids_U), np.int64)))
        for start in cuts[:-1]
    ]
    problems = []
    for said, is_wrong in (("more than once", lambda n: n > 1), ("in no part", lambda n: n == 0)):
        bad_U = np.zeros(len(ids_U), bool)
        for _, times in pieces:
            bad_U |= is_wrong(times)
        if bad_U.any():
            first = int(np.argmax(bad_U))
            column = next(start for start, times in pieces if is_wrong(times[first]))
            problems.append(
                f"{bad_U.sum()} ids have columns that are {said}, the first of them id {ids_U[first]}, column {column}"
            )
    return problems


def whole(found: IdRange, checkpoint: Checkpoint, table: str) -> TableBlock:
    """The rows of a range.

    Raises
    ------
    CheckpointError
        An id has not each column once.
    """
    if found.problems:
        raise CheckpointError(
            f"{checkpoint.folder}: table {table!r}: {found.problems[0]}. Every id and column must be in exactly one "
            "part; 'hpcrec checkpoint verify' lists all that is wrong."
        )
    return found.block


# ---- scratch files ---------------------------------------------------------------------------------------------------


def _deal(block: TableBlock, range_of_U: Ints, names: list[Path]) -> None:
    order = np.argsort(range_of_U, kind="stable")
    ends = np.cumsum(np.bincount(range_of_U, minlength=len(names)))
    for k in np.flatnonzero(np.diff(ends, prepend=0)):
        here = order[ends[k - 1] if k else 0 : ends[k]]
        with names[k].open("ab") as file:
            states = list(block.states.items())
            said = "/".join(files.quoted(name) for name, _ in states)
            _write(file, np.array(block.columns, np.int64))
            _write(file, np.frombuffer(said.encode(), np.uint8))
            for values in (block.ids, block.rows, *(state for _, state in states)):
                _write(file, values[here])


def _write(file: BinaryIO, values: np.ndarray) -> None:
    np.lib.format.write_array(file, np.ascontiguousarray(values), allow_pickle=False)


def _read_piece(file: BinaryIO) -> TableBlock | None:
    if not file.peek(1):  # type: ignore[attr-defined]
        return None

    def read() -> np.ndarray:
        return np.lib.format.read_array(file, allow_pickle=False)

    columns, said = read(), read().tobytes().decode()
    ids, rows = read(), read()
    states = {files.unquoted(name): read() for name in said.split("/") if name}
    return TableBlock(ids=ids, rows=rows, states=states, columns=(int(columns[0]), int(columns[1])))
