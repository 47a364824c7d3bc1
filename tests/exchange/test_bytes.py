"""The formulas in the exchange's docstrings, held to what the ledger counts."""

from collections.abc import Sequence

import numpy as np
import pytest
from mpi4py import MPI

import hpcrec.comm.world as world_module
from hpcrec.comm.ledger import describe
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.exchange import ask
from hpcrec.exchange.wire import Coded, Piece, compact, cumulative, entry_bytes, plain
from tests.exchange.coded import as_table
from tests.exchange.test_exchange import FEATURES, LOOKUPS, STEPS, global_batch, run, tables

WIDTH, ITEM, BATCH = 6, 8, 13


def unit(n_bytes: int) -> int:
    return -(-n_bytes // 64) * 64


def piece_of(bags: Sequence[Sequence[int]], *, weighted: bool) -> Piece:
    """What a holder of all rows is asked: its bytes do not depend on the values of weights."""
    lengths = np.array([len(bag) for bag in bags], np.int64)
    rows = np.array([i for bag in bags for i in bag], np.int64)
    return Piece(rows, None if (lengths == 1).all() else lengths, np.ones(len(rows)) if weighted else None)


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
                id_bytes = value_bytes = 0
                for features in entries:
                    bags = [bag for f in features for bag in mine[f] if len(bag)]
                    if form == "rows":
                        bags = [[i] for i in sorted({int(i) for bag in bags for i in bag})]
                    piece = piece_of(bags, weighted=features == ("tags",) and form == "pooled")
                    id_bytes += entry_bytes(piece, far=False)
                    value_bytes += len(bags) * ITEM * sum(specs[t].width for t in tables_of[features[0]])
                total["ids"] += unit(id_bytes)
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


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("form", ["pooled", "rows"])
def test_codings_change_no_bit(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain, as it is chosen, and as tables of distinct ids to every other rank, each on a host of its own."""
    comm, found, asked_far = MPI.COMM_WORLD, [], []

    def tables_afar(piece: Piece, *, far: bool) -> Coded:
        asked_far.append(far)
        return as_table(piece) if far else compact(piece, far=False)

    for way in (lambda piece, far: plain(piece), compact, tables_afar):
        monkeypatch.setattr(ask, "compact", way)
        if way is tables_afar:
            monkeypatch.setattr(world_module, "hosts_of", lambda comm: tuple(range(comm.size)))
        world = World(comm, lambda hosts: assign_roles(hosts, mode="fused"), windows=False)
        seen, rows, _ = run(world, "rowwise_adagrad", "mixed", form, np.float32, 40)
        leaves = [leaf.tobytes() for _, _, some in seen for leaf in some]
        found.append((leaves, {n: r.tobytes() for n, r in rows.items()}))
        world.close()
    assert found[0] == found[1] == found[2]
    assert set(asked_far) == {True, False} if comm.size > 1 else {False}


def test_cumulative() -> None:
    assert cumulative(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert cumulative(np.array([2, 0, 3]), 7).tolist() == [7, 9, 9, 12]
