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


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_links_go_on_as_hdf5_does_and_as_if_nothing_had_stopped(folder: Path, optimizer: str) -> None:
    write_data(folder / "data.h5")
    sections: dict[str, Any] = {"embedding": {"optimizer": {"name": optimizer, "lr": 0.1}}}
    whole = finish(config_of(folder, "whole", **sections))
    for rows in ("links", "hdf5"):
        config = config_of(folder, rows, store=stored(folder), checkpoint={"rows": rows}, **sections)
        first = finish(config, stop_at=SAVED)
        with on_every_rank():
            there = sorted((folder / rows).glob("checkpoints/step-4/rows-*.tier/segment-*"))
            assert bool(there) == (rows == "links")
        again = finish(config, resume=True)
        with on_every_rank():
            assert first["losses"] + again["losses"] == whole["losses"], rows
            assert again["rows"] == whole["rows"], rows
            assert again["states"] == whole["states"], rows
