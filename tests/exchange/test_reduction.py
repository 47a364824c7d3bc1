"""Partial results that owners add among them: the same results, as many bytes, and fewer of them across hosts."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcrec.comm.world as world_module
import hpcrec.exchange.reduction as reduction_module
from hpcrec.build.session import open_session
from hpcrec.comm.ledger import TAGS
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.exchange.choose import Choice, Chooser
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.reduction import ROUND_BYTES, SAME_HOST_PRICE, WAYS, Reduction, reduction_for
from hpcrec.exchange.verdict import tellers
from hpcrec.operators import FM2, Operator, WideSum
from hpcrec.types import Feature, Lookup, TableSpec
from tests.exchange.test_exchange import STEPS, layouts_of
from tests.exchange.test_partial import DEEP, SETS, run
from tests.pairs import covering
from tests.training.runs import config_for, gather_tables, global_batches, reference_for, write_data
from tests.training.test_equivalence import Some, check_against_reference, sections, shared_out_or_all
from tests.training.test_folded import config_of, oracle_for, oracle_step, same_parameters

NAMES = ("fm", "two of one", "deepfm", "folded", "labels")
HOSTS = {  # of so many ranks
    1: [(0,)],
    2: [(0, 0), (0, 1)],
    3: [(0, 0, 1), (0, 1, 1), (0, 1, 2)],
    4: [(0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 0, 1), (0, 1, 1, 2)],
}


def roles_of(size: int) -> tuple[dict[str, Any], ...]:
    return tuple(roles for _, roles in layouts_of(size))


def worlds(patch: pytest.MonkeyPatch, hosts: tuple[int, ...], roles: dict[str, Any], n: int) -> Iterator[World]:
    """So many worlds of these ranks, who are told that they are on other hosts."""
    patch.setattr(world_module, "hosts_of", lambda comm: hosts)
    for _ in range(n):
        world = World(MPI.COMM_WORLD, lambda host_of: assign_roles(host_of, **roles))
        yield world
        world.close()


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all
def test_equals_what_dense_ranks_add(some: Some, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch of 2 samples some dense rank has none."""
    size, added = MPI.COMM_WORLD.size, 0
    cases = covering(tuple(HOSTS[size]), roles_of(size), ("table", "row", "column", "mixed"), NAMES, WAYS[1:], (13, 2))
    for hosts, roles, kind, name, way, batch in some(cases):
        found = []
        for world, chosen in zip(worlds(monkeypatch, hosts, roles, 2), ("dense", way), strict=True):
            seen, _, rows, layout = run(world, SETS[name], kind, "partial", "adam", batch, way=chosen)
            reduction = Reduction(layout, world.topology.dense, hosts, chosen)
            found.append((seen, rows, world.total_wire_bytes()))
        (seen, rows, sent), (seen_so, rows_so, sent_so) = found
        for (*_, mine), (*_, theirs) in zip(seen, seen_so, strict=True):
            for one, other in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(other, one, rtol=0, atol=1e-12)
        for table in rows:
            np.testing.assert_allclose(rows_so[table], rows[table], rtol=0, atol=1e-12, err_msg=table)
        assert (sent[[0, 4]] == sent_so[[0, 4]]).all(), "other ids, or control"
        added += len(reduction.inside) + len(reduction.across)
    assert (added > 0) == (size > 2), "nothing was added among owners"


@dataclass(frozen=True, kw_only=True)
class Grown:
    """Product of 1 + the columns of pooled vectors, less 1: [B]. What is added up is not what is there."""

    lookups: tuple[Lookup, ...]
    width: int
    shapes = ((),)
    by_column = (False,)
    splits_bags = False

    def partial(self, pooled_BFD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((1 + pooled_BFD / 8).prod(2).prod(1) - 1,)

    def reduce(self, a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (a[0] + b[0] + a[0] * b[0],)

    def finish(self, partials: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return partials[0]


@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize("way", WAYS[1:])
def test_a_reduction_that_is_no_sum(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member's gradient is its own, by the operator's ``reduce``; and the same bits, with and without windows."""
    operators: dict[str, Operator] = {"grown": Grown(lookups=DEEP, width=6), "fm2": FM2(lookups=DEEP, width=6)}
    hosts, roles = HOSTS[MPI.COMM_WORLD.size][0], {"mode": "split", "owners": 2}
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: hosts)
    found = []
    for chosen, windows in (("dense", True), (way, True), (way, False)):
        world = World(MPI.COMM_WORLD, lambda host_of: assign_roles(host_of, **roles), windows=windows)
        seen, initial, rows, layout = run(world, operators, "table", "partial", "sgd", way=chosen)
        found.append(([array for *_, some in seen for array in some], rows))
        world.close()
    assert {s.operator for s in Reduction(layout, (2,), hosts, way).inside} == set(operators)
    (results, rows), *others = found
    for results_so, rows_so in others:
        for one, other in zip(results, results_so, strict=True):
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-12)
        for table in rows:
            np.testing.assert_allclose(rows_so[table], rows[table], rtol=0, atol=1e-12, err_msg=table)
            assert not np.array_equal(rows[table], initial[table]), "nothing was learned"
    (results, rows), (results_so, rows_so) = others
    assert all(np.array_equal(a, b) for a, b in zip(results, results_so, strict=True))
    assert all(np.array_equal(rows[table], rows_so[table]) for table in rows)


@pytest.mark.parallel([2, 3, 4])
def test_ledger_equals_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message with its padding, where nothing but partial results crosses."""
    size = MPI.COMM_WORLD.size
    for hosts, roles, name, way in covering(tuple(HOSTS[size]), roles_of(size), ("fm", "labels"), WAYS):
        for world in worlds(monkeypatch, hosts, roles, 1):
            dense = world.topology.dense
            layout = run(world, SETS[name], "table", "partial", "sgd", 13, way=way)[3]
            samples = dict(zip(dense, np.diff(np.linspace(0, 13, len(dense) + 1).astype(int)).tolist(), strict=True))
            reduction = Reduction(layout, dense, hosts, way)
            expected = {"values": np.zeros(2, int), "gradients": np.zeros(2, int)}
            told = tellers(layout.legs, world.topology.owners, dense)
            *sums, last = by_message(reduction, layout, samples)
            for tag, found in expected.items():
                back = dict.fromkeys(((r, d) for r, d in told.items() if r != d and tag == "gradients"), 1)
                with_verdicts = {pair: last.get(pair, 0) + back.get(pair, 0) for pair in {*last, *back}}
                for messages in (*sums, with_verdicts):
                    for (sender, receiver), elements in messages.items():
                        found[int(hosts[sender] != hosts[receiver])] += STEPS * -(-8 * elements // 64) * 64
            counted = dict(zip(TAGS, world.total_wire_bytes().tolist(), strict=True))
            assert all(counted[tag] == n.tolist() for tag, n in expected.items()), (hosts, roles, name, way)


def by_message(reduction: Reduction, layout: Layout, samples: dict[int, int]) -> list[dict[tuple[int, int], int]]:
    """Elements of the messages between ranks in each collective of a phase."""
    rounds: list[dict[tuple[int, int], int]] = []
    for sums in (reduction.inside, reduction.across):
        rounds.append({})
        for s in sums:
            for pair in ((member, s.root) for member in s.members if member != s.root):
                rounds[-1][pair] = rounds[-1].get(pair, 0) + s.elements * sum(samples[d] for d in s.dense)
    last = {}
    for holder, d in itertools.product(layout.legs, samples):
        if holder != d:
            sent = [layout.legs[holder].partials[n].elements for n in reduction.sent(holder, d)]
            last[holder, d] = samples[d] * sum(sent)
    return [*rounds, last]


@pytest.mark.parallel([2, 3, 4])
@shared_out_or_all
def test_sessions_equal_one_process(some: Some, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole runs; the last batch of an epoch has so few samples that some dense rank has none."""
    write_data(folder / "data.h5")
    size = MPI.COMM_WORLD.size
    forms = (("partial", "routed"), ("partial", "read"), ("auto", "routed"))
    shards = ("table", "row", "column")
    cases = covering(tuple(HOSTS[size][-2:]), roles_of(size)[:3], ("lr", "fm", "deepfm"), shards, forms, WAYS[1:])
    for hosts, roles, model, shard, (form, ids), way in some(cases):
        monkeypatch.setattr(world_module, "hosts_of", lambda comm, hosts=hosts: hosts)
        wanted = sections(roles, model, shard, "adagrad", form, ids)
        wanted["exchange"]["reduce"] = way
        check_against_reference(folder, **wanted)


@pytest.mark.in_turn
@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize("form", ["partial", "auto"])
def test_a_folded_layer_is_added_among_owners(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where forms have it at owners its sums are added there; the norm is that of all gradients, wherever they are."""
    write_data(folder / "data.h5")
    hosts = HOSTS[MPI.COMM_WORLD.size][0]
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: hosts)
    config = config_of(
        folder,
        hidden=(2, 3),
        clip=0.05,
        topology={"mode": "split", "owners": 2},
        exchange={"form": form, "reduce": "host"},
        schedule={},
    )
    for stay in (FEATURES, ()) if form == "auto" else (FEATURES,):
        monkeypatch.setattr(Chooser, "choose", lambda chooser, stay=stay: choice_of(chooser, stay))
        with open_session(config) as session:
            reference, batches = oracle_for(session, config), global_batches(session, 4)
            reduction = session.parts.exchange.reduction
            assert ("first" in [s.operator for s in reduction.inside]) == bool(stay)
            assert len(session.parts.slices.away) == (4 if stay else 0)
            for step in session.steps():
                step.run()
                oracle_step(reference, session, batches[step.number], step.number)
            same_parameters(session, reference)


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
def test_sums_among_owners_are_those_of_the_forms_chosen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations among steps."""
    write_data(folder / "data.h5")
    hosts = HOSTS[MPI.COMM_WORLD.size][0]
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: hosts)
    wanted = sections({"mode": "split", "owners": 2}, "fm", "table", "adam", "auto")
    monkeypatch.setattr(reduction_module, "ROUND_BYTES", 0)  # else nothing is worth a collective here
    wanted["exchange"] |= {"reduce": "auto"}
    wanted["data"] = {"validation": str(folder / "data.h5")}
    config, sums = config_for(folder, **wanted, train={"steps": 3}), set()
    for stay in (FEATURES, ("item", "history"), (), ("user", "tag")):
        monkeypatch.setattr(Chooser, "choose", lambda chooser, stay=stay: choice_of(chooser, stay))
        with open_session(config) as session:
            reference, reduction = reference_for(session, config), session.parts.exchange.reduction
            batches = global_batches(session, 3)
            sums.add((reduction.inside, reduction.across))
            assert session.parts.chosen.found["reduce"] == reduction.way
            assert reduction.way == ("host" if reduction.inside else "dense")
            for step in session.steps():
                step.run()
                reference.step(batches[step.number])
                assert session.evaluate("validation", 1)["logloss"] > 0
            for name, rows in gather_tables(session).items():
                np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=1e-11, err_msg=name)
    assert len(sums) > 1 and ((), ()) in sums


FEATURES = ("user", "item", "history", "tag")


def choice_of(chooser: Chooser, stay: tuple[str, ...]) -> Choice:
    """Partial results of these features; the vectors of others cross."""
    return Choice({**chooser._offers.single("pooled"), **dict.fromkeys(stay, "partial")}, (), {}, {})


# The plan.


def layout_for(owners: int) -> Layout:
    """A table for each of so many owners, ranks 0, 1, ...; FM2 and WideSum over all of them."""
    names = [f"t{i}" for i in range(owners)]
    deep = tuple(Lookup(feature=t, table=t) for t in names)
    wide = tuple(Lookup(feature=t, table=f"{t}.wide") for t in names)
    tables = {k.table: TableSpec(name=k.table, rows=9, width=1 if k in wide else 16) for k in (*deep, *wide)}
    operators: dict[str, Operator] = {"fm2": FM2(lookups=deep, width=16), "wide": WideSum(lookups=wide)}
    features = [Feature(name=t, cardinality=9) for t in names]
    places = {t: Placement(kind="table", owners=(names.index(t.split(".")[0]),)) for t in tables}
    families = build_families(
        tables, features, (*deep, *wide), places, owners=tuple(range(owners)), dense=(), replicate_rows=0
    )
    return Layout(tables, families, (*deep, *wide), forms={}, default_form="partial", operators=operators)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("way", WAYS)
def test_every_result_reaches_every_dense_rank_once(way: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    owners = int(rng.integers(1, 8))
    size = owners + int(rng.integers(0, 4))
    hosts = tuple(rng.integers(0, rng.integers(1, 5), size).tolist())
    dense = tuple(sorted(rng.choice(size, rng.integers(1, size + 1), replace=False).tolist()))
    layout = layout_for(owners)
    reduction = Reduction(layout, dense, hosts, way)
    for d, number in itertools.product(dense, range(2)):
        has = {holder: [holder] for holder in layout.legs}  # whose results each holder's is the sum of
        operator = layout.legs[0].partials[number].operator
        for s in (*reduction.inside, *reduction.across):
            if d in s.dense and s.operator == operator:
                assert hosts[d] not in [hosts[m] for m in s.members] and s.root in s.members
                has[s.root] = [h for m in s.members for h in has[m]]
        senders = [h for h in layout.legs if number in reduction.sent(h, d)]
        assert sorted(h for sender in senders for h in has[sender]) == list(range(owners))
        far = [hosts[h] for h in layout.legs if hosts[h] != hosts[d]]
        wanted = {"dense": len(far), "host": len(set(far)), "owners": min(1, len(far))}[way]
        assert sum(hosts[sender] != hosts[d] for sender in senders) == wanted
    sent = Reduction(layout, dense, hosts, "dense").rounds()
    assert sum(t.elements for t in itertools.chain(*reduction.rounds())) == sum(t.elements for t in sent[-1])


def test_owners_add_by_turns() -> None:
    """4 owners of 2 hosts, 4 dense ranks of a third."""
    reduction = Reduction(layout_for(4), (4, 5, 6, 7), (0, 0, 1, 1, 2, 2, 2, 2), "owners")
    for operator in ("fm2", "wide"):
        for members in ((0, 1), (2, 3)):
            led = {s.root: s.dense for s in reduction.inside if s.operator == operator and s.members == members}
            assert sorted(map(len, led.values())) == [2, 2]
        roots = [s.root // 2 for s in reduction.across if s.operator == operator for _ in s.dense]
        assert sorted(roots) == [0, 0, 1, 1]


HOSTS_OF_OWNERS = (0, 0, 1, 1, 2, 2, 3, 3)


@pytest.mark.parametrize(
    ("dense_hosts", "samples", "way"),
    [
        ((4, 4, 4, 4), 10, "dense"),  # bytes that are not worth a collective
        ((4, 4, 4, 4), 150, "host"),  # the second is not worth it yet
        ((4, 4, 4, 4), 20_000, "owners"),  # one host takes what four hosts send
        ((4,), 2000, "host"),  # what one owner would take, the dense rank can
        ((4, 5, 6, 7), 20_000, "host"),  # as many hosts take as send
    ],
)
def test_the_cheapest_way(dense_hosts: tuple[int, ...], samples: int, way: str) -> None:
    hosts = (*HOSTS_OF_OWNERS, *dense_hosts)
    dense, layout = tuple(range(8, len(hosts))), layout_for(8)
    found = reduction_for(layout, dense, hosts, "auto", samples=samples, item_bytes=4)
    prices = {w: Reduction(layout, dense, hosts, w).price(samples, 4) for w in WAYS}
    assert found.way == way == min(prices, key=prices.__getitem__), prices


def test_price_by_hand() -> None:
    """18 elements a sample from each of 8 owners on 4 hosts to 4 dense ranks of a fifth."""
    hosts, of_one, layout = (*HOSTS_OF_OWNERS, 4, 4, 4, 4), 4 * 1000 * 18, layout_for(8)
    prices = [Reduction(layout, (8, 9, 10, 11), hosts, way).price(1000, 4) for way in WAYS]
    inside = SAME_HOST_PRICE * 4  # from one owner to the other of its host, for 4 dense ranks
    assert prices == [
        pytest.approx(of_one * 8 * 4),
        pytest.approx(of_one * (4 * 4 + inside) + ROUND_BYTES),
        pytest.approx(of_one * (3 + 4 + inside) + 2 * ROUND_BYTES),  # each host adds for one dense rank
    ]


def test_one_host_adds_nothing_among_owners() -> None:
    for way in (*WAYS, "auto"):
        found = reduction_for(layout_for(3), (1, 2), (0, 0, 0), way, samples=1e6, item_bytes=4)
        assert not found.inside and not found.across
