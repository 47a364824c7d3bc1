"""Rows in memory: the arenas that a rank holds, their first values, export and load.

Parts of tables with equal width and optimizer lie in one *arena*, so that a step touches each arena with one kernel
call, however many tables there are. Knows rows and optimizer state; does not know who asks for them.
"""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.shards import Family, table_seed
from hpcrec.errors import CheckpointError
from hpcrec.types import Floats, Ints, OptimizerSpec, TableSpec

BLOCK_ROWS = 1 << 16  # rows initialised, exported or loaded at once: bounds the memory beside the rows


@dataclass(frozen=True, kw_only=True)
class Part:
    """One table's part in an arena: rows ``[base, base + rows)`` of it.

    ``columns`` are those of the whole table; ``number`` is the part's number in its family.
    """

    table: str
    family: Family
    number: int
    base: int
    rows: int
    columns: tuple[int, int]
    width: int

    def ids(self, start: int, stop: int) -> Ints:
        """Row numbers in the whole table of this part's rows ``[start, stop)``."""
        local = np.arange(start, stop, dtype=np.int64)
        if self.family.kind != "row":
            return local
        dealt = local * self.family.row_parts + self.number
        return kernels.unpermute(dealt, self.family.rows, 0)


@dataclass(eq=False)  # an arena is itself, not its contents
class Arena:
    """Rows of equal width and optimizer.

    Attributes
    ----------
    width : int
        Columns held here.
    total_width : int
        Columns of the whole tables; more than ``width`` where they are sharded by columns.
    spec : OptimizerSpec
    rows : float [N, width]
    states : dict of str to float [N, width] or [N]
    parts : list of Part
    """

    width: int
    total_width: int
    spec: OptimizerSpec
    rows: Floats
    states: dict[str, Floats]
    parts: list[Part] = field(default_factory=list)


def row_states(spec: OptimizerSpec) -> dict[str, tuple[int, ...]]:
    """Plain names of the states that an optimizer keeps for one row, and their shapes for a table of one element."""
    return kernels.state_shapes(spec, 1, 1)


class RowStore:
    """The arenas that one rank holds.

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
    """

    def __init__(
        self, tables: Mapping[str, TableSpec], families: Sequence[Family], *, rank: int, seed: int, dtype: np.dtype
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.arenas: list[Arena] = []
        plans: dict[tuple[int, int, OptimizerSpec, bool], list[Part]] = {}
        for family in families:
            number = family.holders.index(rank)
            for name in family.tables:
                table = tables[name]
                start, stop = family.part_columns(table.width, number)
                if start == stop:
                    continue
                replicated = family.kind == "replicate"  # answered by nobody, so kept out of the others' gathers
                parts = plans.setdefault((stop - start, table.width, table.optimizer, replicated), [])
                base = parts[-1].base + parts[-1].rows if parts else 0
                parts.append(
                    Part(
                        table=name,
                        family=family,
                        number=number,
                        base=base,
                        rows=family.part_rows(number),
                        columns=(start, stop),
                        width=table.width,
                    )
                )
        for (width, total_width, spec, _), parts in plans.items():
            self.arenas.append(self._build(tables, parts, width, total_width, spec, seed))
        self._where = {p.table: (arena, p) for arena in self.arenas for p in arena.parts}

    @classmethod
    def joined(cls, base: "RowStore | None", copies: "RowStore | None", copied: Collection[str]) -> "RowStore | None":
        """``base``, but of the tables ``copied`` it has those in ``copies``, or none; rows are shared with both.

        Rows of these tables in ``base`` stay in memory and are not reached.
        """
        stores = [store for store in (base, copies) if store is not None]
        if not stores:
            return None
        out = copy.copy(stores[0])
        out.arenas = [arena for store in stores for arena in store.arenas]
        own = {} if base is None else {table: at for table, at in base._where.items() if table not in copied}
        out._where = {**own, **({} if copies is None else copies._where)}
        return out

    def _build(
        self,
        tables: Mapping[str, TableSpec],
        parts: list[Part],
        width: int,
        total_width: int,
        spec: OptimizerSpec,
        seed: int,
    ) -> Arena:
        n_rows = parts[-1].base + parts[-1].rows
        rows = kernels.aligned_empty((n_rows, width), self.dtype)
        for part in parts:
            for start in range(0, part.rows, BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, part.rows)
                rows[part.base + start : part.base + stop] = kernels.init_rows(
                    table_seed(seed, part.table),
                    part.ids(start, stop),
                    width,
                    column_start=part.columns[0],
                    scale=tables[part.table].init_scale,
                    dtype=self.dtype,
                )
        states = kernels.initial_states(spec, n_rows, width, self.dtype)
        return Arena(width=width, total_width=total_width, spec=spec, rows=rows, states=states, parts=parts)

    def find(self, table: str) -> tuple[int, Part] | None:
        """Number of the arena that holds part of ``table``, and the part; None where this rank holds none of it."""
        if table not in self._where:
            return None
        arena, part = self._where[table]
        return self.arenas.index(arena), part

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables that this rank holds a part of."""
        return tuple(self._where)

    @property
    def memory_bytes(self) -> int:
        """Rows and optimizer state."""
        return sum(a.rows.nbytes + sum(s.nbytes for s in a.states.values()) for a in self.arenas)

    def export(self, table: str) -> Iterator[tuple[Ints, Floats, dict[str, Floats]]]:
        """Ids, rows and states of this rank's part of ``table``, in blocks."""
        arena, part = self._where[table]
        for start in range(0, part.rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, part.rows)
            here = slice(part.base + start, part.base + stop)
            yield part.ids(start, stop), arena.rows[here], {n: s[here] for n, s in arena.states.items()}

    def load(self, table: str, ids: Ints, rows: Floats, states: Mapping[str, Floats], columns: tuple[int, int]) -> int:
        """Takes over those of ``ids`` and ``columns`` that this rank holds; returns how many rows.

        Parameters
        ----------
        ids : int64 [U]
            Row numbers in the whole table.
        rows : float [U, columns[1] - columns[0]]
        states : mapping of str to float [U, ...]
            Per-element states have the columns of ``rows``.
        columns : (int, int)
            The columns of the whole table that ``rows`` covers.

        Raises
        ------
        CheckpointError
            An id outside the table.
        """
        arena, part = self._where[table]
        if len(ids) and (ids.min() < 0 or ids.max() >= part.family.rows):
            raise CheckpointError(
                f"table {table!r}: ids from {ids.min()} to {ids.max()} are to be loaded. Allowed: row numbers, 0 to "
                f"{part.family.rows - 1}."
            )
        local = ids
        if part.family.kind == "row":
            dealt = kernels.permute(ids, part.family.rows, 0)
            mine = dealt % part.family.row_parts == part.number
            local, rows = dealt[mine] // part.family.row_parts, rows[mine]
            states = {n: s[mine] for n, s in states.items()}
        start, stop = max(columns[0], part.columns[0]), min(columns[1], part.columns[1])
        if start >= stop:
            return 0
        source = slice(start - columns[0], stop - columns[0])
        target = slice(start - part.columns[0], stop - part.columns[0])
        where = local + part.base
        arena.rows[where, target] = rows[:, source]
        for name, state in arena.states.items():
            if state.ndim == 2:
                state[where, target] = states[name][:, source]
            else:
                state[where] = states[name]
        return len(local) * (stop - start)
