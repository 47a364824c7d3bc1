"""A small table of clicks for the tests of the Python interface, and sections that train on it quickly."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

MAP: dict[str, Any] = {
    "labels": ["click"],
    "dense": {"age": {"transform": "log1p", "missing": 0.0}},
    "sparse": {
        "item": {"ids": "vocabulary", "min_count": 2},
        "hour": {"ids": "integer", "rows": 24},
        "price": {"ids": "bins"},
        "tags": {"list": True, "max_length": 3, "rows": 50},
        "page": {"rows": 40},
    },
}


class Stream:
    """A frame of which no more is known than that it hands over Arrow's stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def frame(rows: int = 300, seed: int = 1) -> pa.Table:
    """Clicks, with values that are missing, rare and new."""
    rng = np.random.default_rng(seed)
    ages = [None if age < 5 else float(age) for age in rng.uniform(0, 90, rows)]
    return pa.table(
        {
            "click": rng.integers(0, 2, rows),
            "age": pa.array(ages, pa.float64()),
            "item": [None if k == 7 else f"item {k * k}" for k in rng.zipf(1.5, rows).clip(0, 60)],
            "hour": rng.integers(0, 24, rows).astype(np.int8),
            "price": rng.integers(-2, 5000, rows),
            "tags": [[f"t{t}" for t in rng.integers(0, 30, n)] for n in rng.integers(0, 5, rows)],
            "page": pa.array([f"/{p}" for p in rng.integers(0, 99, rows)]).dictionary_encode(),
            "unused": rng.uniform(size=rows),
        }
    )


def sections(files: dict[str, str], folder: Path, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Keywords of ``hpcrec.train``."""
    small: dict[str, dict[str, Any]] = {
        "data": dict(files),
        "model": {"name": "dlrm", "width": 4, "options": {"bottom": [4], "top": [4]}},
        "train": {"steps": 6, "batch_size": 32, "log_every": 2},
        "checkpoint": {"every": 3},
        "run": {"folder": folder, "progress": False, "tensorboard": False},
    }
    return {name: {**small.get(name, {}), **more.get(name, {})} for name in {**small, **more}}
