"""Checkpoints of store ``disk``: what one by links writes, and how soon a run goes on from it.

DLRM with one table of 16 columns and row-wise Adagrad, 68 bytes a row, of which an eighth is the memory of the store.
Ids by a power law of 1.05, a bag of 26 each of 512 samples a step: more rows than the cache has are changed between two
checkpoints. One process with one thread. Each round is a run of its own, which writes all rows, makes a checkpoint by
links, by HDF5 and, in another session, of rows in memory, and goes on from the first two, and from links whose files
have to be copied to the store.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import ROOT, claim, finish, hpcrec, repeated
from tiers_parts.shown import said

from hpcrec.data.layout import Column, Columns
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature

WIDTH, SAMPLES, BATCH, BAG, LAW = 16, 1 << 17, 512, 26, 1.05
ROW_BYTES = 4 * (WIDTH + 1)
FEW_BYTES = 3 << 20  # more than an eighth, where rows are so few that pages and pieces under way are as much
CONFIG = """
[data]
train = "{folder}/data.h5"
[model]
name = "dlrm"
width = {width}
pooling = {{user = "sum"}}
options = {{bottom = [16, {width}], top = [16]}}
[embedding]
optimizer = {{name = "rowwise_adagrad", lr = 0.01}}
[topology]
mode = "fused"
owner_threads = 1
dense_threads = 1
[dense]
reducer = "mpi"
[train]
batch_size = {batch}
epochs = 1000
[run]
folder = "{folder}/run"
progress = false
tensorboard = false
"""


def checkpoints(folder: Path, path: Path | None, arguments: argparse.Namespace) -> None:
    """The part; writes its JSON to ``path``."""
    n_rows, steps, rounds = (200_000, 60, 2) if arguments.quick else (8_000_000, 400, 5)
    prepare(folder, n_rows)
    memory = n_rows * ROW_BYTES // 8 + (FEW_BYTES if arguments.quick else 0)
    rows = [said(_measured(folder, n_rows, memory, steps)) for _ in range(rounds)]
    finish("tiers", rows, claims_of(rows), path)


def _measured(folder: Path, n_rows: int, memory: int, steps: int) -> dict[str, Any]:
    """One round."""
    script, out = str(ROOT / "benchmarks/on_ranks/linking.py"), folder / "found.json"
    words = ["--memory", str(memory), "--steps", str(steps), "--rounds", "1", "--out", str(out)]
    hpcrec("run", "-n", "1", "--launcher-option", "--bind-to none", "--", script, str(folder / "config.toml"), *words)
    for path in folder.glob("run-*"):  # so that nothing of a round is found by the next one
        shutil.rmtree(path)
    found = json.loads(out.read_text())
    links, hdf5 = found["links"], found["hdf5"]
    resumed = {name: of[0] for name, of in found["resumed"].items()}
    return {
        "rows": n_rows,
        "memory_of_rows": memory / found["bytes"],
        "steps_between": steps,
        "cache_hits": found["cache_hits"],
        "written_of_rows": (links["flushed"] + links["small"]) / found["bytes"],
        "copied_of_rows": (links["new_segments"] + links["small"]) / found["bytes"],
        "hdf5_of_rows": hdf5["bytes"] / found["bytes"],
        "segments_of_rows": links["segments"] / found["bytes"],
        "stopped_ms": 1e3 * links["stopped_s"],
        "stopped_hdf5_ms": 1e3 * hdf5["stopped_s"],
        "stopped_dram_ms": 1e3 * found["dram"]["stopped_s"],
        "whole_after_s": links["whole_s"],
        "whole_after_hdf5_s": hdf5["whole_s"],
        "loaded_s": resumed["links"]["loaded_s"],
        "loaded_hdf5_s": resumed["hdf5"]["loaded_s"],
        "resumed_s": resumed["links"]["training_s"],
        "resumed_hdf5_s": resumed["hdf5"]["training_s"],
        "resumed_copies_s": resumed["copies"]["training_s"],
    }


def claims_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of bytes the most of any round; of times medians over rounds, and how long steps stand still round by round."""
    written = max(row["written_of_rows"] for row in rows)
    stalls = [row["stopped_ms"] / row["stopped_dram_ms"] for row in rows]
    in_memory = "of the time with rows in memory"
    by_links, by_hdf5 = (statistics.median(row[name] for row in rows) for name in ("resumed_s", "resumed_hdf5_s"))
    return [
        claim("tiers.checkpoint_bytes", written, "of the rows' bytes", "<= 0.2"),
        repeated("tiers.checkpoint_stall", stalls, in_memory, "<= 1.25"),
        claim("tiers.resume_ratio", by_links / by_hdf5, "of the time by HDF5", "<= 0.2"),
    ]


def prepare(folder: Path, n_rows: int) -> None:
    """Ids of one large table by a power law, in a random order."""
    rng = np.random.default_rng(1)
    features = (Feature(name="user", cardinality=n_rows, mean_ids=float(BAG)),)
    ends = np.cumsum(np.arange(1, n_rows + 1.0) ** -LAW)
    drawn = np.searchsorted(ends, rng.random(SAMPLES * BAG) * ends[-1])
    ids = rng.permutation(n_rows)[drawn]
    column = Column(ids, np.arange(SAMPLES + 1) * BAG, None)
    label = rng.integers(0, 2, SAMPLES).astype(np.float32)
    with Writer(folder / "data.h5", features, n_dense=4, jagged=("user",)) as writer:
        writer.append(Columns(label=label, dense=rng.random((SAMPLES, 4), np.float32), sparse={"user": column}))
    (folder / "config.toml").write_text(CONFIG.format(folder=folder, width=WIDTH, batch=BATCH))
