"""Form ``twice``, a stand-in that asks each bag in halves: trains as ``pooled`` does, and no line of hpcrec knows it.

What the layout, the choice of forms, the plan and the configuration need of a form is on its class.
"""

import ast
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import hpcrec.comm.world as world_module
from hpcrec.build.memory import predict_memory
from hpcrec.build.session import open_session
from hpcrec.config import Config
from hpcrec.errors import ConfigError
from hpcrec.exchange.columns import Column
from hpcrec.exchange.exchange import Exchange
from hpcrec.exchange.forms import FORMS, of_copies, offered, settable
from hpcrec.exchange.forms.pooled import Pooled
from hpcrec.exchange.forms.rows import Rows
from hpcrec.exchange.route import Route
from hpcrec.types import Bags
from tests.devices import device_or_skip
from tests.exchange.test_choose import HOSTS, TAGS, check_cheapest, check_predicted
from tests.exchange.test_forms import family_of
from tests.pairs import covering
from tests.policy.reference import hybrid
from tests.policy.test_hybrid import results, same_bits, trained
from tests.stand_ins.twice_form import Twice, put_twice
from tests.together import on_every_rank
from tests.training import dynamic_runs
from tests.training.runs import config_for, finished, train, write_data
from tests.training.test_equivalence import covering_roles, roles_for, shared_out

COMM, STEPS = MPI.COMM_WORLD, 20
ROOT = Path(__file__).resolve().parents[2]
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
SHARDS: dict[str, dict[str, str]] = {
    **{kind: dict.fromkeys(("user", "item", "tag"), kind) for kind in ("table", "row", "column")},
    "mixed": {"user": "row", "item": "column", "tag": "replicate"},
}


@pytest.fixture(autouse=True)
def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    put_twice(monkeypatch)


def config_of(
    folder: Path, form: str, others: str | None = None, shard: str = "row", optimizer: str = "adagrad", **more: Any
) -> Config:
    """``form`` of history and tag, which have many ids a bag; ``others`` of user, and of item, which shares a table."""
    kinds = SHARDS[shard]
    start = {"initial_accumulator": 0.05} if "adagrad" in optimizer else {}
    wanted: dict[str, dict[str, Any]] = {
        "exchange": {
            "form": others or form,
            "forms": {f: form for f in ("history", "tag") if kinds.get(f) != "replicate"},
        },
        "embedding": {
            "init_scale": 0.3,
            "optimizer": {"name": optimizer, "lr": 0.1, **start},
            "share": {"history": "item"},
            "tables": {name: {"shard": kind} for name, kind in kinds.items()},
        },
        "train": {"steps": STEPS},
    }
    return config_for(folder, **{s: {**wanted.get(s, {}), **more.get(s, {})} for s in {*wanted, *more}})


def alike(found: Any, expected: Any, about: Any) -> None:
    """Losses of the steps, rows and dense parameters, but for the order of sums."""
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-12, err_msg=str(about))
    for mine, theirs in zip(found[1:], expected[1:], strict=True):
        assert mine.keys() == theirs.keys()
        for name, values in theirs.items():
            np.testing.assert_allclose(mine[name], values, rtol=0, atol=1e-12, err_msg=f"{name} {about}")


# Trains as form pooled does.

AXES = (("dlrm", "fm"), tuple(SHARDS), OPTIMIZERS, (None, "pooled", "rows", "partial"), ("routed", "read"))
POOLINGS = ("sum", "mean", "max")


def check_as_pooled(folder: Path, cases: list[tuple[Any, ...]]) -> None:
    write_data(folder / "data.h5")
    for topology, model, shard, optimizer, others, ids, pooling in cases:
        more: dict[str, Any] = {"topology": topology, "model": {"name": model, "pooling": {"history": pooling}}}
        more |= {"exchange": {"ids": ids}}
        found = [train(config_of(folder, form, others, shard, optimizer, **more)) for form in ("twice", "pooled")]
        assert len(set(found[0][0])) == STEPS
        alike(*found, (topology, model, shard, optimizer, others, ids, pooling))


@pytest.mark.parallel([1, 2, 3, 4])
def test_trains_as_pooled_does(folder: Path) -> None:
    """Twenty steps, with weighted ids and empty bags, other forms reading the same table.

    Each case on one number of ranks that can have its roles.
    """
    check_as_pooled(folder, covering_roles(*AXES, POOLINGS))


@pytest.mark.slow
@pytest.mark.parallel([1, 2, 3, 4])
def test_trains_as_pooled_does_on_every_number_of_ranks(folder: Path) -> None:
    check_as_pooled(folder, covering(roles_for(COMM.size), *AXES, POOLINGS))


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_dynamic_tables_with_eviction(folder: Path, evict: str) -> None:
    """The same ids have rows, and the same ones."""
    dynamic_runs.write_data(folder / "data.h5")
    cases = covering(roles_for(COMM.size)[:2], ("adagrad", "adam"), (None, "rows"), POOLINGS)
    for topology, optimizer, others, pooling in cases[:: 1 + (COMM.size > 1)]:
        found = []
        for form in ("twice", "pooled"):
            config = dynamic_runs.dynamic_config(
                folder,
                {"capacity": 12, "evict": evict},
                topology=topology,
                model={"pooling": {"history": pooling}},
                exchange={"form": others or form, "forms": {"history": form, "tag": form}},
                embedding={"share": {"history": "item"}, "optimizer": {"name": optimizer, "lr": 0.05}},
                train={"steps": STEPS},
            )
            with open_session(config) as session:
                losses = [session.parts.world.main.allreduce(np.array([step.run()]))[0] for step in session.steps()]
                rows = dynamic_runs.learned(session)
                store = session.parts.store
                evicted = sum(r.figures().evicted for r in ({} if store is None else store.dynamic).values())
            assert COMM.allreduce(evicted) > 0
            found.append((losses, {f"{table} {i}": row for table, own in rows.items() for i, row in own.items()}))
        alike(*found, (topology, optimizer, others, pooling))


# Codecs.

CODECS = {"bf16": 2.0**-8, "fp16": 2.0**-12 + 2.0**-23}


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("codec", list(CODECS))
def test_codecs_keep_their_bounds(folder: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is rounded by itself: of a bag by its own magnitudes (bf16) or the largest of a message (fp16)."""
    write_data(folder / "data.h5")
    seen: list[Any] = []
    real = Exchange.read

    def read(exchange: Exchange, route: Route) -> None:
        real(exchange, route)
        seen.append(None if route.arrived is None else [leaf.copy() for leaf in route.arrived[0]])

    monkeypatch.setattr(Exchange, "read", read)
    for topology, shard in covering(roles_for(COMM.size)[:2], ("table", "row", "column")):
        seen.clear()
        for name in ("fp32", codec):
            more = {"topology": topology, "train": {"dtype": "float32", "steps": 1}, "exchange": {"codec": name}}
            with open_session(config_of(folder, "twice", None, shard, **more)) as session:
                for step in session.steps():
                    step.run()
                groups, batch = session.parts.pipeline.exchange.layout.groups, step.batch
        whole, lossy = seen
        with on_every_rank():
            for group, leaf, rounded in zip(groups if whole else (), whole or (), lossy or (), strict=True):
                n_samples = len(leaf)
                for place, lookup in enumerate(group.lookups):
                    size_B = magnitudes(batch.bags, lookup.feature, n_samples)
                    bound_B = CODECS[codec] * size_B
                    if codec == "fp16":  # of at most 5 answers, each of at most 3 ids, whose weights are at most 2
                        bound_B = 5 * CODECS[codec] * 3 * 2 * 0.3 * (size_B > 0)
                    off_B = np.abs(leaf[:, place] - rounded[:, place]).max(axis=1)
                    assert (off_B <= bound_B + 1e-6).all(), (topology, shard, lookup)
                assert not np.array_equal(leaf, rounded), "nothing was rounded"


def magnitudes(bags: Bags, feature: str, n_samples: int) -> np.ndarray:
    """At most so large are sums of the magnitudes of a bag's rows, which begin at most 0.3 from zero."""
    at = bags.features.index(feature)
    offsets = bags.offsets[at * n_samples : (at + 1) * n_samples + 1]
    weights = np.ones(len(bags.ids)) if bags.weights is None else bags.weights
    return 0.3 * np.array([weights[a:b].sum() for a, b in itertools.pairwise(offsets)])


# Checkpoints, stores, policies.


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_resumed_gives_the_same_bits(folder: Path) -> None:
    write_data(folder / "data.h5")
    for number, (topology, others, shard) in enumerate(
        zip(roles_for(COMM.size)[:3], (None, "rows", "pooled"), ("row", "table", "column"), strict=False)
    ):
        more = {"topology": topology, "run": {"folder": str(folder / f"run{number}")}}
        config = config_of(folder, "twice", others, shard, "adam", **more)
        expected = finished(config, results)
        finished(config, results, stop_at=9)
        same_bits(finished(config, results, resume=True), expected, topology)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
@pytest.mark.parametrize("device", ["emulated", "cuda"])
def test_rows_and_model_on_a_device(folder: Path, device: str) -> None:
    """Rows in a device's memory, all or some of them: the bits of main memory; with the model there, as pooled."""
    device_or_skip(device)
    write_data(folder / "data.h5")
    for topology, shard, pooling in shared_out_of(covering(roles_for(COMM.size)[:2], ("table", "row"), POOLINGS)):
        more = {"topology": topology, "model": {"pooling": {"history": pooling}}, "train": {"steps": 4}}
        expected = trained(config_of(folder, "twice", "rows", shard, **more))
        for store in ({}, {"memory_bytes": 6000}):
            on_device = {"store": {"name": "gpu", "device": device, **store}}
            same_bits(trained(config_of(folder, "twice", "rows", shard, **more, **on_device)), expected, (shard, store))
    model = {"store": {"name": "gpu", "device": device}, "dense": {"device": device}}
    runs = [config_of(folder, form, "rows", "row", train={"steps": 4}, **model) for form in ("twice", "pooled")]
    alike(*map(train, runs), device)


def shared_out_of(cases: list[Any]) -> list[Any]:
    return list(cases if COMM.size == 1 else shared_out(cases))


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_with_several_steps_in_flight(folder: Path) -> None:
    write_data(folder / "data.h5")
    for topology, others in zip(roles_for(COMM.size)[:2], (None, "rows"), strict=False):
        more = {"topology": topology, "policy": hybrid(1)}
        alike(*(train(config_of(folder, form, others, **more)) for form in ("twice", "pooled")), (topology, others))


# Counted and chosen.


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
def test_predicted_bytes_are_those_of_the_ledger(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the formula of the form, in all and across hosts."""
    write_data(folder / "data.h5")
    modes = ({"mode": "fused"}, {"mode": "split"})
    for topology, shard, others, ids, hosts in covering(
        modes, tuple(SHARDS), (None, "rows", "partial"), ("routed", "read"), (HOSTS[COMM.size], (0,) * COMM.size)
    ):
        monkeypatch.setattr(world_module, "hosts_of", lambda comm, hosts=hosts: hosts)
        more = {"topology": topology, "train": {"steps": 3}, "exchange": {"ids": ids}}
        check_predicted(config_of(folder, "twice", others, shard, **more))


class Cheap(Twice):
    """Said to cost little."""

    name = "cheap"
    simplicity = 4

    @classmethod
    def wire_bytes(cls, *given: Any) -> dict[str, float]:
        return {tag: 0.01 * n_bytes for tag, n_bytes in super().wire_bytes(*given).items()}


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_auto_counts_it_and_takes_the_cheapest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of all by ``twice`` are those of a run; of ``cheap``, which says less of as many, it is taken for all."""
    write_data(folder / "data.h5", samples=800)
    chosen: dict[str, Any] = {"auto_steps": 4, "auto_copies": 0, "form": "auto", "forms": {}}
    for topology in roles_for(COMM.size)[:2]:
        more = {"topology": topology, "train": {"steps": 4, "batch_size": 200}}
        found: dict[str, Any] = {}
        for name, exchange in (("auto", chosen), ("twice", {"form": "twice", "forms": {}})):
            with open_session(config_of(folder, "twice", **more, exchange=exchange)) as session:
                for step in session.steps():
                    step.run()
                counted = session.parts.world.total_wire_bytes().sum(axis=1)
                found[name] = counted if session.parts.chosen is None else session.parts.chosen.found
        single = found["auto"]["single_form_bytes_per_step"]
        assert single.keys() == {"pooled", "rows", "partial", "twice"}
        assert "twice" not in found["auto"]["forms"].values(), "pooled is never more bytes"
        counted = found["twice"][:3].sum() / 4
        predicted = single["twice"] - found["auto"]["predicted_bytes_per_step"]["dense"]
        assert predicted == pytest.approx(counted, abs=3 * 64 * COMM.size**2) and counted > 50 * 64 * COMM.size
        with monkeypatch.context() as patch:
            put_twice(patch, Cheap)
            with open_session(config_of(folder, "twice", **more, exchange=chosen)) as session:
                cheap = session.parts.chosen.found
            assert cheap["forms"] == dict.fromkeys(("user", "item", "history", "tag"), "cheap")
            vectors = cheap["predicted_bytes_per_step"]
            less = cheap["single_form_bytes_per_step"]["twice"] - vectors["dense"]
            assert sum(vectors[tag] for tag in TAGS) == pytest.approx(0.01 * less, rel=0.1)
            runs = [config_of(folder, "twice", **more, exchange=chosen), config_of(folder, "pooled", "pooled", **more)]
            alike(*map(train, runs), topology)


class Sometimes(Twice):
    """Said to cost less than ``pooled`` where bags have one id, and more where they have many."""

    name = "sometimes"

    @classmethod
    def wire_bytes(cls, *given: Any) -> dict[str, float]:
        return {tag: 0.65 * n_bytes for tag, n_bytes in super().wire_bytes(*given).items()}


def test_it_is_taken_feature_by_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest of all combinations of forms and copies is found with another form in the list too."""
    monkeypatch.delitem(FORMS, "twice")
    put_twice(monkeypatch, Sometimes)
    taken = [list(check_cheapest(seed).forms.values()).count("sometimes") for seed in range(4)]
    assert max(taken) > 0 and min(taken) < 4, taken


def test_the_plan_asks_it(folder: Path) -> None:
    family, *_ = family_of(100, "table", 1)
    assert [form.vectors(50, 10) for form in (Pooled, Twice, Rows)] == [10, 20, 50]
    assert [form.vectors(7, 10) for form in (Pooled, Twice, Rows)] == [7, 7, 7]
    assert [form.meets(family) for form in (Pooled, Twice, Rows)] == [False, True, False]
    write_data(folder / "data.h5")
    totals = {
        form: sum(m.total_bytes for m in predict_memory(config_of(folder, form, shard="table"), [0, 0]))
        for form in ("pooled", "twice")
    }
    assert totals["twice"] > totals["pooled"]


# What a form is asked.


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.sampled_from(["table", "row", "column"]), st.integers(0, 99))
def test_halves(n_samples: int, n_owners: int, kind: str, seed: int) -> None:
    """Together every id in its bag, in its order; no half is empty but of no or one id."""
    family, *_ = family_of(1000, kind, n_owners)
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, n_samples)
    column = Column(rng.integers(0, 1000, lengths.sum()), lengths, rng.uniform(0, 1, lengths.sum()), None)
    (whole, _), (halves, none) = Pooled(family, ("f",)).ask({"f": column}), Twice(family, ("f",)).ask({"f": column})
    assert (
        none is None
        and halves.sample is not None
        and halves.sample.tolist() == np.repeat(np.arange(n_samples), 2).tolist()
    )
    np.testing.assert_array_equal(halves.rows, whole.rows)
    np.testing.assert_array_equal(
        halves.lengths.reshape(n_samples, 2), np.stack([(lengths + 1) // 2, lengths // 2], axis=1)
    )


def test_the_list_is_asked_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settable() == ("pooled", "rows", "partial", "cached", "twice") and of_copies() == "replicate"
    assert offered() == ("pooled", "rows", "partial", "twice") and offered(thresholded=True) == ("pooled", "partial")
    assert config_of(folder, "twice").exchange.form == "twice"
    with pytest.raises(
        ConfigError, match=r"exchange\.form is 'twice', whose halves are thresholded one by one.*'partial'"
    ):
        config_of(folder, "twice", exchange={"form": "twice", "codec": "dct"}, train={"dtype": "float32"})
    monkeypatch.delitem(FORMS, "twice")
    with pytest.raises(
        ConfigError, match=r'exchange\.forms\.tag is "twice"\. Allowed: "pooled", "rows", "partial", "cached", "auto"'
    ):
        config_of(folder, "pooled", exchange={"forms": {"tag": "twice"}})


def test_what_a_form_has_to_say() -> None:
    with pytest.raises(TypeError, match=r"form Silent asks in its own way\. Set sends"):

        class Silent(Pooled):
            ask = Twice.ask

    with pytest.raises(TypeError, match="form Both has several answers a sample"):

        class Both(Twice):
            stays = True


def test_no_form_is_named_elsewhere() -> None:
    """In the code of the exchange but its forms not at all; elsewhere not in a comparison.

    Left out: "replicate" is a kind of shard too, and "rows" what tables have.
    """

    def names_in(tree: ast.AST) -> set[str]:
        return {str(n.value) for n in ast.walk(tree) if isinstance(n, ast.Constant)} & {"pooled", "rows", "partial"}

    found = []
    for path in sorted((ROOT / "hpcrec").rglob("*.py")):
        part, tree = path.relative_to(ROOT / "hpcrec").parts, ast.parse(path.read_text())
        if part[:2] == ("exchange", "forms"):
            continue
        compared: list[ast.AST] = [n for n in ast.walk(tree) if isinstance(n, ast.Compare)]
        names = names_in(tree) if part[0] == "exchange" else names_in(ast.Module(compared, []))  # type: ignore[arg-type]
        if part[0] in ("checkpoint",):  # whose files have a data set "rows"
            names -= {"rows"}
        found += [(str(path), name) for name in names]
    assert not found
    assert names_in(ast.parse('if form in ("rows", "x"): pass')) == {"rows"}
