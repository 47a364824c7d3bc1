"""Arenas: the arrays that rows and optimizer state of several tables share. Knows arrays; not who asks for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrec import kernels
from hpcrec.embedding.cache import RowCache
from hpcrec.embedding.frozen import FrozenRows, row_bytes
from hpcrec.embedding.shards import Family
from hpcrec.types import Floats, Ints, OptimizerSpec, TableSpec

BLOCK_ROWS = 1 << 13  # rows made at once: bounds the memory beside the rows, and stays in a cache
EXPORT_BYTES = 32 << 20  # of ids, rows and states exported at once: whoever reads them asks seldom for Python's lock
Mask = npt.NDArray[np.bool_]
Picked = kernels.IdState | Mask | None  # ids of a dynamic table with their rows; which rows of another's part; all


@dataclass(frozen=True, kw_only=True)
class Part:
    """One table's part in an arena: rows ``[base, base + rows)`` of it, behind which a dynamic table has its spare row.

    ``columns`` are those of the whole table; ``number`` is the part's number in its family.
    """

    table: str
    family: Family
    number: int
    base: int
    rows: int
    columns: tuple[int, int]
    width: int

    @property
    def end(self) -> int:
        """Where the next part begins."""
        return self.base + self.rows + (self.family.dynamic is not None)

    def ids(self, local: Ints) -> Ints:
        """Row numbers in the whole table of these rows of this part; not of a dynamic table."""
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
    cache : RowCache or None
        What steps work in, where rows and states are the host's and are cached in a device's memory.
    frozen : FrozenRows or None
        Rows as they were, while a checkpoint of them is written.
    changed : bool [N] or None
        Rows that have changed since ``track``; None where nobody asks. Of cached ones, those that were written back.
    """

    width: int
    total_width: int
    spec: OptimizerSpec
    rows: Floats
    states: dict[str, Floats]
    parts: list[Part] = field(default_factory=list)
    cache: RowCache | None = None
    frozen: FrozenRows | None = None
    changed: np.ndarray | None = None

    def will_change(self, rows: Any) -> None:
        """These distinct rows [U] are about to change where they lie: not in the cache."""
        frozen = self.frozen  # another thread may thaw it meanwhile
        if frozen is not None:
            frozen.keep(rows)
        if self.changed is not None:
            self.changed[np.asarray(rows)] = True

    def freeze(self, picked: Sequence[tuple[Part, Picked]], spill: Path, budget_bytes: int) -> None:
        """Until ``thaw``, ``read`` gives each of these rows once, as it is now, on another thread than the steps'.

        Of rows that change meanwhile, what does not fit into so much memory goes to the file ``spill``.
        """
        if picked:
            wanted = np.zeros(len(self.rows), bool)
            for part, some in picked:
                if isinstance(some, kernels.IdState):
                    wanted[part.base + some.rows] = True
                else:
                    wanted[part.base : part.base + part.rows] = True if some is None else some
            if self.cache is not None:
                self.cache.flush()
            self.frozen = FrozenRows({"": self.rows, **self.states}, wanted, spill, budget_bytes)

    def thaw(self) -> None:
        """What was frozen is read, or will not be."""
        if self.frozen is not None:
            self.frozen.close()
            self.frozen = None

    def read(self, rows: slice | Ints) -> tuple[Floats, dict[str, Floats]]:
        """Rows and their states, the host's; as they were, where they are frozen. ``cache.flush`` comes before."""
        if self.frozen is not None:
            states = self.frozen.take(rows)
            return states.pop(""), states
        return np.asarray(self.rows[rows]), {n: np.asarray(s[rows]) for n, s in self.states.items()}

    def export(self, part: Part, picked: Picked) -> Iterator[tuple[Ints, Floats, dict[str, Floats]]]:
        """Ids, rows and states of a part, in blocks: of all its rows, or of those that are picked."""
        if self.cache is not None and self.frozen is None:
            self.cache.flush()
        n_rows = len(picked.ids) if isinstance(picked, kernels.IdState) else part.rows
        block_rows = max(1, EXPORT_BYTES // row_bytes({"": self.rows, **self.states}))
        for start in range(0, n_rows, block_rows):
            here = slice(start, min(start + block_rows, n_rows))
            if isinstance(picked, kernels.IdState):
                yield picked.ids[here], *self.read(part.base + picked.rows[here])
            elif picked is None:
                yield part.ids(np.arange(start, here.stop)), *self.read(slice(part.base + start, part.base + here.stop))
            elif len(rows := start + np.flatnonzero(picked[here])):
                yield part.ids(rows), *self.read(part.base + rows)

    @property
    def step_rows(self) -> Floats:
        """What a step reads and moves, by row or, where there is a cache, by slot."""
        return self.rows if self.cache is None else self.cache.rows

    @property
    def step_states(self) -> dict[str, Floats]:
        """Likewise."""
        return self.states if self.cache is None else self.cache.states

    def put(self, where: Ints, rows: Floats | float, states: Mapping[str, float]) -> None:
        """Sets rows by number, and their states; between steps."""
        if self.cache is not None:
            self.cache.forget(where)
        self.will_change(where)
        self.rows[where] = rows
        for name, value in states.items():
            self.states[name][where] = value

    def place(self, where: Ints, columns: slice, values: Mapping[str, Floats]) -> None:
        """Sets these columns of rows by number, and of those states that are named; "" names the rows."""
        if self.cache is not None:
            self.cache.flush()
            self.cache.clear()
        self.will_change(where)
        rising = len(where) > 0 and bool((np.diff(where) == 1).all())  # as where a rank loads what it saved
        whole = columns == slice(0, self.width)
        for name, of in values.items():
            held = self.states[name] if name else self.rows
            to = slice(where[0], where[-1] + 1) if rising and isinstance(held, np.ndarray) else where
            if held.ndim == 1 or whole:  # put by far faster
                held[to] = of
            else:
                held[to, columns] = of


def parts_of(
    tables: Mapping[str, TableSpec], families: Sequence[Family], rank: int
) -> dict[tuple[int, int, OptimizerSpec, str], list[Part]]:
    """A rank's parts of tables, by the arena that they lie in: columns here and in all, optimizer, and kind.

    Kinds are ``replicate``, copies that are answered by nobody, so kept out of the others' gathers; ``dynamic``, which
    has other memory; and empty.
    """
    plans: dict[tuple[int, int, OptimizerSpec, str], list[Part]] = {}
    for family in families:
        number = family.holders.index(rank)
        kind = "dynamic" if family.dynamic is not None else family.kind if family.kind == "replicate" else ""
        for name in family.tables:
            width = tables[name].width
            start, stop = family.part_columns(width, number)
            if start == stop:
                continue
            parts = plans.setdefault((stop - start, width, tables[name].optimizer, kind), [])
            parts.append(
                Part(
                    table=name,
                    family=family,
                    number=number,
                    base=parts[-1].end if parts else 0,
                    rows=family.part_rows(number),
                    columns=(start, stop),
                    width=width,
                )
            )
    return plans
