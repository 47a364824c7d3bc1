"""The exchange against torch's embedding_bag on the global batch: every form, shard, role split and optimizer."""

import contextlib
import itertools
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch.nn import functional

from hpcrec import kernels
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.exchange.exchange import Exchange
from hpcrec.exchange.inputs import Gradients
from hpcrec.exchange.layout import Layout
from hpcrec.types import Bags, Batch, Feature, Lookup, OptimizerSpec, TableSpec
from tests.devices import device_or_skip
from tests.exchange.messages import read
from tests.together import on_every_rank

FEATURES = (
    Feature(name="user", cardinality=50),
    Feature(name="item", cardinality=30),
    Feature(name="history", cardinality=30, mean_ids=3.0),
    Feature(name="tags", cardinality=17, mean_ids=2.0, weighted=True),
    Feature(name="country", cardinality=3),
)
# item and history share a table; user and tags each feed a wide table besides their own
LOOKUPS = (
    Lookup(feature="user", table="user"),
    Lookup(feature="item", table="item"),
    Lookup(feature="history", table="item", pooling="mean"),
    Lookup(feature="tags", table="tags"),
    Lookup(feature="country", table="country"),
    Lookup(feature="user", table="user.wide"),
    Lookup(feature="tags", table="tags.wide"),
)
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
STEPS = 3


def tables(optimizer: str, width: int = 6) -> dict[str, TableSpec]:
    spec = OptimizerSpec(name=optimizer, lr=0.1, initial_accumulator=0.05)
    rows = {"user": 50, "item": 30, "tags": 17, "country": 3}
    out = {n: TableSpec(name=n, rows=r, width=width, init_scale=0.5, optimizer=spec) for n, r in rows.items()}
    for n in ("user", "tags"):
        out[f"{n}.wide"] = TableSpec(name=f"{n}.wide", rows=rows[n], width=1, init_scale=0.5, optimizer=spec)
    return out


def global_batch(step: int, size: int) -> tuple[dict[str, list[np.ndarray]], np.ndarray]:
    """Ids of each sample by feature, and weights of the tags."""
    rng = np.random.default_rng(100 + step)
    ids = {}
    for feature in FEATURES:
        one = feature.mean_ids == 1.0
        lengths = np.ones(size, int) if one else rng.integers(0, 6, size)
        if feature.name == "user":
            lengths = rng.integers(0, 2, size)  # sometimes missing
        ids[feature.name] = [rng.integers(0, feature.cardinality, n) for n in lengths]
    weights = rng.uniform(0.5, 2.0, sum(len(x) for x in ids["tags"]))
    return ids, weights


def part_of(ids: dict[str, list[np.ndarray]], weights: np.ndarray, start: int, stop: int) -> Bags:
    columns, lengths, all_weights = [], [], []
    before = sum(len(x) for x in ids["tags"][:start])
    for feature in FEATURES:
        mine = ids[feature.name][start:stop]
        columns.append(np.concatenate([*mine, np.zeros(0, np.int64)]).astype(np.int64))
        lengths += [len(x) for x in mine]
        count = len(columns[-1])
        all_weights.append(weights[before : before + count] if feature.name == "tags" else np.ones(count))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    names = tuple(f.name for f in FEATURES)
    return Bags(names, np.concatenate(columns), offsets, np.concatenate(all_weights))


class Reference:
    """The same tables in one process: torch tensors, float64."""

    def __init__(self, specs: dict[str, TableSpec], rows: dict[str, np.ndarray]) -> None:
        self.specs = specs
        self.rows = {n: torch.tensor(r, requires_grad=True) for n, r in rows.items()}
        self.state: dict[str, dict[str, torch.Tensor]] = {n: {} for n in rows}

    def pooled(self, ids: dict[str, list[np.ndarray]], weights: np.ndarray) -> list[torch.Tensor]:
        out = []
        for lookup in LOOKUPS:
            bags = ids[lookup.feature]
            flat = torch.tensor(np.concatenate([*bags, np.zeros(0, np.int64)]), dtype=torch.int64)
            offsets = torch.tensor(np.concatenate([[0], np.cumsum([len(b) for b in bags])[:-1]]), dtype=torch.int64)
            w = torch.tensor(weights) if lookup.feature == "tags" else None
            out.append(
                functional.embedding_bag(
                    flat, self.rows[lookup.table], offsets, mode=lookup.pooling, per_sample_weights=w
                )
            )
        return out

    def step(self, ids: dict[str, list[np.ndarray]], number: int) -> None:
        for name, rows in self.rows.items():
            feats = [k.feature for k in LOOKUPS if k.table == name]
            touched = sorted({int(i) for f in feats for bag in ids[f] for i in bag})
            g = rows.grad[touched]
            spec, state = self.specs[name].optimizer, self.state[name]
            with torch.no_grad():
                if spec.name == "sgd":
                    rows[touched] -= spec.lr * g
                elif spec.name in ("adagrad", "rowwise_adagrad"):
                    shape = rows.shape if spec.name == "adagrad" else rows.shape[:1]
                    acc = state.setdefault("acc", torch.full(shape, spec.initial_accumulator, dtype=torch.float64))
                    acc[touched] += g * g if spec.name == "adagrad" else (g * g).mean(1)
                    denominator = acc[touched].sqrt() + spec.eps
                    rows[touched] -= spec.lr * g / (denominator if spec.name == "adagrad" else denominator[:, None])
                else:
                    m = state.setdefault("m", torch.zeros_like(rows))
                    v = state.setdefault("v", torch.zeros_like(rows))
                    m[touched] += (1 - spec.beta1) * (g - m[touched])
                    v[touched] += (1 - spec.beta2) * (g * g - v[touched])
                    size = spec.lr * (1 - spec.beta2**number) ** 0.5 / (1 - spec.beta1**number)
                    rows[touched] -= size * m[touched] / (v[touched].sqrt() + spec.eps)
            rows.grad = None


Ran = tuple[list, dict, dict]


def run(world: World, *how: Any, **more: Any) -> Ran:
    """``steps_of``, all of them."""
    return in_turn(steps_of(world, *how, **more))[0]


def in_turn(*running: Generator[None, None, Ran]) -> list[Ran]:
    """What several return, of each of which a step is taken, then of each the next."""
    found: dict[int, Ran] = {}
    while len(found) < len(running):
        for number, one in enumerate(running):
            try:
                if number not in found:
                    next(one)
            except StopIteration as ended:
                found[number] = ended.value
    return [found[number] for number in range(len(running))]


def steps_of(
    world: World,
    optimizer: str,
    kind: str,
    form: str,
    dtype: type,
    batch: int = 13,
    device: kernels.Device | None = None,
) -> Generator[None, None, Ran]:
    """Leaves of every step on this rank, rows of every table gathered everywhere, and the initial rows."""
    specs = tables(optimizer)
    topology = world.topology
    place = {"mixed": {"user": "row", "item": "column", "tags": "table", "country": "replicate"}}.get(
        kind, dict.fromkeys(("user", "item", "tags", "country"), kind)
    )
    families = build_families(
        specs,
        FEATURES,
        LOOKUPS,
        {n: Placement(kind="table", owners=(0,)) if k == "first" else Placement(kind=k) for n, k in place.items()},
        owners=topology.owners,
        dense=topology.dense,
        replicate_rows=0,
    )
    layout = Layout(specs, families, LOOKUPS, forms={}, default_form=form, operators={})
    held = [f for f in families if topology.rank in f.holders]
    store = MemoryStore(specs, held, rank=topology.rank, seed=7, dtype=dtype, device=device)
    initial = gather_rows(world, store, specs, dtype)
    exchange = Exchange(
        world, layout, {}, store, weighted={"tags"}, seed=7, dtype=dtype, timer=lambda name: contextlib.nullcontext()
    )
    seen = []
    for step in range(STEPS):
        ids, weights = global_batch(step, batch)
        part, leaves = None, None
        if topology.is_dense:
            cuts = np.linspace(0, batch, len(topology.dense) + 1).astype(int)
            start, stop = cuts[topology.dense_index], cuts[topology.dense_index + 1]
            bags = part_of(ids, weights, start, stop)
            n = stop - start
            part = Batch(0, step, batch, int(start), np.zeros((n, 0)), np.zeros(n), None, bags)
        route = exchange.route(part, train=True)
        assert route.total_weight == batch
        inputs = read(exchange, route)
        leaves = None if inputs is None else [leaf.detach().numpy() for leaf in inputs.leaves]
        if leaves is not None:
            seen.append((start, stop, [leaf.copy() for leaf in leaves]))
            gradients = [np.sin(3 * leaf) + 0.1 for leaf in leaves]
        found = None if leaves is None else Gradients(gradients, [])
        learned = None if leaves is None else True
        found = exchange.push(route, found, learned=learned)
        assert exchange.learn(route, found, learned=learned, step=step + 1, lr_scale=1.0)
        yield
    return seen, gather_rows(world, store, specs, dtype), initial


def gather_rows(world: World, store: MemoryStore, specs: dict[str, TableSpec], dtype: type) -> dict[str, np.ndarray]:
    mine = {t: [(i.copy(), r.copy(), store.place(t)[1].columns) for i, r, _ in store.export(t)] for t in store.tables}
    out = {n: np.full((s.rows, s.width), np.nan, dtype) for n, s in specs.items()}
    for theirs in world.main.allgather(mine):
        for name, blocks in theirs.items():
            for ids, rows, (start, stop) in blocks:
                out[name][ids, start:stop] = rows
    return out


def layouts_of(size: int) -> list[tuple[str, dict]]:
    choices = [("fused", {"mode": "fused"})]
    if size > 1:
        choices.append(("split", {"mode": "split"}))
        choices.append(("overlap", {"mode": "split", "owners": size, "dense": 1}))
    if size > 2:
        choices.append(("one owner", {"mode": "split", "owners": 1}))
        choices.append(("one dense", {"mode": "split", "dense": 1}))
    return choices


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("form", ["pooled", "rows"])
def test_windows_change_no_bit_and_no_byte(form: str) -> None:
    comm = MPI.COMM_WORLD
    for _, roles in layouts_of(comm.size):
        found = []
        for windows in (True, False):
            world = World(comm, lambda hosts, roles=roles: assign_roles(hosts, **roles), windows=windows)
            assert (world.main.without_windows == "") == windows
            seen, rows, _ = run(world, "rowwise_adagrad", "mixed", form, np.float32)
            leaves = [leaf.tobytes() for _, _, some in seen for leaf in some]
            found.append((leaves, {n: r.tobytes() for n, r in rows.items()}, world.total_wire_bytes().tolist()))
            world.close()
        assert found[0] == found[1], roles


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["table", "row", "column", "replicate", "mixed"])
@pytest.mark.parametrize("form", ["pooled", "rows"])
def test_equals_embedding_bag(kind: str, form: str) -> None:
    comm = MPI.COMM_WORLD
    for (_, roles), optimizer in itertools.product(layouts_of(comm.size), OPTIMIZERS):
        world = World(comm, lambda hosts, roles=roles: assign_roles(hosts, **roles))
        with_reference(optimizer, *run(world, optimizer, kind, form, np.float64))
        world.close()


def with_reference(optimizer: str, seen: list, rows: dict, initial: dict) -> None:
    """Holds a run in float64 to the reference; collective over the ranks of the test."""
    reference = Reference(tables(optimizer), initial)
    assert not any(np.isnan(r).any() for r in initial.values())
    for step in range(STEPS):
        ids, weights = global_batch(step, 13)
        pooled = reference.pooled(ids, weights)
        total = sum((torch.cos(3 * p) / -3 + 0.1 * p).sum() for p in pooled)
        start, stop, leaves = seen[step] if seen else (0, 0, ())
        wide = [p for p, k in zip(pooled, LOOKUPS, strict=True) if k.table.endswith("wide")]
        deep = [p for p, k in zip(pooled, LOOKUPS, strict=True) if not k.table.endswith("wide")]
        with on_every_rank():
            for leaf, group in zip(leaves, (deep, wide)[: len(leaves)], strict=True):
                expected = torch.stack(group, 1)[start:stop].detach().numpy()
                np.testing.assert_allclose(leaf, expected, rtol=0, atol=1e-12)
        total.backward()
        reference.step(ids, step + 1)
    for name, expected in reference.rows.items():
        np.testing.assert_allclose(rows[name], expected.detach().numpy(), rtol=0, atol=1e-12, err_msg=name)
        assert not np.array_equal(rows[name], initial[name]), "nothing was learned"


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("form", ["pooled", "rows"])
@pytest.mark.parametrize("name", ["emulated", "cuda"])
def test_rows_in_a_device_give_the_same_bits(name: str, form: str) -> None:
    device = device_or_skip(name)
    comm, optimizers = MPI.COMM_WORLD, itertools.cycle(OPTIMIZERS)
    for (_, roles), kind in itertools.product(layouts_of(comm.size), ["table", "row", "column", "replicate", "mixed"]):
        optimizer, found = next(optimizers), []
        for where in (None, device):
            world = World(comm, lambda hosts, roles=roles: assign_roles(hosts, **roles))
            seen, rows, initial = run(world, optimizer, kind, form, np.float32, device=where)
            leaves = [leaf.tobytes() for _, _, some in seen for leaf in some]
            found.append((leaves, *({n: r.tobytes() for n, r in some.items()} for some in (rows, initial))))
            world.close()
        assert found[0] == found[1], (roles, kind, optimizer)
