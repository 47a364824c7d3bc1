"""Bytes of ``cached`` beside those of ``sync`` with form ``rows``, of whole runs, by the ledger. See ``cached.py``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim
from cached_parts import runs
from des_parts.cells import Row, show
from on_ranks import launch

SETTLING, COUNTED = 500, 300
SETTINGS = ((128, 16), (128, 64), (128, 128), (512, 16), (512, 64), (512, 128))  # samples of a rank's batch, and width
STALENESS, CACHES = (0, 10, 100), ("lru", "lfu")
GOALS = {(128, 16): 0.88, (128, 64): 0.88, (128, 128): 0.88, (512, 16): 0.85, (512, 64): 0.87, (512, 128): 0.87}
GOAL_S10 = {128: 0.75}
NOT_ROWS = ("dense",)  # tags of messages that no policy of rows concerns


def measure(cache: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    rows, claims = [], []
    settling, counted = (20, 10) if quick else (SETTLING, COUNTED)
    marks = [settling, settling + counted // 2, settling + counted]
    for batch, width in SETTINGS[:1] if quick else SETTINGS:
        data = runs.prepared(cache, runs.RANKS * batch * (settling + counted))
        arms = {(s, evict): runs.cached(s, evict) for s in STALENESS for evict in (CACHES if s else CACHES[:1])}
        jobs = [
            runs.job(data, batch, width, settling + counted + 1, marks, own)
            for own in (["exchange.form=rows"], ["exchange.form=auto"], *arms.values())
        ]
        found = iter(launch.local(jobs, ranks=runs.RANKS))
        first, second = halves(next(found))
        auto_bytes, own_bytes, saved = sum(halves(next(found))), first + second, dict[tuple[int, str], float]()
        for (s, evict), row in zip(arms, found, strict=True):
            mine = halves(row)
            saved[s, evict] = 1 - sum(mine) / own_bytes
            rows.append(
                {
                    "part": "bytes",
                    "batch": batch,
                    "width": width,
                    "staleness": s,
                    "cache": evict,
                    "kb_a_step": 1e-3 * sum(mine) / counted,
                    "rows_kb_a_step": 1e-3 * own_bytes / counted,
                    "auto_kb_a_step": 1e-3 * auto_bytes / counted,
                    "saved": saved[s, evict],
                    "saved_first_half": 1 - mine[0] / first,
                    "saved_second_half": 1 - mine[1] / second,
                }
            )
            show(rows[-1])
        unit = "of the bytes of deduplicated rows, fewer"
        best = {s: max(value for (of, _), value in saved.items() if of == s) for s in STALENESS}
        goal = f">= {GOALS[batch, width]:g}"
        claims.append(claim(f"het.bytes_saved_cut.{batch}.{width}", best[100], unit, goal))
        than_auto = 1 - (1 - best[100]) * own_bytes / auto_bytes
        unit_auto = "of the bytes of what auto chooses under sync, fewer"
        claims.append(claim(f"het.bytes_saved_auto.{batch}.{width}", than_auto, unit_auto))
        goal_s10 = None if batch not in GOAL_S10 else f">= {GOAL_S10[batch]:g}"
        claims.append(claim(f"het.bytes_saved_cut_s10.{batch}.{width}", best[10], unit, goal_s10))
    return rows, claims


def halves(row: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes of the first half of the counted steps, and of the second."""
    tags = [t for t, tag in enumerate(row["tags"]) if tag not in NOT_ROWS]
    at_settled, at_half, at_end = (float(np.array(of)[tags].sum()) for of in row["bytes_MTRR"])
    return at_half - at_settled, at_end - at_half
