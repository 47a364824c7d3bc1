"""Run folders as a run would leave them, of any size and with any names, without training."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.embedding.load import Load
from hpcrec.training.timer import Times
from hpcrec.training.times import times_of
from tests.training.test_telemetry import summary

BEGAN_S = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC
HOSTILE = "</script><b>&'\"<img src=x onerror=alert(1)>"  # a name of a feature that would break out of a page


def lines_of(steps: int, *, every: int = 1, eval_every: int = 100, **more: Any) -> list[dict[str, Any]]:
    """Lines of metrics, a second a step, with an evaluation now and then."""
    found: list[dict[str, Any]] = []
    for step in range(every, steps + 1, every):
        loss = 0.4 + 0.3 * math.exp(-step / steps * 4) + 0.02 * math.sin(step * 12.9898)
        traffic = {
            "wire_bytes_per_step": 2.5e6 + step % 7,
            "read_age_mean": 1.2,
            "lr_scale": 1.0,
            "epoch": step / steps,
        }
        at = {"step": step, "time": BEGAN_S + step}
        found.append({**at, "loss": loss, "train_auc": 0.8 - loss / 4, **traffic, **more})
        if step % eval_every == 0:
            measured = {"auc": 0.78 - loss / 4, "logloss": loss + 0.01, "normalized_entropy": loss * 1.6}
            found.append({**at, **{f"validation_{name}": value for name, value in measured.items()}})
    return found


def summary_of(ranks: int, **changes: Any) -> dict[str, Any]:
    """A summary of a run on so many ranks, a quarter of them owners."""
    owners = range(ranks // 4)
    parts = {name: (1.0 + rank_s, 0.5, 0.25) for rank_s, name in enumerate(f"phase_{i}" for i in range(20))}
    times = {
        rank: ("owner" if rank in owners else "dense", Times(300.0 + rank, parts, 0.5, {"route": parts}))
        for rank in range(ranks)
    }
    held = {"rows": 10**6, "bytes": 68 * 10**6, **Load(steps=4, lookups=400, distinct=200).figures()}
    tiers = {"cache_hits": 0.875, "disk_bytes": 5 * 10**9, "rows_waited_s": 1.5, "disk_reads_a_step": 1234.5}
    return summary(
        **{
            "time": times_of(times),
            "peak_rss_bytes": {str(rank): 10**9 + rank * 10**6 for rank in range(ranks)},
            "owners": {str(rank): {**held, **tiers} for rank in owners},
            "phase_s": {"step": 10.0, "values": 2.5, "dense_reduce": 1.5, "load_wait": 0.5, "forward": 3.0},
            "topology": {"ranks": ranks, "owners": list(owners), "host_of_rank": [rank // 8 for rank in range(ranks)]},
            **changes,
        }
    )


def write_run(
    folder: Path,
    *,
    config: str = "[train]\nbatch_size = 256\n",
    lines: list[dict[str, Any]] | None = None,
    summary: dict[str, Any] | None = None,
) -> Path:
    """A run folder with these; without a summary one of a run that has not ended."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines or []))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def planned(n_features: int, n_towers: int, name: str = "f") -> tuple[Any, ...]:
    """What ``write_towers`` draws: towers of every so many features, near 1 inside and 0.25 between them."""
    tower_F = np.arange(n_features) % n_towers
    names = [f"{name}{f}" for f in range(n_features)]
    near_FF = np.where(tower_F[:, None] == tower_F[None], 1.0, 0.25)
    np.fill_diagonal(near_FF, 7.0)  # what a feature is to itself says nothing
    towers = [names[first::n_towers] for first in range(n_towers)]
    loads_TL = np.tile([1.0, 0.9, 1.1], (n_towers, 1))
    return names, near_FF, towers, loads_TL, {"signal": "interactions", "reason": ""}
