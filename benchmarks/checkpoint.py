"""Checkpoints of large tables: what steps lose beside one, and writing and loading against the disk's sequential rate.

    python benchmarks/checkpoint.py [--quick] [--json FILE] [--folder DIR] [--ranks 1,2]

4 GB of rows and states and a checkpoint a minute; --quick: 256 MB, and one every 4 s, which is as many bytes a second.
Each window of steps begins with one, and is held against its second half, when that is whole. Writing one and the
disk's rate take turns: one file a rank, one piece after the other, flushed, by the page cache or past it, whichever is
faster; all in space that was written to before.
Memory is what only the process has (RssAnon), of the rank that takes most. On one rank with one thread, bound to no
core, so that the checkpoint has a core where there are two; and on two ranks.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _report import ROOT, claim, finish, hpcrec, options, repeated, spread

from hpcrec.data.layout import Column, Columns
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature

WIDTH, SAMPLES, BATCH = 32, 1 << 18, 2048
ROW_BYTES = 2 * WIDTH * 4 + 8  # a row, its state, its id
CONFIG = """
[data]
train = "{folder}/data.h5"
[model]
name = "dlrm"
width = {width}
options = {{bottom = [64, {width}], top = [64]}}
[embedding]
optimizer = {{name = "adagrad", lr = 0.01}}
[embedding.tables.user]
shard = "row"
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


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, help="on the file system that is measured; a temporary one by default")
    parser.add_argument("--ranks", default="1,2", help="rank counts (1,2; with --quick 1); claims are of the first")
    arguments = parser.parse_args()
    quick = arguments.quick
    n_rows = (256 << 20 if quick else 4 << 30) // ROW_BYTES
    window_s, windows, rounds = (4.0, 5, 2) if quick else (60.0, 5, 5)
    rows = []
    for ranks in [1] if quick else map(int, arguments.ranks.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            folder = Path(name)
            prepare(folder, n_rows)
            rows.append(measured(folder, n_rows, ranks, window_s, windows, rounds))
    for row in rows:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    first = rows[0]
    finish(
        "checkpoint",
        rows,
        [
            repeated("checkpoint.stall", first["stalls"], "of the steps a second, beside one a minute", "<= 0.02"),
            claim("checkpoint.write_share", first["write_share"], "of the disk's sequential rate", ">= 0.7"),
            claim("checkpoint.load_share", first["load_share"], "of the disk's sequential rate", ">= 0.7"),
            claim("checkpoint.memory_mb", first["memory_mb"], "MB over training, a rank", "<= 256"),
        ],
        arguments.json,
    )


def prepare(folder: Path, n_rows: int) -> None:
    """Uniform ids of one large table: every step changes other rows, which is the hardest for a checkpoint."""
    rng = np.random.default_rng(1)
    features = (Feature(name="user", cardinality=n_rows), Feature(name="kind", cardinality=50))
    ids = {f.name: Column(rng.integers(0, f.cardinality, SAMPLES), None, None) for f in features}
    label = rng.integers(0, 2, SAMPLES).astype(np.float32)
    with Writer(folder / "data.h5", features, n_dense=4) as writer:
        writer.append(Columns(label=label, dense=rng.random((SAMPLES, 4), np.float32), sparse=ids))
    (folder / "run").mkdir()
    (folder / "config.toml").write_text(CONFIG.format(folder=folder, width=WIDTH, batch=BATCH))


def measured(folder: Path, n_rows: int, ranks: int, window_s: float, windows: int, rounds: int) -> dict[str, Any]:
    """One row: medians, and what they are of."""
    numbers = {"bytes": n_rows * ROW_BYTES, "window-s": window_s, "windows": windows, "rounds": rounds}
    times = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    script, out = str(ROOT / "benchmarks/on_ranks/saving.py"), folder / "found.json"
    # A rank that is bound has one core for its steps and its checkpoint.
    hpcrec(
        "run",
        "-n",
        str(ranks),
        "--launcher-option",
        "--bind-to none",
        "--",
        script,
        str(folder / "config.toml"),
        *times,
        "--out",
        str(out),
    )
    found = json.loads(out.read_text())
    beside = found["beside"]
    stall = [1 - window["per_s"] / window["alone_per_s"] for window in beside]
    memory = [(window["bytes"] - beside[0]["before_bytes"]) / 1e6 for window in beside]
    shares = {
        "write_share": statistics.median(found["disk_s"]) / statistics.median(found["writing_s"]),
        "load_share": statistics.median(found["reading_s"]) / statistics.median(found["loading_s"]),
    }
    return {
        "ranks": ranks,
        "gb": found["bytes"] / 1e9,
        "stall": statistics.median(stall),
        **shares,
        "memory_mb": max(memory),
        "steps_per_s": statistics.median(window["alone_per_s"] for window in beside),
        "stopped_ms": 1e3 * statistics.median(window["stopped_s"] for window in beside),
        "whole_after_s": spread([window["whole_after_s"] for window in beside]),
        "disk_gb_per_s": found["bytes"] / 1e9 / statistics.median(found["disk_s"]),
        "read_gb_per_s": found["bytes"] / 1e9 / statistics.median(found["reading_s"]),
        "stalls": stall,
        "disk_s": spread(found["disk_s"]),
        "writing_s": spread(found["writing_s"]),
        "reading_s": spread(found["reading_s"]),
        "loading_s": spread(found["loading_s"]),
    }


if __name__ == "__main__":
    main()
