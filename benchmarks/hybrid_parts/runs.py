"""Runs of one configuration under several policies, in turn, and their ratios. Knows settings; starts nothing."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import interval

Row = dict[str, Any]
Launch = Callable[[Sequence[Mapping[str, Any]]], Iterable[Row]]
CONFIG = Path(__file__).resolve().parent / "hybrid.toml"
WARMUP, COOLDOWN = 8, 4  # steps that are not timed: more than are in flight
POLICIES = {
    "sync": ("policy.name=sync",),
    "hybrid 1": ("policy.name=hybrid", "policy.staleness=1"),
    "hybrid 2": ("policy.name=hybrid", "policy.staleness=2"),
    "hybrid 2, whole messages": ("policy.name=hybrid", "policy.staleness=2", "exchange.piece_bytes=0"),
    "ahead": ("policy.name=ahead",),
}


def job(data: Path, policy: str, settings: Sequence[str], steps: int) -> Row:
    """A run of ``on_ranks.rank.train``, in whose midst so many steps are timed."""
    every = [f"data.train={data}", f"train.steps={steps + WARMUP + COOLDOWN}", *settings, *POLICIES[policy]]
    return {"kind": "train", "config": str(CONFIG), "settings": every, "warmup": WARMUP, "cooldown": COOLDOWN}


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


def in_turn(
    launch: Launch, data: Path, policies: Sequence[str], settings: Sequence[str], *, steps: int, repeats: int
) -> dict[str, list[Row]]:
    """Rows by policy, of runs one after the other in one launch, which begin with another policy in each turn."""
    order = [p for i in range(repeats) for p in (*policies[i % len(policies) :], *policies[: i % len(policies)])]
    rows: Iterator[Row] = iter(launch([job(data, policy, settings, steps) for policy in order]))
    found: dict[str, list[Row]] = {policy: [] for policy in policies}
    for policy, row in zip(order, rows, strict=True):
        found[policy].append(row)
    return found


def compared(found: Mapping[str, Sequence[Row]], **about: Any) -> list[Row]:
    """A line of the table for each policy: how many times as fast as ``sync`` it was, turn by turn."""
    lines = []
    for policy, rows in found.items():
        ratios = [a["step_s"] / b["step_s"] for a, b in zip(found["sync"], rows, strict=True)]
        low, high = interval(ratios)
        lines.append(
            {
                **about,
                "policy": policy,
                "runs": len(rows),
                "step_ms": 1e3 * statistics.median(row["step_s"] for row in rows),
                "speedup": statistics.median(ratios),
                "low": low,
                "high": high,
            }
        )
    return lines


def busiest_bytes(row: Row) -> float:
    """Bytes that a rank, whichever most, sends or receives in a step."""
    bytes_RR = np.array(row["bytes_TRR"]).sum(axis=0)
    return float(max(bytes_RR.sum(axis=1).max(), bytes_RR.sum(axis=0).max()))
