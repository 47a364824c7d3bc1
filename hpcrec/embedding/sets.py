"""Sets of embedding tables: one that all read, or one of each group of dense ranks.

Sets are alike: the same tables, of the same shape, with the same rules, placed alike, so that who holds a part has it
of every set. They differ in what rows hold. Tables of set 0 have their plain names, those of set n the same with
``@n``: their rows start from other random numbers, and a checkpoint has them beside the others. Which row an id has
does not depend on the set, but in dynamic tables, where each set gives rows for itself. So a message of ids is the same
whatever set it is read to, and both ends know which from who sent it.

Knows names, tables and families; does not know who reads which set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpcrec.embedding.shards import Family
from hpcrec.errors import ConfigError
from hpcrec.types import TableSpec


def name_in(number: int, table: str) -> str:
    """What a table, or a family, is called in a set."""
    return f"{table}@{number}" if number else table


def tables_in(sets: int, tables: Mapping[str, TableSpec]) -> dict[str, TableSpec]:
    """The tables of so many sets, set after set.

    Raises
    ------
    ConfigError
        A table of a further set would be called as one that there is.
    """
    named = {
        name_in(n, name): replace(spec, name=name_in(n, name)) for n in range(sets) for name, spec in tables.items()
    }
    if len(named) < sets * len(tables):
        taken = next(name_in(n, name) for n in range(1, sets) for name in tables if name_in(n, name) in tables)
        raise ConfigError(
            f"table {taken!r} is called as a table of another group of dense ranks would be, each of which has tables "
            "of its own. Rename the feature or table, or set dense.codistillation.share_embeddings = true."
        )
    return named


def families_in(sets: int, families: Sequence[Family]) -> tuple[Family, ...]:
    """Likewise of families: ids are dealt alike in every set."""
    return tuple(
        replace(family, name=name_in(n, family.name), tables=tuple(name_in(n, table) for table in family.tables))
        for n in range(sets)
        for family in families
    )
