"""Measures the memory of owners against their rows: resident size, what is allowed of it, and what the formula says.

    python benchmarks/memory.py [--quick] [--json FILE]

Two fused ranks hold tables of 12 GB in all (``--gb`` says another size; ``--quick``: 1 GB) with row-wise Adagrad and
train some steps; with ``--quick`` they also save a checkpoint, which must stream. ``memory.owner`` is the resident size
at its highest divided by what is allowed: rows, their optimizer state, 15 % of both, and 400 MB; the larger of the two
ranks. One and a half times the rows must be free, 18 GB for the full run; where there is less, it is left out and says
so.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _report import available_bytes, claim, finish, write_config
from _report import options as benchmark_options

GB = 10**9
FULL_GB, QUICK_GB = 12.0, 1.0
NEEDED = 1.5  # times the rows must be free
OVERHEAD, BASE_BYTES = 1.15, 400 * 10**6
TABLES, WIDTH, SAMPLES, STEPS, RANKS = 8, 64, 40_000, 12, 2
CONFIG = """
[data]
train = "{folder}/data.h5"
[model]
name = "dlrm"
width = {width}
[train]
steps = {steps}
batch_size = 2048
"""


def main() -> None:
    parser = benchmark_options(__doc__)
    parser.add_argument("--gb", type=float, default=FULL_GB, metavar="GB", help="rows in all; 12 by default")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker, options.save)
        return
    total, free = GB * (QUICK_GB if options.quick else options.gb), available_bytes()
    if free < NEEDED * total:
        print(f"skipped: {free / GB:.1f} GB are free, {NEEDED * total / GB:.0f} are needed")
        finish("memory", [], [claim("memory.owner", None, "of what is allowed", "<= 1")], options.json)
        return
    rows = measured(round(total), save=options.quick)
    for row in rows:
        print("  ".join(f"{k} {v / 1e6:,.0f} MB" if k.endswith("bytes") else f"{k} {v}" for k, v in row.items()))
    worst = max(row["resident_bytes"] / row["allowed_bytes"] for row in rows)
    formula = max(row["resident_bytes"] / row["predicted_bytes"] for row in rows)
    claims = [
        claim("memory.owner", worst, "of what is allowed", "<= 1"),
        claim("memory.formula", formula, "measured of predicted", "<= 1.15"),
    ]
    finish("memory", rows, claims, options.json)


def measured(total_bytes: int, *, save: bool) -> list[dict[str, Any]]:
    """One row a rank."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data.h5", total_bytes // (TABLES * WIDTH * 4))
        config = write_config(folder, CONFIG.format(folder=folder, width=WIDTH, steps=STEPS))
        line = ["run", "-n", str(RANKS), "--threads", "1", "--", __file__, "--worker", str(config)]
        line += ["--save"] if save else []
        done = subprocess.run([sys.executable, "-m", "hpcrec", *line], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found = json.loads((folder / "measured.json").read_text())
    return [{**row, "allowed_bytes": round(OVERHEAD * row["held_bytes"]) + BASE_BYTES} for row in found]


def write_data(path: Path, rows: int) -> None:
    """A small data set over large tables."""
    from hpcrec.data.layout import Column, Columns
    from hpcrec.preparation.writer import Writer
    from hpcrec.types import Feature

    rng = np.random.default_rng(1)
    features = tuple(Feature(name=f"f{i}", cardinality=rows) for i in range(TABLES))
    columns = {f.name: Column(rng.integers(0, rows, SAMPLES)) for f in features}
    label = rng.integers(0, 2, SAMPLES).astype(np.float32)
    dense = rng.standard_normal((SAMPLES, 4)).astype(np.float32)
    with Writer(path, features, n_dense=4, n_labels=1, jagged=(), optional=()) as writer:
        writer.append(Columns(label=label, dense=dense, sparse=columns))


def worker(config_file: Path, save: bool) -> None:
    """One rank: trains, saves if asked, and hands in what it held."""
    from hpcrec.build.memory import predict_memory
    from hpcrec.build.session import open_session
    from hpcrec.checkpoint import state
    from hpcrec.config import load_config
    from hpcrec.training.telemetry import peak_rss_bytes

    config = load_config(config_file)
    with open_session(config) as session:
        for step in session.steps():
            step.run()
        if save:
            state.save(session, Path(config.run.folder), {})
        store = session.parts.store
        predicted = predict_memory(config, session.topology.host_of)[session.topology.rank].total_bytes
        row = {
            "rank": session.topology.rank,
            "held_bytes": 0 if store is None else store.figures()["bytes"],
            "resident_bytes": peak_rss_bytes(),
            "predicted_bytes": predicted,
        }
        everyone = session.parts.world.main.allgather(row)
        if session.topology.rank == 0:
            (config_file.parent / "measured.json").write_text(json.dumps(everyone))


if __name__ == "__main__":
    main()
