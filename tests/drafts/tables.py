"""Small tables whose columns are known: what `hpcrec init` has to find in them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Rows = Mapping[str, Sequence[object]]
N = 1500


def clicks(n: int = N, seed: int = 0) -> dict[str, list[object]]:
    """A log with a column of each kind, and a label that depends on two of them."""
    rng = np.random.default_rng(seed)
    site = rng.zipf(1.5, n) % 40
    age = rng.normal(40, 12, n)
    click = rng.random(n) < 1 / (1 + np.exp(-(site % 5 - 2 + (age - 40) / 20)))
    genres = ["Action", "Comedy", "Drama", "Horror", "War"]
    words = ["red", "old", "shoe", "for", "sale", "new", "car", "with", "seats", "big", "house", "of", "wood"]
    return {
        "row": list(range(1, n + 1)),
        "key": [f"{value:016x}" for value in rng.integers(0, 2**62, n)],
        "click": click.astype(int).tolist(),
        "site": [f"site{value}" for value in site],
        "user": rng.integers(0, 60, n).tolist(),
        "visits": np.where(rng.random(n) < 0.2, None, rng.geometric(0.2, n) - 1).tolist(),
        "score_a": np.round(age, 2).tolist(),
        "income": np.round(np.exp(rng.normal(5, 2.5, n)), 2).tolist(),
        "genres": ["|".join(rng.choice(genres, rng.integers(1, 4), replace=False)) for _ in range(n)],
        "title": [" ".join(rng.choice(words, 6)) for _ in range(n)],
        "at": [str(np.datetime64("2024-05-01T00:00:00") + int(s)).replace("T", " ") for s in rng.permutation(n) * 97],
        "shop": ["main"] * n,
        "paid_at": [f"2024-06-0{1 + i % 9}" if clicked else None for i, clicked in enumerate(click.tolist())],
    }


def write_csv(path: Path, rows: Rows, delimiter: str = ",", *, header: bool = True, empty: str = "") -> Path:
    lines = [delimiter.join(rows)] if header else []
    lines += [
        delimiter.join(empty if value is None else str(value) for value in row)
        for row in zip(*rows.values(), strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_typed(path: Path, rows: Rows) -> Path:
    table = pa.table({name: list(values) for name, values in rows.items()})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=400)
    else:
        with pa.ipc.new_file(path, table.schema) as out:
            out.write_table(table, max_chunksize=400)
    return path
