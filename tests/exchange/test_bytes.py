"""The formulas in the exchange's docstrings, held to what the ledger counts; and the ids message itself."""

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.comm.ledger import describe
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.exchange.wire import Piece, cumulative, encode, read_header
from tests.exchange.test_exchange import FEATURES, LOOKUPS, STEPS, global_batch, run, tables

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
    for step in range(STEPS):
        ids, _ = global_batch(step, BATCH)
        for d, rank in enumerate(topology.dense):
            mine = {f: bags[cuts[d] : cuts[d + 1]] for f, bags in ids.items()}
            for holder in set(topology.owners if kind == "table" else topology.dense) - {rank}:
                # kind "table": every table is put on owner 0; "replicate": every dense rank has every table
                if kind == "table" and holder != topology.owners[0]:
                    continue
                entries = [("user",), ("item",), ("history",), ("tags",), ("country",)]
                if form == "rows":
                    entries = [("user",), ("item", "history"), ("tags",), ("country",)]
                id_bytes, value_bytes = 16 * len(entries), 0
                for features in entries:
                    bags = [bag for f in features for bag in mine[f] if len(bag)]
                    n_ids = sum(len(bag) for bag in bags)
                    n_vectors = len(bags)
                    if form == "rows":
                        n_ids = n_vectors = len({int(i) for bag in bags for i in bag})
                    id_bytes += 8 * n_ids + (4 * n_vectors if n_vectors != n_ids else 0)
                    id_bytes += ITEM * n_ids if features == ("tags",) and form == "pooled" else 0
                    value_bytes += n_vectors * ITEM * sum(specs[t].width for t in tables_of[features[0]])
                total["ids"] += unit(id_bytes)
                total["values"] += 0 if kind == "replicate" else unit(value_bytes)
                total["gradients"] += unit(value_bytes)
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


def test_message_round_trip() -> None:
    rng = np.random.default_rng(0)
    multi = Piece(rng.integers(0, 99, 6), np.array([1, 3, 2]), None)
    weighted = Piece(rng.integers(0, 99, 4), np.array([4]), rng.random(4).astype(np.float32))
    single = Piece(rng.integers(0, 99, 3), None, None)
    empty = Piece(np.zeros(0, np.int64), None, None)
    pieces = [multi, weighted, empty, single]
    raw = np.frombuffer(b"".join(bytes(part) for part in encode(pieces)), np.uint8)
    assert len(raw) == 16 * 4 + 8 * 13 + 4 * 4 + 4 * 4
    before = np.zeros(64, np.uint8)  # another rank's message
    received = np.concatenate([before, raw, np.zeros(40, np.uint8)])
    header = read_header(received, 64, len(received), np.array([0, 1, 0, 0], bool), 4)
    assert header.n_bags.tolist() == [3, 1, 0, 3]
    for entry, piece in enumerate(pieces):
        ids_at, n_ids, lengths_at, n_bags = header.places_EX[entry].tolist()
        assert (n_ids, n_bags) == (len(piece.rows), piece.n_bags)
        np.testing.assert_array_equal(received[ids_at : ids_at + 8 * n_ids].view(np.int64), piece.rows)
        assert (lengths_at >= 0) == (n_ids != n_bags)
        if lengths_at >= 0:
            np.testing.assert_array_equal(received[lengths_at : lengths_at + 4 * n_bags].view("i4"), piece.lengths)
        wanted = np.ones(n_ids) if piece.weights is None else piece.weights
        np.testing.assert_array_equal(header.weights(received, entry, np.dtype("f4")), wanted)
    with pytest.raises(AssertionError, match="shorter than its header"):
        read_header(received, 64, 64 + len(raw) - 8, np.array([0, 1, 0, 0], bool), 4)


def test_cumulative() -> None:
    assert cumulative(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert cumulative(np.array([2, 0, 3]), 7).tolist() == [7, 9, 9, 12]
