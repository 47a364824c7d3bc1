"""Runs of two checkouts that alternate: one launch a run, the same rank program, configuration and data for both."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _report import interval
from house_parts.checkout import Checkout
from speed_parts import launch

RANK = Path(__file__).resolve().parent / "rank.py"
Row = dict[str, Any]
Sides = tuple[Checkout, Checkout]
"""The commit before, and this one."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is run: a configuration on so many ranks, and its steps."""

    name: str
    config: Path
    ranks: int
    warmup: int
    steps: int
    settings: Sequence[str] = ()


def run(side: Checkout, cell: Cell) -> Row:
    """One launch's row; ``{"result": "failed: ..."}`` where it measured nothing."""

    def line(out: Path) -> list[str]:
        return side.on_ranks(cell.ranks, RANK, out, cell.config, cell.warmup, cell.steps, *cell.settings)

    row = launch.run(line, launch.environment(cell.ranks))
    if "package" in row:
        side.check(row["package"])
    return row


def alternating(sides: Sides, cell: Cell, n: int) -> list[tuple[Row, Row]]:
    """So many pairs of runs: before and after. Who comes first alternates too."""
    found = []
    for number in range(n):
        ran = {side: run(sides[side], cell) for side in ((0, 1), (1, 0))[number % 2]}
        found.append((ran[0], ran[1]))
        show(cell, *found[-1])
    return found


def show(cell: Cell, before: Row, after: Row) -> None:
    """One line of progress."""
    head = f"{cell.name:10} {cell.ranks} ranks"
    if "result" in before or "result" in after:
        print(head, before.get("result", "ran"), after.get("result", "ran"), flush=True)
        return
    ms = " -> ".join(f"{1e3 * row['step_s']:8.3f}" for row in (before, after))
    load = f"load {before['load_before']:.1f} {after['load_before']:.1f}"
    print(head, f"{ms} ms a step, ratio {before['step_s'] / after['step_s']:.3f}", load, flush=True)


def whole(pairs: Sequence[tuple[Row, Row]]) -> list[tuple[Row, Row]]:
    """Those in which both have run."""
    return [pair for pair in pairs if not any("result" in row for row in pair)]


def head_of(sides: Sides, cell: Cell, pairs: Sequence[tuple[Row, Row]]) -> Row:
    """What every row of the table begins with; ``result`` where a run failed."""
    failed = [row["result"] for pair in pairs for row in pair if "result" in row]
    head = {"cell": cell.name, "ranks": cell.ranks, "before": sides[0].commit, "after": sides[1].commit}
    return {**head, **({"result": failed[0]} if failed else {}), "pairs": len(whole(pairs))}


def time_row(sides: Sides, cell: Cell, pairs: Sequence[tuple[Row, Row]]) -> Row:
    """A line of the table: median times, the ratio of the pairs with its interval, and by how much losses differ."""
    row, ran = head_of(sides, cell, pairs), whole(pairs)
    if not ran:
        return row
    ratios = [before["step_s"] / after["step_s"] for before, after in ran]
    low, high = interval(ratios)
    ms = {f"{name}_ms": 1e3 * statistics.median(pair[side]["step_s"] for pair in ran) for side, name in NAMES}
    gap = max(abs(before["loss"] - after["loss"]) for before, after in ran)
    return {**row, **ms, "ratio": statistics.median(ratios), "low": low, "high": high, "loss_gap": gap}


NAMES = ((0, "before"), (1, "after"))
