"""The tier alone: reads beside fio's, bytes written for those handed over, memory. Knows ``hpcrec.disk``, no caches.

What leaves a cache is drawn by a model of one, ``gone``: the least recently used rows first, all of which have changed.
A store's cache chooses otherwise. What memory is taken beside rows is for ``memory_of``.
"""

import argparse
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim, finish, interval, spread
from tiers_parts import memory_of
from tiers_parts.fio import NO_FIO, fio, why_none
from tiers_parts.shown import said

from hpcrec.disk.pages import page_io
from hpcrec.disk.tier import BlockRows, Settings, Tier, Wanted
from hpcrec.errors import ConfigError

DEPTHS = (16, 32, 64, 128)
WIDTH = 64
PAGE_BYTES = 4096  # of rows of this width
BATCH = 8192  # rows that are read at once
UPDATES = 1500  # rows that are handed over at once
LAWS = ((1.05, 0.0), (1.2, 0.0), (1.05, 0.125), (1.2, 0.125), (0.8, 0.0), (0.0, 0.0))  # exponent, share in a cache
NO_RING = "io_uring cannot be had here"


def disk(folder: Path, path: Path | None, arguments: argparse.Namespace) -> None:
    """The part; writes its JSON to ``path``."""
    quick = arguments.quick
    n_rows, rounds, seconds = (800_000, 2, 1.0) if quick else (8_000_000, 8, 2.0)
    depths = DEPTHS[-2:] if quick else DEPTHS
    rows = [said(row) for row in reads(folder, n_rows, rounds, seconds, depths)]
    n_rows, fills, laws = (200_000, 3, LAWS[:4]) if quick else (1_000_000, 6, LAWS)
    for width in (16, 64):
        rows += [said(writes(folder, n_rows, fills, width, law, cache)) for law, cache in laws]
    rows += [said(memory_of.apart(folder, kind, n)) for kind, n in memory_of.sizes(quick=quick).items()]
    finish("tiers", rows, claims_of(rows), path)


def claims_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if (
            "per_s" in row
            and row["per_s"]["median"] > best.get(row["way"], {"per_s": {"median": 0}})["per_s"]["median"]
        ):
            best[row["way"]] = row

    def share(name: str, way: str, goal: str) -> dict[str, Any]:
        lacks = NO_FIO if "fio" not in best else NO_RING if way not in best else None
        value = None if lacks else best[way]["per_s"]["median"] / best["fio"]["per_s"]["median"]
        return claim(name, value, "of fio's reads a second", goal, reason=lacks)

    written = {
        name: [row for row in rows if row.get("law", 0) > 1 and (row["cache"] > 0) == cached]
        for name, cached in (("left a cache of an eighth", True), ("were handed over", False))
    }
    left, over = (max(row["written_of_handed"] for row in of) for of in written.values())
    of_left, of_over = (f"of the bytes of rows that {name}" for name in written)
    takes = max(row["disk_of_alive"] for of in written.values() for row in of)
    ring = best.get("io_uring", best["threads"])
    cpu_us = ring["cpu_us"]["median"]
    return [
        share("tiers.read_share", "io_uring", ">= 0.9"),
        share("tiers.read_share_threads", "threads", ">= 0.8"),
        claim("tiers.read_cpu_us", cpu_us, "us of CPU a page", "<= 4", sure=(ring["cpu_us_low"], ring["cpu_us_high"])),
        claim("tiers.writes_per_row", left, of_left, "<= 2"),
        claim("tiers.writes_per_row.uncached", over, of_over),
        claim("tiers.disk_per_row", takes, "of the bytes alive", "<= 1.5"),
        *memory_of.claims_of(rows),
    ]


def blocks(n_rows: int, width: int) -> list[BlockRows]:
    """Rows with row-wise Adagrad."""
    return [BlockRows(n_rows, {"": (np.dtype("f4"), (width,)), "accumulator": (np.dtype("f4"), ())})]


def columns(n_rows: int, width: int) -> dict[str, np.ndarray]:
    return {"": np.zeros((n_rows, width), np.float32), "accumulator": np.zeros(n_rows, np.float32)}


# Reads.


def reads(folder: Path, n_rows: int, rounds: int, seconds: float, depths: Sequence[int]) -> list[dict[str, Any]]:
    """One row for each way and depth: rates and CPU, medians and ranges over rounds."""
    rng = np.random.default_rng(1)
    generation = filled(folder / "reads", n_rows, rng)
    n_bytes = sum(path.stat().st_size for path in (folder / "reads").iterdir())
    with_fio = why_none() is None
    if with_fio:
        fio(folder, n_bytes, 1, None)
    else:
        print(f"shares of its reads are not measured: {why_none()}")
    ways = (*(["fio"] if with_fio else []), *(["io_uring"] if has_ring() else []), "threads")
    per_s, cpu_us = defaultdict(list), defaultdict(list)
    for _ in range(rounds):
        for depth in depths:
            for way in ways:
                if way == "fio":
                    per_s[way, depth].append(fio(folder, n_bytes, depth, seconds))
                    continue
                settings = Settings(io=way, depth=depth)  # type: ignore[arg-type]
                with Tier(folder / "reads", blocks(n_rows, WIDTH), settings, generation=generation) as tier:
                    rate, cpu = rate_of(tier, n_rows, rng, seconds)
                per_s[way, depth].append(rate)
                cpu_us[way, depth].append(cpu)
    shutil.rmtree(folder / "reads")
    return [
        {"way": way, "depth": depth, "gb": n_bytes / 1e9, "per_s": spread(found)}
        | (cpu_of(cpu_us[way, depth]) if way != "fio" else {})
        for (way, depth), found in per_s.items()
    ]


def cpu_of(found: Sequence[float]) -> dict[str, Any]:
    """Of a page, over rounds: the median with its range, and with its interval."""
    low, high = interval(found)
    return {"cpu_us": spread(found), "cpu_us_low": low, "cpu_us_high": high}


def has_ring() -> bool:
    try:
        page_io("io_uring", PAGE_BYTES)[0].close()
    except ConfigError as error:
        print(error)
        return False
    return True


def filled(folder: Path, n_rows: int, rng: np.random.Generator) -> int:
    """The generation of a tier that has all rows, in random order."""
    with Tier(folder, blocks(n_rows, WIDTH)) as tier:
        order = rng.permutation(n_rows)
        for start in range(0, n_rows, 1 << 15):
            some = order[start : start + (1 << 15)]
            tier.write({0: Wanted(some, columns(len(some), WIDTH))})
        return tier.keep().number


def rate_of(tier: Tier, n_rows: int, rng: np.random.Generator, seconds: float) -> tuple[float, float]:
    """Pages a second, and microseconds of CPU for each."""
    into = columns(BATCH, WIDTH)
    batches = [rng.integers(0, n_rows, BATCH) for _ in range(64)]
    tier.read({0: Wanted(batches[0], into)}).wait()
    assert tier.page_bytes == [PAGE_BYTES]
    before, start, cpu = tier.counts.read_pages, time.perf_counter(), time.process_time()
    n = 0
    while time.perf_counter() - start < seconds:
        tier.read({0: Wanted(batches[n % len(batches)], into)}).wait()
        n += 1
    pages = tier.counts.read_pages - before
    return pages / (time.perf_counter() - start), (time.process_time() - cpu) / pages * 1e6


# Writes.


def writes(folder: Path, n_rows: int, fills: int, width: int, law: float, cache: float) -> dict[str, Any]:
    """Bytes written by those handed over, and of the disk by those alive, once it is steady."""
    rng = np.random.default_rng(2)
    order = rng.permutation(n_rows)
    handed = written = 0
    most, start = 0.0, time.perf_counter()
    with Tier(folder / "writes", blocks(n_rows, width)) as tier:
        for first in range(0, n_rows, 1 << 15):
            some = order[first : first + (1 << 15)]
            tier.write({0: Wanted(some, columns(len(some), width))})
        filled_bytes = tier.counts.handed_bytes
        into = columns(n_rows // 8 + UPDATES, width)  # more than go at once
        for some in gone(drawn(rng, n_rows, law), n_rows, round(cache * n_rows)):
            tier.write({0: Wanted(order[some], {k: v[: len(some)] for k, v in into.items()})})
            counts = tier.counts
            if counts.handed_bytes >= (1 + fills / 2) * filled_bytes:
                if not handed:
                    handed, written = counts.handed_bytes, counts.written_bytes
                most = max(most, tier.disk_bytes / tier.alive_bytes)
            if counts.handed_bytes >= (1 + fills) * filled_bytes:
                break
        return {
            "rows": n_rows,
            "width": width,
            "law": law,
            "cache": cache,
            "written_of_handed": (tier.counts.written_bytes - written) / (tier.counts.handed_bytes - handed),
            "disk_of_alive": most,
            "mb_per_s": tier.counts.written_bytes / (time.perf_counter() - start) / 1e6,
            "memory_bytes": tier.n_bytes,
        }


def drawn(rng: np.random.Generator, n_rows: int, law: float) -> Iterator[np.ndarray]:
    """Batches of distinct rows, drawn with a chance that falls with this power of the rank; 0: all alike."""
    ends = np.cumsum(np.arange(1, n_rows + 1, dtype=np.float64) ** -law)
    while True:
        yield np.unique(np.searchsorted(ends, rng.random(UPDATES) * ends[-1]))


def gone(batches: Iterator[np.ndarray], n_rows: int, slots: int) -> Iterator[np.ndarray]:
    """What leaves a model of a cache of so many rows, the least recently used first; 0: all that is asked for.

    Every batch that is asked for changes its rows, so each one that leaves is handed over.
    """
    if not slots:
        yield from batches
    last, inside = np.full(n_rows, -1), 0
    waiting: deque[np.ndarray] = deque()
    for now, rows in enumerate(batches):
        inside += int((last[rows] < 0).sum())
        last[rows] = now
        waiting.append(rows)
        while inside > slots:
            first = now + 1 - len(waiting)
            old = waiting.popleft()
            old = old[last[old] == first]
            last[old] = -1
            inside -= len(old)
            if len(old):
                yield old
