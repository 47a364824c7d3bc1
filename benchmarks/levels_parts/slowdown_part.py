"""What ``exchange.path = "auto"`` costs where it is not needed, and gives where it is: beside the flat path.

On emulated hosts and on one, models of one id a feature (``rows_part``) and of bags of 20 (``dealt_part``, tables
dynamic), form ``auto`` both times, the two paths in turns in one launch. ``levels.slowdown`` is the worst lower end of
an interval, how many times as fast a run by ``auto`` was as the same run ``flat``, of the shapes where some run by
``auto`` took another way. Where none did both are the same program (on one host, and with a rank a host, there is
nothing to choose), and what the table has of them is how far runs are apart that are alike.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _report import claim, interval
from des_parts.cells import Row, show
from hybrid_parts import runs
from levels_parts import arms, dealt_part, rows_part
from on_ranks import launch

SHAPES = ((1, 4), (2, 2), (4, 1), (4, 2))  # hosts, ranks of each
STEPS, REPEATS = 10, 7
BURST = "8kb"
PATHS = ("flat", "auto")


def measure(cache: Path, cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and the claim."""
    unit, goal = "times the samples/s of the flat path, the worst lower end of an interval", ">= 0.97"
    if (reason := launch.why_no_hosts(cluster)) is not None:
        return [], [claim("levels.slowdown", None, unit, goal, reason)]
    steps, repeats = (4, 2) if quick else (STEPS, REPEATS)
    n = STEPS + arms.WARMUP + arms.COOLDOWN
    one_hot, bags = rows_part.prepared(cache, rows_part.BATCH * n), dealt_part.prepared(cache, dealt_part.BATCH * n)
    dynamic = [f"embedding.tables.f{t}.dynamic.capacity={dealt_part.CAPACITY}" for t in range(dealt_part.TABLES)]
    models = {"one id": (one_hot, rows_part.SETTINGS), "bags of 20": (bags, dynamic)}
    rows = list[Row]()
    for hosts, ranks in ((2, 2),) if quick else SHAPES:
        for rate in arms.RATES if hosts > 1 else ("none",):
            there = _launcher(cluster, hosts, ranks, rate)
            for model, (data, settings) in models.items():
                jobs = {
                    path: arms.job(data, (*settings, "exchange.form=auto", f"exchange.path={path}"), steps)
                    for path in PATHS
                }
                rows.append(_row(runs.in_turn(there, jobs, repeats), model, hosts, ranks, rate))
    others = [row["low"] for row in rows if row["another_way"]]
    reason = None if others else "auto took the flat path everywhere"
    return rows, [claim("levels.slowdown", min(others, default=None), unit, goal, reason)]


def _launcher(
    cluster: Path, hosts: int, ranks: int, rate: str
) -> Callable[[Sequence[Mapping[str, Any]]], Iterable[Row]]:
    if hosts == 1:
        return partial(launch.local, ranks=ranks)
    link = arms.UNSHAPED if rate == "unshaped" else rate
    return partial(launch.on_hosts, cluster=cluster, rate=link, ranks_per_host=ranks, hosts=hosts, burst=BURST)


def _row(found: Mapping[str, Sequence[Row]], model: str, hosts: int, ranks: int, rate: str) -> Row:
    ratios = [b["step_s"] / a["step_s"] for a, b in zip(found["auto"], found["flat"], strict=True)]
    low, high = interval(ratios)
    row: Row = {"part": "slowdown", "model": model, "hosts": hosts, "ranks_a_host": ranks, "rate": rate}
    row |= {f"{path}_ms": 1e3 * statistics.median(of["step_s"] for of in found[path]) for path in PATHS}
    ways = [of["path"] + " within hosts" * (of["within"] and of["path"] == "flat") for of in found["auto"]]
    row |= {"runs": len(ratios), **{way: ways.count(way) for way in ("flat", "flat within hosts", "levels")}}
    row |= {"another_way": ways.count("flat") < len(ways)}
    row |= {"faster": statistics.median(ratios), "low": low, "high": high}
    show(row)
    return row
