"""A disk that fails under one rank of several: all ranks end soon, one says which file; a restart has the same bits.

What an I/O error does to a tier alone is for ``tests.disk.test_faults``.
"""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcrec.checkpoint.tools.diff import diff
from hpcrec.config import Config
from tests.training import runs
from tests.training.launched import LITTLE_MEMORY, Fault, launch
from tests.training.runs import config_for, write_data

POLICIES: dict[str, dict[str, Any]] = {"sync": {"name": "sync"}, "hybrid": {"name": "hybrid", "staleness": 2}}
STEPS = 12


def config_of(folder: Path, run: str, policy: str) -> Config:
    return config_for(
        folder,
        data={"train": str(folder / "data.h5")},
        train={"steps": STEPS, "dtype": "float32"},
        dense={"reducer": "mpi"},
        store={"name": "disk", "path": str(folder / f"{run}-rows"), "memory_bytes": 20_000_000},
        policy=POLICIES[policy],
        checkpoint={"every": 3, "keep": 99, "keep_best": False},
        run={"folder": str(folder / run), "tensorboard": False, "progress": False},
    )


@pytest.mark.parametrize(
    ("policy", "what", "error", "ranks"),
    [
        ("sync", "write", errno.ENOSPC, 3),
        ("hybrid", "read", errno.EIO, 2),
        pytest.param("hybrid", "write", errno.ENOSPC, 2, marks=pytest.mark.slow),
        pytest.param("sync", "read", errno.EIO, 3, marks=pytest.mark.slow),
        pytest.param("sync", "write", errno.EIO, 2, marks=pytest.mark.slow),
    ],
)
def test_all_ranks_end_and_go_on_once_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, what: str, error: int, ranks: int
) -> None:
    larger = tuple(replace(feature, cardinality=40 * feature.cardinality) for feature in runs.FEATURES)
    monkeypatch.setattr(runs, "FEATURES", larger)  # than the smallest caches have rows
    write_data(tmp_path / "data.h5")
    whole = config_of(tmp_path, "whole", policy)
    assert launch(tmp_path / "job", whole, ranks=ranks, patches=LITTLE_MEMORY).end(limit_s=60).code == 0
    config, last = config_of(tmp_path, "run", policy), ranks - 1
    fault = Fault(last, f"hpcrec.disk.tier:Tier.{what}", 8, error)
    ended = launch(tmp_path / "job", config, fault, ranks, LITTLE_MEMORY).end(limit_s=30)
    assert ended.code not in (0, 137), ended
    said = [line for line in ended.err.splitlines() if line.startswith("hpcrec: error:") and "run-rows" in line]
    named = (os.strerror(error), f"({errno.errorcode[error]})")
    assert any("segment-" in line and any(name in line for name in named) for line in said), ended.err
    assert any(f"rank {last}" in line for line in said), ended.err
    assert "Traceback" not in ended.err
    again = launch(tmp_path / "job", config, ranks=ranks, patches=LITTLE_MEMORY).end(limit_s=60)
    assert again.code == 0, again.err
    assert not list((tmp_path / "run-rows").glob("*/*")), "what the ranks that were ended have left is gone too"
    last_ones = [tmp_path / run / f"checkpoints/step-{STEPS}" for run in ("run", "whole")]
    assert diff(*last_ones)["equal"]
