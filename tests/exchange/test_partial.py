"""Form ``partial``: operators computed where rows are give what torch gives in one process, in the formula's bytes."""

import contextlib
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec.comm.ledger import describe
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.exchange.exchange import Exchange
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.reduction import Reduction
from hpcrec.exchange.verdict import tellers
from hpcrec.operators import FM2, Block, Folded, Operator, WideSum
from hpcrec.types import Batch, Lookup
from tests.exchange.messages import message_bytes, read
from tests.exchange.test_exchange import (
    FEATURES,
    LOOKUPS,
    STEPS,
    Reference,
    gather_rows,
    global_batch,
    layouts_of,
    part_of,
    tables,
)
from tests.together import on_every_rank

BATCH, WIDTH = 13, 6
DEEP, WIDE = LOOKUPS[:5], LOOKUPS[5:]
KINDS = ("table", "row", "column", "replicate", "mixed")
MIXED = {"user": "row", "item": "column", "tags": "table", "country": "replicate"}
WEIGHTS = tuple(  # of a layer with 2 outputs, where few holders send fewer elements so than vectors
    torch.nn.Parameter(torch.sin(torch.arange(2.0 * WIDTH, dtype=torch.float64) + 7 * i).reshape(WIDTH, 2))
    for i in range(len(DEEP))
)
SETS: dict[str, dict[str, Operator]] = {
    "fm": {"fm2": FM2(lookups=DEEP, width=WIDTH), "wide": WideSum(lookups=WIDE)},
    "two of one": {"a": FM2(lookups=DEEP[:3], width=WIDTH), "b": FM2(lookups=DEEP[1:], width=WIDTH)},
    "deepfm": {
        "block": Block(lookups=DEEP, width=WIDTH),
        "fm2": FM2(lookups=DEEP, width=WIDTH),
        "wide": WideSum(lookups=WIDE),
    },
    "folded": {
        "first": Folded(lookups=DEEP, width=WIDTH, weights=WEIGHTS),
        "fm2": FM2(lookups=DEEP, width=WIDTH),
        "wide": WideSum(lookups=WIDE),
    },
    "labels": {"a": WideSum(lookups=DEEP, width=WIDTH), "fm2": FM2(lookups=DEEP, width=WIDTH)},
    "in part": {"block": Block(lookups=DEEP[3:], width=WIDTH), "fm2": FM2(lookups=DEEP, width=WIDTH)},
}


def layout_of(
    world: World, operators: dict[str, Operator], kind: str, form: str, optimizer: str, one_hot: set
) -> tuple:
    lookups = list(dict.fromkeys(k for o in operators.values() for k in o.lookups))
    read = {k.table for k in lookups}
    specs = {name: spec for name, spec in tables(optimizer).items() if name in read}
    kinds = MIXED if kind == "mixed" else dict.fromkeys(MIXED, kind)
    families = build_families(
        specs,
        FEATURES,
        lookups,
        {name: Placement(kind=kinds[name.split(".")[0]]) for name in specs},
        owners=world.topology.owners,
        dense=world.topology.dense,
        replicate_rows=0,
    )
    return (
        specs,
        families,
        Layout(specs, families, lookups, forms={}, default_form=form, operators=operators, one_hot=one_hot),
    )


def by_torch(
    operators: dict[str, Operator], pooled: list[torch.Tensor], lookups: Sequence[Lookup] = LOOKUPS
) -> list[torch.Tensor]:
    """The same results from pooled vectors of all lookups, in plain torch."""
    results = []
    for operator in operators.values():
        mine = torch.stack([pooled[lookups.index(k)] for k in operator.lookups], 1)
        if isinstance(operator, FM2):
            pairs = itertools.combinations(range(mine.shape[1]), 2)
            results.append(sum(((mine[:, f] * mine[:, g]).sum(1) for f, g in pairs), torch.zeros(len(mine))))
        elif isinstance(operator, Folded):
            results.append(torch.einsum("bfd,fdh->bh", mine, torch.stack(operator.weights)))
        elif isinstance(operator, WideSum):
            results.append(mine.sum(1).squeeze(1) if operator.width == 1 else mine.sum(1).flatten(1))
        else:
            results.append(mine.flatten(1))
    return results


def loss_of(results: list[torch.Tensor], first: int = 0) -> torch.Tensor:
    """Of samples from number ``first`` on, which differ in weight: equal results have gradients of their own."""
    total = torch.zeros((), dtype=torch.float64)
    for i, r in enumerate(results):
        weight_B = 1 + 0.3 * torch.sin(torch.arange(first, first + len(r), dtype=torch.float64))
        total = total + torch.einsum("b,b...->", weight_B, torch.sin(2 * r + i))
    return total


def run(
    world: World,
    operators: dict[str, Operator],
    kind: str,
    form: str,
    optimizer: str,
    batch: int = BATCH,
    prepare: Callable[[MemoryStore], None] = lambda store: None,
    way: str = "dense",
) -> tuple:
    """Results of every step on this rank, rows before (as ``prepare`` left them) and after, and the layout."""
    topology = world.topology
    specs, families, layout = layout_of(world, operators, kind, form, optimizer, {"item", "country"})
    held = [f for f in families if topology.rank in f.holders]
    store = MemoryStore(specs, held, rank=topology.rank, seed=7, dtype=np.float64)
    prepare(store)
    initial = gather_rows(world, store, specs, np.float64)
    exchange = Exchange(
        world,
        layout,
        operators,
        store,
        weighted={"tags"},
        seed=7,
        dtype=np.float64,
        timer=lambda name: contextlib.nullcontext(),
        reduction=Reduction(layout, topology.dense, topology.host_of, way),
    )
    seen = []
    for step in range(STEPS):
        ids, weights = global_batch(step, batch)
        part = None
        if topology.is_dense:
            cuts = np.linspace(0, batch, len(topology.dense) + 1).astype(int)
            start, stop = cuts[topology.dense_index], cuts[topology.dense_index + 1]
            bags, n = part_of(ids, weights, start, stop), stop - start
            part = Batch(0, step, batch, int(start), np.zeros((n, 0)), np.zeros(n), None, bags)
        evaluated = read(exchange, exchange.route(part, train=False))
        route = exchange.route(part, train=True)
        inputs = read(exchange, route)
        found = None
        with on_every_rank():
            for name in () if inputs is None else operators:
                assert torch.equal(evaluated[name], inputs[name]), "an evaluation differs from a step"
        if inputs is not None:
            results = [inputs[name] for name in operators]
            flat = [r.flatten(1) if r.dim() > 1 else r for r in results]
            loss_of(flat, int(start)).backward()
            seen.append((start, stop, [r.detach().numpy().copy() for r in flat]))
            found = inputs.gradients()
        learned = None if found is None else True
        assert exchange.learn(route, found, learned=learned, step=step + 1, lr_scale=1.0)
    return seen, initial, gather_rows(world, store, specs, np.float64), layout


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETS)
def test_equals_torch(name: str, kind: str) -> None:
    comm, operators = MPI.COMM_WORLD, SETS[name]
    optimizers = ("sgd", "rowwise_adagrad", "adam", "adagrad")
    for number, (_, roles) in enumerate(layouts_of(comm.size)):
        optimizer = optimizers[(number + KINDS.index(kind)) % 4]
        world = World(comm, lambda hosts, roles=roles: assign_roles(hosts, **roles))
        seen, initial, rows, _ = run(world, operators, kind, "partial", optimizer)
        every = {n: initial.get(n, np.zeros((s.rows, s.width))) for n, s in tables(optimizer).items()}
        reference = Reference(tables(optimizer), every)
        for step in range(STEPS):
            ids, weights = global_batch(step, BATCH)
            results = by_torch(operators, reference.pooled(ids, weights))
            start, stop, mine = seen[step] if world.topology.is_dense else (0, 0, ())
            with on_every_rank():
                for found, expected in zip(mine, results[: len(mine)], strict=True):
                    np.testing.assert_allclose(found, expected[start:stop].detach().numpy(), rtol=0, atol=1e-12)
            loss_of(results).backward()
            for table in reference.rows.values():
                table.grad = torch.zeros_like(table) if table.grad is None else table.grad
            reference.step(ids, step + 1)
        for table, expected in rows.items():
            wanted = reference.rows[table].detach().numpy()
            np.testing.assert_allclose(expected, wanted, rtol=0, atol=1e-12, err_msg=table)
            assert not np.array_equal(expected, initial[table]), "nothing was learned"
        world.close()


@pytest.mark.parallel([1, 3])
def test_what_stays_at_the_holders() -> None:
    world = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"))

    def stays(name: str, kind: str, form: str = "partial", one_hot: tuple[str, ...] = ()) -> dict[str, list[str]]:
        layout = layout_of(world, SETS[name], kind, form, "sgd", set(one_hot))[2]
        assert all(bool(leg.hidden) == bool(leg.partials) for leg in layout.legs.values())
        kept = {(s.table, leg.entries[s.entry].features[0]) for leg in layout.legs.values() for s in leg.hidden}
        assert kept == {(k.table, k.feature) for some in layout.substituted.values() for k in some}
        assert kept.isdisjoint({(k.table, k.feature) for group in layout.groups for k in group.lookups})
        return {o: [f"{k.feature}/{k.table}" for k in some] for o, some in layout.substituted.items()}

    every = [f"{k.feature}/{k.table}" for k in DEEP]
    wide = ["user/user.wide", "tags/tags.wide"]
    assert stays("fm", "table") == {"fm2": every, "wide": wide}
    assert stays("fm", "row") == {}  # Q of a split bag is not a sum, and its vectors would come of empty bags too
    assert stays("fm", "row", one_hot=("user", "tags")) == {}
    assert stays("fm", "column") == {"fm2": every, "wide": wide}
    assert stays("fm", "replicate") == {}
    assert stays("fm", "mixed") == {"fm2": [every[1], every[2], every[3]], "wide": wide[1:]}
    assert stays("fm", "table", "pooled") == stays("fm", "table", "rows") == {}
    assert stays("deepfm", "table") == {}  # vectors that cross anyway serve FM2 too
    assert stays("deepfm", "table", one_hot=("user",)) == {"wide": wide[:1]}
    if MPI.COMM_WORLD.size == 1:  # 2 + 7 elements cross instead of 30
        assert stays("folded", "table") == {"first": every, "fm2": every, "wide": wide}
        assert stays("folded", "mixed") == stays("fm", "mixed") | {"first": [every[1], every[2], every[3]]}
    else:  # 2 + 3 from each of 3 for columns, but at most 27 from each of 3 with whole tables
        assert stays("folded", "column") == {"first": every, "fm2": every, "wide": wide}
    assert stays("folded", "row") == {}
    assert stays("in part", "table") == {"fm2": every[:3]}
    assert stays("two of one", "table") == {"a": every[:3], "b": every[1:]}
    world.close()


def unit(n_bytes: int) -> int:
    return -(-n_bytes // 64) * 64


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("batch", [BATCH, 2])
def test_ledger_equals_the_formula(batch: int) -> None:
    """P elements a sample and operator at each holder of any of its tables; of a batch of 2 some rank has nothing."""
    operators = SETS["fm"]
    for mode in ("fused", "split"):
        world = World(MPI.COMM_WORLD, lambda hosts, mode=mode: assign_roles(hosts, mode=mode))
        topology = world.topology
        layout = run(world, operators, "table", "partial", "sgd", batch)[3]
        cuts = np.linspace(0, batch, len(topology.dense) + 1).astype(int)
        told = tellers(layout.legs, topology.owners, topology.dense)
        expected = {"ids": 0, "values": 0, "gradients": 0}
        for step, (d, rank) in itertools.product(range(STEPS), enumerate(topology.dense)):
            ids, _ = global_batch(step, batch)
            mine = {f: bags[cuts[d] : cuts[d + 1]] for f, bags in ids.items()}
            n = int(cuts[d + 1] - cuts[d])
            for holder in set(topology.owners) - {rank}:
                features = [
                    f.name
                    for f in FEATURES
                    if any(holder in g.holders and f.name in g.features for g in layout.families)
                ]
                bundles = [form.features for form in layout.bundled()]
                asked = [(b, mine[f]) for b, (f,) in enumerate(bundles) if f in features]
                id_bytes = message_bytes(asked, [f == "tags" for (f,) in bundles], 8)
                has_wide = {"user", "tags"} & set(features)
                elements = n * ((WIDTH + 1 if features else 0) + (1 if has_wide else 0))
                expected["ids"] += unit(id_bytes)
                expected["values"] += unit(8 * elements)
                expected["gradients"] += unit(8 * (elements + (told[holder] == rank)))
        counted = {tag: sum(n.values()) for tag, n in describe(world.total_wire_bytes()).items()}
        assert {tag: counted[tag] for tag in expected} == expected, mode
        world.close()
