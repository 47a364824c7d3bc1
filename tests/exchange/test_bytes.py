"""The formulas in the exchange's docstrings, held to what the ledger counts."""

import numpy as np
import pytest
from mpi4py import MPI

import hpcrec.comm.world as world_module
from hpcrec import kernels
from hpcrec.comm.ledger import describe
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.exchange.bags import cumulative
from tests.exchange.messages import message_bytes
from tests.exchange.test_exchange import FEATURES, LOOKUPS, STEPS, global_batch, layouts_of, run, tables

WIDTH, ITEM, BATCH = 6, 8, 13


def unit(n_bytes: int) -> int:
    return -(-n_bytes // 64) * 64


def expected(world: World, form: str, kind: str) -> dict[str, int]:
    """Bytes that all ranks send in ``run``, from the formulas alone."""
    topology = world.topology
    tables_of = {f.name: [k.table for k in LOOKUPS if k.feature == f.name] for f in FEATURES}
    specs = tables("sgd")
    total = {"ids": 0, "values": 0, "gradients": 0, "control": STEPS * 32 * topology.size * (topology.size - 1)}
    cuts = np.linspace(0, BATCH, len(topology.dense) + 1).astype(int)
    holders = topology.owners[:1] if kind == "table" else topology.dense
    idle = sorted(set(topology.owners) - set(topology.dense) - set(holders))
    teller = {h: topology.dense[j % len(topology.dense)] for j, h in enumerate((*holders, *idle))}
    for step in range(STEPS):
        ids, _ = global_batch(step, BATCH)
        for d, rank in enumerate(topology.dense):
            mine = {f: bags[cuts[d] : cuts[d + 1]] for f, bags in ids.items()}
            total["gradients"] += sum(unit(ITEM) for owner in idle if teller[owner] == rank)
            for holder in set(topology.owners if kind == "table" else topology.dense) - {rank}:
                # kind "table": every table is put on owner 0; "replicate": every dense rank has every table
                if kind == "table" and holder != topology.owners[0]:
                    continue
                entries = [("user",), ("item",), ("history",), ("tags",), ("country",)]
                if form == "rows":
                    entries = [("user",), ("item", "history"), ("tags",), ("country",)]
                asked, value_bytes = [], 0
                for bundle, features in enumerate(entries):
                    bags = [bag for f in features for bag in mine[f] if len(bag)]
                    if form == "rows":
                        bags = [[i] for i in sorted({int(i) for bag in bags for i in bag})]
                    asked.append((bundle, bags))
                    value_bytes += len(bags) * ITEM * sum(specs[t].width for t in tables_of[features[0]])
                weighs = [features == ("tags",) and form == "pooled" for features in entries]
                total["ids"] += unit(message_bytes(asked, weighs, ITEM))
                total["values"] += 0 if kind == "replicate" else unit(value_bytes)
                total["gradients"] += unit(value_bytes + ITEM * (teller[holder] == rank))
    return total


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize(("form", "kind"), [("pooled", "table"), ("rows", "table"), ("rows", "replicate")])
def test_ledger_equals_formulas(form: str, kind: str) -> None:
    for mode in ("fused", "split"):
        world = World(MPI.COMM_WORLD, lambda hosts, mode=mode: assign_roles(hosts, mode=mode))
        placement = {"table": "first", "replicate": "replicate"}[kind]
        run(world, "sgd", placement, form, np.float64, BATCH)
        counted = {tag: sum(n.values()) for tag, n in describe(world.total_wire_bytes()).items()}
        for tag, n_bytes in expected(world, form, kind).items():
            assert counted[tag] == n_bytes, (mode, tag)
        assert counted["dense"] == 0
        world.close()


def expected_messages(world: World, kind: str) -> dict[str, dict[str, int]]:
    """Messages that all ranks send in ``run`` of batches in which every dense rank asks something of every holder."""
    topology = world.topology
    owners, dense, ranks = topology.owners, topology.dense, range(topology.size)
    holders = {"first": owners[:1], "row": owners, "replicate": dense}[kind]
    asked = [(d, h) for d in dense for h in holders if d != h]
    told = [(dense[j % len(dense)], h) for j, h in enumerate((*holders, *sorted({*owners} - {*dense} - {*holders})))]
    sent = {
        "ids": asked,
        "values": [] if kind == "replicate" else [(h, d) for d, h in asked],
        "gradients": {*asked, *((d, h) for d, h in told if d != h)},
        "control": [(a, b) for a in ranks for b in ranks if a != b],
        "dense": [],
    }
    cross = {tag: sum(topology.host_of[a] != topology.host_of[b] for a, b in of) for tag, of in sent.items()}
    return {t: {"same_host": STEPS * (len(of) - cross[t]), "cross_host": STEPS * cross[t]} for t, of in sent.items()}


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["first", "row", "replicate"])
def test_messages_are_those_of_the_layout(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One to each holder that is asked, one back, one with gradients, which owners that are asked nothing get too."""
    comm = MPI.COMM_WORLD
    for hosts in ((0,) * comm.size, tuple(rank % 2 for rank in range(comm.size))):
        monkeypatch.setattr(world_module, "hosts_of", lambda comm, hosts=hosts: hosts)
        for name, roles in layouts_of(comm.size):
            world = World(comm, lambda hosts, roles=roles: assign_roles(hosts, **roles), windows=False)
            run(world, "sgd", kind, "pooled", np.float64, 200)
            counted, wanted = describe(world.total_wire_messages()), expected_messages(world, kind)
            for tag, messages in wanted.items():
                assert counted[tag] == messages, (name, tag)
            if kind == "first" and name == "split" and comm.size == 4:  # dense ranks 2 and 3, owner 1 is only told
                assert [sum(counted[tag].values()) for tag in ("ids", "values", "gradients")] == [6, 6, 9]
            world.close()


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("form", ["pooled", "rows"])
def test_codings_change_no_bit(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ids to ranks of this host are written, and as those to other hosts, of which tables are made if they pay."""
    comm, found, asked_far = MPI.COMM_WORLD, [], []
    plan = kernels.plan_requests

    def planned(ids, lengths, cells, far, weighted, item):
        asked_far.append(bool(far.any()))
        return plan(ids, lengths, cells, far, weighted, item)

    monkeypatch.setattr(kernels, "plan_requests", planned)
    for hosts in (lambda comm: (0,) * comm.size, lambda comm: tuple(range(comm.size))):
        monkeypatch.setattr(world_module, "hosts_of", hosts)
        world = World(comm, lambda hosts: assign_roles(hosts, mode="fused"), windows=False)
        seen, rows, _ = run(world, "rowwise_adagrad", "mixed", form, np.float32, 6000)
        leaves = [leaf.tobytes() for _, _, some in seen for leaf in some]
        found.append((leaves, {n: r.tobytes() for n, r in rows.items()}))
        world.close()
    assert found[0] == found[1]
    assert set(asked_far) == {comm.size > 1, False}


def test_cumulative() -> None:
    assert cumulative(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert cumulative(np.array([2, 0, 3]), 7).tolist() == [7, 9, 9, 12]
