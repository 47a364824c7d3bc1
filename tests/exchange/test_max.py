"""Pooling by max: under every form, shard and role split what a segment max in plain torch gives, ties included."""

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec import kernels
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.embedding.shards import Family
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.errors import ConfigError
from hpcrec.operators import FM2, Block, Operator, WideSum
from hpcrec.types import Lookup
from tests.exchange.test_exchange import STEPS, Reference, global_batch, layouts_of, tables
from tests.exchange.test_partial import BATCH, WIDTH, by_torch, layout_of, loss_of, run
from tests.reference import segment_max
from tests.together import on_every_rank

# history shares its table with item, which is added; tags have weights
LOOKUPS = (
    Lookup(feature="user", table="user", pooling="max"),
    Lookup(feature="item", table="item"),
    Lookup(feature="history", table="item", pooling="max"),
    Lookup(feature="tags", table="tags"),
    Lookup(feature="country", table="country", pooling="max"),
    Lookup(feature="user", table="user.wide", pooling="max"),
    Lookup(feature="tags", table="tags.wide"),
)
DEEP, WIDE = LOOKUPS[:5], LOOKUPS[5:]
SETS: dict[str, dict[str, Operator]] = {
    "block": {"block": Block(lookups=DEEP, width=WIDTH), "wide": WideSum(lookups=WIDE)},
    "fm": {"fm2": FM2(lookups=DEEP, width=WIDTH), "wide": WideSum(lookups=WIDE)},
    "nothing added": {"block": Block(lookups=(LOOKUPS[2], LOOKUPS[4]), width=WIDTH)},
    "labels": {"sum": WideSum(lookups=DEEP, width=WIDTH)},
}
KINDS = ("table", "row", "column", "replicate", "mixed")
OPTIMIZERS = ("sgd", "rowwise_adagrad", "adam", "adagrad")


def coarse(store: MemoryStore) -> None:
    """Rows of five values, most of them negative: bags have equal rows, and zeros would win where they must not.

    No sum of a few of them is zero, for what is left of one in floating point would be a direction for Adam.
    """
    for held in store.held:
        held.rows[:] = np.round(4 * held.rows) / 16 - 0.07


class MaxReference(Reference):
    """As of ``test_exchange``, over ``LOOKUPS``; of dealt ``families`` a bag's parts come one after the other."""

    def pooled(
        self, ids: dict[str, list[np.ndarray]], weights: np.ndarray, families: tuple[Family, ...] = ()
    ) -> list[torch.Tensor]:
        dealt = {f: family for family in families if family.kind == "row" for f in family.features}
        found = []
        for lookup in LOOKUPS:
            bags = ids[lookup.feature]
            if lookup.pooling == "max" and lookup.feature in dealt:
                bags = [bag[np.argsort(part_of_ids(bag, dealt[lookup.feature]), kind="stable")] for bag in bags]
            flat = torch.tensor(np.concatenate([*bags, np.zeros(0, np.int64)]), dtype=torch.int64)
            offsets = torch.tensor(np.cumsum([0, *(len(b) for b in bags)]))
            if lookup.pooling == "max":
                found.append(segment_max(self.rows[lookup.table], flat, offsets))
                continue
            w = torch.tensor(weights) if lookup.feature == "tags" else None
            found.append(
                torch.nn.functional.embedding_bag(
                    flat, self.rows[lookup.table], offsets[:-1], mode="sum", per_sample_weights=w
                )
            )
        return found


def part_of_ids(ids: np.ndarray, family: Family) -> np.ndarray:
    return kernels.permute(ids.astype(np.int64), family.rows, 0) % family.row_parts


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["pooled", "rows", "partial"])
def test_equals_torch(form: str, kind: str) -> None:
    for number, (_, roles) in enumerate(layouts_of(MPI.COMM_WORLD.size)):
        world = World(MPI.COMM_WORLD, lambda hosts, roles=roles: assign_roles(hosts, **roles))
        for operators in list(SETS.values())[number % 2 :: 2 if number else 1]:  # fused: all
            check(world, operators, kind, form, OPTIMIZERS[(number + KINDS.index(kind)) % 4])
        world.close()


def check(world: World, operators: dict[str, Operator], kind: str, form: str, optimizer: str) -> None:
    seen, initial, rows, layout = run(world, operators, kind, form, optimizer, prepare=coarse)
    every = {n: initial.get(n, np.zeros((s.rows, s.width))) for n, s in tables(optimizer).items()}
    reference = MaxReference(tables(optimizer), every)
    families = () if form == "rows" else layout.families
    for step in range(STEPS):
        ids, weights = global_batch(step, BATCH)
        results = by_torch(operators, reference.pooled(ids, weights, families), LOOKUPS)
        start, stop, mine = seen[step] if world.topology.is_dense else (0, 0, ())
        with on_every_rank():
            for found, expected in zip(mine, results[: len(mine)], strict=True):
                np.testing.assert_allclose(found, expected[start:stop].detach().numpy(), rtol=0, atol=1e-12)
        loss_of(results).backward()
        for table in reference.rows.values():
            table.grad = torch.zeros_like(table) if table.grad is None else table.grad
        touch(reference, operators, ids, step + 1)
    for table, found in rows.items():
        wanted = reference.rows[table].detach().numpy()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12, err_msg=table)
        assert not np.array_equal(found, initial[table]), "nothing was learned"


def touch(reference: Reference, operators: dict[str, Operator], ids: dict[str, list[np.ndarray]], step: int) -> None:
    """One step of the rows of all ids that are read, the ids that won nothing too."""
    read = {k.feature for o in operators.values() for k in o.lookups}
    reference.step({f: bags if f in read else [bag[:0] for bag in bags] for f, bags in ids.items()}, step)


@pytest.mark.parallel([1, 2, 3, 4])
def test_the_first_of_equal_rows_learns() -> None:
    """All rows equal: the gradient of a bag goes to its first id, of dealt rows to the first at the first owner."""
    operators = {"block": Block(lookups=(LOOKUPS[2],), width=WIDTH)}
    for kind, form in (("table", "pooled"), ("row", "pooled"), ("row", "rows"), ("column", "rows")):
        world = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"))

        def flat(store: MemoryStore) -> None:
            for held in store.held:
                held.rows[:] = -1

        _, initial, rows, layout = run(world, operators, kind, form, "sgd", prepare=flat)
        assert (initial["item"] == -1).all()
        first = []
        for bag in global_batch(0, BATCH)[0]["history"]:
            parts = part_of_ids(bag, layout.families[0]) if (kind, form) == ("row", "pooled") else np.zeros(len(bag))
            first += bag[np.argsort(parts, kind="stable")][:1].tolist()
        asked = [bag for step in range(STEPS) for bag in global_batch(step, BATCH)[0]["history"]]
        never = set(range(30)) - {int(i) for bag in asked for i in bag}
        moved = set(np.flatnonzero((rows["item"] != -1).any(1)).tolist())
        assert set(first) <= moved
        assert moved.isdisjoint(never)
        world.close()


@pytest.mark.parallel([1, 3])
def test_what_stays_at_the_holders() -> None:
    world = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"))

    def stays(kind: str) -> dict[str, tuple[Lookup, ...]]:
        layout = layout_of(world, SETS["labels"], kind, "partial", "sgd", {"item", "country"})[2]
        return dict(layout.substituted)

    assert stays("table") == stays("column") == {"sum": DEEP}
    # parts of a bag cannot be added, so what is dealt crosses as under pooled; item may stay beside history
    assert stays("row") == {"sum": (DEEP[1], DEEP[3])}
    assert stays("replicate") == {}
    world.close()


@pytest.mark.parallel([1])
def test_one_pooling_a_feature() -> None:
    world = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"))
    added = Lookup(feature="user", table="user.wide")
    operators = {"a": Block(lookups=LOOKUPS[:1], width=WIDTH), "b": WideSum(lookups=(added,))}
    with pytest.raises(ConfigError, match=r"'user' is pooled both by max and by sum\. Use one pooling a feature"):
        layout_of(world, operators, "table", "pooled", "sgd", set())
    world.close()
