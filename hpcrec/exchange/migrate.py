"""Takes tables' rows and optimizer state from one placement to another; collective. Knows no reason why."""

from collections.abc import Iterable

from hpcrec.comm.world import World
from hpcrec.embedding.shards import Family
from hpcrec.embedding.store import RowStore
from hpcrec.types import TableSpec


def migrate(
    world: World,
    tables: dict[str, TableSpec],
    families: Iterable[tuple[Family, Family]],
    source: RowStore | None,
    target: RowStore | None,
) -> None:
    """Copies rows and states from ``source`` to wherever ``target`` holds them, in blocks that every rank is sent.

    Families that are on every dense rank before and after are copied there. The ledger does not count it.

    Parameters
    ----------
    families : iterable of (Family, Family)
        As placed in ``source`` and in ``target``.
    source, target : RowStore or None
        This rank's; None where it holds nothing.
    """
    for before, after in families:
        if before == after:
            if source is not None and target is not None and world.topology.rank in before.holders:
                for table in before.tables:
                    for ids, rows, states in source.export(table):
                        target.load(table, ids, rows, states, (0, tables[table].width))
            continue
        senders = before.holders[:1] if before.kind == "replicate" else before.holders  # copies are alike
        for part, holder in enumerate(senders):
            for table in before.tables:
                columns = before.part_columns(tables[table].width, part)
                if columns[0] == columns[1]:
                    continue
                mine = world.topology.rank == holder
                assert source is not None or not mine
                blocks = source.export(table) if mine and source is not None else iter(())
                while (block := world.main.bcast(next(blocks, None), root=holder)) is not None:
                    if target is not None and target.find(table) is not None:
                        ids, rows, states = block
                        target.load(table, ids, rows, states, columns)
