"""Exchange ``auto``: predicted bytes are the ledger's, and the choice is the cheapest there is."""

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcrec.comm.world as world_module
from hpcrec.build.session import open_session
from hpcrec.comm.ledger import TAGS as LEDGER_TAGS
from hpcrec.config import Config
from hpcrec.data.loader import Loader
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.exchange.bags import Splitter
from hpcrec.exchange.choose import WORTH, Choice, Chooser
from hpcrec.exchange.forms import offered
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.measure import Asks, Counter, ItemBytes, cross_host_bytes, step_bytes
from hpcrec.exchange.offers import Offers
from hpcrec.exchange.reduction import WAYS
from hpcrec.operators import FM2, Block, Folded, Operator, WideSum
from hpcrec.types import Bags, Feature, Lookup, TableSpec
from tests.pairs import covering
from tests.training.dynamic_runs import write_data as write_any_ids
from tests.training.runs import config_for, write_data

TAGS = ("ids", "values", "gradients")
WIDTH = 8
DOUBLES, SINGLES = ItemBytes(8), ItemBytes(4)


def roles(size: int) -> list[dict[str, Any]]:
    return [{"mode": "fused"}] + ([{"mode": "split"}] if size > 1 else [])


FORMS: list[dict[str, Any]] = [
    *({"form": form} for form in offered()),
    {"form": "pooled", "forms": {"item": "rows", "tag": "partial"}},
    {"form": "partial", "forms": {"item": "rows", "history": "rows"}},
    {"form": "rows", "replicate_rows": 9},  # the table of "tag"
]


HOSTS = {2: (0, 1), 3: (0, 0, 1), 4: (0, 0, 1, 1)}


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("shard", ["table", "row", "column", "dynamic"])
def test_predicted_bytes_are_those_of_the_ledger(folder: Path, shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all, and of those the ones that cross hosts, whoever adds partial results."""
    (write_data if shard != "dynamic" else write_any_ids)(folder / "data.h5")
    comm = MPI.COMM_WORLD
    for topology, exchange, ids, model, reduce in covering(
        roles(comm.size), FORMS, ("routed", "read"), ("fm", "deepfm", "dlrm"), ("", *WAYS)
    ):
        hosts = HOSTS[comm.size] if reduce else (0,) * comm.size
        monkeypatch.setattr(world_module, "hosts_of", lambda comm, hosts=hosts: hosts)
        tables = {t: {"shard": shard} for t in ("user", "item")}
        if shard == "dynamic":
            tables = {t: {"dynamic": {"capacity": 30, "evict": "lru"}} for t in ("user", "item", "history")}
        config = config_for(
            folder,
            topology=topology,
            model={"name": model},
            exchange={**exchange, "ids": ids, "reduce": reduce or "auto"},
            embedding={"tables": tables, "share": {} if shard == "dynamic" else {"history": "item"}},
            train={"batch_size": 13, "steps": 3},
        )
        check_predicted(config)


def check_predicted(config: Config) -> None:
    """Against what is counted in the same steps, of a data set of ``write_data``."""
    with open_session(config) as session:
        layout, reduction = session.parts.pipeline.exchange.layout, session.parts.pipeline.exchange.reduction
        split = partial(Splitter, seed=1, weighted={"tag"}, dtype=np.float64)
        predicted, messages, at = {tag: np.zeros(2) for tag in TAGS}, 0, session.topology
        asked = len(at.dense) * sum(len(leg.entries) for leg in layout.legs.values())
        for step in session.steps():
            counter = Counter(
                [layout],
                split,
                reads_ids=config.exchange.ids == "read",
                rank=session.topology.rank,
                dense=at.dense,
                far=at.far,
            )
            if step.batch is not None:
                counter.add(whole_bags(session, step.number), len(step.batch.label))
            asks = counter.asks(MPI.COMM_WORLD.allreduce(counter.totals()))
            crossing = cross_host_bytes(layout, asks, reduction, item_bytes=DOUBLES)
            found = step_bytes(layout, asks, item_bytes=DOUBLES, dense_elements=0, dense_item_bytes=8, dense_ranks=1)
            for tag in TAGS:
                predicted[tag] += found[tag] - crossing[tag], crossing[tag]
            pairs = sum(d != h for d in at.dense for h in layout.legs)
            messages += pairs + sum(len(s.members) - 1 for s in (*reduction.inside, *reduction.across))
            step.run()
        counted = dict(zip(LEDGER_TAGS, session.parts.world.total_wire_bytes(), strict=True))
    for tag in TAGS:  # each message is padded; and its entries share some bytes of ids
        more = counted[tag] - predicted[tag]
        fewer, others = (2 * asked * config.train.steps, 5 * messages) if tag == "ids" else (1e-6, 0)
        told = (config.topology, config.exchange, config.model.name, tag, more)
        assert (more > -fewer).all() and (more < 64 * messages + others + fewer).all(), told


def whole_bags(session: Any, step: int) -> Bags:
    """This rank's part of a batch, of all features."""
    split, topology = session.parts.splits["train"], session.topology
    loader = Loader(split.dataset, split.order, part=topology.dense_index, parts=len(topology.dense), prefetch=0)
    with loader.batches(*divmod(step, split.order.n_batches), 1) as batches:
        return next(batches).bags


# The choice.


def offers_for(
    operators: Mapping[str, Operator], rows: Mapping[str, int], one_hot: set[str], dense: tuple[int, ...]
) -> Offers:
    """Two owners, ranks 0 and 1, with half of the tables each."""
    lookups = [k for o in operators.values() for k in o.lookups]
    widths = {k.table: o.width for o in operators.values() for k in o.lookups}
    tables = {t: TableSpec(name=t, rows=rows[t.split(".")[0]], width=w) for t, w in widths.items()}
    features = [Feature(name=f, cardinality=rows[f]) for f in dict.fromkeys(k.feature for k in lookups)]
    placements = {t: Placement(kind="table", owners=(i % 2,)) for i, t in enumerate(t for t in tables if "." not in t)}
    placements |= {t: placements[t.split(".")[0]] for t in tables if "." in t}
    families = build_families(tables, features, lookups, placements, owners=(0, 1), dense=dense, replicate_rows=0)
    copies = {f.name: sum(f.rows * tables[t].width * 4 for t in f.tables) for f in families}
    return Offers(
        tables, families, lookups, operators, one_hot, forms={}, default_form="auto", replicable=copies, dense=dense
    )


def asks_for(offers: Offers, rng: np.random.Generator, rows: Mapping[str, int], one_hot: set[str]) -> Asks:
    """Of ids with various skews; n samples on each dense rank."""
    n, reads, totals = 64, bool(rng.integers(2)), []
    skew = {f: rng.choice([0.0, 1.05, 1.6]) for f in rows}
    for rank in offers.dense:
        counter = Counter(offers.counted(), split_plain, reads_ids=reads, rank=rank, dense=offers.dense)
        ids, lengths = [], []
        for f, k in rows.items():
            lengths.append(np.ones(n, int) if f in one_hot else rng.integers(0, 6, n))
            chance = (np.arange(k) + 1.0) ** -skew[f]
            ids.append(rng.choice(k, lengths[-1].sum(), p=chance / chance.sum()))
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        counter.add(Bags(tuple(rows), np.concatenate(ids).astype(np.int64), offsets), n)
        totals.append(counter.totals())
    return counter.asks(np.sum(totals, axis=0))


def split_plain(layout: Layout, features: set[str]) -> Splitter:
    return Splitter(layout, features, seed=1, weighted=set(), dtype=np.dtype(np.float32))


def total(offers: Offers, asks: Asks, forms: dict[str, str], copied: tuple[str, ...]) -> float:
    layout = offers.layout(forms, copied)
    return sum(
        step_bytes(
            layout, asks, item_bytes=SINGLES, dense_elements=0, dense_item_bytes=4, dense_ranks=len(offers.dense)
        ).values()
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_is_the_cheapest_there_is(seed: int) -> None:
    check_cheapest(seed)


def check_cheapest(seed: int) -> Choice:
    """What is chosen, against every combination of forms, and of copies within the budget."""
    rng = np.random.default_rng(seed)
    names = ("a", "b", "c", "d")
    rows = {f: int(rng.choice([3, 40, 500, 5000])) for f in names}
    one_hot = {f for f in names if rng.integers(2)}
    deep = tuple(Lookup(feature=f, table=f) for f in names)
    wide = tuple(Lookup(feature=f, table=f"{f}.wide") for f in names)
    operators: dict[str, Operator] = {"fm2": FM2(lookups=deep, width=WIDTH), "wide": WideSum(lookups=wide)}
    if seed % 3:
        operators["block"] = Block(lookups=deep[seed % 2 :], width=WIDTH)
    offers = offers_for(operators, rows, one_hot, (2, 3) if seed % 4 else (2,))
    asks = asks_for(offers, rng, rows, one_hot)
    budget = (0, 2000, 10**9)[seed % 3]
    chooser = Chooser(
        offers, asks, item_bytes=SINGLES, budget_bytes=budget, dense_elements=0, dense_item_bytes=4, samples=0
    )
    choice = chooser.choose()
    every = []
    for forms in itertools.product(offers.forms, repeat=4):
        named = dict(zip(names, forms, strict=True))
        for n in range(5):
            every += [
                total(offers, asks, named, copied)
                for copied in itertools.combinations(sorted(offers.replicable), n)
                if sum(offers.replicable[f] for f in copied) <= budget
            ]
    found = sum(choice.predicted.values())
    assert found == total(offers, asks, {**offers.single("pooled"), **choice.forms}, choice.replicated)
    assert min(every) <= found <= 1.02 * min(every)
    assert found <= (1 + WORTH) * min(choice.single.values())
    assert choice.single == {form: total(offers, asks, offers.single(form), ()) for form in offers.forms}
    return choice


@pytest.mark.parametrize(
    ("n_outputs", "features_at_0", "item_bytes", "cheaper"),
    [
        (4, 3, 4.0, True),
        (20, 3, 4.0, True),
        (30, 3, 4.0, False),
        (36, 6, 4.0, True),
        (37, 6, 4.0, False),
        (36, 6, 0.1, False),  # of thresholded sums, which it spares little
    ],
)
def test_a_layer_is_folded_where_that_saves_more_than_it_costs(
    n_outputs: int, features_at_0: int, item_bytes: float, cheaper: bool
) -> None:
    """Against both ways, by hand: values and gradients, the sum over dense ranks, and the time of the busier owner."""
    names = tuple("abcdef")
    lookups = tuple(Lookup(feature=f, table=f) for f in names)
    tables = {f: TableSpec(name=f, rows=10**6, width=WIDTH) for f in names}
    places = {f: Placement(kind="table", owners=(int(i >= features_at_0),)) for i, f in enumerate(names)}
    features = [Feature(name=f, cardinality=10**6) for f in names]
    families = build_families(tables, features, lookups, places, owners=(0, 1), dense=(2, 3), replicate_rows=0)
    weights = tuple(torch.nn.Parameter(torch.ones(WIDTH, n_outputs)) for _ in names)
    operators: dict[str, Operator] = {"first": Folded(lookups=lookups, width=WIDTH, weights=weights)}
    offers = Offers(
        tables, families, lookups, operators, set(names), forms={}, default_form="auto", replicable={}, dense=(2, 3)
    )
    n, totals = 640, []
    for rank in (2, 3):
        counter = Counter(offers.counted(), split_plain, reads_ids=True, rank=rank, dense=(2, 3))
        counter.add(Bags(names, np.arange(6 * n) * 100, np.arange(6 * n + 1)), n)
        totals.append(counter.totals())
    asks, elements = counter.asks(np.sum(totals, axis=0)), sum(w.numel() for w in weights) + 100
    choice = Chooser(
        offers,
        asks,
        item_bytes=SINGLES,
        budget_bytes=0,
        dense_elements=elements,
        dense_item_bytes=item_bytes,
        samples=2 * n,
    ).choose()
    owners = len({places[f].owners for f in names})
    pooled = 2 * 4 * 2 * n * 6 * WIDTH
    folded = 2 * 4 * 2 * n * owners * n_outputs - 2 * item_bytes * 6 * WIDTH * n_outputs
    flops = 6 * 2 * n * 6 * WIDTH * n_outputs
    longer = flops * (features_at_0 / 6 - 1 / 2)
    fewer_elements = owners * n_outputs < 6 * WIDTH
    assert cheaper == (fewer_elements and folded + owners * longer / 50 < (1 - WORTH) * pooled)
    assert set(choice.forms.values()) == {"partial" if cheaper else "pooled"}
    assert choice.flops == (flops if cheaper else 0)
    verdicts = 4 * owners  # each is told by a dense rank
    predicted = (folded if cheaper else pooled) + 2 * item_bytes * elements + verdicts
    assert sum(choice.predicted.values()) == pytest.approx(predicted)


def test_features_of_one_table_travel_together_where_that_is_cheaper() -> None:
    names, n = ("a", "b", "c"), 64
    lookups = tuple(Lookup(feature=f, table="t") for f in names)
    tables = {"t": TableSpec(name="t", rows=50, width=WIDTH)}
    features = [Feature(name=f, cardinality=50) for f in names]
    families = build_families(tables, features, lookups, {}, owners=(0,), dense=(1,), replicate_rows=0)
    operators: dict[str, Operator] = {"block": Block(lookups=lookups, width=WIDTH)}
    offers = Offers(
        tables, families, lookups, operators, set(), forms={}, default_form="auto", replicable={}, dense=(1,)
    )
    counter = Counter(offers.counted(), split_plain, reads_ids=True, rank=1, dense=(1,))
    ids = np.tile(np.arange(40), 5)[: 3 * n]  # each of the features has 40 rows or so, and they are the same ones
    counter.add(Bags(names, ids, np.arange(3 * n + 1)), n)
    asks = counter.asks(counter.totals())
    chooser = Chooser(offers, asks, item_bytes=SINGLES, budget_bytes=0, dense_elements=0, dense_item_bytes=4, samples=0)
    assert chooser.choose().forms == dict.fromkeys(names, "rows")
    some = Layout(tables, families, lookups, forms={"c": "pooled"}, default_form="rows", operators=operators)
    (entry,) = (e for e in some.legs[0].entries if e.form.name == "rows")
    assert entry.features == ("a", "b")  # which was not counted: no more than all three
    assert asks.of(entry, 0) == (0.0, 40.0, 0.0)


@pytest.mark.parametrize(("owners", "dense", "n_outputs"), [(1, 3, 64), (2, 6, 64), (2, 2, 64), (3, 1, 30)])
def test_few_owners_fold_where_that_is_far_fewer_bytes(owners: int, dense: int, n_outputs: int) -> None:
    """26 one-hot features of 16 columns: what is chosen costs at most 2 % more than the best single form."""
    choice = chosen_of_columns(
        {f"t{i}": Placement(kind="table", owners=(i % owners,)) for i in range(26)}, owners, dense, 16, n_outputs
    )
    assert set(choice.forms.values()) == {"partial"}
    assert sum(choice.predicted.values()) <= 1.02 * min(choice.single.values())


@pytest.mark.parametrize("n_outputs", [12, 14])
def test_a_layer_that_pays_for_some_features_alone_is_folded_for_these(n_outputs: int) -> None:
    """By columns of 4 tables at two owners; with the table that is whole at a third, 14 outputs are too many."""
    places = {f"c{i}": Placement(kind="column", owners=(0, 1)) for i in range(4)}
    choice = chosen_of_columns({**places, "t": Placement(kind="table", owners=(2,))}, 3, 3, 8, n_outputs)
    assert {f for f, form in choice.forms.items() if form == "partial"} == set(places)
    assert sum(choice.predicted.values()) < min(choice.single.values())


def chosen_of_columns(places: Mapping[str, Placement], owners: int, dense: int, width: int, n_outputs: int) -> Choice:
    """Of a folded layer and wide weights over one-hot features of these tables, counted on ids that hardly repeat."""
    names, ranks, n = tuple(places), tuple(range(owners, owners + dense)), 96
    deep, wide = (tuple(Lookup(feature=f, table=f + end) for f in names) for end in ("", ".wide"))
    weights = tuple(torch.nn.Parameter(torch.ones(width, n_outputs)) for _ in names)
    operators: dict[str, Operator] = {
        "wide": WideSum(lookups=wide),
        "first": Folded(lookups=deep, width=width, weights=weights),
    }
    tables = {k.table: TableSpec(name=k.table, rows=10**5, width=1 if k in wide else width) for k in (*deep, *wide)}
    features = [Feature(name=f, cardinality=10**5) for f in names]
    families = build_families(
        tables,
        features,
        (*deep, *wide),
        {table: places[table.removesuffix(".wide")] for table in tables},
        owners=tuple(range(owners)),
        dense=ranks,
        replicate_rows=0,
    )
    offers = Offers(
        tables,
        families,
        (*deep, *wide),
        operators,
        set(names),
        forms={},
        default_form="auto",
        replicable={},
        dense=ranks,
    )
    rng, totals = np.random.default_rng(0), []
    for rank in ranks:
        counter = Counter(offers.counted(), split_plain, reads_ids=True, rank=rank, dense=ranks)
        counter.add(Bags(names, rng.integers(0, 10**5, n * len(names)), np.arange(n * len(names) + 1)), n)
        totals.append(counter.totals())
    asks, elements = counter.asks(np.sum(totals, axis=0)), sum(w.numel() for w in weights) + 100
    return Chooser(
        offers, asks, item_bytes=SINGLES, budget_bytes=0, dense_elements=elements, dense_item_bytes=4, samples=n * dense
    ).choose()
