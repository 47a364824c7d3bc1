"""Rows on a disk in whole runs: every form, policy, optimizer and kind of table gives the bits of main memory."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.memory import predict_memory
from hpcrec.build.session import open_session
from hpcrec.config import Config, validate
from hpcrec.disk.common import Settings
from hpcrec.embedding.stores import write_budget
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.errors import ConfigError
from tests.together import on_every_rank
from tests.training import runs
from tests.training.runs import config_for, finished, gather_tables, train, write_data
from tests.training.test_equivalence import roles_for
from tests.training.test_store_gpu import CASES as EVERYWHERE
from tests.training.test_store_gpu import same, tables_of

COMM = MPI.COMM_WORLD
BYTES = 20_000_000
STEPS = 5
THREE = {"gpu_bytes": 6000, "device": "emulated"}
CASES: dict[str, dict[str, Any]] = {
    **EVERYWHERE,
    "copies": {"exchange": {"form": "auto", "replicate_rows": 400}},
    "hybrid": {"policy": {"name": "hybrid", "staleness": 2}},
    "ahead": {"policy": {"name": "ahead"}, "exchange": {"form": "rows"}},
    "cached": {
        "policy": {"name": "cached", "staleness": 2, "capacity": 9},
        "embedding": {"optimizer": {"name": "sgd", "lr": 0.1}},
    },
    "cached, of a state that grows": {
        "policy": {"name": "cached", "staleness": 2, "capacity": 9},
        "embedding": {"optimizer": {"name": "rowwise_adagrad", "lr": 0.1}},
    },
    "cached, of states by column": {
        "policy": {"name": "cached", "staleness": 3, "capacity": 20, "lookahead": 1},
        "embedding": {"optimizer": {"name": "adagrad", "lr": 0.1}},
    },
    "ids that owners read": {"exchange": {"ids": "read"}},
    "steps that owners look at": {"exchange": {"ids": "read", "prefetch": 2}, "store": {"window": 3}},
    "far ahead": {"exchange": {"prefetch": 4}},
    "two ahead, of several steps under way": {
        "exchange": {"prefetch": 2},
        "policy": {"name": "hybrid", "staleness": 1},
    },
    "not ahead": {"exchange": {"prefetch": 0}},
    "left out": {"train": {"nonfinite": "skip"}},
    "whole tables": {"model": {"name": "deepfm"}, "store": {"whole": ["user", "item"]}},
    "dynamic and whole": {**EVERYWHERE["dynamic"], "store": {"whole": ["user"]}},
    "three tiers": {"store": THREE},
    "three tiers, of several steps under way": {"store": THREE, "policy": {"name": "hybrid", "staleness": 1}},
    "three tiers, ids that owners read": {
        "exchange": {"ids": "read", "prefetch": 2},
        "store": {**THREE, "gpu_bytes": 1, "window": 3},
    },
    "three tiers, dynamic": {**EVERYWHERE["dynamic"], "store": THREE},
    "three tiers, cached": {
        "store": THREE,
        "policy": {"name": "cached", "staleness": 2, "capacity": 9, "lookahead": 1},
        "embedding": {"optimizer": {"name": "sgd", "lr": 0.1}},
    },
    "three tiers, in two parts": {"store": THREE, "policy": {"name": "ahead"}, "exchange": {"form": "rows"}},
    "three tiers and whole tables": {"model": {"name": "deepfm"}, "store": {**THREE, "whole": ["user"]}},
}


@pytest.fixture(autouse=True)
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many that a step asks for some of each table alone."""
    more = tuple(replace(feature, cardinality=40 * feature.cardinality) for feature in runs.FEATURES)
    monkeypatch.setattr(runs, "FEATURES", more)


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for 32 rows of each block, or a few more, in turn: fewer than a step asks for; short pieces and files."""
    room = itertools.cycle((1, 6000))
    monkeypatch.setattr(DiskStore, "of_tier", Settings(piece_bytes=4096, segment_bytes=16384))
    monkeypatch.setattr(DiskStore, "_left_for_rows", lambda self, own: next(room))


def config_of(folder: Path, *, on_disk: bool, **sections: dict[str, Any]) -> Config:
    given = sections.get("store", {})
    store = {"name": "disk", "path": str(folder / "rows"), "memory_bytes": BYTES, **given} if on_disk else {}
    wanted = {**sections, "train": {"steps": STEPS, **sections.get("train", {})}, "store": store}
    return config_for(folder, **wanted)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("turns", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("few_places")
def test_every_run_gives_the_bits_of_main_memory(turns: int, folder: Path) -> None:
    """Of four cases each number of ranks has one; in the soak all."""
    write_data(folder / "data.h5")
    roles = itertools.islice(itertools.cycle(roles_for(COMM.size)), COMM.size, None)
    mine = list(CASES.items())[COMM.size % turns :: turns]
    for (name, sections), topology in zip(mine, roles, strict=False):
        run = tables_of if "dynamic" in name else train
        wanted, found = (
            run(config_of(folder, on_disk=where, topology=topology, **sections)) for where in (False, True)
        )
        if "dynamic" in name:
            assert found == wanted, name
        else:
            same(found, wanted)
    with on_every_rank():
        assert not list((folder / "rows").glob("*/*")), "files of a run go with it"


@pytest.mark.parallel([1, 2])
@pytest.mark.usefixtures("few_places")
@pytest.mark.filterwarnings("ignore:store.daily_bytes")
def test_a_budget_of_writes_changes_no_bit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten megabytes a second, and not a moment's more: whoever has written waits."""
    write_data(folder / "data.h5")
    monkeypatch.setattr(write_budget, "BURST_S", 0.0)
    waited, found = [], []
    for daily_bytes in (None, 86_400 * 10_000_000):
        store = {} if daily_bytes is None else {"daily_bytes": daily_bytes}
        config = config_of(folder, on_disk=True, topology={"mode": "fused"}, store=store)
        with open_session(config) as session:
            for step in session.steps():
                step.run()
            session.parts.pipeline.settle()
            waited.append(session.parts.store.figures().get("disk_budget_waited_s"))
            found.append(gather_tables(session))
    with on_every_rank():
        for name, rows in found[0].items():
            np.testing.assert_array_equal(found[1][name], rows, err_msg=name)
        assert waited[0] is None and 0 < waited[1] < 60, waited


@pytest.mark.parallel([1, 2])
@pytest.mark.in_turn
@pytest.mark.usefixtures("few_places")
@pytest.mark.filterwarnings("ignore:store.daily_bytes")
def test_rows_of_a_checkpoint_are_not_taken_out_of_a_budget(folder: Path) -> None:
    """They come all at once: a day's budget would have the first step wait for them, for hours."""
    write_data(folder / "data.h5")
    config = config_of(folder, on_disk=True, topology={"mode": "fused"}, store={"daily_bytes": 200_000_000})
    with open_session(config) as session:
        store = session.parts.store
        for table in store.tables:
            part = store.part(table)
            for ids, rows, states in list(store.export(table)):
                store.load(table, ids, rows, states, part.columns)
        written, left = store._tier.counts.written_bytes, store._budget._left
        next(session.steps()).run()
        session.parts.pipeline.settle()
        taken = left - store._budget._left
    with on_every_rank():
        assert written > 10_000 and taken < written / 2, (written, taken)


@pytest.mark.parallel([1, 3])
@pytest.mark.usefixtures("few_places")
def test_rows_leave_the_memory_and_come_back(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, on_disk=True, train={"steps": 20}, topology={"mode": "fused"})
    with open_session(config) as session:
        for step in session.steps():
            step.run()
        told = session.parts.store.figures()
        store = session.parts.store
        written = sum(len(ids) for table in store.tables for ids, _, _ in store.export(table))
        after = store.figures()
    with on_every_rank():
        assert told["disk_rows_read"] > 0 and told["cache_hits"] < 1, told
        assert told["disk_steps"] == 20 and told["disk_reads_a_step"] == told["disk_rows_read"] / 20
        # What is exported is no step's.
        assert told["disk_rows_read"] < after["disk_rows_read"] <= told["disk_rows_read"] + written
        assert after["disk_reads_a_step"] == told["disk_reads_a_step"]


@pytest.mark.parallel([1, 2])
def test_who_looks_at_steps_to_come_reads_less(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for the rows of a few steps: those that come soon stay."""
    write_data(folder / "data.h5")
    monkeypatch.setattr(DiskStore, "_left_for_rows", lambda self, own: 40_000 // COMM.size)
    read = []
    for window in (0, 40):
        config = config_of(
            folder,
            on_disk=True,
            train={"steps": 60, "batch_size": 8},
            exchange={"ids": "read", "form": "rows"},
            topology={"mode": "fused"},
            store={"window": window},
        )
        with open_session(config) as session:
            for step in session.steps():
                step.run()
            read.append(session.parts.store.figures()["disk_rows_read"])
    read = [COMM.allreduce(n) for n in read]  # not each rank's memory is as short
    with on_every_rank():
        assert read[1] < 0.9 * read[0], read


@pytest.mark.parallel([2])
def test_whole_tables_are_in_memory_and_counted(folder: Path) -> None:
    """Their rows take bytes of the budget, none of the disk; a name that no table has is refused."""
    write_data(folder / "data.h5")
    # Of float64: 6 columns of a row and of its state. History reads item's rows.
    bytes_of = {name: 40 * rows * 2 * 6 * 8 for name, rows in (("user", 40), ("item", 25), ("tag", 9))}
    told = {}
    for whole in ((), ("item",), ("user", "item", "tag")):
        more: dict[str, Any] = {"store": {"whole": list(whole)}, "topology": {"mode": "split", "owners": 1}}
        config = config_of(folder, on_disk=True, train={"steps": 12}, **more)
        terms = predict_memory(config, [0] * COMM.size)[0].terms
        assert terms["cached rows"] == BYTES - sum(bytes_of[name] for name in whole)
        assert terms["rows"] + terms["optimizer state"] == sum(bytes_of[name] for name in whole)
        with open_session(config) as session:
            for step in session.steps():
                step.run()
            session.parts.pipeline.settle()
            store = session.parts.store
            for table in () if store is None else store.tables:
                assert store.blocks[store.place(table)[0]].whole == (table in whole)
            told[whole] = COMM.bcast(None if store is None else store.figures())
    assert "cache_hits" in told["item",] and "cache_hits" not in told["user", "item", "tag"]
    assert all(of["disk_steps"] == 12 for of in told.values()), told
    known = [of["disk_memory_bytes"] for of in told.values()]  # of rows on the disk
    assert known[0] - known[1] == 4 * 40 * 25 and known[2] == 128 * 4096
    small = {"store": {"whole": ["user", "item", "tag"], "memory_bytes": sum(bytes_of.values()) + 512 * 1024 - 1}}
    with pytest.raises(ConfigError, match=rf"tables of store.whole {sum(bytes_of.values())}\. Set it to"):
        open_session(config_of(folder, on_disk=True, topology={"mode": "split", "owners": 1}, **small))
    with pytest.raises(ConfigError, match=r"store.whole has 'users', but the model reads no such table. It reads: "):
        open_session(config_of(folder, on_disk=True, store={"whole": ["users"]}))


@pytest.mark.parallel([1, 3])
@pytest.mark.in_turn
@pytest.mark.usefixtures("few_places")
def test_goes_on_from_a_checkpoint_of_main_memory_and_back(folder: Path) -> None:
    write_data(folder / "data.h5")
    more = {"data": {"train": str(folder / "data.h5")}, "checkpoint": {"every": 2}, "train": {"steps": 6}}
    wanted = finished(config_of(folder / "whole", on_disk=False, **more), gather_tables)
    for name, first, second in (("there", False, True), ("back", True, False), ("on it", True, True)):
        run = folder / name
        finished(config_of(run, on_disk=first, **more), gather_tables, stop_at=2)
        found = finished(config_of(run, on_disk=second, **more), gather_tables, resume=True)
        with on_every_rank():
            assert found.keys() == wanted.keys()
            assert all((found[table] == rows).all() for table, rows in wanted.items()), name


@pytest.mark.parallel([2])
@pytest.mark.usefixtures("few_places")
def test_the_command_trains_and_says_what_the_disk_did(folder: Path) -> None:
    write_data(folder / "data.h5")
    wanted: dict[str, Any] = {
        "data": {"train": str(folder / "data.h5"), "validation": str(folder / "data.h5")},
        "model": {"name": "fm", "width": 6},
        "store": {"name": "disk", "path": str(folder / "rows"), "memory_bytes": BYTES},
        "dense": {"reducer": "mpi"},
        "train": {"batch_size": 13, "steps": 6, "eval_every": 3},
        "checkpoint": {"every": 2},
        "run": {"folder": str(folder / "run"), "tensorboard": False, "progress": False},
    }
    assert commands.train(validate(wanted, "test")) == 0
    with on_every_rank():
        told = json.loads((folder / "run" / "summary.json").read_text())
        assert told["steps"] == 6
        assert all(owner["disk_bytes_written"] > 0 for owner in told["owners"].values()), told["owners"]
        terms = predict_memory(validate(wanted, "test"), [0] * COMM.size)[0].terms
        assert terms["cached rows"] == BYTES and terms["rows"] == 0


@pytest.mark.parallel([2])
def test_what_cannot_be_is_refused_on_all_ranks(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, on_disk=True)
    with open_session(config):
        with pytest.raises(ConfigError, match=r"rank-\d: another process .*has its rows in this folder now") as caught:
            open_session(config)
        with on_every_rank():
            assert "give another store.path" in str(caught.value)
    small = config_for(folder, store={"name": "disk", "path": str(folder / "rows"), "memory_bytes": 1000})
    with pytest.raises(ConfigError, match=r"store.memory_bytes is 1000, but what is known of this rank's rows"):
        open_session(small)


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ({"name": "disk", "memory_bytes": 1}, r"store.path is not set, but store.name is 'disk'"),
        ({"name": "disk", "path": "x"}, r"store.memory_bytes is not set, but store.name is 'disk'"),
        ({"path": "x"}, r"store.path is 'x', but store.name is 'dram'"),
        ({"whole": ["user"]}, r"store.whole is \('user',\), but store.name is 'dram'"),
        ({"name": "disk", "path": "x", "memory_bytes": 1, "device": "emulated"}, r"store.device is 'emulated', but"),
        ({"name": "gpu", "gpu_bytes": 1}, r"store.gpu_bytes is 1, but store.name is 'gpu'"),
    ],
)
def test_what_a_configuration_may_not_ask_for(store: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config_for(Path("/nowhere"), store=store)
