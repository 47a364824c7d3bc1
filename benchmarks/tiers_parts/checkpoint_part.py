"""Checkpoints of store ``disk``: what one by links writes, and how soon a run goes on from it.

One table of 16 columns with row-wise Adagrad, 68 bytes a row, of which an eighth is the memory of the store; DeepFM's
rows of one column are beside them. Ids by a power law of 1.05, a bag of 26 each of 512 samples a step: more rows than
the cache has are changed between two checkpoints. One process with one thread.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from _report import ROOT, claim, finish, hpcrec, spread
from tiers_parts.shown import said

from hpcrec.data.layout import Column, Columns
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature

WIDTH, SAMPLES, BATCH, BAG, LAW = 16, 1 << 17, 512, 26, 1.05
ROW_BYTES = 4 * (WIDTH + 1)
INDEX_BYTES = 5  # a row: its place, and whether it has changed
PIECES_BYTES = 9 * (128 << 10) * 2  # of two blocks
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
    row, claims = _measured(folder, quick=arguments.quick)
    finish("tiers", [said(row)], claims, path)


def _measured(folder: Path, *, quick: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    n_rows, steps, rounds = (200_000, 60, 1) if quick else (8_000_000, 400, 3)
    prepare(folder, n_rows)
    script, out = str(ROOT / "benchmarks/on_ranks/linking.py"), folder / "found.json"
    memory = n_rows * ROW_BYTES // 8 + (1 << 20 if quick else 0) + PIECES_BYTES
    words = ["--memory", str(memory), "--steps", str(steps), "--rounds", str(rounds), "--out", str(out)]
    hpcrec("run", "-n", "1", "--launcher-option", "--bind-to none", "--", script, str(folder / "config.toml"), *words)
    found = json.loads(out.read_text())
    links, hdf5 = found["links"], found["hdf5"]
    resumed = {name: [one["training_s"] for one in of] for name, of in found["resumed"].items()}
    written = (links["flushed"] + links["small"]) / found["bytes"]
    ratio = statistics.median(resumed["links"]) / statistics.median(resumed["hdf5"])
    row = {
        "rows": n_rows,
        "memory_of_rows": memory / found["bytes"],
        "steps_between": steps,
        "cache_hits": found["cache_hits"],
        "written_of_rows": written,
        "copied_of_rows": (links["new_segments"] + links["small"]) / found["bytes"],
        "hdf5_of_rows": hdf5["bytes"] / found["bytes"],
        "segments_of_rows": links["segments"] / found["bytes"],
        "stopped_ms": 1e3 * links["stopped_s"],
        "stopped_hdf5_ms": 1e3 * hdf5["stopped_s"],
        "stopped_dram_ms": 1e3 * found["dram"]["stopped_s"],
        "whole_after_s": links["whole_s"],
        "whole_after_hdf5_s": hdf5["whole_s"],
        "loaded_s": spread([one["loaded_s"] for one in found["resumed"]["links"]]),
        "loaded_hdf5_s": spread([one["loaded_s"] for one in found["resumed"]["hdf5"]]),
        "resumed_s": spread(resumed["links"]),
        "resumed_hdf5_s": spread(resumed["hdf5"]),
    }
    return row, [
        claim("tiers.checkpoint_bytes", written, "of the rows' bytes", "<= 0.2"),
        claim("tiers.resume_ratio", ratio, "of the time by HDF5", "<= 0.2"),
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
