"""What parts of benchmarks/levels.py that train have in common: a run, its line of the table, what crosses hosts."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from des_parts.cells import Row, show
from hybrid_parts import runs

from hpcrec.comm.ledger import TAGS

CONFIG = Path(__file__).resolve().parent / "levels.toml"
WARMUP, COOLDOWN = 4, 2
RATES = ("1gbit", "100mbit", "unshaped")
UNSHAPED = "40gbit"  # more than 2 cores carry


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


def crossing(row: Row, ranks: int, *, every_tag: bool = False) -> float:
    """Bytes a step from host to host, of so many ranks each: of values and gradients, or of all."""
    bytes_TRR = np.array(row["bytes_TRR"])
    host_R = np.arange(bytes_TRR.shape[1]) // ranks
    far_RR = host_R[:, None] != host_R[None, :]
    tags = [t for t, tag in enumerate(TAGS) if every_tag or tag in ("values", "gradients")]
    return float((bytes_TRR[tags].sum(axis=0) * far_RR).sum())
