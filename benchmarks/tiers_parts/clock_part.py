"""Predicted time of a step with rows on a disk, held to a clock: mixes of tables on disks of several speeds.

The mixes of ``placement.py``, on one rank, in memory for an eighth of their rows' bytes, or for a twelfth where an
eighth is enough for all rows that come again. Each with all tables alike, and with those whole (``store.whole``) that
``hpcrec config check`` would name. A slower disk is the same one with a limit of reads a second that the kernel keeps
(blkio, cgroup v1). Predicted is what ``hpcrec config check`` says of a run of two epochs, less what it says of the
first alone, from the mix's step in memory and the disk's reads just before the run, medians of turns; the clock is on
the second epoch of a run, in which every row that comes was written before, in another order of the whole file. Runs of
a mix take turns: fewer of a disk with a limit, whose steps differ little from run to run.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import placement
from _report import claim, finish
from tiers_parts.limits import SlowDisk, why_no_slow_disk
from tiers_parts.shown import said

from hpcrec.build.tier_lines import Disk, predicted_step
from hpcrec.build.tiers import Tiers, tiers_of
from hpcrec.plan.placement import Expected, TierPart, expect, least_bytes, place

RUN = str(Path(__file__).resolve().parent / "clock_run.py")
DISKS: dict[str, int | None] = {"5,000": 5_000, "20,000": 20_000, "free": None}
TURNS = {"memory": 4, "5,000": 1, "20,000": 2, "free": 4}
STEPS = 100
SHARES = {"power law 1.2": 1 / 12}  # of the rows' bytes; of an eighth all that comes again has room
WINDOW = 10_000  # chunks: more than there are
GAIN = 0.99  # of the reads, that a placement leaves at most, or it is not named: ``hpcrec config check`` has the same
GOAL = "<= 0.1"
ERROR = "tiers.prediction_error"
PLACED = "tiers.placed_over_alike.time"  # of its reads, ``placement.py`` has a claim without the ending
OVER_ALIKE = "<= 1.05"  # never slower; and what a clock differs by

Row = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """A run of a mix: on which disk, and which tables are whole."""

    disk: str
    whole: tuple[str, ...] = ()


def clock(folder: Path, path: Path | None, arguments: argparse.Namespace) -> None:
    """The part; writes its JSON to ``path``."""
    if (why := why_no_slow_disk(folder)) is not None:
        unknown = [claim(of, None, "of a step's time", goal, why) for of, goal in ((ERROR, GOAL), (PLACED, OVER_ALIKE))]
        finish("tiers", [], unknown, path)
        return
    names = list(placement.MIXES)[2:3] if arguments.quick else list(placement.MIXES)
    rows: list[Row] = []
    for number, name in enumerate(names):
        rows.extend(map(said, _mix(name, folder / f"mix-{number}", seed=number, quick=arguments.quick)))
    finish("tiers", rows, claims_of(rows), path)


def claims_of(rows: Sequence[Row]) -> list[Row]:
    """Predictions are held to the clock where all tables are alike; those placed are held to these."""
    alike = {(row["mix"], row["disk"]): row for row in rows if not row["whole"]}
    errors = [abs(row["predicted_ms"] / row["step_ms"] - 1) for row in alike.values()]
    over = [row["step_ms"] / alike[row["mix"], row["disk"]]["step_ms"] for row in rows if row["whole"]]
    none = None if over else "no placement is better by the prediction"
    return [
        claim(ERROR, max(errors), "of a step's time, the largest", GOAL),
        claim(f"{ERROR}_median", statistics.median(errors), "of a step's time, the median"),
        claim(PLACED, max(over, default=None), "of a step's time with all tables alike, the largest", OVER_ALIKE, none),
    ]


def _mix(name: str, folder: Path, *, seed: int, quick: bool) -> Iterator[Row]:
    folder.mkdir()
    model, features = placement.MIXES[name]
    steps = 40 if quick else STEPS
    placement.write(folder / "train.h5", features, steps * placement.BATCH, seed)
    parts = _parts(folder, model, steps)
    share = SHARES.get(name, placement.SHARE)
    budget = round(max(sum(part.n_bytes for part in parts) * share, 1.1 * least_bytes(parts)))
    whole = _advised(parts, budget)
    arms = [Arm("memory"), *(Arm(disk, named) for disk in DISKS for named in ((), *([whole] if whole else [])))]
    told: dict[Arm, list[Row]] = {arm: [] for arm in arms}
    for turn in range(1 if quick else max(TURNS.values())):
        first = turn % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            if turn < TURNS[arm.disk]:
                mapping = _mapping(folder, model, None if arm.disk == "memory" else budget, steps, arm.whole)
                told[arm].append(_run(folder, arm.disk, mapping, steps, parts))
    once = _parts(folder, model, steps / 2)
    in_memory = told.pop(Arm("memory"))
    for arm, found in told.items():
        expected = _second(expect(parts, budget, arm.whole), expect(once, budget, arm.whole))
        about = {"part": "clock", "mix": name, "disk": arm.disk, "whole": list(arm.whole), "memory_bytes": budget}
        yield about | _row(parts, expected, in_memory, found)


def _row(parts: Sequence[TierPart], expected: Expected, in_memory: Sequence[Row], found: Sequence[Row]) -> Row:
    """What is said of an arm."""

    def median(name: str, of: Sequence[Row] = found) -> float:
        return statistics.median(one[name] for one in of)

    sizes = {part.page_bytes for part in parts}
    rates = {size: statistics.median(of["reads_per_s"][str(size)] for of in found) for size in sizes}
    disk = Disk(rates, "measured", median("page_cpu_s"))
    step_s = median("step_s", in_memory)
    return {
        "reads_per_s": min(rates.values()),
        "page_cpu_us": 1e6 * disk.page_cpu_s,
        "memory_ms": 1e3 * step_s,
        "memory_cpu_ms": 1e3 * median("cpu_s", in_memory),
        "reads_predicted": expected.rows_read,
        "pages_predicted": expected.pages_read,
        "reads": median("reads"),
        "pages": median("pages"),
        "predicted_ms": 1e3 * predicted_step(step_s, disk.beside([(parts, expected)])),
        "step_ms": 1e3 * median("step_s"),
        "cpu_ms": 1e3 * median("cpu_s"),
        "step_ms_each": [round(1e3 * of["step_s"], 2) for of in found],
    }


def _advised(parts: Sequence[TierPart], budget: int) -> tuple[str, ...]:
    """Tables that ``hpcrec config check`` would name, of the whole run; none where it would name none."""
    (page_bytes,) = {part.page_bytes for part in parts}  # of one size, the disk's rate does not matter
    whole = place([parts], budget, {page_bytes: 1.0})
    now, then = expect(parts, budget), expect(parts, budget, whole)
    assert now is not None and then is not None
    return whole if then.pages_read < GAIN * now.pages_read else ()


def _parts(folder: Path, model: dict[str, Any], steps: float) -> Sequence[TierPart]:
    """Of a run of two epochs of so many steps."""
    tiers = tiers_of(placement.config_of(folder, model, 1, (), round(steps)), [0])
    assert isinstance(tiers, Tiers)
    return tiers.parts[0]


def _second(both: Expected | None, first: Expected | None) -> Expected:
    """Of the second of two epochs."""
    assert both is not None and first is not None
    reads = {table: 2 * n - first.reads[table] for table, n in both.reads.items()}
    return replace(both, reads=reads, pages={table: 2 * n - first.pages[table] for table, n in both.pages.items()})


def _mapping(
    folder: Path, model: dict[str, Any], budget: int | None, steps: int, whole: tuple[str, ...]
) -> dict[str, Any]:
    found = placement.mapping_of(folder, model, budget or 1, whole, steps)
    # In the order of the first epoch, or of windows, a step's rows would lie in the same pages.
    found["data"] |= {"shuffle": True, "window": WINDOW}
    return found if budget else {**found, "store": {"name": "dram"}}


def _run(folder: Path, arm: str, mapping: dict[str, Any], steps: int, parts: Sequence[TierPart]) -> dict[str, Any]:
    pages = [] if arm == "memory" else sorted({part.page_bytes for part in parts})
    about = folder / "run.json"
    about.write_text(json.dumps({"config": mapping, "folder": str(folder), "pages": pages}))
    with SlowDisk("clock", folder, DISKS.get(arm)) as disk:
        line = disk.inside([sys.executable, RUN, str(about), str(steps)])
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{arm}: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
