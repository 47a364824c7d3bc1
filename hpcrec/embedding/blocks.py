"""The geometry of a rank's rows: which parts of which tables lie in one block.

Parts of tables with equal width and optimizer lie in one *block*, so that a step touches each block with one kernel
call, however many tables there are. Knows tables, families and ranks; does not know where rows are.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hpcrec import kernels
from hpcrec.embedding.shards import Family
from hpcrec.types import Ints, OptimizerSpec, TableSpec


@dataclass(frozen=True, kw_only=True)
class Part:
    """One table's part in a block: rows ``[base, base + rows)`` of it, behind which a dynamic table has its spare row.

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
        family = self.family
        return ids_of_rows(
            local, dealt=family.kind == "row", parts=family.row_parts, number=self.number, table_rows=family.rows
        )


def ids_of_rows(local: Ints, *, dealt: bool, parts: int, number: int, table_rows: int) -> Ints:
    """Row numbers in the whole table of rows of part ``number``: the same, or as rows are dealt to so many parts."""
    return kernels.unpermute(local * parts + number, table_rows, 0) if dealt else local


@dataclass(frozen=True, kw_only=True)
class Block:
    """Parts of tables whose rows are alike.

    Attributes
    ----------
    width : int
        Columns held here.
    total_width : int
        Columns of the whole tables; more than ``width`` where they are sharded by columns.
    spec : OptimizerSpec
    kind : str
        ``replicate``, copies that are answered by nobody, so kept out of the others' gathers; ``dynamic``, whose rows
        take memory as they come into use; and empty.
    parts : tuple of Part
        One behind the other.
    whole : bool
        Whether they are of tables that are to be in memory, whole, where the store has others elsewhere.
    """

    width: int
    total_width: int
    spec: OptimizerSpec
    kind: str
    parts: tuple[Part, ...]
    whole: bool = False

    @property
    def rows(self) -> int:
        """Of all parts, spare rows included."""
        return self.parts[-1].end

    @property
    def needs_norms(self) -> bool:
        """Whether a step needs squared norms over columns that other ranks hold."""
        return self.width != self.total_width and self.spec.name == "rowwise_adagrad"


def blocks_of(
    tables: Mapping[str, TableSpec], families: Sequence[Family], rank: int, whole: Collection[str] = ()
) -> list[Block]:
    """A rank's blocks, of all families of which it holds a part; those of tables that are ``whole`` apart."""
    plans: dict[tuple[int, int, OptimizerSpec, str, bool], list[Part]] = {}
    for family in families:
        number = family.holders.index(rank)
        kind = "dynamic" if family.dynamic is not None else family.kind if family.kind == "replicate" else ""
        for name in family.tables:
            width = tables[name].width
            start, stop = family.part_columns(width, number)
            if start == stop:
                continue
            parts = plans.setdefault((stop - start, width, tables[name].optimizer, kind, name in whole), [])
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
    return [
        Block(width=width, total_width=total_width, spec=spec, kind=kind, parts=tuple(parts), whole=apart)
        for (width, total_width, spec, kind, apart), parts in plans.items()
    ]
