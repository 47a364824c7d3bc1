"""Time of a step of ``auto`` beside that of ``rows``, on this machine: runs of both at once that take turns.

Every shape and model; 20 pairs of turns each, of one step that is not timed and 10 that are, 4 of ``multihot``
(``rank.pairs``). Owners read ids. What ``auto`` takes before its first step, to count on the data, is not in a step: a
run pays it once, in the seconds that it takes to open (``_open_s``; that of ``rows`` has the reading of new data too).
``auto.slowdown``: the least, over cells, of the lower bound of the 90 % interval of the median of rows' time over
auto's. The interval is that of order statistics, which assumes nothing of the noise.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from _report import claim, interval
from des_parts import cells
from des_parts.cells import Row, Shape
from on_ranks import launch

PAIRS, STEPS = 20, 10
FEWER_STEPS = {"multihot": 4}
AGAINST = ("rows", "auto")
QUICK_MODELS, QUICK_SHAPES, QUICK_PAIRS = ("fm",), ("onehot",), 8
LEAST = 0.95


def measure(data: dict[str, Path], *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    n_pairs = QUICK_PAIRS if quick else PAIRS
    every = [s for s in cells.SHAPES if s.data in data and (not quick or s.name in QUICK_SHAPES)]
    wanted = [(shape, model) for shape in every for model in (QUICK_MODELS if quick else cells.MODELS)]
    jobs = [
        cells.pairs_job(shape, data[shape.data], model, AGAINST, n_pairs, FEWER_STEPS.get(shape.name, STEPS))
        for shape, model in wanted
    ]
    rows = []
    for (shape, model), found in zip(wanted, launch.local(jobs), strict=True):
        rows.append(row(shape, model, found["step_s"], found["open_s"]))
        cells.show(rows[-1])
    return rows, claims(rows)


def row(shape: Shape, model: str, step_s: dict[str, list[float]], open_s: dict[str, float]) -> Row:
    """One line of the table: median times, and the ratio of the pairs with its interval."""
    before, after = AGAINST
    ratios = [a / b for a, b in zip(step_s[before], step_s[after], strict=True)]
    low, high = interval(ratios)
    ms = {f"{form}_ms": 1e3 * statistics.median(step_s[form]) for form in AGAINST}
    ratio = {"ratio": statistics.median(ratios), "low": low, "high": high}
    opened = {f"{form}_open_s": open_s[form] for form in AGAINST}
    return {"shape": shape.name, "model": model, "pairs": len(ratios), **ms, **ratio, **opened}


def claims(rows: Sequence[Row]) -> list[Row]:
    """The worst cell."""
    worst = min((r["low"] for r in rows if r["pairs"] >= PAIRS), default=None)
    unit = "of rows' samples/s, lower bound of the 90 % interval, worst"
    return [claim("auto.slowdown", worst, unit, f">= {LEAST:g}")]
