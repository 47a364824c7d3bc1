"""Checkpoints that link a store's files: whoever goes on from one, on whatever owners and store, has the same bits."""

import contextlib
import errno
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build import memory
from hpcrec.build.memory import memory_report
from hpcrec.build.session import open_session
from hpcrec.checkpoint import checkpoint, files, state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.checkpoint.tools.diff import diff
from hpcrec.checkpoint.tools.verify import verify
from hpcrec.config import Config, TrainConfig
from hpcrec.disk.common import Settings
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.errors import ConfigError, TierError
from tests.checkpoint.test_dynamic_resume import finish
from tests.together import on_every_rank
from tests.training.dynamic_runs import TABLES, dynamic_config, learned
from tests.training.dynamic_runs import write_data as write_dynamic
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import roles_for

COMM = MPI.COMM_WORLD
STEPS, SAVED = 7, 4
BYTES = 20_000_000


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for some rows of each block, in turn; short pieces and files."""
    room = itertools.cycle((1, 6000))
    monkeypatch.setattr(DiskStore, "of_tier", Settings(piece_bytes=4096, segment_bytes=16384))
    monkeypatch.setattr(DiskStore, "_left_for_rows", lambda self, own: next(room))


def stored(folder: Path) -> dict[str, Any]:
    return {"name": "disk", "path": str(folder / "rows"), "memory_bytes": BYTES}


def config_of(folder: Path, run: str, **sections: dict[str, Any]) -> Config:
    train = {"steps": STEPS, "dtype": "float32", **sections.pop("train", {})}
    return config_for(folder, train=train, run={"folder": str(folder / run)}, **sections)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often this rank's store took files over."""
    count, take = [0], DiskStore.take

    def counted(self: DiskStore, *given: Any) -> None:
        count[0] += 1
        take(self, *given)

    monkeypatch.setattr(DiskStore, "take", counted)
    return count


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_links_go_on_as_hdf5_does_and_as_if_nothing_had_stopped(folder: Path, optimizer: str, taken: list[int]) -> None:
    write_data(folder / "data.h5")
    sections: dict[str, Any] = {"embedding": {"optimizer": {"name": optimizer, "lr": 0.1}}}
    whole = finish(config_of(folder, "whole", **sections))
    for rows in ("links", "hdf5"):
        config = config_of(folder, rows, store=stored(folder), checkpoint={"rows": rows}, **sections)
        first = finish(config, stop_at=SAVED)
        before = taken[0]
        with on_every_rank():
            there = sorted((folder / rows).glob("checkpoints/step-4/rows-*.tier/segment-*"))
            assert bool(there) == (rows == "links")
        again = finish(config, resume=True)
        with on_every_rank():
            assert taken[0] - before == (rows == "links"), "by names of files, or not at all"
            assert first["losses"] + again["losses"] == whole["losses"], rows
            assert again["rows"] == whole["rows"], rows
            assert again["states"] == whole["states"], rows


RULES: list[dict[str, Any]] = [
    {"capacity": 4000},
    {"capacity": 24, "evict": "lru"},
    {"capacity": 4000, "evict": "lfu", "admit_from": 2},
]


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("rules", RULES, ids=["all", "lru", "lfu"])
def test_ids_of_dynamic_tables_keep_their_rows(folder: Path, rules: dict[str, Any], taken: list[int]) -> None:
    write_dynamic(folder / "data.h5")
    tables = {"tables": {t: {"dynamic": rules} for t in TABLES}, "share": {"history": "item"}}
    more: dict[str, Any] = {
        "model": {"name": "deepfm"},
        "embedding": {**tables, "optimizer": {"name": "adam", "lr": 0.1}},
        "train": {"batch_size": 13, "dtype": "float32", "steps": STEPS},
    }
    if COMM.size > 1 and "evict" not in rules:
        more["embedding"]["tables"]["tag"] = {}
    whole = finish(dynamic_config(folder, rules, **more, run={"folder": str(folder / "whole")}))
    for rows in ("links", "hdf5"):
        own = {"store": stored(folder), "checkpoint": {"rows": rows}, "run": {"folder": str(folder / rows)}}
        config = dynamic_config(folder, rules, **more, **own)
        first = finish(config, stop_at=SAVED)
        again = finish(config, resume=True)
        with on_every_rank():
            assert taken[0] == 1
            assert first["losses"] + again["losses"] == whole["losses"], rows
            for what in ("rows", "states", "figures"):
                assert again[what] == whole[what], (rows, what)


@pytest.mark.parallel([1, 2])
@pytest.mark.in_turn
@pytest.mark.usefixtures("few_places")
def test_families_of_which_some_tables_are_whole(folder: Path) -> None:
    """Their ids have one row number in all of them: either all tables keep theirs, or all are dealt anew."""
    write_dynamic(folder / "data.h5")
    rules = {"capacity": 24, "evict": "lru"}
    more: dict[str, Any] = {
        "model": {"name": "deepfm"},
        "embedding": {
            "tables": {t: {"dynamic": rules} for t in TABLES},
            "share": {"history": "item"},
            "optimizer": {"name": "adam", "lr": 0.1},
        },
        "train": {"batch_size": 13, "dtype": "float32", "steps": STEPS},
    }
    wanted = finish(dynamic_config(folder, rules, **more, run={"folder": str(folder / "all")}))
    for number, names in enumerate((["user.wide"], ["user"], ["user", "user.wide"])):
        store = {**stored(folder), "whole": names}
        config = dynamic_config(folder, rules, **more, store=store, run={"folder": str(folder / f"some-{number}")})
        first = finish(config, stop_at=SAVED)
        again = finish(config, resume=True)
        with on_every_rank():
            assert first["losses"] + again["losses"] == wanted["losses"], names
            assert again["rows"] == wanted["rows"] and again["states"] == wanted["states"], names


@pytest.mark.parallel([1, 2])
@pytest.mark.usefixtures("few_places")
def test_declared_tables_go_on_as_dynamic_ones(folder: Path) -> None:
    """From links as from HDF5: each row that a part has is an id's."""
    write_data(folder / "data.h5")
    found = []
    for rows in ("hdf5", "links"):
        store, tables = stored(folder), {t: {"shard": "table"} for t in TABLES}
        config = config_of(folder, rows, store=store, checkpoint={"rows": rows}, embedding={"tables": tables})
        finish(config, stop_at=SAVED)
        tables = {t: {"dynamic": {"capacity": 900}} for t in TABLES}
        with open_session(config_of(folder, rows, embedding={"tables": tables})) as session:
            state.load(session, find_checkpoint(folder / rows, "last", session.parts.world.main), resume=True)
            found.append({t: dict(of) for t, of in learned(session).items()})
    with on_every_rank():
        assert sum(map(len, found[0].values())) > 0
        assert found[0].keys() == found[1].keys()
        for table, of in found[0].items():
            assert of.keys() == found[1][table].keys(), table
            assert all((found[1][table][i] == row).all() for i, row in of.items()), table


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("dynamic", [False, True], ids=["declared", "dynamic"])
def test_other_owners_and_other_stores_read_the_rows_from_the_links(
    folder: Path, dynamic: bool, taken: list[int]
) -> None:
    """As they do from HDF5, to the bit."""
    (write_dynamic if dynamic else write_data)(folder / "data.h5")
    rules = {"capacity": 4000, "evict": "lru"}
    roles = roles_for(COMM.size)

    def made(run: str, topology: dict[str, Any], **sections: Any) -> Config:
        optimizer = {"name": "adagrad", "lr": 0.1, "initial_accumulator": 0.25}
        if dynamic:
            tables = {"tables": {t: {"dynamic": rules} for t in TABLES}, "share": {"history": "item"}}
            train = {"batch_size": 13, "dtype": "float32", "steps": STEPS}
            sections |= {"embedding": {**tables, "optimizer": optimizer}, "train": train}
            return dynamic_config(folder, rules, topology=topology, run={"folder": str(folder / run)}, **sections)
        sections["embedding"] = {"optimizer": optimizer, "tables": {"user": {"shard": "row"}}}
        return config_of(folder, run, topology=topology, **sections)

    for rows in ("links", "hdf5"):
        finish(made(rows, roles[0], store=stored(folder), checkpoint={"rows": rows}), stop_at=SAVED)
    fewer = roles[1] if len(roles) > 1 else None  # owners
    others = [(fewer, "disk"), (roles[0], "dram"), (fewer, "dram")]
    for topology, store in others:
        if topology is None:
            continue
        found = {}
        for rows in ("links", "hdf5"):  # a run that goes on writes no checkpoint here
            section = stored(folder) if store == "disk" else {}
            found[rows] = finish(made(rows, topology, store=section), resume=True)
        with on_every_rank():
            assert taken[0] == 0
            assert found["links"] == found["hdf5"], (topology, store)


def segments_in(folder: Path) -> dict[str, Path]:
    return {str(p.relative_to(folder)): p for p in sorted(folder.glob("rows-*.tier/segment-*"))}


def command_of(folder: Path, run: str, **checkpoint: Any) -> Config:
    return config_of(
        folder,
        run,
        train={"steps": 12},
        data={"train": str(folder / "data.h5"), "validation": str(folder / "data.h5")},
        store=stored(folder),
        checkpoint={"every": 3, "keep": 99, "keep_best": False, **checkpoint},
    )


@pytest.mark.parallel([1, 2])
@pytest.mark.in_turn
@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("links", ["links", "copies"])
def test_beside_steps_each_checkpoint_is_what_there_was(
    folder: Path, links: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where links cannot be had of the store's files, what an earlier checkpoint has is linked, and the rest copied."""
    write_data(folder / "data.h5")
    copied, link, copy = [0], os.link, checkpoint.copied

    def far(source: Path, target: Path) -> None:
        if links == "copies" and "checkpoints" not in Path(source).parts:
            raise OSError(errno.EXDEV, "of another file system")
        link(source, target)

    def counted(*given: Any) -> int:
        copied[0] += copy(*given)
        return 0

    monkeypatch.setattr(os, "link", far)
    monkeypatch.setattr(checkpoint, "copied", counted)
    assert commands.train(command_of(folder, "links")) == 0
    monkeypatch.undo()
    assert commands.train(command_of(folder, "hdf5", rows="hdf5")) == 0
    with on_every_rank():
        folders = [folder / f"links/checkpoints/step-{n}" for n in (3, 6, 9, 12)]
        for mine in folders:
            found = diff(mine, folder / "hdf5/checkpoints" / mine.name)
            assert found["equal"], found
            assert verify(mine).problems == []
            assert not list(mine.glob("kept*"))
        inodes = {path.stat().st_ino: path.stat().st_size for mine in folders for path in segments_in(mine).values()}
        own = {p.stat().st_ino for p in segments_in(folders[-1]).values() if f"rows-{COMM.rank}." in str(p)}
        assert len(own) > 1
        total = sum(inodes.values())
        if COMM.size == 1:
            assert copied[0] == (total if links == "copies" else 0), "each segment once"
        told = json.loads((folder / "links/summary.json").read_text())
        live = sum(owner["disk_bytes"] for owner in told["owners"].values()) if links == "links" else 0
        held = sum(owner["disk_bytes_of_checkpoints"] for owner in told["owners"].values())
        assert held == total - live > 0
        both = set(segments_in(folders[-2])) & set(segments_in(folders[-1]))
        assert both, "some stay from one checkpoint to the next"
        for name in both:
            assert (folders[-2] / name).samefile(folders[-1] / name)


@pytest.mark.parallel([2])
@pytest.mark.usefixtures("few_places")
def test_what_is_kept_no_longer_frees_its_space(folder: Path) -> None:
    write_data(folder / "data.h5")
    assert commands.train(command_of(folder, "run", keep=1)) == 0
    with on_every_rank():
        assert [p.name for p in (folder / "run/checkpoints").glob("step-*")] == ["step-12"]
        found = segments_in(folder / "run/checkpoints/step-12")
        assert {path.stat().st_nlink for path in found.values()} == {1}, "the store's own names have gone with the run"
        told = json.loads((folder / "run/summary.json").read_text())
        assert told["steps"] == 12
        sizes = sum(path.stat().st_size for path in found.values())
        held = [owner["disk_bytes_of_checkpoints"] for owner in told["owners"].values()]
        assert held == [0, 0], "of the last checkpoint the store has all files, when it ends"
        assert sizes == sum(owner["disk_bytes"] for owner in told["owners"].values())
    assert commands.evaluate(command_of(folder, "run"), checkpoint="last")["auc"] > 0


@pytest.mark.parallel([1, 2])
@pytest.mark.usefixtures("few_places")
def test_values_that_are_not_finite_are_known_of_links_too(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, "run", store=stored(folder))
    with open_session(config) as session:
        store, main = session.parts.store, session.parts.world.main
        for number, value in ((1, np.nan), (2, 1.0)):
            if store is not None:
                held = next(of for of in store.held if of.block.kind != "replicate")
                held.put(np.array([0, 1]), value, dict.fromkeys(held.states, 0.0))
            session.step = number
            state.save(session, folder / "run", {})
            found = find_checkpoint(folder / "run", "last", main)
            with on_every_rank():
                assert bool(found.nonfinite) == (number == 1), found.nonfinite


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"checkpoint": {"rows": "links"}}, r"checkpoint.rows is 'links', but store.name is 'dram', whose rows are in"),
        (
            {
                "checkpoint": {"rows": "links", "full_every": 2},
                "store": {"name": "disk", "path": "x", "memory_bytes": 1},
            },
            r"checkpoint.full_every is 2, but checkpoint.rows is 'links'",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config_for(Path("/nowhere"), **sections)


def test_how_rows_are_saved_is_chosen_by_the_store() -> None:
    on_disk = {"name": "disk", "path": "x", "memory_bytes": 1}
    for store, more, wanted in (
        ({}, {}, False),
        (on_disk, {}, True),
        (on_disk, {"full_every": 2}, False),
        (on_disk, {"rows": "hdf5"}, False),
    ):
        config = config_for(Path("/nowhere"), store=store, checkpoint=more)
        assert config.checkpoint.links_rows(config.store.name) == wanted


@pytest.mark.parallel([1])
@pytest.mark.usefixtures("few_places")
def test_what_is_linked_is_flushed_first_and_its_names_before_the_manifest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a checkpoint that has its name is whole whenever power goes."""
    write_data(folder / "data.h5")
    events: list[tuple[str, Any]] = []
    known = set[int]()  # of the checkpoint before
    sync, link, manifest = os.fsync, os.link, files.write_manifest

    def synced(file: int) -> None:
        sync(file)
        events.append(("flushed", os.fstat(file).st_ino))

    def linked(source: Path, target: Path) -> None:
        link(source, target)
        events.append(("linked", target))

    def listed(where: Path, *given: Any) -> None:
        events.append(("listed", [(p.parent.stat().st_ino, p.stat().st_ino) for p in segments_in(where).values()]))
        manifest(where, *given)

    with open_session(config_of(folder, "run", store=stored(folder))) as session:
        for step in session.steps():
            step.run()
            if session.step not in (2, 4, 6):
                continue
            events.clear()
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", synced)
                patched.setattr(os, "link", linked)
                patched.setattr(files, "write_manifest", listed)
                path = state.save(session, folder / "run", {})
            at = {event: number for number, event in reversed(list(enumerate(events))) if event[0] != "listed"}
            (end,) = (number for number, event in enumerate(events) if event[0] == "listed")
            made = events[end][1]
            assert len(made) == len(segments_in(path)) >= 1
            links = [number for number, event in enumerate(events) if event[0] == "linked"]
            assert len(links) == len(made)
            for parent, inode in made:
                assert inode in known or at["flushed", inode] < links[0]
                last = max(n for n, event in enumerate(events) if event == ("flushed", parent))
                assert links[-1] < last < end
            known = {inode for _, inode in made}
    assert len(known) > 1


@pytest.mark.parallel([2])
@pytest.mark.usefixtures("few_places")
def test_a_link_that_the_system_refuses_fails_that_checkpoint_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder / "data.h5")
    link, refused = os.link, [0]

    def full(source: Path, target: Path) -> None:
        if "step-3." in str(target) and COMM.rank == 1:
            refused[0] += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        link(source, target)

    monkeypatch.setattr(os, "link", full)
    assert commands.train(command_of(folder, "run")) == 0
    monkeypatch.undo()
    with on_every_rank():
        assert refused[0] == (1 if COMM.rank == 1 else 0)
        there = sorted(p.name for p in (folder / "run/checkpoints").glob("step-*"))
        assert "step-3" not in there and "step-12" in there and len(there) >= 3, there
        assert verify(folder / "run/checkpoints/step-12").problems == []
        assert "No space left" in (folder / "run/attempts.jsonl").read_text()


@pytest.mark.parallel([1])
def test_it_is_said_where_the_rows_of_checkpoints_will_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, "run", store=stored(folder))
    assert "on one file system here. If that is a node's own disk" in memory_report(config, 1)[-1]
    monkeypatch.setattr(memory, "_file_system", lambda path: len(str(path)))
    assert memory_report(config, 1)[-1].endswith("files that no earlier one has are copied.")
    in_memory = config_of(folder, "run")
    assert "checkpoints have" not in memory_report(in_memory, 1)[-1]


@pytest.mark.parallel([1, 3])
@pytest.mark.in_turn
@pytest.mark.usefixtures("few_places")
def test_the_best_checkpoint_is_evaluated_at_the_end(folder: Path, taken: list[int]) -> None:
    """Its files are taken over in place of those of the last step."""
    write_data(folder / "data.h5")
    told = {}
    for rows in ("links", "hdf5"):
        config = command_of(folder, rows, rows=rows, keep_best=True)
        config = replace(config, train=replace(config.train, eval_every=3, early_stop=None))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(TrainConfig, "best_rises", property(lambda _: False))  # the first is the best, or next
            assert commands.train(config) == 0
        told[rows] = json.loads((folder / rows / "summary.json").read_text())["eval"]
        assert commands.evaluate(config, checkpoint="best")["auc"] == pytest.approx(told[rows]["auc"], abs=1e-12)
    with on_every_rank():
        assert told["links"] == told["hdf5"]
        assert taken[0] == (told["links"]["step"] < 12)


@pytest.mark.parallel([1])
@pytest.mark.usefixtures("few_places")
def test_damage_that_is_found_beside_the_steps_ends_the_run(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, "run", store=stored(folder))
    finish(config, stop_at=SAVED)
    for path in (folder / "run").glob("checkpoints/step-4/rows-0.tier/segment-*"):
        data = path.read_bytes()
        path.write_bytes(data[:4000] + bytes([data[4000] ^ 1]) + data[4001:])
    session = open_session(config)
    state.load(session, find_checkpoint(folder / "run", "last"), resume=True)
    session.parts.store._looking.wait()
    with pytest.raises(TierError, match=r"page 0 has a wrong checksum. The run went on from .*step-4, which"):
        next(session.steps()).run()
    with contextlib.suppress(TierError):  # the thread that brings rows may have met the same page
        session.close()
