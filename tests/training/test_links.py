"""Checkpoints that link a store's files: whoever goes on from one, on whatever owners and store, has the same bits."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.config import Config
from hpcrec.disk.common import Settings
from hpcrec.embedding.stores.disk import DiskStore
from tests.checkpoint.test_dynamic_resume import finish
from tests.together import on_every_rank
from tests.training.dynamic_runs import TABLES, dynamic_config
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
@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_links_go_on_as_hdf5_does_and_as_if_nothing_had_stopped(
    folder: Path, optimizer: str, taken: list[int]
) -> None:
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


@pytest.mark.parallel([1, 2, 3])
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
        sections["embedding"] = {"optimizer": optimizer, "tables": {"user": {"shard": "row"}, "item": {"shard": "column"}}}
        return config_of(folder, run, topology=topology, **sections)

    for rows in ("links", "hdf5"):
        finish(made(rows, roles[0], store=stored(folder), checkpoint={"rows": rows}), stop_at=SAVED)
    fewer = roles[1] if len(roles) > 1 else None  # owners
    others = [(fewer, "disk"), (roles[0], "dram"), (fewer, "dram")]
    for topology, store in others:
        if topology is None:
            continue
        found = {}
        for rows in ("links", "hdf5"):
            section = stored(folder) if store == "disk" else {}
            found[rows] = finish(made(rows, topology, store=section), resume=True)
        with on_every_rank():
            assert taken[0] == 0
            assert found["links"] == found["hdf5"], (topology, store)
