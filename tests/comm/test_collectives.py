"""Collectives move what they should and nothing else, and the ledger counts exactly what crossed."""

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import TAGS, Ledger, describe
from hpcrec.comm.library import launcher_tasks
from hpcrec.comm.sizes import UNIT_BYTES, padded_bytes
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World, check_launch
from hpcrec.errors import HpcrecError
from tests.together import on_every_rank


def make() -> tuple[Collectives, Ledger]:
    comm = MPI.COMM_WORLD
    ledger = Ledger(comm.rank, [r % 2 for r in range(comm.size)])  # hosts 0, 1, 0, 1
    return Collectives(comm.Dup(), range(comm.size), ledger), ledger


@pytest.mark.parallel([1, 2, 3, 4])
def test_alltoallv_moves_uneven_and_empty_messages() -> None:
    c, ledger = make()
    rank, size = c.rank, c.size

    def units(a: int, b: int) -> int:
        return (a + 2 * b) % 4  # some are empty

    sizes_R = np.array([units(rank, r) for r in range(size)], np.int64) * UNIT_BYTES
    due_R = np.array([units(r, rank) for r in range(size)], np.int64) * UNIT_BYTES
    send = np.concatenate([np.full(n, 16 * rank + r, np.uint8) for r, n in enumerate(sizes_R)])
    recv = c.alltoallv(send, sizes_R, due_R, "values")
    expected = np.concatenate([np.full(n, 16 * r + rank, np.uint8) for r, n in enumerate(due_R)])
    np.testing.assert_array_equal(recv, expected)
    same = sum(int(n) for r, n in enumerate(sizes_R) if r != rank and r % 2 == rank % 2)
    cross = sum(int(n) for r, n in enumerate(sizes_R) if r % 2 != rank % 2)
    assert describe(ledger.snapshot())["values"] == {"same_host": same, "cross_host": cross}
    c.close()


@pytest.mark.parallel([1, 2, 3, 4])
def test_small_collectives() -> None:
    c, ledger = make()
    table = np.arange(2 * c.size, dtype=np.int64).reshape(c.size, 2) + 100 * c.rank
    got = c.alltoall(table, "control")
    with on_every_rank():
        np.testing.assert_array_equal(got, [[100 * r + 2 * c.rank, 100 * r + 2 * c.rank + 1] for r in range(c.size)])
    assert ledger.total_bytes() == 16 * (c.size - 1)
    total = c.allreduce(np.array([1.0, c.rank]), "dense")
    np.testing.assert_array_equal(total, [c.size, sum(range(c.size))])
    flat = np.full(10, float(c.rank))
    c.start_allreduce(flat, "dense").wait()
    np.testing.assert_array_equal(flat, np.full(10, sum(range(c.size))))
    ring = round(2 * (c.size - 1) / c.size * 16) + round(2 * (c.size - 1) / c.size * 80)
    assert sum(describe(ledger.snapshot())["dense"].values()) == ring
    parts = c.gather_arrays(np.full(c.rank, c.rank))
    with on_every_rank():
        assert (parts is None) == (c.rank != 0)
        assert parts is None or [len(p) for p in parts] == list(range(c.size))
    c.close()


@pytest.mark.parallel([1, 2, 3, 4])
def test_collectives_under_way() -> None:
    """Two of each at once; the tail of nothing is touched, and each byte to another rank is counted once."""
    c, ledger = make()
    rank, size = c.rank, c.size
    table = np.arange(2 * size, dtype=np.int64).reshape(size, 2) + 100 * rank
    dealt, handed = c.start_alltoall(table, "dense"), c.start_allgather(table[0], "dense")
    dealt.wait()
    handed.wait()
    expected = [[100 * r + 2 * rank, 100 * r + 2 * rank + 1] for r in range(size)]
    with on_every_rank():
        np.testing.assert_array_equal(dealt.received, expected)
        np.testing.assert_array_equal(handed.received, [[100 * r, 100 * r + 1] for r in range(size)])
        assert ledger.total_bytes() == 2 * 16 * (size - 1)

    def n_bytes(a: int, b: int) -> int:
        return (3 * a + 5 * b) % 7  # single bytes, some messages empty

    sizes_R, due_R = (np.array([f(r) for r in range(size)], np.int64) for f in (
        lambda r: n_bytes(rank, r), lambda r: n_bytes(r, rank)))  # fmt: skip
    send = np.concatenate([np.full(n, 16 * rank + r, np.uint8) for r, n in enumerate(sizes_R)])
    part = np.full(n_bytes(rank, 1), rank, np.uint8)
    of_all_R = np.array([n_bytes(r, 1) for r in range(size)], np.int64)
    before = ledger.total_bytes()
    dealt, handed = c.start_alltoallv(send, sizes_R, due_R, "dense"), c.start_allgatherv(part, of_all_R, "dense")
    dealt.wait()
    handed.wait()
    others = sum(int(n) for r, n in enumerate(sizes_R) if r != rank)
    with on_every_rank():
        assert [p.tolist() for p in dealt.received] == [[16 * r + rank] * n for r, n in enumerate(due_R)]
        assert [p.tolist() for p in handed.received] == [[r] * n for r, n in enumerate(of_all_R)]
        assert ledger.total_bytes() - before == others + (size - 1) * len(part)
    with pytest.raises(HpcrecError, match=r"would receive 2147483648 bytes in one call.*dense\.dct\.density"):
        c.start_allgatherv(part, np.array([2**31], np.int64), "dense")
    c.close()


def test_padding_and_limit() -> None:
    np.testing.assert_array_equal(padded_bytes(np.array([0, 1, 64, 65])), [0, 64, 64, 128])
    c, _ = make()
    too_many = np.array([(2**31) * UNIT_BYTES], np.int64)
    with pytest.raises(HpcrecError, match=r"smaller train\.batch_size"):
        c.alltoallv(np.zeros(0, np.uint8), too_many, np.zeros(1, np.int64), "ids")
    c.close()


def test_ledger_pauses_and_goes_on() -> None:
    ledger = Ledger(0, [0, 0, 1])
    ledger.add("ids", [0, 1, 2], np.array([5, 6, 7]))
    with ledger.paused():
        ledger.add("ids", [1], np.array([100]))
    assert describe(ledger.snapshot())["ids"] == {"same_host": 6, "cross_host": 7}
    ledger.add_allgather("dense", [0, 1, 2], 10)
    assert describe(ledger.snapshot())["dense"] == {"same_host": 20, "cross_host": 0}
    assert describe(ledger.messages())["ids"] == {"same_host": 1, "cross_host": 1}
    assert describe(ledger.messages())["dense"] == {"same_host": 2, "cross_host": 0}
    other = Ledger(0, [0, 0, 1])
    other.restore(ledger.snapshot(), ledger.messages())
    np.testing.assert_array_equal(other.messages(), ledger.messages())
    assert other.total_bytes() == ledger.total_bytes() == 33
    assert set(describe(other.snapshot())) == set(TAGS)


def test_messages_are_sends_to_others_that_are_not_empty() -> None:
    """And by the ring's formulas those of gathers and reductions, whose next rank is on another host here."""
    ledger = Ledger(2, [0, 0, 1, 0])
    ledger.add("ids", np.arange(4), np.array([64, 0, 640, 64]))
    ledger.add_allreduce("dense", [0, 1, 2, 3], 1000)
    ledger.add_allreduce("dense", [2], 1000)
    ledger.add_allreduce("dense", [0, 1, 2, 3], 0)
    ledger.add_allgather("control", [0, 2, 3], 8)
    ledger.add_allgather("control", [0, 2, 3], 0)
    ledger.add_ring("values", [1, 2], 8)
    counted = describe(ledger.messages())
    assert counted["ids"] == {"same_host": 0, "cross_host": 2}
    assert counted["dense"] == {"same_host": 0, "cross_host": 6}
    assert counted["control"] == {"same_host": 0, "cross_host": 2}
    assert counted["values"] == {"same_host": 0, "cross_host": 1}
    assert describe(ledger.snapshot())["dense"] == {"same_host": 0, "cross_host": 1500}


@pytest.mark.parallel([1, 2, 3, 4])
def test_world_has_the_communicators_of_its_roles() -> None:
    comm = MPI.COMM_WORLD
    mode = "split" if comm.size > 1 else "fused"
    world = World(comm, lambda hosts: assign_roles(hosts, mode=mode))
    assert world.main.size == world.route.size == comm.size
    with on_every_rank():
        assert (world.owners is not None) == world.topology.is_owner
        assert (world.dense is not None) == world.topology.is_dense
        if world.dense is not None:
            assert world.dense.ranks == world.topology.dense
            assert world.dense.rank == world.topology.dense_index
    world.ledger.add("ids", [(comm.rank + 1) % comm.size], np.array([10]))
    assert world.total_wire_bytes().sum() == (10 * comm.size if comm.size > 1 else 0)
    world.close()
    world.close()  # a second call does nothing


@pytest.mark.parallel([1, 2, 3, 4])
def test_world_of_some_ranks_has_numbers_and_communicators_of_its_own() -> None:
    """In the order in which they are named; it counts in the outer ledger, and goes with the outer world."""
    comm = MPI.COMM_WORLD
    outer = World(comm, lambda hosts: assign_roles(hosts, mode="fused"))
    ranks = tuple(reversed(range(1, comm.size))) or (0,)
    world = outer.among(ranks, lambda hosts: (tuple(range(len(hosts))), (0,)), name="some", lanes=("reads",))
    other = outer.among((0,), lambda hosts: ((0,), (0,)), name="one")
    with on_every_rank():
        assert (world is None) == (comm.rank not in ranks) and (other is None) == (comm.rank != 0)
        if world is not None:
            place = ranks.index(comm.rank)
            assert (world.topology.rank, world.topology.size) == (place, len(ranks))
            assert (world.dense is None) == (place != 0) and world.aside is None
            assert world.progress is outer.progress
            lanes = {name: lane.ranks for name, lane in outer.progress.lanes.items() if name.startswith("some")}
            roles = {"some: owners": ranks} | ({"some: dense": ranks[:1]} if place == 0 else {})
            assert lanes == dict.fromkeys(("some: main", "some: route", "some: reads"), ranks) | roles
    if world is not None:
        assert world.lane("reads").allgather(comm.rank) == list(ranks)
        world.ledger.add("ids", np.arange(len(ranks)), np.full(len(ranks), 64))
        told = np.zeros((len(ranks), 8), np.int64)
        world.main.alltoall(told, "control")
    counted, messages = describe(outer.total_wire_bytes()), describe(outer.total_wire_messages())
    pairs = len(ranks) * (len(ranks) - 1)
    assert counted["ids"] == counted["control"] == {"same_host": 64 * pairs, "cross_host": 0}
    assert messages["ids"] == messages["control"] == {"same_host": pairs, "cross_host": 0}
    outer.close()
    with on_every_rank():
        assert all(one is None or one.main.comm == MPI.COMM_NULL for one in (world, other))


@pytest.mark.parallel([1, 2, 3, 4])
def test_what_is_no_group_of_ranks_is_refused_on_all_of_them() -> None:
    comm = MPI.COMM_WORLD
    size, rank = comm.size, comm.rank
    outer = World(comm, lambda hosts: assign_roles(hosts, mode="fused"))

    def refused(said: str, world: World, ranks, name: str = "some", roles=lambda hosts: ((0,), (0,))) -> None:
        with pytest.raises(HpcrecError, match=said):
            world.among(ranks, roles, name=name)

    refused(
        rf"'some' lists \[0, {size}\]\. Allowed: at least one rank, each once, from 0 to {size - 1}\.", outer, [0, size]
    )
    refused(r"'some' lists \[-1\]", outer, [-1])
    refused(r"'some' lists \[0, 0\]", outer, [0, 0])
    refused(r"'some' lists \[\]", outer, [])
    refused("topology.mode is 'odd'", outer, [0], roles=lambda hosts: assign_roles(hosts, mode="odd"))
    if size > 1:
        refused(rf"rank 0 asks for \[0\], .* rank {size - 1} for \[1\]", outer, [int(rank == size - 1)])
        refused(r"called 'a', rank 1 for \[0\], called 'b'\. Call among on all", outer, [0], name="ab"[rank > 0])
    inner = outer.among(range(size), lambda hosts: assign_roles(hosts, mode="fused"), name="some")
    assert inner is not None
    refused("there is one called 'some' already", outer, [0])
    refused("is asked of the world of group 'some'.* Ask that one", inner, [0], name="other")
    inner.close()
    outer.close()


@pytest.mark.parallel([1, 2, 3, 4])
def test_world_has_the_communicators_of_its_groups() -> None:
    comm = MPI.COMM_WORLD
    for groups in (n for n in range(1, comm.size + 1) if comm.size % n == 0):
        world = World(comm, lambda hosts: assign_roles(hosts, mode="fused"), groups=groups)
        topology = world.topology
        with on_every_rank():
            assert world.group is not None and world.group.ranks == topology.group_ranks
            assert (world.across is None) == (groups == 1) and (world.group is world.dense) == (groups == 1)
            if world.across is not None:
                assert world.across.ranks == topology.counterparts and world.across.rank == topology.group
        in_group = world.group.comm.allgather(comm.rank)
        across = None if world.across is None else world.across.comm.allgather(comm.rank)
        with on_every_rank():
            assert in_group == list(topology.group_ranks)
            assert across is None or across == list(topology.counterparts)
        world.close()


def test_a_launcher_that_mpi_did_not_meet_is_refused() -> None:
    assert launcher_tasks({"SLURM_STEP_NUM_TASKS": "4"}) == 4
    assert launcher_tasks({}) is None
    with pytest.raises(HpcrecError, match="--mpi=pmix"):
        check_launch(MPI.COMM_SELF, {"SLURM_STEP_NUM_TASKS": "4"})
    check_launch(MPI.COMM_SELF, {"SLURM_STEP_NUM_TASKS": "1"})
