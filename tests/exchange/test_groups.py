"""An exchange among the ranks of a group: side by side with another group's, and with one of all ranks between."""

from collections.abc import Sequence

import numpy as np
import pytest
from mpi4py import MPI

import hpcrec.comm.world as world_module
from hpcrec.comm.ledger import describe
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import RoleRule, World
from tests.exchange.test_bytes import expected, expected_messages
from tests.exchange.test_exchange import Ran, in_turn, layouts_of, run, steps_of, with_reference
from tests.together import on_every_rank

SIDE_BY_SIDE = {  # two groups each, in whose order ranks are numbered
    2: [((0,), (1,))],
    3: [((0,), (1, 2)), ((0, 2), (1,)), ((2, 1), (0,))],
    4: [((0,), (1, 2, 3)), ((0, 2), (1, 3)), ((3, 0), (1, 2))],
}


def of_roles(roles: dict) -> RoleRule:
    return lambda host_of: assign_roles(host_of, **roles)


def fused(host_of: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return assign_roles(host_of, mode="fused")


def group_of(outer: World, groups: Sequence[tuple[int, ...]], which: int, windows: bool = True) -> tuple[World, str]:
    """The world of this rank's group and the name of its roles, of which it has number ``which`` that there is."""
    mine = None
    for number, ranks in enumerate(groups):
        name, roles = (every := layouts_of(len(ranks)))[which % len(every)]
        world = outer.among(ranks, of_roles(roles), name=f"group {number}", windows=windows)
        assert (world is None) == (outer.topology.rank not in ranks)
        if world is not None:
            mine = world, name
    assert mine is not None, "groups that together are all ranks"
    return mine


def bits(ran: Ran) -> tuple:
    seen, *tables = ran
    leaves = [(start, stop, [leaf.tobytes() for leaf in leaves]) for start, stop, leaves in seen]
    return leaves, [{name: rows.tobytes() for name, rows in some.items()} for some in tables]


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("kind", ["mixed", "row"])
@pytest.mark.parametrize("form", ["pooled", "rows"])
def test_groups_train_as_worlds_of_as_many_ranks(kind: str, form: str) -> None:
    """Bit for bit, and as one process but for the order of sums; the outer exchange too, whose steps lie between."""
    comm, how = MPI.COMM_WORLD, ("rowwise_adagrad", kind, form, np.float64)
    outer = World(comm, fused)
    outer_alone = run(outer, *how)
    outer.close()
    for which, groups in enumerate(SIDE_BY_SIDE[comm.size] * 2):
        outer = World(comm, fused)
        inner, name = group_of(outer, groups, which)
        among, between = in_turn(steps_of(inner, *how), steps_of(outer, *how))
        mine = next(ranks for ranks in groups if comm.rank in ranks)
        part = comm.Split(groups.index(mine), mine.index(comm.rank))
        alone_world = World(part, of_roles(dict(layouts_of(len(mine)))[name]))
        alone = run(alone_world, *how)
        with on_every_rank():
            assert inner.topology.rank == mine.index(comm.rank) and inner.topology == alone_world.topology
            assert bits(among) == bits(alone) and bits(between) == bits(outer_alone)
        with_reference("rowwise_adagrad", *among)
        alone_world.close()
        part.Free()
        inner.close()
        outer.close()


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("kind", ["first", "replicate"])
def test_what_groups_send_is_counted_once_in_the_ledger_around(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the exchange's formulas, of both groups and of all ranks; on one host and on two, by the ranks' own hosts."""
    comm = MPI.COMM_WORLD
    form, of_formula = ("pooled", "table") if kind == "first" else ("rows", "replicate")
    how = ("sgd", kind, form, np.float64, 13)
    for hosts in ((0,) * comm.size, tuple(rank % 2 for rank in range(comm.size))):
        monkeypatch.setattr(world_module, "hosts_of", lambda comm, hosts=hosts: hosts)
        for which, groups in enumerate(SIDE_BY_SIDE[comm.size]):
            outer = World(comm, fused, windows=False)
            inner, _ = group_of(outer, groups, which + 1, windows=False)
            in_turn(steps_of(inner, *how), steps_of(outer, *how))
            first = [world for world in (outer, inner) if world.topology.rank == 0]  # so that each is once in the sum
            mine = [(expected(world, form, of_formula), expected_messages(world, kind)) for world in first]
            wanted = [one for theirs in comm.allgather(mine) for one in theirs]
            assert len(wanted) == 3
            counted, messages = describe(outer.total_wire_bytes()), describe(outer.total_wire_messages())
            for tag in ("ids", "values", "gradients", "control"):
                assert sum(counted[tag].values()) == sum(n_bytes[tag] for n_bytes, _ in wanted), tag
                for where, n in messages[tag].items():
                    assert n == sum(of[tag][where] for _, of in wanted), (tag, where)
                    assert (counted[tag][where] > 0) == (n > 0)
            outer.close()
