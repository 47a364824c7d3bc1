"""A store of far more rows than memory has, for long: its speed at the end by that at the beginning.

What is measured, and of what, is said by ``benchmarks/tiers.py``. Steps are the store's alone, without a model, so that
nothing but rows and the disk is slow. Knows laws and command lines.
"""

import argparse
import shutil
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim, finish, repeated
from speed_parts import hpcrec_data, workload
from speed_parts.launch import PARTS as CONFIGS
from tiers_parts import fio, laws, limits
from tiers_parts.arm import Arm, EndedError
from tiers_parts.runs_part import DISK_SPARE, FIO_BYTES, FIO_DEPTH
from tiers_parts.shown import said

PROGRAM_BYTES = 700 << 20  # of the limit, beside the budget: a run's, as those of part ``runs`` have it
EXPONENT = 1.05
GOAL = ">= 0.95"

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """A workload, its budget, steps of a turn, and seconds of fio's behind each; turns at either end that count."""

    name: str
    memory_bytes: int
    steps: int
    fio_s: float
    ends: int


FULL = Size(name="drift", memory_bytes=2_000_000_000, steps=200, fio_s=5.0, ends=6)
QUICK = Size(name="drift-few", memory_bytes=32_000_000, steps=8, fio_s=0.3, ends=2)


def drift(folder: Path, path: Path | None, arguments: argparse.Namespace) -> None:
    """The part; writes its JSON to ``path``."""
    size = QUICK if arguments.quick else FULL
    rows: list[Row] = []
    n_bytes = 4 * sum(workload.WORKLOADS[size.name].rows) * (workload.WORKLOADS[size.name].width + 1)
    free = shutil.disk_usage(folder).free
    lacks = f"{free / 1e9:.0f} GB of disk are free" if free < DISK_SPARE * n_bytes + FIO_BYTES else None
    reason = limits.why_none() or fio.why_none() or lacks
    if reason is None:
        try:
            rows.extend(map(said, turns(folder / "drift", size, arguments, n_bytes)))
        except EndedError as error:
            reason = str(error)
    else:
        print(f"drift: not measured: {reason}")
    finish("tiers", rows, [claimed(rows, size, reason)], path)


def turns(folder: Path, size: Size, arguments: argparse.Namespace, n_bytes: int) -> Iterator[Row]:
    """A line each, until as many bytes of rows have come from the disk as there are: as many have gone to it."""
    w = workload.WORKLOADS[size.name]
    data = hpcrec_data.prepare(size.name, arguments.data)
    settings = [f"data.train={data}", "store.name=disk", f"store.path={folder / 'arm' / 'rows'}"]
    settings += [f"store.memory_bytes={size.memory_bytes}", "model.width=64", *arguments.set]
    with ExitStack() as stack:
        limit = size.memory_bytes + PROGRAM_BYTES
        arm = Arm(folder / "arm", CONFIGS / "w2.toml", settings, arguments.ranks, limit)
        stack.callback(arm.end)
        fio.fio(folder, min(n_bytes, FIO_BYTES), 1, None)
        arm.ask("write all")
        began = before = read_rows(arm.ask("open"))
        draws, file = drawn(w, size.steps), folder / "order"
        tables = {f"f{i}": int(first) for i, first in enumerate(np.cumsum([0, *w.rows[:-1]]))}
        turn = 0
        while before - began < sum(w.rows) or turn < 2 * size.ends:
            next(draws).tofile(file)
            about = {"order": str(file), "tables": tables, "at_once": w.batch * len(w.rows)}
            found = arm.ask("ask for", **about, first=-1 - turn * size.steps)
            rate = fio.fio(folder, min(n_bytes, FIO_BYTES), FIO_DEPTH, size.fio_s)
            reads, before = read_rows(found) - before, read_rows(found)
            seconds = max(rank["seconds"] for rank in found)
            yield {
                "turn": turn,
                "steps_per_s": size.steps / seconds,
                "reads": reads / size.steps,
                "fio_per_s": rate,
                "reads_of_fio": reads / seconds / rate,
                "taken_mb": arm.group.taken_bytes / 1e6,
                "disk_of_alive": sum(r["disk_bytes"] for r in found) / sum(r["disk_alive_bytes"] for r in found),
            }
            turn += 1


def read_rows(found: list[Row]) -> float:
    """Of all ranks, since they began."""
    return float(sum(rank["disk_rows_read"] for rank in found))


def drawn(w: workload.Workload, steps: int) -> Iterator[np.ndarray]:
    """Rows of all tables, numbered one behind the other, of so many steps: int32."""
    rng = np.random.default_rng(5)
    first = np.cumsum([0, *w.rows[:-1]])
    ends = {n: np.cumsum(laws.by_rank(n, EXPONENT)) for n in set(w.rows)}
    row_of = [rng.permutation(n).astype(np.int32) for n in w.rows]
    while True:
        found = np.empty((steps, len(w.rows), w.batch * w.ids), np.int32)
        for t, n in enumerate(w.rows):
            ranks = np.searchsorted(ends[n], rng.random((steps, w.batch * w.ids))).clip(max=n - 1)
            found[:, t] = row_of[t][ranks] + first[t]
        yield found


def claimed(rows: list[Row], size: Size, reason: str | None) -> Row:
    """Reads by fio's, of the last turns by the first ones whose cache was full."""
    shares = [row["reads_of_fio"] for row in rows]
    if reason is not None or len(shares) < 2 * size.ends:
        return claim("tiers.drift", None, "of the speed at first", GOAL, reason=reason or "too few turns")
    last = rows[-1]
    settled = (r["reads"] <= 1.1 * last["reads"] and r["disk_of_alive"] >= 0.999 * last["disk_of_alive"] for r in rows)
    start = min(list(settled).index(True), len(shares) - 2 * size.ends)
    at_first = statistics.median(shares[start : start + size.ends])
    ratios = [share / at_first for share in shares[-size.ends :]]
    return repeated("tiers.drift", ratios, "of the speed at first", GOAL)
