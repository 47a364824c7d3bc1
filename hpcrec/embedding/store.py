"""What a store is: one rank's rows and their optimizer state, read and changed by step.

Rows of equal width and optimizer lie in one block (``embedding.blocks``), so that a step is one gather and one update a
block. What all stores share is here: first values, ids of dynamic tables, export, load, what changed. Where rows lie
and what a step does with them is for ``embedding.stores``. Knows rows; does not know who asks for them.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked
from hpcrec.embedding.blocks import Block, Part, blocks_of
from hpcrec.embedding.dynamic import DynamicRows
from hpcrec.embedding.held_rows import HeldRows, Mask, Picked
from hpcrec.embedding.linked import LinkedRows, first_rows
from hpcrec.embedding.room import bytes_of, fresh_room, spare_room
from hpcrec.embedding.shards import Family
from hpcrec.errors import CheckpointError
from hpcrec.types import Floats, Ints, OptimizerSpec, TableSpec
from hpcrec.units import MiB

BLOCK_ROWS = 1 << 13  # rows made at once: bounds the memory beside the rows, and stays in a cache
KEPT_BYTES = 32 * MiB  # of rows that change while they are exported, before a file takes them; thrice that for a moment

# Column-sharded row-wise Adagrad needs squared norms over all columns: own norms [U] by table -> the sums by table.
NormSum = Callable[[dict[str, Floats]], dict[str, Floats]]


def row_states(spec: OptimizerSpec) -> dict[str, tuple[int, ...]]:
    """Plain names of the states that an optimizer keeps for one row, and their shapes for a table of one element."""
    return kernels.state_shapes(spec, 1, 1)


class Store(Protocol):
    """One rank's rows and their state, by step.

    A step is any number that the caller gives it, each once. For each step that is learned from: ``prefetch`` when its
    rows are known, ``gather``, ``learn``, ``release``; for one that is only read, or left out, ``learn`` is missing.
    ``gather`` and ``learn`` may come in two calls, of some bags and some rows each; ``extend`` changes what is asked.
    Several steps may be between ``gather`` and ``release``. ``find`` comes before: rows of dynamic tables are given in
    the order of its calls. One call at a time of ``gather``, ``learn``, ``release`` and a ``find`` that admits;
    ``prefetch`` and ``foresee`` may come from another thread. A step's arrays are the device's, where there is one.
    """

    @property
    def blocks(self) -> Sequence[Block]:
        """Geometry of the rows."""

    @property
    def device(self) -> kernels.Device | None:
        """In whose memory a step's rows are; None: the host's."""

    @property
    def dtype(self) -> np.dtype:
        """Of rows."""

    @property
    def dynamic(self) -> Mapping[str, DynamicRows]:
        """By family: which ids have rows."""

    @property
    def tables(self) -> Sequence[str]:
        """Tables that this rank holds a part of."""

    def place(self, table: str) -> tuple[int, Part] | None:
        """Number of the block that holds part of a table, and the part; None where this rank holds none of it."""

    def part(self, table: str) -> Part | None:
        """The part alone."""

    def copies(self, block: int) -> Floats:
        """Rows of a block of copies, to be read between ``learn`` and the next."""

    def find(self, family: str, ids: Ints, *, admit: bool) -> Ints:
        """Rows [K] in the part of a dynamic family; with ``admit`` ids without a row may get one."""

    def lives(self, family: str) -> Ints:
        """How often each row of a dynamic family was given to an id since this was first asked for, int64 [rows + 1].

        A view; the last is of the row that ids without one are answered with.
        """

    def accumulators(self, step: int, block: int, rows: Ints) -> Floats:
        """Of rows that a step has gathered, of a block that learns by an Adagrad: what they have added up, float [N].

        The mean over the columns that are here, where each has its own.
        """

    @property
    def waited_s(self) -> float:
        """Seconds for which training steps have waited for their rows so far."""

    @property
    def looks_ahead(self) -> bool:
        """Whether ``foresee`` is of use."""

    def foresee(self, step: int, rows: Sequence[Ints]) -> None:
        """A step that will be learned from, and by block rows that ``prefetch`` will be given, as far as is known."""

    @property
    def window(self) -> int:
        """Training steps, after the last one that was foreseen or prefetched, that ``look`` may tell of at most."""

    @property
    def looks_further(self) -> bool:
        """Whether to ``look`` at one more of them is of use."""

    def look(self, rows: Sequence[Ints]) -> None:
        """By block the rows of one training step more: who goes depends on them."""

    def look_anew(self) -> None:
        """The next of them is that after the step that was foreseen or prefetched last."""

    def prefetch(self, step: int, asked: Sequence[Asked]) -> None:
        """A step that will be gathered, and its rows by block. Steps that are learned are gathered in this order.

        Where a step was foreseen, in the order of these calls.
        """

    def gather(self, step: int, asked: Sequence[Asked], values: Floats) -> None:
        """Pooled vectors of all bags, to where they lie in ``values``; perhaps in two calls, of some bags each."""

    def extend(self, step: int, asked: Sequence[Asked]) -> None:
        """The step asks for these rows in place of those of ``prefetch``; before ``gather``, or before ``learn``.

        So rows may be pushed that were not asked for, and rows be left out that need not be sent.
        """

    def learn(
        self, step: int, asked: Sequence[Asked], gradients: Floats, norms: NormSum, *, number: int, lr_scale: float
    ) -> None:
        """Gradients summed by row in the order of bags; each row steps once. Perhaps in two calls, of some rows each.

        Parameters
        ----------
        gradients : float, flat
            With room behind them, as ``Maxima.behind`` says.
        norms : callable
            Called once, whatever the blocks.
        number : int
            Global step, from 1.
        lr_scale : float
            What the schedule multiplies each table's learning rate by.
        """

    def release(self, step: int) -> None:
        """The step is over, learned or not."""

    def export(self, table: str, picked: Picked = None) -> Iterator[tuple[Ints, Floats, dict[str, Floats]]]:
        """Ids, rows and states of this rank's part of a table, in pieces; all of them, or those that were picked."""

    def load(self, table: str, ids: Ints, rows: Floats, states: Mapping[str, Floats], columns: tuple[int, int]) -> int:
        """Takes over those of ids and columns that this rank holds; returns how many values."""

    def freeze(self, tables: Mapping[str, Picked], spill: Path) -> None:
        """Until ``thaw``, each row that is picked is exported once, as it is now, on another thread."""

    def thaw(self) -> None:
        """Ends it."""

    def track(self) -> None:
        """From now on it is known which rows of declared tables change."""

    def changed(self, table: str) -> Mask:
        """Which rows of this rank's part of ``table`` have changed since ``track``."""

    def linked_facts(self) -> Mapping[str, Mapping[str, Any]]:
        """By table whose rows are in files, which ``keep`` keeps: what is needed to read them; ``embedding.linked``."""

    def keep(self) -> LinkedRows | None:
        """The rows of these tables as they are now, in files to be linked; None where there are none. Between steps."""

    def will_keep(self, steps: int) -> None:
        """After so many steps more ``keep`` will be called: what can be done before may begin. Between two steps."""

    def takes(self, folder: Path, generation: int) -> bool:
        """Whether a generation in a folder of links is of the same blocks as this store's files."""

    def take(self, folder: Path, generation: int, nonfinite: Collection[str] = ()) -> None:
        """Then the rows of these tables become its rows; ``nonfinite``: tables with values that are not finite."""

    def figures(self) -> dict[str, float]:
        """What ``summary.json`` says of it: rows in use and their bytes, and what else it counts."""

    def close(self) -> None:
        """No step comes any more."""


class RowStore:
    """What all stores share: rows of every block in arrays, of whatever memory ``_room`` gives.

    Parameters
    ----------
    tables : mapping of str to TableSpec
    families : sequence of Family
        Those of which ``rank`` holds a part.
    rank : int
        World rank.
    seed : int
        The run's seed; rows start from (seed, table, id) alone, never from the rank or the order of arrival.
    dtype : numpy float type
    device : Device, optional
        In whose memory a step's arrays are; default: the host's.

    Attributes
    ----------
    held : list of HeldRows
        By block.
    dynamic : dict of str to DynamicRows
        By family: which ids have rows.
    """

    _whole: Collection[str] = ()
    """Tables that are in memory, whole, where the store has others elsewhere."""

    def __init__(
        self,
        tables: Mapping[str, TableSpec],
        families: Sequence[Family],
        *,
        rank: int,
        seed: int,
        dtype: np.dtype,
        device: kernels.Device | None = None,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.device = device
        self.dynamic: dict[str, DynamicRows] = {
            family.name: DynamicRows(family, family.holders.index(rank))
            for family in families
            if family.dynamic is not None
        }
        self._starts = {name: (table.init_scale, table.init_decay) for name, table in tables.items()}
        self._seed = seed
        self.blocks: tuple[Block, ...] = tuple(blocks_of(tables, families, rank, self._whole))
        self.held = [self._made(block) for block in self.blocks]
        self._where = {p.table: (b, p) for b, block in enumerate(self.blocks) for p in block.parts}

    def _memory_of(self, block: Block) -> kernels.Device | None:  # noqa: ARG002
        """Where rows of a block lie; None: in the host's memory."""
        return self.device

    def _room(self, block: Block) -> tuple[Floats, dict[str, Floats]]:
        """Memory for the rows of a block and their states: of dynamic tables zeros, of others whatever is in it."""
        device = self._memory_of(block)
        if block.kind == "dynamic":
            tables = ", ".join(part.table for part in block.parts)
            return spare_room(tables, block.rows, block.width, block.spec, self.dtype, device)
        return fresh_room(block.rows, block.width, block.spec, self.dtype, device)

    def _made(self, block: Block) -> HeldRows:
        rows, states = self._room(block)
        device = self._memory_of(block)
        for part in block.parts if block.kind != "dynamic" else ():
            for start in range(0, part.rows, BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, part.rows)
                rows[part.base + start : part.base + stop] = self._initial(
                    part, part.ids(np.arange(start, stop)), device
                )
        return HeldRows(block, rows, states)

    def _initial(self, part: Part, ids: Ints, device: kernels.Device | None = None) -> Floats:
        """First values; computed where rows are, but for those that decay by column."""
        scale, decay = self._starts[part.table]
        where = ids if device is None or decay or not scale else device.array(ids)
        return first_rows(self._seed, part.table, where, part.columns, (scale, decay), self.dtype)

    # Where a row may be beside ``held``: in a cache.

    def _settled(self, block: int) -> None:
        """What ``held`` has of a block is as it should be."""

    def _cleared(self, block: int) -> None:
        """All rows of a block are about to be set anew in ``held``."""

    def _refreshed(self, block: int, rows: Ints) -> None:
        """These rows were."""

    # Dynamic tables.

    def find(self, family: str, ids: Ints, *, admit: bool) -> Ints:
        """See ``Store``."""
        held = self.dynamic[family]
        if not admit:
            return held.find(ids)
        unique, place = kernels.dedup(ids)
        rows, fresh = held.admit(unique)
        self.start_rows(family, rows[fresh], unique[fresh])
        return rows[place]

    def lives(self, family: str) -> Ints:
        """See ``Store``."""
        return self.dynamic[family].lives

    def start_rows(self, family: str, rows: Ints, ids: Ints) -> None:
        """Makes rows of a dynamic family's tables what those of new ids start from, with fresh optimizer state.

        Parameters
        ----------
        rows, ids : int64 [M]
            Row numbers in the part, and to which ids they were given.
        """
        for b, part in self._parts_of(family):
            for first in range(0, len(rows), BLOCK_ROWS):
                where = rows[first : first + BLOCK_ROWS] + part.base
                fresh = self._initial(part, ids[first : first + BLOCK_ROWS])
                self._put(b, where, fresh, kernels.state_values(self.blocks[b].spec))

    def clear_spares(self) -> None:
        """Makes the spare rows zeros again, whatever gradients they were given."""
        for family, rows in self.dynamic.items():
            for b, part in self._parts_of(family):
                self._put(b, np.array([part.base + rows.spare]), 0.0, dict.fromkeys(self.held[b].states, 0.0))

    def _put(self, block: int, where: Ints, rows: Floats | float, states: Mapping[str, float]) -> None:
        self.held[block].put(where, rows, states)
        self._refreshed(block, where)

    def _parts_of(self, family: str) -> list[tuple[int, Part]]:
        return [self._where[table] for table in self.dynamic[family].family.tables]

    # What there is.

    @property
    def tables(self) -> tuple[str, ...]:
        """See ``Store``."""
        return tuple(self._where)

    def place(self, table: str) -> tuple[int, Part] | None:
        """See ``Store``."""
        return self._where.get(table)

    def part(self, table: str) -> Part | None:
        """See ``Store``."""
        found = self.place(table)
        return None if found is None else found[1]

    def copies(self, block: int) -> Floats:
        """See ``Store``."""
        assert self.blocks[block].kind == "replicate", "rows of others are the store's own"
        return self.held[block].rows

    def accumulators(self, step: int, block: int, rows: Ints) -> Floats:
        """See ``Store``."""
        found = self._state_of(step, block, "accumulator", rows)
        return found if found.ndim == 1 else np.asarray(found.mean(axis=1))

    def _state_of(self, step: int, block: int, name: str, rows: Ints) -> Floats:  # noqa: ARG002
        """Of rows [N] that a step has gathered, the host's."""
        return np.asarray(self.held[block].states[name][rows])

    def figures(self) -> dict[str, float]:
        """See ``Store``: rows in use (of dynamic tables those that ids have), bytes with states and maps of ids."""
        rows, n_bytes = 0, sum(rows.figures().map_bytes for rows in self.dynamic.values())
        for block in self.blocks:
            a_row = bytes_of(1, block.width, block.spec, self.dtype)
            for part in block.parts:
                used = part.rows if part.family.dynamic is None else len(self.dynamic[part.family.name])
                rows, n_bytes = rows + used, n_bytes + used * a_row
        return {"rows": rows, "bytes": n_bytes}

    def close(self) -> None:
        """See ``Store``."""

    # Checkpoints.

    def linked_facts(self) -> Mapping[str, Mapping[str, Any]]:
        """See ``Store``: rows are in arrays."""
        return {}

    def keep(self) -> LinkedRows | None:
        """See ``Store``."""
        return None

    def will_keep(self, steps: int) -> None:
        """See ``Store``."""

    def takes(self, folder: Path, generation: int) -> bool:  # noqa: ARG002
        """See ``Store``."""
        return False

    def take(self, folder: Path, generation: int, nonfinite: Collection[str] = ()) -> None:  # noqa: ARG002
        """See ``Store``."""
        raise AssertionError(f"{folder} was refused, with generation {generation}: rows are in arrays")

    def export(self, table: str, picked: Picked = None) -> Iterator[tuple[Ints, Floats, dict[str, Floats]]]:
        """See ``Store``."""
        block, part = self._where[table]
        if part.family.dynamic is not None and picked is None:
            picked = self.dynamic[part.family.name].save()
        if self.held[block].frozen is None:
            self._settled(block)
        return self.held[block].export(part, picked)

    def changed(self, table: str) -> Mask:
        """See ``Store``."""
        block, part = self._where[table]
        self._settled(block)
        changed = self.held[block].changed
        assert changed is not None, "track() was called"
        return changed[part.base : part.base + part.rows].copy()

    def track(self) -> None:
        """See ``Store``."""
        for block, held in zip(self.blocks, self.held, strict=True):
            if block.kind != "dynamic":
                held.changed = np.zeros(block.rows, bool)

    def freeze(self, tables: Mapping[str, Picked], spill: Path) -> None:
        """See ``Store``; files ``spill`` take what memory does not of rows that change meanwhile."""
        for number, (block, held) in enumerate(zip(self.blocks, self.held, strict=True)):
            self._settled(number)
            held.freeze(
                [(part, tables[part.table]) for part in block.parts if part.table in tables],
                spill.with_name(f"{spill.name}-{number}"),
                KEPT_BYTES // len(self.blocks),
            )

    def thaw(self) -> None:
        """See ``Store``."""
        with contextlib.ExitStack() as all_of_them:  # also where one of them raises
            for held in self.held:
                all_of_them.callback(held.thaw)

    def load(self, table: str, ids: Ints, rows: Floats, states: Mapping[str, Floats], columns: tuple[int, int]) -> int:
        """See ``Store``.

        Parameters
        ----------
        ids : int64 [U]
            Row numbers in the whole table; of a dynamic table ids, of which those that have a row here are taken.
        rows : float [U, columns[1] - columns[0]]
        states : mapping of str to float [U, ...]
            Per-element states have the columns of ``rows``. May be empty: then states stay as they are.
        columns : (int, int)
            The columns of the whole table that ``rows`` covers.

        Raises
        ------
        CheckpointError
            An id outside the table.
        """
        block, part = self._where[table]
        local, mine = self._places(table, part, ids)
        start, stop = max(columns[0], part.columns[0]), min(columns[1], part.columns[1])
        if start >= stop:
            return 0
        values = {"": rows, **{name: states[name] for name in self.held[block].states if states}}
        if mine is not None and not mine.all():
            local, values = local[mine], {name: of[mine] for name, of in values.items()}
        cut = slice(start - columns[0], stop - columns[0])
        values = {name: of if of.ndim == 1 else of[:, cut] for name, of in values.items()}
        self._settled(block)
        self._cleared(block)
        self.held[block].place(local + part.base, slice(start - part.columns[0], stop - part.columns[0]), values)
        return len(local) * (stop - start)

    def _places(self, table: str, part: Part, ids: Ints) -> tuple[Ints, np.ndarray | None]:
        """Rows of these ids in the part, and which of them it has (None: all of them)."""
        if part.family.dynamic is not None:
            rows = self.dynamic[part.family.name]
            local = rows.find(ids)
            return local, local < rows.spare
        if len(ids) and (ids.min() < 0 or ids.max() >= part.family.rows):
            raise CheckpointError(
                f"table {table!r}: ids from {ids.min()} to {ids.max()} are to be loaded. Allowed: row numbers, 0 to "
                f"{part.family.rows - 1}."
            )
        if part.family.kind != "row":
            return ids, None
        number, local = part.family.deal(ids)
        return local, number == part.number
