"""Sets of tables: names of their own, and nothing else."""

import pytest

from hpcrec.embedding.sets import families_in, name_in, tables_in
from hpcrec.embedding.shards import Family
from hpcrec.errors import ConfigError
from hpcrec.types import Dynamic, TableSpec


def test_sets_are_alike_but_for_names() -> None:
    tables = {"a": TableSpec(name="a", rows=5, width=3), "a.wide": TableSpec(name="a.wide", rows=5, width=1)}
    assert tables_in(1, tables) == tables
    found = tables_in(3, tables)
    assert list(found) == ["a", "a.wide", "a@1", "a.wide@1", "a@2", "a.wide@2"]
    assert all(spec.name == name for name, spec in found.items())
    assert [spec.width for spec in found.values()] == [3, 1] * 3
    rules = Dynamic(seed=7, named="a")
    family = Family(
        name="a",
        rows=5,
        hashed=False,
        tables=("a", "a.wide"),
        features=("f",),
        kind="row",
        holders=(0, 2),
        dynamic=rules,
    )
    first, second = families_in(2, [family])
    assert first == family
    assert (second.name, second.tables) == ("a@1", ("a@1", "a.wide@1"))
    assert (second.holders, second.features, second.dynamic) == (family.holders, family.features, rules)


def test_a_table_called_as_that_of_another_set_is_refused() -> None:
    tables = {name: TableSpec(name=name, rows=5, width=3) for name in ("a", "b@1", name_in(1, "a"))}
    assert tables_in(1, tables) == tables
    with pytest.raises(ConfigError, match=r"table 'a@1' is called as a table of another group .* Rename"):
        tables_in(2, tables)
