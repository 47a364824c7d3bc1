"""Runs of one configuration under several policies, in turn, and their ratios. Knows settings; starts nothing."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import interval

from hpcrec.policy.trials import STALENESS, STEPS

Row = dict[str, Any]
Launch = Callable[[Sequence[Mapping[str, Any]]], Iterable[Row]]
CONFIG = Path(__file__).resolve().parent / "hybrid.toml"
WARMUP, COOLDOWN = 12, 4  # steps that are not timed: the first more than are ever in flight
POLICIES = {
    "sync": ("policy.name=sync",),
    **{f"hybrid {n}": ("policy.name=hybrid", f"policy.staleness={n}") for n in STALENESS},
    "ahead": ("policy.name=ahead",),
}


def job(data: Path, policy: str, settings: Sequence[str], steps: int) -> Row:
    """A run of ``on_ranks.rank.train``, in whose midst so many steps are timed."""
    every = [f"data.train={data}", f"train.steps={steps + WARMUP + COOLDOWN}", *settings, *POLICIES[policy]]
    return {"kind": "train", "config": str(CONFIG), "settings": every, "warmup": WARMUP, "cooldown": COOLDOWN}


def sought(data: Path, settings: Sequence[str]) -> Row:
    """A run that seeks its staleness, in at most so many trials' steps."""
    every = [f"data.train={data}", f"train.steps={(len(STALENESS) + 1) * STEPS}", *settings]
    every += ["policy.name=hybrid", "policy.staleness=auto"]
    return {"kind": "sought", "config": str(CONFIG), "settings": every}


def alone(data: Path, policy: str, settings: Sequence[str], steps: int) -> list[Row]:
    """The exchange by itself, under the policy; and dense ranks by themselves."""
    exchange = job(data, policy, (*settings, "model.name=summed:build"), steps)
    dense = job(data, "sync", settings, steps)
    return [
        exchange,
        {
            "kind": "dense alone",
            "config": str(CONFIG),
            "settings": dense["settings"],
            "warmup": COOLDOWN,
            "steps": steps,
        },
    ]


def pictured(data: Path, policy: str, settings: Sequence[str]) -> Row:
    """A run of which a few steps are recorded."""
    every = [f"data.train={data}", *settings, *POLICIES[policy]]
    return {"kind": "timeline", "config": str(CONFIG), "settings": every, "warmup": 2 * WARMUP, "steps": 3}


def arms(data: Path, policies: Sequence[str], settings: Sequence[str], steps: int) -> dict[str, Row]:
    """A run of each of these policies."""
    return {policy: job(data, policy, settings, steps) for policy in policies}


def in_turn(launch: Launch, jobs: Mapping[str, Row], repeats: int) -> dict[str, list[Row]]:
    """Rows by name, of runs one after the other in one launch, which begin with another one in each turn."""
    names = list(jobs)
    order = [name for i in range(repeats) for name in (*names[i % len(names) :], *names[: i % len(names)])]
    rows: Iterator[Row] = iter(launch([jobs[name] for name in order]))
    found: dict[str, list[Row]] = {name: [] for name in names}
    for name, row in zip(order, rows, strict=True):
        found[name].append(row)
    return found


def faster(found: Mapping[str, Sequence[Row]], one: str, other: str) -> tuple[float, float, float]:
    """How many times as fast ``one`` was as ``other``, turn by turn: the median, and its interval."""
    ratios = [b["step_s"] / a["step_s"] for a, b in zip(found[one], found[other], strict=True)]
    return statistics.median(ratios), *interval(ratios)


def compared(found: Mapping[str, Sequence[Row]], **about: Any) -> list[Row]:
    """A line of the table for each policy: how many times as fast as ``sync`` it was, turn by turn."""
    lines = []
    for policy, rows in found.items():
        speedup, low, high = faster(found, policy, "sync")
        lines.append(
            {
                **about,
                "policy": policy,
                "runs": len(rows),
                "step_ms": 1e3 * statistics.median(row["step_s"] for row in rows),
                "cpu_ms": 1e3 * statistics.median(row["cpu_s"] for row in rows),
                "speedup": speedup,
                "low": low,
                "high": high,
            }
        )
    return lines


def busiest_bytes(row: Row) -> float:
    """Bytes that a rank, whichever most, sends or receives in a step."""
    bytes_RR = np.array(row["bytes_TRR"]).sum(axis=0)
    return float(max(bytes_RR.sum(axis=1).max(), bytes_RR.sum(axis=0).max()))
