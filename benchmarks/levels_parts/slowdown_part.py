"""What ``exchange.path = "auto"`` costs where it is not needed, and gives where it is: beside the flat path.

On emulated hosts and on one, models of one id a feature (``rows_part``) and of bags of 20 (``dealt_part``, tables
dynamic), form ``auto`` both times, the two paths in turns in one launch. ``levels.slowdown`` is the worst lower end of
an interval, how many times as fast a run by ``auto`` was as the same run ``flat``, of the shapes where some run by
``auto`` took another path, other forms or another placement. Where none did both are the same program (on one host, and
with a rank a host, there is nothing to choose): how far runs are apart that are alike is said by a third arm, ``flat``
once more, in every row. What opening a run takes longer by ``auto``, which measures prices first, is in the rows too.
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
STEPS, REPEATS = 10, 5
BURST = "8kb"
ARMS = {"flat": "flat", "auto": "auto", "flat again": "flat"}


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
                    name: arms.job(data, (*settings, "exchange.form=auto", f"exchange.path={path}"), steps)
                    for name, path in ARMS.items()
                }
                rows.append(_row(runs.in_turn(there, jobs, repeats), model, hosts, ranks, rate))
    others = [row["low"] for row in rows if row["another_way"]]
    reason = None if others else "auto was the same program as flat everywhere"
    return rows, [claim("levels.slowdown", min(others, default=None), unit, goal, reason)]


def _launcher(
    cluster: Path, hosts: int, ranks: int, rate: str
) -> Callable[[Sequence[Mapping[str, Any]]], Iterable[Row]]:
    if hosts == 1:
        return partial(launch.local, ranks=ranks)
    link = arms.UNSHAPED if rate == "unshaped" else rate
    return partial(launch.on_hosts, cluster=cluster, rate=link, ranks_per_host=ranks, hosts=hosts, burst=BURST)


def _row(found: Mapping[str, Sequence[Row]], model: str, hosts: int, ranks: int, rate: str) -> Row:
    ratios, alike = (
        [b["step_s"] / a["step_s"] for a, b in zip(found[name], found["flat"], strict=True)]
        for name in ("auto", "flat again")
    )
    (low, high), (alike_low, alike_high) = interval(ratios), interval(alike)
    row: Row = {"part": "slowdown", "model": model, "hosts": hosts, "ranks_a_host": ranks, "rate": rate}
    row |= {f"{name}_ms": 1e3 * statistics.median(of["step_s"] for of in found[name]) for name in ("flat", "auto")}
    row |= {f"{name}_open_s": statistics.median(of["open_s"] for of in found[name]) for name in ("flat", "auto")}
    ways = [of["path"] + " within hosts" * (of["within"] and of["path"] == "flat") for of in found["auto"]]
    row |= {"runs": len(ratios), **{way: ways.count(way) for way in ("flat", "flat within hosts", "levels")}}
    programs = [[of["path"], of["within"], of["forms"]] for of in (*found["auto"], *found["flat"])]
    row |= {"another_way": any(of != programs[-1] for of in programs)}
    row |= {"faster": statistics.median(ratios), "low": low, "high": high}
    row |= {"alike": statistics.median(alike), "alike_low": alike_low, "alike_high": alike_high}
    show(row)
    return row
