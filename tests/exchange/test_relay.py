"""Messages that pass a third rank: no bit changes, bytes are those of two transfers; what does not go is refused."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from hpcrec import kernels
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.comm.ledger import describe
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.errors import ConfigError
from hpcrec.exchange.forms import FORMS
from hpcrec.exchange.forms.pooled import Pooled
from hpcrec.exchange.stages import STAGES
from hpcrec.training.session import Session
from tests.exchange.test_bytes import unit
from tests.exchange.test_exchange import FEATURES, LOOKUPS, STEPS, global_batch, run, tables
from tests.stand_ins.relay_stage import HOSTS, put_relays, relayed
from tests.together import on_every_rank
from tests.training import dynamic_runs
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import Cases, roles_for, shared_out_or_all_cases

COMM = MPI.COMM_WORLD
CODECS = {
    "float64": ("fp32", "float64"),
    "float32": ("fp32", "float32"),
    "bf16": ("bf16", "float32"),
    "fp16": ("fp16", "float32"),
}
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
# How tables are placed, and the forms that go beside: every message goes the way of those that pass a stage.
WAYS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "table": ("dlrm", {}, {"user": {"shard": "table"}, "item": {"shard": "table"}, "tag": {"shard": "table"}}),
    "row": ("deepfm", {}, {"user": {"shard": "row"}, "item": {"shard": "row"}, "tag": {"shard": "table"}}),
    "column": ("deepfm", {}, {"user": {"shard": "column"}, "item": {"shard": "column"}, "tag": {"shard": "row"}}),
    "copies": ("fm", {}, {"user": {"shard": "row"}, "item": {"shard": "column"}, "tag": {"shard": "replicate"}}),
    "rows beside": ("dcn", {"item": "rows", "history": "rows"}, {"user": {"shard": "row"}, "item": {"shard": "row"}}),
    "partial beside": ("fm", {"user": "partial", "tag": "partial"}, {"user": {"shard": "table"}}),
    "evicted": ("fm", {}, {t: {"dynamic": {"capacity": 9, "evict": "lru"}} for t in ("user", "item")}),
    "evicted, rows beside": (
        "deepfm",
        {"user": "rows"},
        {"user": {"dynamic": {"capacity": 8, "evict": "lfu"}}, "item": {"dynamic": {"capacity": 10}}},
    ),
}
N = 20


def config_of(folder: Path, roles: dict[str, Any], way: str, codec: str, optimizer: str, **more: Any) -> Config:
    model, forms, placed = WAYS[way]
    written, dtype = CODECS[codec]
    if codec == "fp16" and way == "copies":  # which do not go together
        placed = {**placed, "tag": {"shard": "table"}}
    return config_for(
        folder,
        data={"train": str(folder / ("dynamic.h5" if "evicted" in way else "data.h5"))},
        topology=roles,
        model={"name": model, "pooling": {"history": more["pooling"]}},
        exchange={"form": "pooled", "forms": forms, "codec": written, "ids": more["ids"]},
        embedding={"optimizer": {"name": optimizer, "lr": 0.1}, "share": {"history": "item"}, "tables": placed},
        train={"steps": N, "dtype": dtype, "nonfinite": "skip"},
        run={"folder": str(folder / "run")},
    )


def learned(session: Session, losses: Sequence[float]) -> list[Any]:
    """Rows and their states by id on this rank, dense parameters, losses, rows evicted: as bytes."""
    found: list[Any] = [np.array(losses).tobytes()]
    session.parts.pipeline.settle()
    if session.parts.store is not None:
        for table in sorted(session.parts.store.tables):
            for ids, rows, states in session.parts.store.export(table):
                order = np.argsort(ids)
                found += [table, ids[order].tobytes(), rows[order].tobytes()]
                found += [(name, state[order].tobytes()) for name, state in states.items()]
    model = session.gather_model()
    if model is not None:
        found += [(n, p.detach().numpy().tobytes()) for n, p in model.named_parameters()]
    return found


def trained(config: Config, stops_at: int = 0) -> list[Any]:
    """What is learned in all steps; saved and gone on with after ``stops_at`` of them, if that is any."""
    losses: list[float] = []
    if stops_at:
        with open_session(config) as session:
            for step in session.steps():
                losses.append(step.run())
                if session.step == stops_at:
                    state.save(session, Path(config.run.folder), {})
                    break
    with open_session(config) as session:
        if stops_at:
            last = find_checkpoint(Path(config.run.folder), "last", session.parts.world.main)
            state.load(session, last, resume=True)
        losses += [step.run() for step in session.steps()]
        return learned(session, losses)


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_every_pair_has_the_bits_of_pooled(cases_of: Cases, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    dynamic_runs.write_data(folder / "dynamic.h5")
    put_relays(monkeypatch)
    poolings, ways_of_ids, stops = ("sum", "mean", "max"), ("routed", "read"), (0, 9)
    for case in cases_of(tuple(WAYS), tuple(CODECS), OPTIMIZERS, poolings, ways_of_ids, stops):
        roles, way, codec, optimizer, pooling, ids, stops_at = case
        config = config_of(folder, roles, way, codec, optimizer, pooling=pooling, ids=ids)
        expected = trained(config)
        found = trained(relayed(config), stops_at)
        with on_every_rank():
            assert len(expected) > 1
            assert found == expected, case


def expected_bytes(world: World) -> dict[str, list[int]]:
    """Bytes that all ranks send in ``run`` with all tables at owner 0: inside hosts, and across."""
    topology, item, entries = world.topology, 8, len(FEATURES)
    widths = {f.name: sum(tables("sgd")[k.table].width for k in LOOKUPS if k.feature == f.name) for f in FEATURES}
    total = {"values": [0, 0], "gradients": [0, 0], "control": [0, 0]}

    def hop(tag: str, sender: int, receiver: int, n_bytes: int) -> None:
        if sender != receiver:
            total[tag][topology.host_of[sender] != topology.host_of[receiver]] += n_bytes

    def via(owner: int) -> int:
        ranks = [r for r, host in enumerate(topology.host_of) if host == topology.host_of[owner]]
        return ranks[(ranks.index(owner) + 1) % len(ranks)]

    told = 8 * 8 * -(-(2 + entries) // 8)
    idle = sorted(set(topology.owners[1:]) - set(topology.dense))
    teller = {o: topology.dense[j % len(topology.dense)] for j, o in enumerate((topology.owners[0], *idle))}
    cuts = np.linspace(0, 13, len(topology.dense) + 1).astype(int)
    for step in range(STEPS):
        ids, _ = global_batch(step, 13)
        for sender in range(topology.size):
            for receiver in range(topology.size):
                hop("control", sender, receiver, 32)
        for d, dense in enumerate(topology.dense):
            n = sum(widths[f] * sum(len(bag) > 0 for bag in bags[cuts[d] : cuts[d + 1]]) for f, bags in ids.items())
            for owner in topology.owners:
                hop("control", dense, via(owner), told)
                elements = n if owner == topology.owners[0] else 0
                verdict = teller.get(owner) == dense
                for sender, receiver in ((owner, via(owner)), (via(owner), dense)):
                    hop("values", sender, receiver, unit(item * elements))
                    hop("gradients", receiver, sender, unit(item * (elements + verdict)))
    return total


@pytest.mark.parallel([1, 2, 3, 4])
def test_ledger_equals_the_formula_of_two_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    put_relays(monkeypatch)
    for roles in roles_for(COMM.size):
        world = World(COMM, lambda hosts, roles=roles: assign_roles(hosts, **roles))
        assert world.topology.host_of == HOSTS[COMM.size]
        with contextlib.closing(world):
            run(world, "sgd", "first", "relay", np.float64)
            counted = describe(world.total_wire_bytes())
            for tag, (inside, across) in expected_bytes(world).items():
                assert counted[tag] == {"same_host": inside, "cross_host": across}, (roles, tag)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=300),
    st.integers(-149, 127),
    st.integers(0, 2**32 - 1),
)
def test_what_was_rounded_is_written_without_change(kind: str, some: list[float], exponent: int, seed: int) -> None:
    """So a second transfer by the same codec gives the bits of one."""
    rng = np.random.default_rng(seed)
    close = np.ldexp(rng.uniform(-1, 1, 300), exponent).astype(np.float32)  # of all magnitudes, in blocks of their own
    for values in (np.array(some, np.float32), close):
        read = []
        for _ in range(2):
            message = np.zeros(kernels.half_bytes(len(values), kind), np.uint8)
            kernels.write_halves(values, message, kind)
            values = np.empty_like(values)
            kernels.read_halves(message, values, kind)
            read.append(values)
        np.testing.assert_array_equal(read[0], read[1])


@pytest.mark.parallel([1, 2])
def test_what_does_not_go_with_stages_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    for name, stages in (("other", ("relay", "relay")), ("lost", ("nowhere",))):
        monkeypatch.setitem(FORMS, name, type(name, (Pooled,), {"name": name, "stages": stages}))
    config = relayed(config_for(folder))

    def with_exchange(**keys: Any) -> Config:
        return replace(config, exchange=replace(config.exchange, **keys))

    for wrong, said in (
        (
            with_exchange(forms={"user": "other"}),
            "'user' pass stages relay, relay, those of '.*' relay, but all",
        ),
        (with_exchange(form="lost"), "pass stage 'nowhere', which there is not. There are: relay, scaled_relay"),
        (with_exchange(codec="dct"), "exchange.codec is 'dct', but messages pass stages relay"),
        (
            with_exchange(form="auto", forms={"user": "relay"}),
            "'auto' for item, history, tag, which counts bytes",
        ),
    ):
        if wrong.exchange.codec == "dct":
            wrong = replace(wrong, train=replace(wrong.train, dtype="float32"))
        with pytest.raises(ConfigError, match=said):
            open_session(wrong)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("via", ["out of range", "each its own"])
def test_a_way_that_ranks_do_not_agree_on_is_refused(via: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    size, me = COMM.size, COMM.rank
    to = {"out of range": lambda topology, owner, dense: size, "each its own": lambda topology, owner, dense: me}[via]
    monkeypatch.setattr(STAGES["relay"], "via", staticmethod(to))
    config = relayed(config_for(folder, exchange={"form": "pooled"}))
    said = "by rank" if via == "out of range" else "by other ranks on one rank"
    with on_every_rank(), pytest.raises(ConfigError, match=said):
        open_session(config)
