"""Holds what is predicted of rows on a disk to what runs count: rows read a step, with tables all alike and placed.

    python benchmarks/placement.py [--quick] [--json FILE]

Mixes of tables train for two epochs on one rank with ``store.name = "disk"``, in memory for an eighth of their rows'
bytes, or what is known of them takes and a little where that is more: once with all tables alike, once with those whole
that ``hpcrec config check`` names. Ids are drawn by power laws, in a random order. Reads are those of steps that
``summary.json`` has; predicted are those of ``build.tiers`` before the run. ``tiers.reads_prediction_error`` is the
largest part by which the two differ, ``tiers.placed_over_alike`` the most reads with tables placed by those of all
alike, ``tiers.placed_gain`` the most that placing saves: reads of all alike by those placed.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim, finish, options

from hpcrec.build.session import open_session
from hpcrec.build.tiers import Tiers, tiers_of
from hpcrec.config import Config, validate
from hpcrec.data.layout import Column, Columns
from hpcrec.plan.placement import expect, least_bytes, place
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature

SHARE = 1 / 8
BATCH = 2048
# Features by mix: rows, exponent, ids a sample; and the model.
MIXES: dict[str, tuple[dict[str, Any], list[tuple[int, float, int]]]] = {
    "power law 1.05": (
        {"name": "dlrm", "width": 16},
        [(n, 1.05, 1) for n in (1_500_000, 400_000, 90_000, 12_000, 2_000, 30)],
    ),
    "power law 1.2": (
        {"name": "dlrm", "width": 16},
        [(n, 1.2, 1) for n in (1_500_000, 400_000, 90_000, 12_000, 2_000, 30)],
    ),
    "flat and steep": (
        {"name": "dlrm", "width": 16},
        [(1_000_000, 1.3, 1), (1_000_000, 0.9, 1), (60_000, 0.2, 1), (20_000, 0.0, 1), (3_000, 1.0, 1)],
    ),
    "bags": ({"name": "dlrm", "width": 32}, [(600_000, 1.1, 3), (300_000, 1.05, 1), (40_000, 0.5, 2), (5_000, 1.0, 5)]),
    "two widths": (
        {"name": "deepfm", "width": 16},
        [(800_000, 1.05, 1), (200_000, 1.1, 1), (30_000, 0.3, 1), (900, 1.0, 1)],
    ),
}


def main() -> None:
    parser = options(__doc__)
    arguments = parser.parse_args()
    names = list(MIXES)[2:3] if arguments.quick else list(MIXES)
    rows = []
    for number, name in enumerate(names):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(name, Path(folder), seed=number, steps=40 if arguments.quick else 150))
        print(
            "  ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()), flush=True
        )
    errors = [abs(row[f"{way}_predicted"] / row[f"{way}_counted"] - 1) for row in rows for way in ("alike", "placed")
              if row[f"{way}_counted"] > 0]  # fmt: skip
    gains = [row["alike_counted"] / max(row["placed_counted"], 1e-9) for row in rows]
    claims = [
        claim("tiers.reads_prediction_error", max(errors), "of the reads counted", "<= 0.1"),
        claim("tiers.placed_over_alike", 1 / min(gains), "of the reads of all tables alike", "<= 1"),
        claim("tiers.placed_gain", max(gains), "times the reads with tables placed"),
    ]
    finish("placement", rows, claims, arguments.json)


def measured(name: str, folder: Path, *, seed: int, steps: int) -> dict[str, Any]:
    """Of one mix."""
    model, features = MIXES[name]
    write(folder / "train.h5", features, steps * BATCH, seed)
    tiers = tiers_of(config_of(folder, model, 1, (), steps), [0])
    assert isinstance(tiers, Tiers)
    parts = tiers.parts[0]
    total = sum(part.n_bytes for part in parts)
    budget = round(max(total * SHARE, 1.1 * least_bytes(parts)))
    whole = place([parts], budget, {part.page_bytes: 1.0 for part in parts})
    row: dict[str, Any] = {"mix": name, "rows_bytes": total, "memory_bytes": budget, "whole": list(whole)}
    for way, named in (("alike", ()), ("placed", whole)):
        expected = expect(parts, budget, named)
        assert expected is not None
        row[f"{way}_predicted"] = expected.rows_read
        row[f"{way}_counted"] = counted(config_of(folder, model, budget, named, steps))
    return row


def counted(config: Config) -> float:
    """Rows that a step of the run reads."""
    with open_session(config) as session:
        for step in session.steps():
            step.run()
        store = session.parts.store
        assert store is not None
        return store.figures()["disk_reads_a_step"]


def config_of(folder: Path, model: dict[str, Any], memory_bytes: int, whole: tuple[str, ...], steps: int) -> Config:
    """Of a run of two epochs of so many steps."""
    return validate(mapping_of(folder, model, memory_bytes, whole, steps), "placement")


def mapping_of(
    folder: Path, model: dict[str, Any], memory_bytes: int, whole: tuple[str, ...], steps: int
) -> dict[str, Any]:
    """The same, as it is written."""
    towers = {"dlrm": {"bottom": [16], "top": [16]}, "deepfm": {"hidden": [16]}}
    return {
        "data": {"train": str(folder / "train.h5"), "shuffle": False},
        "model": {**model, "options": towers[model["name"]]},
        "exchange": {"replicate_rows": 0},
        "store": {"name": "disk", "path": str(folder / "rows"), "memory_bytes": memory_bytes, "whole": list(whole)},
        "dense": {"reducer": "mpi"},
        "train": {"batch_size": BATCH, "steps": 2 * steps},
        "run": {"folder": str(folder / "run"), "tensorboard": False, "progress": False},
    }


def write(path: Path, features: list[tuple[int, float, int]], samples: int, seed: int) -> None:
    """Ids by their laws; as many a sample, or in the mean."""
    random = np.random.default_rng(seed)
    named = [Feature(name=f"f{i}", cardinality=rows, mean_ids=float(ids)) for i, (rows, _, ids) in enumerate(features)]
    jagged = tuple(f.name for f in named if f.mean_ids > 1)
    columns = {}
    for feature, (rows, exponent, ids) in zip(named, features, strict=True):
        chance = np.cumsum(np.arange(1, rows + 1) ** -exponent)
        lengths = random.integers(0, 2 * ids + 1, samples) if ids > 1 else np.ones(samples, np.int64)
        drawn = np.searchsorted(chance, random.random(int(lengths.sum())) * chance[-1])
        offsets = np.concatenate([[0], np.cumsum(lengths)]) if ids > 1 else None
        columns[feature.name] = Column(random.permutation(rows)[np.minimum(drawn, rows - 1)], offsets)
    label, dense = random.integers(0, 2, samples).astype(np.float32), np.zeros((samples, 2), np.float32)
    with Writer(path, named, n_dense=2, jagged=jagged) as writer:
        writer.append(Columns(label=label, dense=dense, sparse=columns))


if __name__ == "__main__":
    main()
