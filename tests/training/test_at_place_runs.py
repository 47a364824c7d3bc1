"""Towers at their place in whole runs: interrupted, moved, read, evaluated, with steps left out; what is refused."""

import itertools
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec.build.reading import open_for_reading
from hpcrec.build.session import open_session
from hpcrec.build.tables import as_read
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config
from hpcrec.errors import ConfigError
from hpcrec.exchange.measure import Asks, ItemBytes, key_of, step_bytes
from hpcrec.models.tower_modules import TowerModule
from hpcrec.training.session import Session
from tests.together import on_every_rank
from tests.training import runs
from tests.training.runs import finished, gather_tables, train, write_data
from tests.training.test_at_place import HOSTS, STEPS, computed, config_of
from tests.training.test_equivalence import roles_for
from tests.training.test_host_sums import close, dynamic_of, on_hosts
from tests.training.test_nonfinite import spoil

COMM = MPI.COMM_WORLD
APART = {2: (0, 1), 3: (0, 0, 1), 4: (0, 0, 1, 1)}
FUSED = {"mode": "fused"}


def everything(session: Session) -> dict[str, np.ndarray]:
    """Rows, and dense parameters, on every rank."""
    model, rows = session.gather_model(), gather_tables(session)
    dense = None if model is None else {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    return {**rows, **COMM.bcast(dense, root=session.topology.dense[0])}


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], about: object, most: float) -> None:
    with on_every_rank():
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            np.testing.assert_allclose(found[name], values, rtol=0, atol=most, err_msg=f"{about}: {name}")


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_interrupted_and_moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits on the same hosts; on others, and by dense ranks, but for the order of sums."""
    write_data(folder / "data.h5")
    more: dict[str, Any] = {"towers": "four, of a feature each", "clip": 0.05}
    on_hosts(monkeypatch, APART[COMM.size])
    wanted = finished(config_of(folder, FUSED, run={"folder": str(folder / "whole")}, **more), everything)
    here, alone, one_host = APART[COMM.size], tuple(range(COMM.size)), (0,) * COMM.size
    moves = [
        (here, FUSED, "partial", 0.0),
        (alone, FUSED, "partial", 1e-10),
        (one_host, roles_for(COMM.size)[1], "partial", 1e-10),
        (here, FUSED, "pooled", 1e-10),
    ]
    for number, (hosts, roles, form, most) in enumerate(moves):
        run = {"folder": str(folder / f"run-{number}")}
        on_hosts(monkeypatch, APART[COMM.size])
        finished(config_of(folder, FUSED, run=run, **more), lambda session: None, stop_at=2)
        on_hosts(monkeypatch, hosts)
        config = config_of(folder, roles, run=run, form=form, **more)
        same(finished(config, everything, resume=True), wanted, (hosts, roles, form), most)
        if form == "pooled":  # and back
            on_hosts(monkeypatch, APART[COMM.size])
            back = {"folder": str(folder / "back")}
            finished(config_of(folder, roles, run=back, form=form, **more), lambda session: None, stop_at=2)
            same(finished(config_of(folder, FUSED, run=back, **more), everything, resume=True), wanted, "back", 1e-10)


@pytest.mark.parallel([4])
@pytest.mark.parametrize("n_towers", [4, 8])
def test_from_four_hosts_to_three_two_one_and_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, n_towers: int
) -> None:
    """A step on each, of towers of a feature each, in one process's numbers."""
    if n_towers == 8:
        twice = (*runs.FEATURES, *(replace(feature, name=f"{feature.name}2") for feature in runs.FEATURES))
        monkeypatch.setattr(runs, "FEATURES", twice)
    write_data(folder / "data.h5")
    chain = ((0, 1, 2, 3), (0, 1, 2, 2), (0, 0, 1, 1), (0, 0, 0, 0), (0, 1, 2, 3))
    on_hosts(monkeypatch, chain[0])
    towers = "four, of a feature each" if n_towers == 4 else "eight, of a feature each"
    whole = config_of(folder, FUSED, form="pooled", towers=towers, run={"folder": str(folder / "whole")})
    wanted = finished(whole, everything)
    config = config_of(folder, FUSED, towers=towers)
    for step, hosts in enumerate(chain, start=1):
        on_hosts(monkeypatch, hosts)
        with open_session(config) as session:
            assert len(computed(session)) == n_towers
            if step > 1:
                found = find_checkpoint(Path(config.run.folder), "last", session.parts.world.main)
                state.load(session, found, resume=True)
            for one in session.steps():
                one.run()
                break
            state.save(session, Path(config.run.folder), {})
            assert session.step == step
            found_rows = everything(session)
    assert len(chain) == STEPS
    same(found_rows, wanted, chain, 1e-10)


@pytest.mark.parallel([1, 2, 3])
def test_a_run_is_evaluated_and_read_on_any_hosts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whole modules on dense ranks, as in training by those at owners; an evaluation changes nothing."""
    write_data(folder / "data.h5")
    data = {name: str(folder / "data.h5") for name in ("train", "validation", "test")}
    on_hosts(monkeypatch, APART.get(COMM.size, (0,)))
    config = config_of(folder, FUSED, data=data)
    with open_session(config) as session:
        for step in session.steps():
            step.run()
            if step.number == 2:
                session.evaluate("validation")
        state.save(session, Path(config.run.folder), {})
        found, trained = session.evaluate("validation"), everything(session)
    plain = finished(config_of(folder, FUSED, run={"folder": str(folder / "plain")}), everything)
    same(trained, plain, "evaluated between", 0.0)
    on_hosts(monkeypatch, (0,) * COMM.size)
    with open_session(as_read(config), reading=True) as session:
        state.load(session, find_checkpoint(Path(config.run.folder), "last", session.parts.world.main), resume=False)
        assert not computed(session)
        assert found["logloss"] == pytest.approx(session.evaluate("validation")["logloss"], abs=1e-12)
    open_for_reading(config, None, "last").close()


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_steps_that_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where dense ranks compute the towers."""
    write_data(folder / "data.h5")
    for hosts, roles in zip(itertools.cycle(HOSTS[COMM.size]), roles_for(COMM.size), strict=False):
        on_hosts(monkeypatch, hosts)
        found = []
        for form in ("pooled", "partial"):
            config = config_of(folder, roles, form=form, clip=0.05, train={"nonfinite": "skip"})
            with open_session(config) as session:
                for step in session.steps():
                    if step.number == 2:
                        spoil(session, step)
                    step.run()
                assert session.guard.skipped == 1
                found.append(everything(session))
        same(found[1], found[0], (hosts, roles), 1e-10)


@pytest.mark.parallel([2, 3, 4])
def test_dynamic_tables_and_codecs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamic tables, that keep all their rows and that do not; codecs to within their rounding."""
    write_data(folder / "data.h5")
    owners = {"shard": "table", "owners": [0]}  # so that the same ids are evicted
    tables = {
        "dynamic": {"user": {"dynamic": {"capacity": 64}}, "tag": {"dynamic": {"capacity": 32}}},
        "evicted": {"user": {"dynamic": {"capacity": 12, "evict": "lru"}, **owners},
                    "tag": {"dynamic": {"capacity": 5, "evict": "lfu"}, **owners}},
    }  # fmt: skip
    for name, roles in zip(tables, itertools.cycle(roles_for(COMM.size)), strict=False):
        on_hosts(monkeypatch, APART[COMM.size])
        found = []
        for form in ("pooled", "partial"):
            config = config_of(folder, roles, form=form, embedding={"tables": tables[name], "share": {}})
            with open_session(config) as session:
                losses = [float(COMM.allreduce(step.run())) for step in session.steps()]
                assert bool(computed(session)) == (form == "partial"), (name, roles)
                found.append((losses, {t: r for t, r in dynamic_of(session).items() if t in ("user", "tag")}))
        close(found[1], found[0], (name, roles), 1e-10)


@pytest.mark.parallel([2, 3, 4])
def test_codecs_round_what_crosses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step's update of rows, no more than they may; what is thresholded of vectors is not of results."""
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, APART[COMM.size])
    found: dict[str, dict[str, np.ndarray]] = {}
    for codec in ("fp32", "bf16", "fp16", "dct"):
        more: dict[str, Any] = {
            "exchange": {"codec": codec, "path": "levels"},
            "train": {"dtype": "float32", "steps": 1},
            "embedding": {"optimizer": {"name": "sgd", "lr": 1.0}},
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "exchange.codec is 'dct'")
            with open_session(config_of(folder, FUSED, optimizer="SGD", **more)) as session:
                assert computed(session) == {"tower0", "tower1"}
                before = gather_tables(session)
                for step in session.steps():
                    step.run()
                found[codec] = {name: rows - before[name] for name, rows in gather_tables(session).items()}
    with on_every_rank():
        for name, update in found["fp32"].items():
            assert np.abs(update).max() > 1e-4, name
            for codec, most in (("bf16", 2e-2), ("fp16", 5e-3), ("dct", 2e-2)):
                off = np.abs(found[codec][name] - update).max() / np.abs(update).max()
                assert 0 < off < most, (codec, name, off)


@pytest.mark.parallel([2, 3, 4])
def test_thresholded_dense_gradients_are_of_the_rest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module at its place is summed whole, among its owners alone; the sum of dense ranks has no parameter of it."""
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, APART[COMM.size])
    dense = {"compression": "dct", "dct": {"density": 0.5, "every": 2}}
    with open_session(config_of(folder, FUSED, dense=dense, train={"dtype": "float32"})) as session:
        for step in session.steps():
            step.run()
        away, part = set(session.parts.slices.away), session.parts.dense
        assert away == {n for n, _ in part.model.named_parameters() if n.startswith("towers.")}
        assert not away & {name for name, _ in part.trained}
        mine = {name: own.part.detach().numpy().tobytes() for name, own in session.parts.slices.own.items()}
        for theirs in COMM.allgather(mine):
            assert all(theirs[name] == mine[name] for name in theirs.keys() & mine.keys()), "parts differ"


@pytest.mark.parallel([1, 2])
def test_what_cannot_be_is_refused_or_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, APART.get(COMM.size, (0,)))

    def refused(says: str, config: Config) -> None:
        with pytest.raises(ConfigError, match=says):
            open_session(config)

    with pytest.raises(ConfigError, match=r"form is 'partial', but policy\.name is 'cached'"):
        config_of(folder, FUSED, policy={"name": "cached", "staleness": 1, "capacity": 9})
    policies: list[dict[str, Any]] = [{"name": "hybrid", "staleness": 1}, {"name": "ahead"}]
    for policy in policies:
        refused("owners would train dense parameters of tower0, tower1", config_of(folder, FUSED, policy=policy))
    with open_session(config_of(folder, FUSED, options={"towers": [["user", "item"], ["tag", "history"]]})) as session:
        assert computed(session) == {"tower0", "tower1"}, "they share a table, so they are on one host"
    apart = {"tables": {"user": {"shard": "replicate"}}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with open_session(config_of(folder, FUSED, embedding=apart)) as session:
            assert computed(session) == {"tower1"}
    said = [str(w.message) for w in told if "tower0, because table 'user' is placed as 'replicate'" in str(w.message)]
    with on_every_rank():
        assert len(said) == (COMM.rank == 0), [str(w.message) for w in told]


@pytest.mark.parallel([2])
def test_rows_of_a_tower_on_two_hosts_are_computed_by_dense_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 1))
    placed = {"user": {"shard": "table", "owners": [0]}, "tag": {"shard": "table", "owners": [1]}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = train(config_of(folder, FUSED, embedding={"tables": placed}), STEPS)
    wanted = train(config_of(folder, FUSED, embedding={"tables": placed}, form="pooled"), STEPS)
    close(found, wanted, "two hosts", 1e-10)
    with on_every_rank():
        assert any("tower0, because its rows are on 2 hosts" in str(w.message) for w in told) == (COMM.rank == 0)


class Counting(TowerModule):
    """A projection, with what a run would not save, or not find again, as it is asked for."""

    def __init__(self, n_vectors: int, width: int, columns: int, elements: int, what: str) -> None:
        super().__init__(elements // columns, columns)
        self.project = torch.nn.Linear(n_vectors * width, self.elements)
        if what == "buffer":
            self.register_buffer("seen", torch.zeros(()))
        if what == "dropout":
            self.drop = torch.nn.Dropout(0.5)
        if what == "scalar":
            self.scale = torch.nn.Parameter(torch.ones(()))
        self.what = what

    def forward(self, block_BFN: torch.Tensor) -> torch.Tensor:
        return self.project(block_BFN.flatten(1)) * (self.scale if self.what == "scalar" else 1.0)


def with_buffer(n_vectors: int, width: int, columns: int, elements: int) -> Counting:
    return Counting(n_vectors, width, columns, elements, "buffer")


def with_dropout(n_vectors: int, width: int, columns: int, elements: int) -> Counting:
    return Counting(n_vectors, width, columns, elements, "dropout")


def with_scalar(n_vectors: int, width: int, columns: int, elements: int) -> Counting:
    return Counting(n_vectors, width, columns, elements, "scalar")


def frozen(n_vectors: int, width: int, columns: int, elements: int) -> Counting:
    made = Counting(n_vectors, width, columns, elements, "nothing")
    made.project.bias.requires_grad_(False)
    return made


@pytest.mark.parallel([1, 2])
def test_modules_of_which_owners_would_lose_something(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stay on dense ranks, which is said; a parameter that is frozen is none of these."""
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, APART.get(COMM.size, (0,)))
    for name, says in (("with_buffer", "buffer"), ("with_dropout", "random numbers"), ("with_scalar", "no dimension"),
                       ("frozen", "")):  # fmt: skip
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = train(config_of(folder, FUSED, options={"module": f"{__name__}:{name}"}))
        said = [str(w.message) for w in told if "dense ranks compute tower0" in str(w.message)]
        with on_every_rank():
            assert len(said) == (COMM.rank == 0 and bool(says)) and all(says in one for one in said), (name, said)
        if name == "frozen":
            wanted = train(config_of(folder, FUSED, options={"module": f"{__name__}:{name}"}, form="pooled"))
            close(found, wanted, name, 1e-10)


@pytest.mark.parallel([2])
def test_groups_of_dense_ranks_have_modules_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 1))
    more: dict[str, Any] = {"dense": {"codistillation": {"groups": 2}}, "train": {"batch_size": 12}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with open_session(config_of(folder, FUSED, **more)) as session:
            assert not computed(session)
    with on_every_rank():
        said = [w for w in told if "each group of dense ranks has a module of its own" in str(w.message)]
        assert len(said) == (COMM.rank == 0)


@pytest.mark.parallel([2, 3, 4])
def test_towers_without_parameters_under_hybrid(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that meet, and their gradients, go by one lane: rows are as old as under pooled, to the bit."""
    write_data(folder / "data.h5")
    for hosts in ((0,) * COMM.size, APART[COMM.size]):
        on_hosts(monkeypatch, hosts)
        beside = int(hosts[1] == hosts[0])
        placed = {"tables": {name: {"shard": "table", "owners": [n]} for name, n in (("user", 0), ("tag", beside))}}
        more: dict[str, Any] = {"policy": {"name": "hybrid", "staleness": 1}, "embedding": placed}
        more["options"] = {"module": "identity", "ratio": 1}
        found = [train(config_of(folder, FUSED, form=form, **more)) for form in ("pooled", "partial")]
        close(found[1], found[0], hosts, 1e-12)


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_bytes_are_those_predicted(folder: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Of values, gradients and dense sums, by the ledger, but for padding: those of modules among their owners too."""
    write_data(folder / "data.h5", samples=256)
    item = {"fp32": ItemBytes(4.0), "bf16": ItemBytes(2.0, held=4.0)}[codec]
    for hosts in {(0,) * COMM.size, APART[COMM.size]}:
        on_hosts(monkeypatch, hosts)
        config = config_of(folder, FUSED, width=16, train={"batch_size": 64, "dtype": "float32", "steps": 4},
                           exchange={"ids": "read", "codec": codec}, embedding={"share": {}})  # fmt: skip
        with open_session(config) as session:
            layout, world = session.parts.exchange.layout, session.parts.world
            before = world.total_wire_bytes().sum(axis=1)
            for step in session.steps():
                step.run()
            sent = (world.total_wire_bytes().sum(axis=1) - before) / 4
        n_dense = sum(p.numel() for p in session.parts.dense.model.parameters())
        own, others = dict.fromkeys(range(COMM.size), 64 / COMM.size), 64 * (1 - 1 / COMM.size)
        nothing = {key_of(entry): dict.fromkeys(layout.legs, (0.0, 0.0, 0.0))
                   for leg in layout.legs.values() for entry in leg.entries}  # fmt: skip
        asks = Asks(dict.fromkeys(layout.legs, others), nothing, own)
        whole = {"dense_elements": n_dense, "dense_item_bytes": 4.0, "dense_ranks": COMM.size}
        said = step_bytes(layout, asks, item_bytes=item, **whole) if not layout.groups else {}
        with on_every_rank():
            assert len(layout.meetings) >= 2 and not layout.groups, "features cross besides"
            for tag, messages in (("values", 2), ("gradients", 2), ("dense", 4)):
                padding = 64 * messages * COMM.size**2
                assert said[tag] <= sent[TAGS.index(tag)] <= said[tag] + padding, (hosts, tag, said, sent)
