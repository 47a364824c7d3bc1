"""Roles are assigned as asked, for any shape, or refused with a sentence that says what to change."""

import itertools

import pytest

from hpcrec.comm.topology import Topology, assign_roles, places_of
from hpcrec.errors import ConfigError

TWO_HOSTS = (0, 0, 0, 1, 1, 1)


def test_fused_gives_every_rank_both_roles() -> None:
    for size in (1, 2, 5):
        owners, dense = assign_roles((0,) * size, mode="fused")
        assert owners == dense == tuple(range(size))


@pytest.mark.parametrize(
    ("roles", "owners", "dense"),
    [
        ({}, (0, 1, 2), (3, 4, 5)),
        ({"owners": 2}, (0, 1), (2, 3, 4, 5)),
        ({"dense": 2}, (0, 1, 2, 3), (4, 5)),
        ({"owners": 4, "dense": 4}, (0, 1, 2, 3), (2, 3, 4, 5)),
        ({"owners": 6, "dense": 6}, (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5)),
        ({"owners": [5, 0]}, (0, 5), (1, 2, 3, 4)),
        ({"owners_per_host": 1}, (0, 3), (1, 2, 4, 5)),
        ({"dense_per_host": 1}, (0, 1, 3, 4), (2, 5)),
        ({"owners_per_host": 2, "dense_per_host": 2}, (0, 1, 3, 4), (1, 2, 4, 5)),
    ],
)
def test_split(roles: dict, owners: tuple, dense: tuple) -> None:
    assert assign_roles(TWO_HOSTS, mode="split", **roles) == (owners, dense)


def test_every_count_covers_every_rank_or_is_refused() -> None:
    for size, n_owners, n_dense in itertools.product(range(2, 7), range(1, 7), range(1, 7)):
        if n_owners <= size and n_dense <= size and n_owners + n_dense >= size:
            owners, dense = assign_roles((0,) * size, mode="split", owners=n_owners, dense=n_dense)
            assert (len(owners), len(dense)) == (n_owners, n_dense)
            assert set(owners) | set(dense) == set(range(size))
        else:
            with pytest.raises(ConfigError):
                assign_roles((0,) * size, mode="split", owners=n_owners, dense=n_dense)


@pytest.mark.parametrize(
    ("hosts", "roles", "says"),
    [
        ((0,), {"mode": "split"}, "1 rank, which cannot be split"),
        ((0, 0), {"mode": "fused", "owners": 1}, "every rank has both roles"),
        ((0, 0), {"mode": "split", "owners": 3}, "topology.owners is 3. Allowed: 1 to 2"),
        ((0, 0), {"mode": "split", "owners": [0, 2]}, "from 0 to 1"),
        ((0, 0), {"mode": "split", "owners": [0, 0]}, "each once"),
        ((0, 0), {"mode": "split", "owners": 2}, "leaves none for dense"),
        ((0, 0, 0), {"mode": "split", "owners": 1, "dense": 1}, "without a role"),
        ((0, 1, 1), {"mode": "split", "owners_per_host": 2}, "owners_per_host is 2. Allowed: 1 to 1"),
        ((0, 0), {"mode": "split", "owners": 1, "owners_per_host": 1}, "Keep one"),
        ((0, 0), {"mode": "weird"}, "Allowed: 'fused', 'split'"),
    ],
)
def test_refusals_say_why(hosts: tuple, roles: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        assign_roles(hosts, **roles)


def test_groups_of_dense_ranks() -> None:
    dense = (1, 2, 4, 5)
    found = [Topology(rank=r, size=6, owners=(0, 3), dense=dense, host_of=TWO_HOSTS, groups=2) for r in range(6)]
    assert [found[r].group for r in dense] == [0, 0, 1, 1] and [found[r].place for r in dense] == [0, 1, 0, 1]
    assert [found[r].group_ranks for r in dense] == [(1, 2), (1, 2), (4, 5), (4, 5)]
    assert [found[r].counterparts for r in dense] == [(1, 4), (2, 5), (1, 4), (2, 5)]
    assert found[0].group == 0 and found[1].describe()["groups"] == 2
    alone = Topology(rank=2, size=6, owners=(0, 3), dense=dense, host_of=TWO_HOSTS)
    assert (alone.group, alone.place, alone.group_ranks, alone.counterparts) == (0, 1, dense, (2,))
    assert "groups" not in alone.describe()
    assert (alone.table_sets, alone.reads(), found[1].table_sets, found[1].reads(1)) == (1, (0,) * 6, 1, (0,) * 6)
    assert "own_tables" not in found[1].describe()


def test_each_rank_reads_its_groups_tables_or_those_of_the_next() -> None:
    topology = Topology(
        rank=0, size=7, owners=(0,), dense=(1, 2, 3, 4, 5, 6), host_of=(0,) * 7, groups=3, own_tables=True
    )
    assert topology.table_sets == 3 and topology.describe()["own_tables"]
    assert topology.reads() == (0, 0, 0, 1, 1, 2, 2)
    assert topology.reads(1) == (0, 1, 1, 2, 2, 0, 0) and topology.reads(2) == (0, 2, 2, 0, 0, 1, 1)


def test_hosts_and_peers() -> None:
    topology = Topology(rank=4, size=6, owners=(0, 3), dense=(1, 2, 4, 5), host_of=TWO_HOSTS)
    assert topology.n_hosts == 2
    assert topology.host_ranks == (3, 4, 5)
    assert topology.far == {0, 1, 2}
    assert topology.peers == (1, 4)
    assert (topology.is_owner, topology.is_dense, topology.dense_index) == (False, True, 2)
    uneven = Topology(rank=2, size=4, owners=(0,), dense=(1, 2, 3), host_of=(0, 0, 0, 1))
    assert uneven.peers == (2,)


@pytest.mark.parametrize(
    ("hosts", "ranks", "places"),
    [
        (TWO_HOSTS, None, TWO_HOSTS),
        (TWO_HOSTS, 1, (0, 1, 2, 3, 4, 5)),
        (TWO_HOSTS, 2, (0, 0, 1, 2, 2, 3)),
        (TWO_HOSTS, 3, TWO_HOSTS),
        (TWO_HOSTS, 9, TWO_HOSTS),
        ((0, 1, 0, 1, 0), 2, (0, 1, 0, 1, 2)),  # ranks of a host need not follow each other
        ((0, 1, 1, 1), 2, (0, 1, 1, 2)),
    ],
)
def test_places_are_taken_of_a_host_so_many_ranks_at_a_time(hosts: tuple, ranks: int | None, places: tuple) -> None:
    found = places_of(hosts, ranks)
    assert found == places
    assert places_of(found, ranks) == found, "places of places are the same"
    for place in set(found):
        assert len({host for host, of in zip(hosts, found, strict=True) if of == place}) == 1


def test_places_are_for_messages_and_the_host_itself_for_what_its_ranks_share() -> None:
    places = places_of(TWO_HOSTS, 2)
    topology = Topology(rank=4, size=6, owners=(0, 3), dense=(1, 2, 4, 5), host_of=places, machine_of=TWO_HOSTS)
    assert (topology.n_hosts, topology.host_ranks, topology.far, topology.peers) == (4, (3, 4), {0, 1, 2, 5}, (1, 4))
    assert (topology.machine, topology.machine_ranks) == (1, (3, 4, 5))
    said = topology.describe()
    assert (said["host_of_rank"], said["place_of_rank"]) == (list(TWO_HOSTS), [0, 0, 1, 2, 2, 3])
    plain = Topology(rank=4, size=6, owners=(0, 3), dense=(1, 2, 4, 5), host_of=TWO_HOSTS)
    assert (plain.machine, plain.machine_ranks) == (1, (3, 4, 5))
    assert plain.describe()["host_of_rank"] == list(TWO_HOSTS) and "place_of_rank" not in plain.describe()
