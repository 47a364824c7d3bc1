"""The shard map places every row exactly once, balances, follows overrides and refuses what cannot be."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec import kernels
from hpcrec.embedding.load import Load, imbalance
from hpcrec.embedding.place import BALANCE, LOOKUP_COLUMNS, row_elements
from hpcrec.embedding.shards import Family, Placement, build_families, table_seed
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.errors import CheckpointError, ConfigError
from hpcrec.training.telemetry import peak_rss_bytes
from hpcrec.types import Dynamic, Feature, Lookup, OptimizerSpec, TableSpec


def specs(rows: dict[str, int], width: int = 8) -> tuple[dict, list, list]:
    tables = {n: TableSpec(name=n, rows=r, width=width) for n, r in rows.items()}
    return tables, [Feature(name=n, cardinality=r) for n, r in rows.items()], [Lookup(feature=n, table=n) for n in rows]


def place(
    rows: dict[str, int],
    placements: dict | None = None,
    owners: int = 3,
    replicate_rows: int = 0,
    mean_ids: float = 1.0,
    **more: object,
) -> dict:
    tables, features, lookups = specs(rows)
    features = [replace(feature, mean_ids=mean_ids) for feature in features]
    families = build_families(
        tables,
        features,
        lookups,
        placements or {},
        owners=tuple(range(10, 10 + owners)),
        dense=(20, 21),
        replicate_rows=replicate_rows,
        **more,
    )
    return {f.name: f for f in families}


def test_large_is_dealt_by_rows_small_replicated_rest_balanced() -> None:
    families = place({"huge": 100_000, "tiny": 5} | {f"t{i}": 1000 + i for i in range(6)}, replicate_rows=10)
    assert (families["huge"].kind, families["huge"].holders) == ("row", (10, 11, 12))
    assert (families["tiny"].kind, families["tiny"].holders) == ("replicate", (20, 21))
    rest = [families[f"t{i}"].holders for i in range(6)]
    assert all(len(h) == 1 for h in rest)
    assert sorted(rest) == [(10,), (10,), (11,), (11,), (12,), (12,)]


def test_overrides() -> None:
    wanted = {"a": Placement(kind="column", parts=2), "b": Placement(kind="row", owners=(2, 0)), "c": Placement()}
    families = place({"a": 100, "b": 100, "c": 100}, wanted)
    assert families["a"].kind == "column" and len(families["a"].holders) == 2
    assert families["b"].holders == (12, 10)


@pytest.mark.parametrize(
    ("placement", "says"),
    [
        (Placement(kind="table", owners=(0, 1)), "takes exactly 1"),
        (Placement(kind="row", owners=(3,)), "owner numbers 0 to 2"),
        (Placement(kind="row", parts=4), "Allowed: 1 to 3"),
        (Placement(kind="diagonal"), "Allowed: auto"),
        (Placement(kind="host", owners=(0, 1)), "takes all owners of a host"),
        (Placement(kind="host", parts=2), "takes all owners of a host"),
    ],
)
def test_refusals(placement: Placement, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        place({"a": 100}, {"a": placement})


HOSTS = (0, 0, 1, 1, 1)
OF_HOST = ({10, 11}, {12, 13, 14})


def test_rows_within_a_host() -> None:
    """Where it is asked for; and each to the host whose owners have the least."""
    names = [f"t{i}" for i in range(5)]
    found = place(dict.fromkeys(names, 90), dict.fromkeys(names, Placement(kind="host")), owners=5, hosts=HOSTS)
    assert all(family.kind == "row" and set(family.holders) in OF_HOST for family in found.values())
    here = [set(family.holders) == OF_HOST[0] for family in found.values()]
    assert sum(here) == 2, "two of five owners"
    alone = place({"a": 90}, {"a": Placement(kind="host")}, owners=3)
    assert alone["a"].kind == "row" and len(alone["a"].holders) == 3, "one host"


def test_rows_that_anybody_may_have_are_dealt_within_hosts_where_that_is_even() -> None:
    hosts, rows = {"hosts": (0, 0, 1, 1), "owners": 4, "mean_ids": 3.0}, {f"t{i}": 50_000 for i in range(2)}
    flat, found = (place(rows, **hosts, within=within) for within in (False, True))
    assert all(len(family.holders) == 4 for family in flat.values())
    alone = place(rows, **{**hosts, "mean_ids": 1.0}, within=True)
    assert all(len(family.holders) == 4 for family in alone.values()), "of bags of one id no part is added"
    assert sorted(sorted(family.holders) for family in found.values()) == [[10, 11], [12, 13]]
    one = place({"huge": 100_000, "small": 500}, **hosts, within=True)["huge"]
    assert one.kind == "row" and len(one.holders) == 4, "a host would have all of it"
    three = place({f"t{i}": 50_000 for i in range(3)}, **hosts, within=True)
    assert sorted(sorted(family.holders) for family in three.values()) == [[10, 11], [10, 11, 12, 13], [12, 13]]
    asked = place(rows, dict.fromkeys(rows, Placement(kind="row")), **hosts, within=True)
    assert all(len(family.holders) == 4 for family in asked.values()), "asked for"


def test_tables_of_one_feature_must_agree() -> None:
    tables = {"a": TableSpec(name="a", rows=10, width=4), "w": TableSpec(name="w", rows=11, width=1)}
    features = [Feature(name="f", cardinality=10)]
    lookups = [Lookup(feature="f", table="a"), Lookup(feature="f", table="w")]
    with pytest.raises(ConfigError, match="must agree"):
        build_families(tables, features, lookups, {}, owners=(0,), dense=(0,), replicate_rows=0)


@pytest.mark.parametrize("kind", ["table", "row", "column"])
@pytest.mark.parametrize("decay", [0.0, 1.5])
def test_every_row_is_held_once_and_starts_alike(kind: str, decay: float) -> None:
    tables = {"a": TableSpec(name="a", rows=101, width=7, init_scale=0.3, init_decay=decay)}
    lookups, features = [Lookup(feature="a", table="a")], [Feature(name="a", cardinality=101)]
    whole = {}
    for owners in (1, 2, 3, 5):
        families = build_families(
            tables, features, lookups, {"a": Placement(kind=kind)}, owners=range(owners), dense=(0,), replicate_rows=0
        )
        seen = np.zeros((101, 7), int)
        rows = np.full((101, 7), np.nan, np.float32)
        for rank in families[0].holders:
            store = MemoryStore(tables, families, rank=rank, seed=3, dtype=np.float32)
            for ids, block, _ in store.export("a") if "a" in store.tables else ():
                columns = slice(*store.place("a")[1].columns)
                seen[ids, columns] += 1
                rows[ids, columns] = block
        assert (seen == 1).all()
        whole[owners] = rows
        np.testing.assert_array_equal(rows, whole[1])
    largest = np.abs(whole[1]).max(axis=0) * np.arange(1, 8) ** decay
    assert (largest > 0.25).all()
    assert (largest <= 0.3 * (1 + 1e-6)).all()


@pytest.mark.filterwarnings("error")
def test_columns_that_fall_off_steeply_do_not_overflow() -> None:
    tables = {"a": TableSpec(name="a", rows=20, width=128, init_scale=0.5, init_decay=20.0)}
    lookups, features = [Lookup(feature="a", table="a")], [Feature(name="a", cardinality=20)]
    families = build_families(
        tables, features, lookups, {"a": Placement(kind="table")}, owners=(0,), dense=(0,), replicate_rows=0
    )
    ((_, rows, _),) = MemoryStore(tables, families, rank=0, seed=3, dtype=np.float32).export("a")
    assert (rows[:, 0] != 0).all()
    assert (np.abs(rows[:, 1]) < 0.5 / 2**19).all()
    assert (np.abs(rows[:, -1]) < 1e-38).all()


def test_load_takes_what_export_gave_for_any_shards() -> None:
    spec = OptimizerSpec(name="adagrad")
    tables = {"a": TableSpec(name="a", rows=50, width=6, optimizer=spec)}
    lookups, features = [Lookup(feature="a", table="a")], [Feature(name="a", cardinality=50)]

    def stores(kind: str, owners: int) -> list[MemoryStore]:
        families = build_families(
            tables, features, lookups, {"a": Placement(kind=kind)}, owners=range(owners), dense=(0,), replicate_rows=0
        )
        return [MemoryStore(tables, families, rank=r, seed=1, dtype=np.float64) for r in families[0].holders]

    source = stores("row", 3)
    for store in source:
        for held in store.held:
            held.rows += 5.0
            held.states["accumulator"] += held.rows
    for kind, owners in (("table", 1), ("row", 2), ("column", 3)):
        target, taken = stores(kind, owners), 0
        for store in source:
            for ids, rows, states in store.export("a"):
                taken += sum(t.load("a", ids, rows, states, (0, 6)) for t in target)
        assert taken == 50 * 6
        for store in target:
            for _, rows, states in store.export("a"):
                assert (rows > 4).all()
                np.testing.assert_array_equal(states["accumulator"], rows)
    with pytest.raises(CheckpointError, match="ids from 50 to 50"):
        stores("table", 1)[0].load("a", np.array([50]), np.zeros((1, 6)), {"accumulator": np.zeros((1, 6))}, (0, 6))


def test_seeds_differ_by_table_and_run() -> None:
    assert len({table_seed(s, n) for s in (1, 2) for n in ("a", "b", "a.wide")}) == 6
    assert table_seed(1, "a") == table_seed(1, "a") < 2**63


# ---- balance ---------------------------------------------------------------------------------------------------------


@st.composite
def skewed_tables(draw) -> tuple[dict, list, list, int]:
    """Tables of very different sizes and traffic, every one of which may be split over the owners."""
    owners = draw(st.integers(1, 9))
    tables, features, lookups = {}, [], []
    for i in range(draw(st.integers(1, 40))):
        wide = draw(st.booleans())
        rows = draw(st.integers(1, 999)) if wide else int(owners * 1000 * 10 ** draw(st.floats(0, 5)))
        width = owners * 4 * draw(st.integers(1, 8)) if wide else draw(st.integers(1, 128))
        optimizer = OptimizerSpec(name=draw(st.sampled_from(["sgd", "adagrad", "rowwise_adagrad", "adam"])))
        name = f"t{i}"
        tables[name] = TableSpec(name=name, rows=rows, width=width, optimizer=optimizer)
        features.append(Feature(name=name, cardinality=rows, mean_ids=10 ** draw(st.floats(-2, 2))))
        lookups.append(Lookup(feature=name, table=name))
    return tables, features, lookups, owners


@settings(max_examples=200, deadline=None, derandomize=True)
@given(skewed_tables())
def test_predicted_balance_wherever_tables_may_be_split(problem) -> None:
    tables, features, lookups, n = problem
    owners = tuple(range(n))
    families = build_families(tables, features, lookups, {}, owners=owners, dense=owners, replicate_rows=0)
    found = predicted_balance(families, tables, features, owners)
    assert set(found) == {"memory", "time"}
    assert min(found.values()) >= 1 - 1e-9 and max(found.values()) <= BALANCE
    held = {f.name for f in families}
    assert held == set(tables) and all(set(f.holders) <= set(owners) for f in families)


def test_whole_tables_stay_whole_where_that_is_even() -> None:
    tables, features, lookups = specs({f"t{i}": 50_000 for i in range(8)})
    families = build_families(tables, features, lookups, {}, owners=(0, 1, 2, 3), dense=(0,), replicate_rows=0)
    assert [f.kind for f in families] == ["table"] * 8
    assert sorted(f.holders for f in families) == [(o,) for o in (0, 0, 1, 1, 2, 2, 3, 3)]


def test_a_busy_small_table_is_split_by_columns_and_a_large_one_by_rows() -> None:
    tables = {"busy": TableSpec(name="busy", rows=20, width=16), "large": TableSpec(name="large", rows=10**6, width=16)}
    features = [Feature(name="busy", cardinality=20, mean_ids=50.0), Feature(name="large", cardinality=10**6)]
    lookups = [Lookup(feature=n, table=n) for n in tables]
    owners = (5, 6)
    families = build_families(tables, features, lookups, {}, owners=owners, dense=(0,), replicate_rows=0)
    assert {f.name: f.kind for f in families} == {"busy": "column", "large": "row"}
    assert max(predicted_balance(families, tables, features, owners).values()) < 1.001
    whole = {n: Placement(kind="table", owners=(0,)) for n in tables}
    pinned = build_families(tables, features, lookups, whole, owners=owners, dense=(0,), replicate_rows=0)
    assert predicted_balance(pinned, tables, features, owners) == {"memory": 2.0, "time": 2.0}


def test_where_rows_stay_whole_a_busy_small_table_does() -> None:
    """Vectors of which a share crosses are thresholded at one owner; a large table is dealt by rows as ever."""
    tables = {"busy": TableSpec(name="busy", rows=20, width=64), "large": TableSpec(name="large", rows=10**6, width=64)}
    features = [Feature(name="busy", cardinality=20, mean_ids=50.0), Feature(name="large", cardinality=10**6)]
    lookups = [Lookup(feature=n, table=n) for n in tables]
    places = {
        whole_rows: build_families(
            tables, features, lookups, {}, owners=range(4), dense=(0,), replicate_rows=0, whole_rows=whole_rows
        )
        for whole_rows in (False, True)
    }
    kinds = {whole_rows: {f.name: f.kind for f in families} for whole_rows, families in places.items()}
    assert kinds == {False: {"busy": "column", "large": "row"}, True: {"busy": "table", "large": "row"}}


def test_the_frequent_rows_of_equal_tables_meet_at_different_owners() -> None:
    """Tables of equal rows deal a row number to the same part, whose owner differs from table to table."""
    tables, features, lookups = specs({f"t{i}": 10**6 for i in range(8)})
    placements = {name: Placement(kind="row") for name in tables}
    families = build_families(tables, features, lookups, placements, owners=range(4), dense=(0,), replicate_rows=0)
    part = int(kernels.permute(np.array([0]), 10**6, 0)[0] % 4)
    assert sorted(f.holders[part] for f in families) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_rows_are_dealt_evenly_under_skew_in_any_numbering() -> None:
    """Ids by frequency, as many vocabularies number them: dealt rows share lookups, ranges of ids would not."""
    rows, owners = 200_000, 4
    chance = (np.arange(rows) + 5.0) ** -1.2
    chance /= chance.sum()
    part = kernels.permute(np.arange(rows), rows, 0) % owners
    dealt = np.array([chance[part == o].sum() for o in range(owners)])
    ranges = chance.reshape(owners, -1).sum(axis=1)
    assert dealt.max() * owners < 1.35 < 3.5 < ranges.max() * owners


def test_imbalance_of_owners() -> None:
    even, none = Load(steps=10, lookups=1000, distinct=500), Load()
    even.seconds.update(gather=0.1, update=0.3, read=9.0, find=0.2)
    held = {"rows": 100, "bytes": 800}
    figures = [{**held, **even.figures()}, {**held, **none.figures()}]
    assert figures[0] == {
        **held, "steps": 10, "lookups_per_step": 100, "distinct_per_step": 50,
        "read_ms": pytest.approx(900), "find_ms": pytest.approx(20),
        "gather_ms": pytest.approx(10), "update_ms": pytest.approx(30),
    }  # fmt: skip
    assert imbalance(figures) == {"bytes": 1.0, "lookups": 2.0, "distinct": 2.0, "time": 2.0}
    nothing = {"rows": 0, "bytes": 0, **none.figures()}
    assert imbalance([nothing]) == {"bytes": 1.0, "lookups": 1.0, "distinct": 1.0, "time": 1.0}


# Dynamic tables.


def dynamic(
    capacity: int, kind: str = "auto", owners: int = 3, replicate_rows: int = 0, hosts: tuple = (), **rules
) -> Family:
    tables = {"a": TableSpec(name="a", rows=capacity, width=4, dynamic=Dynamic(**rules))}
    families = build_families(
        tables,
        [Feature(name="a", cardinality=0)],
        [Lookup(feature="a", table="a")],
        {"a": Placement(kind=kind)},
        owners=tuple(range(owners)),
        dense=(9,),
        replicate_rows=replicate_rows,
        hosts=hosts,
    )
    return families[0]


def test_dynamic_tables_may_be_dealt_within_a_host() -> None:
    found = dynamic(40, "host", owners=5, hosts=(0, 0, 1, 1, 1))
    assert found.kind == "row" and set(found.holders) == {2, 3, 4}, "the host that has more owners for it"
    alone = dynamic(1, "host", owners=2, hosts=(0, 1))
    assert alone.kind == "table" and len(alone.holders) == 1, "a host with one owner"
    with pytest.raises(ConfigError, match=r"capacity is 2, but the table is dealt to 3 owners"):
        dynamic(2, "host", owners=5, hosts=(0, 0, 1, 1, 1))


def test_dynamic_tables_are_dealt_by_a_hash_of_any_ids() -> None:
    """Evenly, alike on every owner, and another way for another run or table; never copied, however small."""
    assert dynamic(10, owners=1).kind == "table" and dynamic(10, kind="table").kind == "table"
    family = dynamic(10, replicate_rows=1000)
    assert family.kind == "row" and [family.part_rows(p) for p in range(3)] == [4, 3, 3]
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 9000)
    ids[:3] = -(2**63), 2**63 - 1, -1
    number, there = family.deal(ids)
    assert (there == ids).all() and np.bincount(number, minlength=3).min() > 2800
    assert (dynamic(10, seed=1).deal(ids)[0] != number).mean() > 0.6


@pytest.mark.parametrize(
    ("kind", "capacity", "says"),
    [
        ("column", 100, "shard is 'column', but the table is dynamic"),
        ("replicate", 100, "shard is 'replicate', but the table is dynamic"),
        ("auto", 2, "capacity is 2, but the table is dealt to 3 owners"),
        ("row", 3 * 2**32, "up to 4294967295 rows"),
    ],
)
def test_dynamic_refusals(kind: str, capacity: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        dynamic(capacity, kind)


def test_tables_of_one_feature_are_dynamic_together() -> None:
    tables = {
        "a": TableSpec(name="a", rows=10, width=4, dynamic=Dynamic()),
        "w": TableSpec(name="w", rows=10, width=1, dynamic=Dynamic(evict="lru")),
    }
    lookups = [Lookup(feature="f", table="a"), Lookup(feature="f", table="w")]
    with pytest.raises(ConfigError, match=r"'a' and 'w' .*dynamic differ"):
        build_families(
            tables, [Feature(name="f", cardinality=0)], lookups, {}, owners=(0,), dense=(0,), replicate_rows=0
        )


def test_rows_that_nobody_has_take_no_memory() -> None:
    """A terabyte of rows has addresses alone; rows in use start from (seed, table, id), their states fresh."""
    adagrad = OptimizerSpec(name="adagrad", initial_accumulator=0.25)
    tables = {"a": TableSpec(name="a", rows=2**32 - 1, width=64, init_scale=0.3, optimizer=adagrad, dynamic=Dynamic())}
    lookups, features = [Lookup(feature="a", table="a")], [Feature(name="a", cardinality=0)]
    families = build_families(tables, features, lookups, {}, owners=(0,), dense=(0,), replicate_rows=0)
    before = peak_rss_bytes()
    store = MemoryStore(tables, families, rank=0, seed=7, dtype=np.dtype(np.float32))
    held = store.dynamic["a"]
    ids = np.array([-(2**63), 5, 2**63 - 1])
    rows, fresh = held.admit(ids)
    store.start_rows("a", rows[fresh], ids[fresh])
    assert peak_rss_bytes() - before < 64 << 20
    figures = store.figures()
    assert figures["rows"] == 3 and figures["bytes"] - held.figures().map_bytes == 3 * 2 * 64 * 4
    ((found, values, states),) = store.export("a")
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_array_equal(values, kernels.init_rows(table_seed(7, "a"), ids, 64, scale=0.3))
    assert (states["accumulator"] == 0.25).all() and states["accumulator"].shape == (3, 64)
    assert held.find(np.array([6, 5])).tolist() == [held.spare, 1]
    store.held[0].rows[held.spare] = 3.0
    store.clear_spares()
    assert not store.held[0].rows[held.spare].any()


def test_rows_without_addresses_are_refused() -> None:
    tables = {"a": TableSpec(name="a", rows=2**32 - 1, width=65_000, dynamic=Dynamic())}
    lookups, features = [Lookup(feature="a", table="a")], [Feature(name="a", cardinality=0)]
    families = build_families(tables, features, lookups, {}, owners=(0,), dense=(0,), replicate_rows=0)
    with pytest.raises(ConfigError, match=r"4294967296 rows of dynamic tables \(a\) cannot be had: no addresses"):
        MemoryStore(tables, families, rank=0, seed=7, dtype=np.dtype(np.float32))


def predicted_balance(
    families: Sequence[Family], tables: Mapping[str, TableSpec], features: Sequence[Feature], owners: Sequence[int]
) -> dict[str, float]:
    """The most of any owner divided by the mean over owners: ``memory`` and ``time``; 1 where nothing is sharded.

    Lookups of a feature are taken to spread evenly over its table's rows.
    """
    mean_ids = {f.name: f.mean_ids for f in features}
    memory, time = dict.fromkeys(owners, 0.0), dict.fromkeys(owners, 0.0)
    for family in families:
        ids = sum(mean_ids[f] for f in family.features)
        for part, holder in enumerate(family.holders if family.kind != "replicate" else ()):
            rows = family.part_rows(part)
            for spec in (tables[name] for name in family.tables):
                start, stop = family.part_columns(spec.width, part)
                memory[holder] += rows * row_elements(spec) * (stop - start) / spec.width
                time[holder] += ids * rows / family.rows * (LOOKUP_COLUMNS * (stop > start) + stop - start)
    sums = {"memory": list(memory.values()), "time": list(time.values())}
    return {name: max(n) * len(n) / sum(n) if any(n) else 1.0 for name, n in sums.items()}


def towers(n: int, tables: int = 4, rows: int = 50_000) -> tuple[dict[str, int], dict[str, list[str]]]:
    names = {f"tower{t}": [f"t{t}x{i}" for i in range(tables)] for t in range(n)}
    return {name: rows for some in names.values() for name in some}, names


HOSTS_2X2 = (0, 0, 1, 1)


def hosts_of(families: dict, names: Sequence[str], hosts: Sequence[int]) -> set[int]:
    return {hosts[rank - 10] for name in names for rank in families[name].holders}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_each_group_is_on_one_host_and_whole_where_splits_would_not_help(n: int) -> None:
    rows, groups = towers(n)
    families = place(rows, owners=4, hosts=HOSTS_2X2, groups=groups, replicate_rows=10**9)
    assert all(len(hosts_of(families, names, HOSTS_2X2)) == 1 for names in groups.values())
    assert {family.kind for family in families.values()} == {"table"}
    held = [sum(10 + owner in family.holders for family in families.values()) for owner in range(4)]
    assert max(held) <= 2 * -(-n // 2) and sum(held) == 4 * n, held


def test_what_is_in_no_group_goes_where_groups_leave_room() -> None:
    rows, groups = towers(1)
    rows |= {f"other{i}": 50_000 for i in range(4)}
    families = place(rows, owners=4, hosts=HOSTS_2X2, groups=groups)
    assert {family.kind for family in families.values()} == {"table"}
    assert [sum(10 + owner in family.holders for family in families.values()) for owner in range(4)] == [2, 2, 2, 2]


def test_a_large_table_of_a_group_is_dealt_within_its_host() -> None:
    rows, groups = towers(2, 2)
    rows["t0x0"] = 1_000_000
    families = place(rows, owners=4, hosts=HOSTS_2X2, groups=groups)
    assert families["t0x0"].kind == "row" and len(families["t0x0"].holders) == 2
    assert len(hosts_of(families, groups["tower0"], HOSTS_2X2)) == 1
    whole = place(rows, owners=4, hosts=HOSTS_2X2, groups=groups, whole_bags={"t0x0"})
    assert whole["t0x0"].kind == "table"
    alone = place(rows, owners=2, hosts=(0, 1), groups=groups)
    assert alone["t0x0"].kind == "table"  # of the one owner there is


def test_a_group_follows_its_tables_that_have_owners_and_the_configuration_stands_above_it() -> None:
    rows, groups = towers(2)
    pinned = place(rows, {"t0x0": Placement(kind="table", owners=(3,))}, owners=4, hosts=HOSTS_2X2, groups=groups)
    assert hosts_of(pinned, groups["tower0"], HOSTS_2X2) == {1} and hosts_of(pinned, groups["tower1"], HOSTS_2X2) == {0}
    asked = {"t0x0": Placement(kind="row"), "t0x1": Placement(kind="column"), "t0x2": Placement(kind="row", parts=4)}
    found = place(rows, asked, owners=4, hosts=HOSTS_2X2, groups=groups)
    assert [len(found[name].holders) for name in asked] == [4, 4, 4]
    assert [found[name].kind for name in asked] == ["row", "column", "row"]


def test_groups_that_share_a_table_go_together() -> None:
    rows, groups = towers(4)
    tables, features, lookups = specs(rows)
    lookups = [Lookup(feature=k.feature, table="t0x0" if k.feature == "t3x1" else k.table) for k in lookups]
    families = build_families(
        tables, features, lookups, {}, owners=(10, 11, 12, 13), dense=(20,), replicate_rows=0, hosts=HOSTS_2X2,
        groups=groups,
    )  # fmt: skip
    by_name = {family.name: family for family in families}
    assert hosts_of(by_name, [f for f in (*groups["tower0"], *groups["tower3"]) if f != "t3x1"], HOSTS_2X2) == {0}
    assert hosts_of(by_name, groups["tower1"], HOSTS_2X2) == hosts_of(by_name, groups["tower2"], HOSTS_2X2) == {1}
