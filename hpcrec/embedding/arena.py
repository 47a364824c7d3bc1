"""Arenas: the arrays that rows and optimizer state of several tables share. Holds things; does nothing."""

from dataclasses import dataclass, field

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.shards import Family
from hpcrec.types import Floats, Ints, OptimizerSpec


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

    def ids(self, start: int, stop: int) -> Ints:
        """Row numbers in the whole table of this part's rows ``[start, stop)``; not of a dynamic table."""
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
