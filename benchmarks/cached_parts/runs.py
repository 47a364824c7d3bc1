"""Runs of the product that ``benchmarks/cached.py`` counts by the ledger: their data, and their job.

A model that computes a sum: bytes do not depend on it. Knows files and settings; starts nothing.
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


def prepared(cache: Path, samples: int) -> Path:
    """So many, in a file that is made unless it is there."""
    path = cache / f"cached-{samples}.h5"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    features = [Feature(name=f"f{t}", cardinality=rows) for t, rows in enumerate(ROWS)]
    with Writer(path, features, n_dense=1) as writer:
        for first in range(0, samples, CHUNK):
            n = min(CHUNK, samples - first)
            ids = {f.name: Column(ids_of(t, n, first), None) for t, f in enumerate(features)}
            label = (np.random.default_rng((SEED, first)).random(n) < 0.25).astype(np.float32)
            writer.append(Columns(label=label, dense=np.zeros((n, 1), np.float32), sparse=ids))
    return path


def ids_of(table: int, n: int, first: int) -> np.ndarray:
    """Of ``n`` samples from one on that begins a chunk: at most a chunk."""
    return zipf_ids(ROWS[table], n, (SEED, table, first))


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
