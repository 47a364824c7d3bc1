"""Runs of the product for ``benchmarks/cached.py``: their data, and the job of those that the ledger counts.

Of these the model computes a sum: bytes do not depend on it. Knows files and settings; starts nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _workloads import CRITEO, zipf_ids

from hpcrec.preparation.writer import Column, Columns, Feature, Writer

CONFIG = Path(__file__).resolve().parent.parent / "hybrid_parts" / "hybrid.toml"
ROWS = tuple(min(rows, 100_000) for rows in CRITEO)
RANKS, SEED, CHUNK = 4, 3, 16_384


def prepared(cache: Path, samples: int, *, name: str = "cached", rows: Sequence[int] = ROWS, n_dense: int = 1) -> Path:
    """So many, of tables of so many rows, in a file of this name that is made unless it is there."""
    path = cache / f"{name}-{samples}.h5"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    features = [Feature(name=f"f{t}", cardinality=n) for t, n in enumerate(rows)]
    hidden = path.with_suffix(".tmp")
    hidden.unlink(missing_ok=True)
    with Writer(hidden, features, n_dense=n_dense) as writer:
        for first in range(0, samples, CHUNK):
            n, rng = min(CHUNK, samples - first), np.random.default_rng((SEED, first))
            ids = {f.name: Column(ids_of(t, n, first, rows), None) for t, f in enumerate(features)}
            label = (rng.random(n) < 0.25).astype(np.float32)
            dense = rng.standard_normal((n, n_dense)).astype(np.float32)
            writer.append(Columns(label=label, dense=dense, sparse=ids))
    hidden.rename(path)
    return path


def ids_of(table: int, n: int, first: int, rows: Sequence[int] = ROWS) -> np.ndarray:
    """Of ``n`` samples from one on that begins a chunk: at most a chunk."""
    return zipf_ids(rows[table], n, (SEED, table, first))


def job(data: Path, batch: int, width: int, steps: int, marks: Sequence[int], own: Sequence[str]) -> dict[str, Any]:
    """A run whose bytes are counted at these steps; in the last step all that is held back is sent."""
    settings = [
        f"data.train={data}",
        "data.shuffle=false",
        "model.name=summed:build",
        f"model.width={width}",
        "embedding.optimizer.name=sgd",
        "embedding.optimizer.lr=0.01",
        f"train.batch_size={RANKS * batch}",
        f"train.steps={steps}",
        *own,
    ]
    return {"kind": "counted", "config": str(CONFIG), "settings": settings, "marks": list(marks)}


def cached(staleness: int, cache: str, capacity: float | None = None) -> list[str]:
    """Settings of the policy."""
    room = [] if capacity is None else [f"policy.capacity={capacity}"]
    return ["policy.name=cached", f"policy.staleness={staleness}", f"policy.cache={cache}", *room]
