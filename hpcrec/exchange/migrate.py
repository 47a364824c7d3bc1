"""Takes tables' rows and optimizer state from one placement to another; collective. Knows no reason why."""

from collections.abc import Iterable

from hpcrec.comm.world import World
from hpcrec.embedding.shards import Family
from hpcrec.embedding.store import BLOCK_ROWS, RowStore
from hpcrec.types import TableSpec


def migrate(
    world: World,
    tables: dict[str, TableSpec],
    families: Iterable[Family],
    source: RowStore | None,
    target: RowStore | None,
) -> None:
    """Copies rows and states of families, as they are placed in ``source``, to wherever ``target`` holds them.

    Parameters
    ----------
    families : iterable of Family
        Where the rows are now.
    source, target : RowStore or None
        This rank's; None where it holds nothing.
    """
    for family in families:
        senders = family.holders[:1] if family.kind == "replicate" else family.holders  # copies are alike
        for part, holder in enumerate(senders):
            for table in family.tables:
                columns = family.part_columns(tables[table].width, part)
                if columns[0] == columns[1]:
                    continue
                mine = world.topology.rank == holder
                assert source is not None or not mine
                blocks = source.export(table) if mine and source is not None else None
                for _ in range(0, family.part_rows(part), BLOCK_ROWS):
                    ids, rows, states = world.main.bcast(None if blocks is None else next(blocks), root=holder)
                    if target is not None and target.find(table) is not None:
                        target.load(table, ids, rows, states, columns)
