"""Rows of a checkpoint, from the ranks that read them to those that hold them, in rounds of one block a rank.

Each block of a file is read by one rank, whatever the numbers of files and ranks: by the one that holds it, where the
parts are as many as those of the table's placement now, else by all ranks in equal shares. It is sent on to whoever
holds rows or columns of it. So everything is read once, by all ranks at once, each a block ahead; blocks are the
smaller, the more ranks send to one. Knows a checkpoint's blocks and who holds which part; does not know why they are
loaded.
"""

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcrec.checkpoint.checkpoint import Checkpoint, TableBlock
from hpcrec.checkpoint.stretch import BLOCK_ROWS, Stretch
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.failure import agree
from hpcrec.data.prefetch import Prefetch
from hpcrec.embedding.blocks import Part
from hpcrec.embedding.cover import cover_of, cover_of_range, said_of
from hpcrec.embedding.store import row_states
from hpcrec.errors import CheckpointError
from hpcrec.training.ranks import on_root
from hpcrec.training.session import Session
from hpcrec.types import Floats, Ints
from hpcrec.units import MiB

_TAG = "control"  # nobody counts it: it is no step's
_ROUND_BYTES = 32 * MiB  # that a rank sends or is sent at a time, about
_LEAST_ROWS = 256


@dataclass(frozen=True)
class Dealt:
    """Some rows of a table that this rank holds: ids [U], rows [U, D], states by name, and their columns."""

    ids: Ints
    rows: Floats
    states: dict[str, Floats]
    columns: tuple[int, int]


def dealt_rows(session: Session, checkpoint: Checkpoint, table: str) -> Iterator[Dealt]:
    """What this rank holds of a table, block by block, each value once; collective, to the end.

    Raises
    ------
    CheckpointError
        A file is not as it should be, or, at the end, ids are there twice and others are not; on every rank.
    """
    main, store = session.parts.world.main, session.parts.store
    parts_R: list[Part | None] = main.allgather(None if store is None else store.part(table))
    spec, dtype = session.parts.tables[table], np.dtype(str(session.parts.dtype).removeprefix("torch."))
    bare = on_root(main, lambda: checkpoint.without_states(table))  # who trains on it was refused before
    names = {} if bare else {name: len(shape) == 2 for name, shape in row_states(spec.optimizer).items()}
    row_bytes = 8 + dtype.itemsize * (spec.width + sum(spec.width if wide else 1 for wide in names.values()))
    rows = _rows_a_round(parts_R, row_bytes)
    shares_R = _shares(on_root(main, lambda: checkpoint.stretches(table, rows)), parts_R)
    cover = 0
    with contextlib.closing(Prefetch(_blocks(checkpoint, shares_R[main.rank], dtype), 1)) as blocks:
        for _ in range(max(len(share) for share in shares_R)):
            error, to_R = None, dict[int, Dealt]()
            try:
                block = next(blocks, None)
                if block is not None:
                    cover += cover_of(block.ids, block.columns)
                    to_R = _parted(block, parts_R)
                block = None  # lives on in what is sent, no longer than that: its memory is needed
            except Exception as caught:
                error = caught
            agree(main, error)
            if main.rank in to_R:
                yield to_R.pop(main.rank)
            yield from _swapped(main, to_R, names, dtype)
    if spec.dynamic is not None:
        return
    start, stop = (spec.rows * rank // main.size for rank in (main.rank, main.rank + 1))
    left_R = main.allgather(cover - cover_of_range(start, stop, spec.width))
    if sum(left_R) % (1 << 64):
        raise CheckpointError(said_of(checkpoint.folder, table))


def _rows_a_round(parts_R: Sequence[Part | None], row_bytes: int) -> int:
    """Rows that each rank reads at once, so that no rank sends, or is sent, more than so much memory."""
    holding = [part for part in parts_R if part is not None]
    apart = 1 if holding[0].family.kind == "replicate" else len(holding)
    sent, received = len(holding) // apart, len(parts_R) / apart  # times what a rank reads
    return max(_LEAST_ROWS, min(BLOCK_ROWS, int(_ROUND_BYTES / (max(sent, received) * row_bytes))))


def _blocks(checkpoint: Checkpoint, stretches: Sequence[Stretch], dtype: np.dtype) -> Generator[TableBlock]:
    """In the types that messages have, whatever those of the file."""
    for stretch in stretches:
        block = checkpoint.block(stretch)
        states = {name: np.ascontiguousarray(values, dtype) for name, values in block.states.items()}
        ids, rows = np.ascontiguousarray(block.ids, np.int64), np.ascontiguousarray(block.rows, dtype)
        yield replace(block, ids=ids, rows=rows, states=states)


def _shares(stretches: Sequence[Stretch], parts_R: Sequence[Part | None]) -> list[list[Stretch]]:
    """Which stretches each rank reads."""
    holders = {part.number: rank for rank, part in reversed(list(enumerate(parts_R))) if part is not None}
    files = list(dict.fromkeys(stretch.path for stretch in stretches))
    shares_R: list[list[Stretch]] = [[] for _ in parts_R]
    if len(files) == len(holders):
        reader = {path: holders[number] for path, number in zip(files, sorted(holders), strict=True)}
        for stretch in stretches:
            shares_R[reader[stretch.path]].append(stretch)
        return shares_R
    for rank, share in enumerate(shares_R):  # neighbours, so that each rank reads one piece of a file
        share += stretches[len(stretches) * rank // len(shares_R) : len(stretches) * (rank + 1) // len(shares_R)]
    return shares_R


def _parted(block: TableBlock, parts_R: Sequence[Part | None]) -> dict[int, Dealt]:
    """What of a block goes to which rank."""
    to_R = {}
    number_U: Ints | None = None
    for rank, part in enumerate(parts_R):
        if part is None:
            continue
        start, stop = max(block.columns[0], part.columns[0]), min(block.columns[1], part.columns[1])
        here: slice | np.ndarray = slice(None)
        if part.family.kind == "row" and part.family.row_parts > 1:
            number_U = part.family.deal(block.ids)[0] if number_U is None else number_U
            chosen = number_U == part.number
            here = slice(None) if chosen.all() else np.flatnonzero(chosen)
        ids = block.ids[here]
        if start >= stop or not len(ids):
            continue
        cut = slice(start - block.columns[0], stop - block.columns[0])
        states = {n: s[here, cut] if s.ndim == 2 else s[here] for n, s in block.states.items()}
        to_R[rank] = Dealt(ids, block.rows[here, cut], states, (start, stop))
    return to_R


def _swapped(main: Collectives, to_R: dict[int, Dealt], names: Mapping[str, bool], dtype: np.dtype) -> Iterator[Dealt]:
    """What the others have for this rank. Empties ``to_R``, whose memory is needed no longer."""
    send_RM = np.zeros((main.size, 3), np.int64)  # ids, and columns
    for rank, dealt in to_R.items():
        send_RM[rank] = len(dealt.ids), *dealt.columns
    send_R = _message_bytes_R(send_RM, names, dtype)
    sent, at = np.empty(int(send_R.sum()), np.uint8), 0
    for rank in sorted(to_R):
        dealt = to_R.pop(rank)
        for piece in (dealt.ids, dealt.rows, *(dealt.states[name] for name in names)):
            sent[at : at + piece.nbytes].view(piece.dtype).reshape(piece.shape)[...] = piece
            at += piece.nbytes
        del dealt, piece
    recv_RM = main.alltoall(send_RM, _TAG)
    swap = main.start_alltoallv(sent, send_R, _message_bytes_R(recv_RM, names, dtype), _TAG)
    swap.wait()
    n_R, start_R, stop_R = recv_RM.T
    for n, start, stop, message in zip(n_R.tolist(), start_R.tolist(), stop_R.tolist(), swap.received, strict=True):
        if n:
            yield _read(message, n, (start, stop), dtype, names)


def _message_bytes_R(said_RM: Ints, names: Mapping[str, bool], dtype: np.dtype) -> Ints:
    """Of messages with so many ids, and columns from start to stop."""
    n_R, start_R, stop_R = said_RM.T
    width_R = stop_R - start_R
    return n_R * (8 + dtype.itemsize * (width_R + sum((width_R if wide else 1) for wide in names.values())))


def _read(message: np.ndarray, n: int, columns: tuple[int, int], dtype: np.dtype, names: Mapping[str, bool]) -> Dealt:
    width, at = columns[1] - columns[0], 8 * n
    rows = message[at : at + dtype.itemsize * n * width].view(dtype).reshape(n, width)
    at += rows.nbytes
    states = {}
    for name, wide in names.items():
        n_bytes = dtype.itemsize * n * (width if wide else 1)
        states[name] = message[at : at + n_bytes].view(dtype).reshape((n, width) if wide else (n,))
        at += n_bytes
    return Dealt(message[: 8 * n].copy().view(np.int64), rows, states, columns)
