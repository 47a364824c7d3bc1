"""What parts of benchmarks that train by levels have in common: data, a run, its line of the table, what crosses."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from _workloads import zipf_ids
from des_parts.cells import Row, show
from hybrid_parts import runs

from hpcrec.comm.ledger import TAGS
from hpcrec.data.layout import Column, Columns
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature

CONFIG = Path(__file__).resolve().parent / "levels.toml"
WARMUP, COOLDOWN = 4, 2
RATES = ("1gbit", "100mbit", "unshaped")
UNSHAPED = "40gbit"  # more than 2 cores carry


def prepared(path: Path, features: Sequence[Feature], samples: int, n_dense: int, seed: int) -> Path:
    """Clicks drawn at random, in a file that is made unless it is there; bags have as many ids as their mean says."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden, rng, ids = path.with_suffix(".tmp"), np.random.default_rng(seed), dict[str, Column]()
    hidden.unlink(missing_ok=True)
    for t, feature in enumerate(features):
        n = int(feature.mean_ids)
        offsets = None if n == 1 else np.arange(0, n * samples + 1, n)
        ids[feature.name] = Column(zipf_ids(feature.cardinality, n * samples, (seed, t)), offsets)
    jagged = tuple(feature.name for feature in features if feature.mean_ids > 1)
    with Writer(hidden, features, n_dense=n_dense, jagged=jagged) as writer:
        label = (rng.random(samples) < 0.25).astype(np.float32)
        dense = rng.standard_normal((samples, n_dense)).astype(np.float32)
        writer.append(Columns(label=label, dense=dense, sparse=ids))
    hidden.rename(path)
    return path


def bags(n: int, rows: int, ids: int) -> list[Feature]:
    """So many features, alike."""
    return [Feature(name=f"f{t}", cardinality=rows, mean_ids=float(ids)) for t in range(n)]


def job(data: Path, settings: Sequence[str], steps: int) -> Row:
    """A run, in whose midst so many steps are timed."""
    every = [f"data.train={data}", f"train.steps={WARMUP + steps + COOLDOWN}", *settings]
    return {"kind": "train", "config": str(CONFIG), "settings": every, "warmup": WARMUP, "cooldown": COOLDOWN}


def line(part: str, found: Mapping[str, Sequence[Row]], name: str, best: str, rate: str, ranks: int) -> Row:
    """Of the table: how many times as fast as the best without levels, and what crosses in a step."""
    faster, low, high = runs.faster(found, name, best)
    row: Row = {"part": part, "rate": rate, "arm": name, "runs": len(found[name])}
    row |= {f"{key}_ms": 1e3 * statistics.median(of[f"{key}_s"] for of in found[name]) for key in ("step", "cpu")}
    row |= {"faster": faster, "low": low, "high": high, "crossing_kb": 1e-3 * crossing(found[name][0], ranks)}
    row["crossing_all_kb"] = 1e-3 * crossing(found[name][0], ranks, every_tag=True)
    show(row)
    return row


def streamed(launch: runs.Launch, ranks: int, rate: str) -> Row:
    """Of the table: that a link, shaped as it is, holds its rate where all that crosses is one stream of 2 seconds."""
    wanted = {"1gbit": 1000, "100mbit": 100}[rate]
    job = {"kind": "stream", "ranks_a_host": ranks, "n_bytes": int(2 * wanted * 1e6 / 8)}
    found = statistics.median(row["mbit_per_s"] for row in launch([job] * 3))
    row: Row = {"part": "stream", "rate": rate, "mbit_per_s": found, "of_rate": found / wanted}
    show(row)
    return row


def crossing(row: Row, ranks: int, *, every_tag: bool = False) -> float:
    """Bytes a step from host to host, of so many ranks each: of values and gradients, or of all."""
    bytes_TRR = np.array(row["bytes_TRR"])
    host_R = np.arange(bytes_TRR.shape[1]) // ranks
    far_RR = host_R[:, None] != host_R[None, :]
    tags = [t for t, tag in enumerate(TAGS) if every_tag or tag in ("values", "gradients")]
    return float((bytes_TRR[tags].sum(axis=0) * far_RR).sum())
