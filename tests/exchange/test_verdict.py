"""The verdict on a step: who tells whom, that every codec delivers it, and that a step left out changes nothing."""

import contextlib

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.exchange.exchange import Exchange
from hpcrec.exchange.inputs import Gradients
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.masks import Thresholding
from hpcrec.exchange.verdict import tellers
from hpcrec.types import Batch
from tests.exchange.messages import read
from tests.exchange.test_exchange import FEATURES, LOOKUPS, gather_rows, global_batch, layouts_of, part_of, tables
from tests.together import on_every_rank


def test_each_rank_that_needs_it_is_told_by_one() -> None:
    assert tellers([0, 1, 2], [0, 1, 2], [0, 1, 2]) == {0: 0, 1: 1, 2: 2}
    assert tellers([3, 0, 1], [0, 1], [2, 3]) == {0: 2, 1: 3, 3: 2}
    assert tellers([0], [0, 1, 2], [2, 3]) == {0: 2, 1: 3}  # rank 2 is dense and holds nothing: it has agreed
    assert tellers([], [0], [1]) == {0: 1}


CODECS = {
    "float64": ("fp32", np.float64, None),
    "fp32": ("fp32", np.float32, None),
    "bf16": ("bf16", np.float32, None),
    "fp16": ("fp16", np.float32, None),
    "dct": ("fp16", np.float32, Thresholding(density=0.3, every=2, by_vector=False, evaluates=False)),
}


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("codec", CODECS)
def test_every_rank_hears_it_and_a_step_left_out_changes_nothing(codec: str) -> None:
    """The last dense ranks have no samples, and gradients of a step that is left out are anything."""
    written, dtype, thresholding = CODECS[codec]
    for _, roles in layouts_of(MPI.COMM_WORLD.size):
        for kind in ("table", "row"):
            world = World(MPI.COMM_WORLD, lambda hosts, roles=roles: assign_roles(hosts, **roles))
            topology, specs = world.topology, tables("adagrad")
            where = Placement(kind=kind, owners=(0,) if kind == "table" else None)
            families = build_families(
                specs,
                FEATURES,
                LOOKUPS,
                dict.fromkeys(("user", "item", "tags", "country"), where),
                owners=topology.owners,
                dense=topology.dense,
                replicate_rows=0,
            )
            layout = Layout(specs, families, LOOKUPS, forms={}, default_form="pooled", operators={})
            held = [f for f in families if topology.rank in f.holders]
            store = MemoryStore(specs, held, rank=topology.rank, seed=7, dtype=dtype)
            exchange = Exchange(
                world,
                layout,
                {},
                store if held else None,
                weighted={"tags"},
                seed=7,
                dtype=dtype,
                timer=lambda name: contextlib.nullcontext(),
                codec=written,
                thresholding=thresholding,
            )
            for step, verdict in enumerate((True, False, True, False, False)):
                part, found = None, None
                if topology.is_dense:
                    ids, weights = global_batch(step, 2)
                    start = min(topology.dense_index, 2)
                    n = int(start < 2)
                    bags = part_of(ids, weights, start, start + n)
                    part = Batch(0, step, 2, start, np.zeros((n, 0)), np.zeros(n), None, bags)
                before = gather_rows(world, store, specs, dtype)
                route = exchange.route(part, train=True)
                inputs = read(exchange, route)
                if inputs is not None:
                    leaves = [leaf.detach().numpy() for leaf in inputs.leaves]
                    found = Gradients([np.sin(leaf) if verdict else np.full_like(leaf, np.inf) for leaf in leaves], [])
                told = exchange.learn(
                    route, found, learned=None if found is None else verdict, step=step + 1, lr_scale=1.0
                )
                after = gather_rows(world, store, specs, dtype)
                with on_every_rank():
                    assert told == verdict, (roles, kind, step)
                    changed = any(not np.array_equal(before[t], after[t], equal_nan=True) for t in specs)
                    assert changed == verdict, (roles, kind, step)
            world.close()
