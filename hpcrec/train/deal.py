"""Rows of a checkpoint, from the ranks that read them to those that hold them, in rounds of one block a rank.

Each block of a file is read by one rank, whatever the numbers of files and ranks: by the one that holds it, where the
parts are as many as those of the table's placement now, else by all ranks in equal shares. It is sent on to whoever
holds rows or columns of it. So everything is read once, by all ranks at once, in memory for a few blocks. Knows a
checkpoint's blocks and who holds which part; does not know why they are loaded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec.comm.collectives import Collectives, padded_bytes
from hpcrec.comm.failure import agree
from hpcrec.embedding.arena import Part
from hpcrec.embedding.store import row_states
from hpcrec.train.checkpoint import Checkpoint, TableBlock
from hpcrec.train.checkpoint_stretch import Stretch
from hpcrec.train.ranks import on_root
from hpcrec.train.session import Session
from hpcrec.types import Floats, Ints

_TAG = "control"  # nobody counts it: it is no step's


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
        A file is not as it should be; on every rank.
    """
    main, store = session.parts.world.main, session.parts.store
    found = None if store is None else store.find(table)
    parts_R: list[Part | None] = main.allgather(None if found is None else found[1])
    stretches = on_root(main, lambda: checkpoint.stretches(table))
    shares_R = _shares(stretches, parts_R)
    kept = row_states(session.parts.tables[table].optimizer)
    states = {} if on_root(main, lambda: checkpoint.without_states(table)) else kept  # who trains was refused before
    names = {name: len(shape) == 2 for name, shape in states.items()}
    mine = iter(shares_R[main.rank])
    for _ in range(max(len(share) for share in shares_R)):
        block, error, to_R = None, None, dict[int, Dealt]()
        try:
            stretch = next(mine, None)
            if stretch is not None:
                block = checkpoint.block(stretch)
                to_R = _parted(block, parts_R)
        except Exception as caught:
            error = caught
        agree(main, error)
        if main.rank in to_R:
            yield to_R.pop(main.rank)
        yield from _swapped(main, to_R, names)


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
        if part.family.kind == "row":
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


def _swapped(main: Collectives, to_R: Mapping[int, Dealt], names: Mapping[str, bool]) -> Iterator[Dealt]:
    """What the others have for this rank."""
    send_RM = np.zeros((main.size, 4), np.int64)  # ids, columns, bytes of a value
    for rank, dealt in to_R.items():
        send_RM[rank] = len(dealt.ids), *dealt.columns, dealt.rows.itemsize
    recv_RM = main.alltoall(send_RM, _TAG)
    send_R, recv_R = _message_bytes(send_RM, names), _message_bytes(recv_RM, names)
    message = np.zeros(int(send_R.sum()), np.uint8)
    ends_R = np.cumsum(send_R)
    for rank, dealt in to_R.items():
        pieces = [dealt.ids, dealt.rows, *(dealt.states[name] for name in names)]
        data = np.concatenate([np.ascontiguousarray(piece).reshape(-1).view(np.uint8) for piece in pieces])
        first = int(ends_R[rank] - send_R[rank])
        message[first : first + len(data)] = data
    received = main.alltoallv(message, send_R, recv_R, _TAG)
    for (n, start, stop, item), message in zip(recv_RM, np.split(received, np.cumsum(recv_R)[:-1]), strict=True):
        if n:
            yield _read(message, int(n), (int(start), int(stop)), f"f{item}", names)


def _message_bytes(told_RM: Ints, names: Mapping[str, bool]) -> Ints:
    n_R, start_R, stop_R, item_R = told_RM.T
    width_R = stop_R - start_R
    values_R = width_R + sum((width_R if wide else 1) for wide in names.values())
    sizes_R: Ints = padded_bytes(n_R * (8 + item_R * values_R))
    return sizes_R


def _read(message: np.ndarray, n: int, columns: tuple[int, int], kind: str, names: Mapping[str, bool]) -> Dealt:
    dtype, width = np.dtype(kind), columns[1] - columns[0]
    ids, at = message[: 8 * n].view(np.int64), 8 * n
    rows = message[at : at + dtype.itemsize * n * width].view(dtype).reshape(n, width)
    at += rows.nbytes
    states = {}
    for name, wide in names.items():
        shape = (n, width) if wide else (n,)
        states[name] = message[at : at + dtype.itemsize * int(np.prod(shape))].view(dtype).reshape(shape)
        at += states[name].nbytes
    return Dealt(ids, rows, states, columns)
