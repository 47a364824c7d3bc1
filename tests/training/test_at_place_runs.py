"""Towers at their place in whole runs: interrupted, moved, read, evaluated, with steps left out; what is refused."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.reading import open_for_reading
from hpcrec.build.session import open_session
from hpcrec.build.tables import as_read
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.config import Config
from hpcrec.errors import ConfigError
from hpcrec.training.session import Session
from tests.together import on_every_rank
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
    on_hosts(monkeypatch, APART[COMM.size])
    losses = {}
    for codec in ("fp32", "bf16", "fp16", "dct"):
        more: dict[str, Any] = {"exchange": {"codec": codec, "path": "levels"}, "train": {"dtype": "float32"}}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "exchange.codec is 'dct'")
            losses[codec] = np.array(train(config_of(folder, FUSED, optimizer="SGD", **more))[0])
    with on_every_rank():
        for codec, of in losses.items():
            np.testing.assert_allclose(of, losses["fp32"], rtol=0, atol=2e-3, err_msg=codec)
            assert codec in ("fp32", "dct") or (of != losses["fp32"]).any(), codec


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

    refused("owners would train dense parameters of tower0, tower1", config_of(
        folder, FUSED, policy={"name": "hybrid", "staleness": 1}))  # fmt: skip
    refused("share tables", config_of(folder, FUSED, options={"towers": [["user", "item"], ["tag", "history"]]}))
    # weights of the module that meets are those of dense ranks under another form
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
