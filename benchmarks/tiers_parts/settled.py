"""Rows of a store as they are after a long run, without its steps: all written, many written over, the cache full.

Nothing is learned: rows keep their first values, so that a run from here has the losses of any other. Orders are files
of int32, rows of all tables numbered one behind the other, drawn beforehand (``drawn``) by a process that may take more
memory than a run. Knows the store protocol, and where first values come from.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiers_parts import laws

from hpcrec import kernels
from hpcrec.embedding.asked import Asked
from hpcrec.embedding.blocks import Block
from hpcrec.types import Ints

AT_ONCE = 1 << 13  # rows: what they take beside a store is little
TURNOVERS = 4  # the rows that the best fixed set reads in the steps that are gone, by those that the cache has
FURTHER = 1.2  # times as far back as rows stay that go by their last use
ROUNDS = 4  # a row that these steps ask for more often is asked for so often
FACTOR = 2_654_435_761  # of the order in which rows are written first; a prime that no number of rows here has

Numbers = NDArray[np.int32]


def drawn(
    chances: laws.Chances, rows_of: Sequence[Ints], kept: int, seed: int, *, by_use: bool = True
) -> tuple[Numbers, Numbers]:
    """As many rows as there are, as they leave a cache of ``kept``; and what some thousand steps ask for, in short.

    Of these steps, in which the cache would be filled several times, a row is in one round for each time that it is
    asked for, and in at most ``ROUNDS``: so the cache learns which rows are asked for often, from draws alone. Not
    ``by_use``, each row is asked for once, as long ago as it was last, so that the cache has those of the last steps.

    Parameters
    ----------
    chances : float64 [rows]
        That a step wants a row; tables one behind the other, each by rank.
    rows_of : sequence of int [rows of a table]
        The row of each rank.
    kept : int
        Rows of a cache that the least recently used ones leave.
    seed : int
    """
    rng = np.random.default_rng(seed)
    first = np.cumsum([0, *map(len, rows_of)])
    row_of = np.concatenate([of.astype(np.int32) + np.int32(at) for of, at in zip(rows_of, first[:-1], strict=True)])
    steps, gone = laws.horizon(chances, kept), row_of
    if np.isfinite(steps):
        leaving = np.cumsum(chances * np.exp(-steps * chances))
        at = np.sort(rng.random(len(chances))) * leaving[-1]  # of draws that rise, by far faster
        gone = row_of[np.searchsorted(leaving, at).clip(max=len(chances) - 1)]
    gone = rng.permutation(gone)
    if not by_use:
        assert np.isfinite(steps), "not every row has room"
        last = rng.exponential(1 / chances)  # steps ago
        some = np.flatnonzero(last < FURTHER * steps)
        return gone, row_of[some[np.argsort(-last[some])]]
    past = TURNOVERS * kept / max(laws.misses(chances, kept), 1.0)  # steps
    times = rng.poisson(np.minimum(past * chances, 10 * ROUNDS))
    rounds = [rng.permutation(row_of[times >= n]) for n in range(1, ROUNDS + 1)]
    return gone, np.concatenate(rounds)


def write_all(store: Any) -> None:
    """Every row of the store, in an order that has nothing to do with its number."""
    for number, block in _own(store):
        factor = FACTOR % block.rows or 1
        assert np.gcd(factor, block.rows) == 1 or block.rows < 3, "an order that leaves rows out"
        for start in range(0, block.rows, AT_ONCE):
            rows = np.sort(np.arange(start, min(start + AT_ONCE, block.rows)) * factor % block.rows)
            store.held[number].write_back(rows, first_values(store, block, rows))


def write_over(store: Any, order: Path, tables: Mapping[str, int]) -> None:
    """Writes these rows again. ``tables``: the number of each table's first row."""
    for some in chunks(order, AT_ONCE):
        for number, block in _own(store):
            rows = rows_of_block(block, some, tables)
            if len(rows):
                store.held[number].write_back(rows, first_values(store, block, rows))


def ask_for(store: Any, order: Path, tables: Mapping[str, int], at_once: int, first: int) -> None:
    """Steps that want these rows, and learn nothing from them: zero gradients, after which rows count as changed.

    The ``first`` of them has this number, below zero, as training steps have not; the others follow downwards.
    """
    nothing = np.zeros(max(block.width for block in store.blocks), store.dtype)
    for step, some in enumerate(chunks(order, at_once), start=-first):
        asked = [_asked(rows_of_block(block, some, tables) if not block.kind else _NONE) for block in store.blocks]
        store.prefetch(-step, asked)
        store.gather(-step, asked, nothing)
        store.learn(-step, asked, nothing, lambda own: own, number=1, lr_scale=1.0)
        store.release(-step)


_NONE = np.zeros(0, np.int64)


def _asked(rows: Ints) -> Asked:
    offsets = np.arange(len(rows) + 1)
    return Asked(
        index=rows,
        offsets=offsets,
        value_start=None,
        weights=None,
        grouping=kernels.group(rows, offsets),
        source_start=np.zeros(len(rows), np.int64),
    )


def _own(store: Any) -> list[tuple[int, Block]]:
    return [(number, block) for number, block in enumerate(store.blocks) if not block.kind]


def chunks(order: Path, at_once: int) -> Iterator[Ints]:
    """Distinct rows, ascending, of so many of the file at a time."""
    with order.open("rb") as file:
        while some := file.read(4 * at_once):
            yield np.unique(np.frombuffer(some, np.int32)).astype(np.int64)


def rows_of_block(block: Block, rows: Ints, tables: Mapping[str, int]) -> Ints:
    """Of these rows of all tables, those that a block has, by its numbers: ascending."""
    found = [_NONE]
    for part in block.parts:
        first = tables[part.table]
        start, stop = np.searchsorted(rows, (first, first + part.family.rows))
        local = rows[start:stop] - first
        if part.family.kind == "row":
            number, local = part.family.deal(local)
            local = local[number == part.number]
        found.append(part.base + local)
    return np.sort(np.concatenate(found))


def first_values(store: Any, block: Block, rows: Ints) -> dict[str, np.ndarray]:
    """Rows and states that were never learned from."""
    states = kernels.state_values(block.spec)
    shapes = kernels.state_shapes(block.spec, len(rows), block.width)
    found = {name: np.full(shape, states[name], store.dtype) for name, shape in shapes.items()}
    found[""] = np.empty((len(rows), block.width), store.dtype)
    for part in block.parts:
        mine = slice(*np.searchsorted(rows, (part.base, part.base + part.rows)))
        if mine.stop > mine.start:
            found[""][mine] = store._initial(part, part.ids(rows[mine] - part.base))
    return found
