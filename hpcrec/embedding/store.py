"""Rows in memory, the host's or a device's: the arenas that a rank holds, their first values, export and load.

Parts of tables with equal width and optimizer lie in one *arena*, so that a step touches each arena with one kernel
call, however many tables there are. Rows of dynamic tables have arenas of their own, which take memory as rows come
into use. Knows rows and optimizer state; does not know who asks for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.arena import BLOCK_ROWS, Arena, Mask, Part, Picked, parts_of
from hpcrec.embedding.cache import CacheCounts
from hpcrec.embedding.dynamic import DynamicRows
from hpcrec.embedding.room import bytes_of, cache_for, fresh_room, spare_room
from hpcrec.embedding.shards import Family, table_seed
from hpcrec.errors import CheckpointError
from hpcrec.types import Floats, Ints, OptimizerSpec, TableSpec
from hpcrec.units import MiB

KEPT_BYTES = 32 * MiB  # of rows that change while they are exported, before a file takes them; thrice that for a moment


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
    device : Device, optional
        In whose memory rows and states are; default: the host's.
    room_bytes : int, optional
        Of the device's memory, for them. Where they take more, they are the host's and cached there, but for copies.

    Attributes
    ----------
    device : Device or None
    arenas : list of Arena
    dynamic : dict of str to DynamicRows
        By family: which ids have rows.
    """

    def __init__(
        self,
        tables: Mapping[str, TableSpec],
        families: Sequence[Family],
        *,
        rank: int,
        seed: int,
        dtype: np.dtype,
        device: kernels.Device | None = None,
        room_bytes: int | None = None,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.device = device
        self.arenas: list[Arena] = []
        self.dynamic: dict[str, DynamicRows] = {}
        self._starts = {name: (table.init_scale, table.init_decay) for name, table in tables.items()}
        self._seed = seed
        for family in families:
            if family.dynamic is not None:
                self.dynamic[family.name] = DynamicRows(family, family.holders.index(rank))
        plans = parts_of(tables, families, rank)
        own = [(parts[-1].end, width, spec) for (width, _, spec, kind), parts in plans.items() if kind != "replicate"]
        own_bytes = sum(bytes_of(*shape, self.dtype) for shape in own)
        cached = device is not None and room_bytes is not None and own_bytes > room_bytes
        for (width, total_width, spec, kind), parts in plans.items():
            shape = parts[-1].end, width, spec
            where = None if cached and kind != "replicate" else device
            build = self._reserve if kind == "dynamic" else self._build
            arena = build(parts, width, total_width, spec, where)
            if where is not device:
                assert device is not None and room_bytes is not None, "it is cached"
                its_bytes = room_bytes * bytes_of(*shape, self.dtype) // own_bytes
                arena.cache = cache_for(device, arena.rows, arena.states, its_bytes)
                arena.cache.will_change = arena.will_change
            self.arenas.append(arena)
        self._where = {p.table: (arena, p) for arena in self.arenas for p in arena.parts}

    def _build(
        self, parts: list[Part], width: int, total_width: int, spec: OptimizerSpec, device: kernels.Device | None
    ) -> Arena:
        n_rows = parts[-1].end
        rows, states = fresh_room(n_rows, width, spec, self.dtype, device)
        for part in parts:
            for start in range(0, part.rows, BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, part.rows)
                rows[part.base + start : part.base + stop] = self._initial(
                    part, part.ids(np.arange(start, stop)), device
                )
        return Arena(width=width, total_width=total_width, spec=spec, rows=rows, states=states, parts=parts)

    def _initial(self, part: Part, ids: Ints, device: kernels.Device | None = None) -> Floats:
        """First values; computed where rows are, but for those that decay by column."""
        start, stop = part.columns
        scale, decay = self._starts[part.table]
        rows = kernels.init_rows(
            table_seed(self._seed, part.table),
            ids if device is None or decay or not scale else device.array(ids),
            stop - start,
            column_start=start,
            scale=scale,
            dtype=self.dtype,
        )
        if decay:
            rows *= (np.arange(start + 1, stop + 1) ** -decay).astype(self.dtype)  # may be 0; its inverse overflow
        return rows

    # Dynamic tables.

    def _reserve(
        self, parts: list[Part], width: int, total_width: int, spec: OptimizerSpec, device: kernels.Device | None
    ) -> Arena:
        tables = ", ".join(part.table for part in parts)
        rows, states = spare_room(tables, parts[-1].end, width, spec, self.dtype, device)
        return Arena(width=width, total_width=total_width, spec=spec, rows=rows, states=states, parts=parts)

    def start_rows(self, family: str, rows: Ints, ids: Ints) -> None:
        """Makes rows of a dynamic family's tables what those of new ids start from, with fresh optimizer state.

        Parameters
        ----------
        rows, ids : int64 [M]
            Row numbers in the part, and to which ids they were given.
        """
        for arena, part in self._parts_of(family):
            for first in range(0, len(rows), BLOCK_ROWS):
                where = rows[first : first + BLOCK_ROWS] + part.base
                fresh = self._initial(part, ids[first : first + BLOCK_ROWS])
                arena.put(where, fresh, kernels.state_values(arena.spec))

    def clear_spares(self) -> None:
        """Makes the spare rows zeros again, whatever gradients they were given."""
        for family, held in self.dynamic.items():
            for arena, part in self._parts_of(family):
                arena.put(np.array([part.base + held.spare]), 0.0, dict.fromkeys(arena.states, 0.0))

    def _parts_of(self, family: str) -> list[tuple[Arena, Part]]:
        return [self._where[table] for table in self.dynamic[family].family.tables]

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
    def rows_in_use(self) -> int:
        """Rows of all tables, copies included; of dynamic ones those that ids have."""
        return sum(self._in_use(part) for arena in self.arenas for part in arena.parts)

    @property
    def memory_bytes(self) -> int:
        """Rows in use and optimizer state, and which ids have them."""
        maps = sum(held.figures().map_bytes for held in self.dynamic.values())
        return maps + sum(
            self._in_use(part) * sum(x[:1].nbytes for x in (arena.rows, *arena.states.values()))
            for arena in self.arenas
            for part in arena.parts
        )

    @property
    def cache_counts(self) -> CacheCounts | None:
        """What steps asked of the caches; None where there is none."""
        caches = [arena.cache.counts for arena in self.arenas if arena.cache is not None]
        return sum(caches, start=CacheCounts()) if caches else None

    def _in_use(self, part: Part) -> int:
        return part.rows if part.family.dynamic is None else len(self.dynamic[part.family.name])

    def export(self, table: str, picked: Picked = None) -> Iterator[tuple[Ints, Floats, dict[str, Floats]]]:
        """Ids, rows and states of this rank's part of ``table``, in blocks; all of them, or those that were picked."""
        arena, part = self._where[table]
        if part.family.dynamic is not None and picked is None:
            picked = self.dynamic[part.family.name].save()
        return arena.export(part, picked)

    def changed(self, table: str) -> Mask:
        """Which rows of this rank's part of ``table`` have changed since ``track``."""
        arena, part = self._where[table]
        assert arena.changed is not None, "track() was called"
        if arena.cache is not None:
            arena.cache.flush()
        return arena.changed[part.base : part.base + part.rows].copy()

    def track(self) -> None:
        """From now on it is known which rows of declared tables change."""
        for arena in (a for a in self.arenas if a.parts[0].family.dynamic is None):
            arena.changed = np.zeros(len(arena.rows), bool)

    def freeze(self, tables: Mapping[str, Picked], spill: Path) -> None:
        """Until ``thaw``, each row that is picked is exported once, as it is now, on another thread than the steps'.

        Files ``spill`` take what memory does not of rows that change meanwhile.
        """
        for number, arena in enumerate(self.arenas):
            arena.freeze(
                [(part, tables[part.table]) for part in arena.parts if part.table in tables],
                spill.with_name(f"{spill.name}-{number}"),
                KEPT_BYTES // len(self.arenas),
            )

    def thaw(self) -> None:
        """Ends it."""
        for arena in self.arenas:
            arena.thaw()

    def load(self, table: str, ids: Ints, rows: Floats, states: Mapping[str, Floats], columns: tuple[int, int]) -> int:
        """Takes over those of ``ids`` and ``columns`` that this rank holds; returns how many rows.

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
        arena, part = self._where[table]
        local, mine = self._places(table, part, ids)
        start, stop = max(columns[0], part.columns[0]), min(columns[1], part.columns[1])
        if start >= stop:
            return 0
        values = {"": rows, **{name: states[name] for name in arena.states if states}}
        if mine is not None and not mine.all():
            local, values = local[mine], {name: of[mine] for name, of in values.items()}
        cut = slice(start - columns[0], stop - columns[0])
        values = {name: of if of.ndim == 1 else of[:, cut] for name, of in values.items()}
        arena.place(local + part.base, slice(start - part.columns[0], stop - part.columns[0]), values)
        return len(local) * (stop - start)

    def _places(self, table: str, part: Part, ids: Ints) -> tuple[Ints, np.ndarray | None]:
        """Rows of these ids in the part, and which of them it has (None: all of them)."""
        if part.family.dynamic is not None:
            held = self.dynamic[part.family.name]
            local = held.find(ids)
            return local, local < held.spare
        if len(ids) and (ids.min() < 0 or ids.max() >= part.family.rows):
            raise CheckpointError(
                f"table {table!r}: ids from {ids.min()} to {ids.max()} are to be loaded. Allowed: row numbers, 0 to "
                f"{part.family.rows - 1}."
            )
        if part.family.kind != "row":
            return ids, None
        number, local = part.family.deal(ids)
        return local, number == part.number
