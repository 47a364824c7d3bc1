"""Time of a step and memory of its ranks beside those of another commit, in pairs of runs.

Workloads ``w1``, ``w2`` and ``w3`` are those of ``benchmarks/speed.py``, every rank in both roles, dense sums by MPI:
Horovod waits for its cycle, whatever hpcrec does. 1 rank has 2 threads, 2 and 4 ranks have 1 each.

``house.speed.<workload>.<n>ranks``: the time of a step of the commit before over this one's, the median of 15 pairs or
more; fewer give a row of the table but no value. Its 90 % interval is that of order statistics, which assumes nothing
of the noise; the claim also holds where 1 is in it.
``house.overhead``: the same of the quickstart's model at 32 samples a step, 2 ranks.
``house.memory``: the most that a rank has held at once over what it had held before, the median of pairs, of the rank
and workload where it is largest.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from _report import ROOT, claim
from house_parts.pairs import Cell, Row, Sides, alternating, head_of, time_row, whole
from speed_parts.launch import PARTS

WORKLOADS = ("w1", "w2", "w3")
RANKS = (1, 2, 4)
STEPS = {"w1": 80, "w2": 30, "w3": 20}
WARMUP = 5
PAIRS, MEMORY_PAIRS, QUICK_PAIRS = 15, 3, 1
SPEED_GOAL, OVERHEAD_GOAL, MEMORY_GOAL = ">= 0.98", ">= 1.3", "<= 1.02"
SETTINGS = ("topology.mode=fused", "dense.reducer=mpi")
QUICKSTART = Path(__file__).resolve().parent / "quickstart.toml"
QUICKSTART_DATA = ROOT / "data" / "quickstart" / "train.h5"
SMALL_BATCH = 32


def cells(
    names: Sequence[str], ranks: Sequence[int], data: Path, settings: Sequence[str], *, quick: bool
) -> list[Cell]:
    """A workload on each number of ranks."""
    return [
        Cell(
            name=name,
            config=PARTS / f"{name}.toml",
            ranks=n,
            warmup=WARMUP,
            steps=min(STEPS[name], 10 if quick else STEPS[name]),
            settings=(f"data.train={data / name}.h5", *SETTINGS, *settings),
        )
        for name in names
        for n in ranks
    ]


def small(settings: Sequence[str], *, quick: bool) -> Cell:
    """The quickstart's model at so few samples that nearly all of a step is Python."""
    few = (f"data.train={QUICKSTART_DATA}", f"train.batch_size={SMALL_BATCH}", *settings)
    return Cell(
        name="quickstart", config=QUICKSTART, ranks=2, warmup=50, steps=100 if quick else 500, settings=few
    )  # fmt: skip


def speed(sides: Sides | None, every: Sequence[Cell], n: int, reason: str | None) -> tuple[list[Row], list[Row]]:
    """Rows and claims of each cell; without another checkout the claims say why they have no value."""
    unit = "of the time of a step of the commit before to this one's"
    rows, claims = [], []
    for cell in every:
        name = f"house.speed.{cell.name}.{cell.ranks}ranks"
        if sides is None:
            claims.append(claim(name, None, unit, SPEED_GOAL, reason))
            continue
        rows.append(time_row(sides, cell, alternating(sides, cell, n)))
        claims.append(ratio_claim(name, rows[-1], unit, SPEED_GOAL, or_one=True))
    return rows, claims


def overhead(sides: Sides | None, cell: Cell, n: int, reason: str | None) -> tuple[list[Row], list[Row]]:
    """The same of a step of next to no samples."""
    name, unit = "house.overhead", f"of the time of a step before to this one's, {SMALL_BATCH} samples"
    if sides is None:
        return [], [claim(name, None, unit, OVERHEAD_GOAL, reason)]
    row = time_row(sides, cell, alternating(sides, cell, n))
    return [row], [ratio_claim(name, row, unit, OVERHEAD_GOAL, or_one=False)]


def ratio_claim(name: str, row: Row, unit: str, goal: str, *, or_one: bool) -> Row:
    """A row's ratio as a claim; ``or_one``: it holds too where 1 is in its interval."""
    if row["pairs"] < PAIRS:
        reason = row.get("result", f"{row['pairs']} pairs, {PAIRS} are needed")
        return claim(name, None, unit, goal, reason)
    return claim(name, row["ratio"], unit, goal, within=(row["low"], row["high"]) if or_one else None)


def memory(sides: Sides | None, every: Sequence[Cell], n: int, reason: str | None) -> tuple[list[Row], list[Row]]:
    """A row for each rank of each cell, and the claim of the worst."""
    name, unit = "house.memory", "of a rank's most memory before, worst"
    if sides is None:
        return [], [claim(name, None, unit, MEMORY_GOAL, reason)]
    rows: list[Row] = []
    for cell in every:
        rows += memory_rows(sides, cell, alternating(sides, cell, n))
    failed = next((row["result"] for row in rows if "result" in row), None)
    worst = max((row["ratio"] for row in rows if "ratio" in row), default=None)
    return rows, [claim(name, None if failed else worst, unit, MEMORY_GOAL, failed)]


def memory_rows(sides: Sides, cell: Cell, pairs: Sequence[tuple[Row, Row]]) -> list[Row]:
    """A line of the table for each rank."""
    head, ran = head_of(sides, cell, pairs), whole(pairs)
    if not ran:
        return [head]
    rows = []
    for rank in range(cell.ranks):
        before, after = ([pair[side]["peak_bytes"][rank] for pair in ran] for side in (0, 1))
        ratio = statistics.median(b / a for a, b in zip(before, after, strict=True))
        mb = {"before_mb": statistics.median(before) / 1e6, "after_mb": statistics.median(after) / 1e6}
        rows.append({**head, "rank": rank, **mb, "ratio": ratio})
    return rows
