"""Predicted time of a step with rows on a disk, held to a clock: mixes of tables on disks of several speeds.

The mixes of ``placement.py``, on one rank, in memory for an eighth of their rows' bytes. A slower disk is the same one
with a limit of reads a second that the kernel keeps (blkio, cgroup v1). Predicted is what ``hpcrec config check`` says
of a run of two epochs, less what it says of the first alone, from the step in memory and the disk's reads, both of the
same turn; the clock is on the second epoch of a run, in which every row that comes was written before, in another order
of the whole file. Arms of a mix take turns.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import placement
from _report import claim, finish
from tiers_parts.limits import SlowDisk, why_no_slow_disk

from hpcrec.build.tier_lines import Disk, predicted_step
from hpcrec.build.tiers import Tiers, tiers_of
from hpcrec.plan.placement import Expected, TierPart, expect, least_bytes

RUN = str(Path(__file__).resolve().parent / "clock_run.py")
DISKS: dict[str, int | None] = {"5,000": 5_000, "20,000": 20_000, "free": None}
STEPS, TURNS = 100, 2
WINDOW = 10_000  # chunks: more than there are
GOAL = "<= 0.1"


def clock(folder: Path, path: Path | None, arguments: argparse.Namespace) -> None:
    """The part; writes its JSON to ``path``."""
    if (why := why_no_slow_disk(folder)) is not None:
        finish("tiers", [], [claim("tiers.prediction_error", None, "of a step's time", GOAL, why)], path)
        return
    names = list(placement.MIXES)[2:3] if arguments.quick else list(placement.MIXES)
    rows = []
    for number, name in enumerate(names):
        rows += _mix(name, folder / f"mix-{number}", seed=number, quick=arguments.quick)
    errors = [abs(row["predicted_ms"] / row["step_ms"] - 1) for row in rows]
    claims = [
        claim("tiers.prediction_error", max(errors), "of a step's time, the largest", GOAL),
        claim("tiers.prediction_error_median", statistics.median(errors), "of a step's time, the median"),
    ]
    finish("tiers", rows, claims, path)


def _mix(name: str, folder: Path, *, seed: int, quick: bool) -> list[dict[str, Any]]:
    folder.mkdir()
    model, features = placement.MIXES[name]
    steps, turns = (40, 1) if quick else (STEPS, TURNS)
    placement.write(folder / "train.h5", features, steps * placement.BATCH, seed)
    parts = _parts(folder, model, steps)
    budget = round(max(sum(part.n_bytes for part in parts) * placement.SHARE, 1.1 * least_bytes(parts)))
    expected = _second(expect(parts, budget), expect(_parts(folder, model, steps / 2), budget))
    told: dict[str, list[dict[str, Any]]] = {}
    for turn in range(turns):
        arms = ["memory", *DISKS]
        for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
            found = _run(folder, arm, _mapping(folder, model, None if arm == "memory" else budget, steps), steps, parts)
            told.setdefault(arm, []).append(found)
    step_s = statistics.median(of["step_s"] for of in told["memory"])
    cpu_s = statistics.median(of["cpu_s"] for of in told["memory"])
    rows = []
    for arm in DISKS:
        rates = {
            part.page_bytes: statistics.median(of["reads_per_s"][str(part.page_bytes)] for of in told[arm])
            for part in parts
        }
        disk = Disk(rates, "measured", statistics.median(of["page_cpu_s"] for of in told[arm]))
        predicted_s = predicted_step(step_s, disk.beside([(parts, expected)]))
        row = {
            "part": "clock",
            "mix": name,
            "disk": arm,
            "reads_per_s": min(rates.values()),
            "page_cpu_us": 1e6 * disk.page_cpu_s,
            "memory_ms": 1e3 * step_s,
            "memory_cpu_ms": 1e3 * cpu_s,
            "reads_predicted": expected.rows_read,
            "pages_predicted": expected.pages_read,
            "reads": statistics.median(of["reads"] for of in told[arm]),
            "pages": statistics.median(of["pages"] for of in told[arm]),
            "predicted_ms": 1e3 * predicted_s,
            "step_ms": 1e3 * statistics.median(of["step_s"] for of in told[arm]),
            "cpu_ms": 1e3 * statistics.median(of["cpu_s"] for of in told[arm]),
            "step_ms_each": [round(1e3 * of["step_s"], 2) for of in told[arm]],
        }
        print("  ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
        rows.append(row)
    return rows


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


def _mapping(folder: Path, model: dict[str, Any], budget: int | None, steps: int) -> dict[str, Any]:
    found = placement.mapping_of(folder, model, budget or 1, (), steps)
    # In the order of the first epoch, or of windows, a step's rows would lie in the same pages.
    found["data"] |= {"shuffle": True, "window": WINDOW}
    return found if budget else {**found, "store": {"name": "dram"}}


def _run(folder: Path, arm: str, mapping: dict[str, Any], steps: int, parts: Sequence[TierPart]) -> dict[str, Any]:
    pages = [] if arm == "memory" else sorted({part.page_bytes for part in parts})
    about = folder / "run.json"
    about.write_text(json.dumps({"config": mapping, "folder": str(folder), "pages": pages}))
    with SlowDisk("clock", folder, DISKS.get(arm)) as disk:
        line = disk.inside([sys.executable, RUN, str(about), str(steps)])
        said = subprocess.run(line, capture_output=True, text=True, check=False)
    if said.returncode:
        sys.exit(f"{arm}: {said.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found
