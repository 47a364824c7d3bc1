"""Measures rows on a disk alone: reads against fio's, bytes written for those handed over, and memory beside the rows.

    python benchmarks/tiers.py [--quick] [--json FILE] [--parts disk,checkpoint] [--folder DIR]

Part ``disk``: ``hpcrec.disk`` without a cache. Rows of 64 floats with row-wise Adagrad, 260 bytes, lie in random order;
batches of rows at random are read past the page cache, a page of 4 KiB for nearly each, with its checksum. fio reads 4
KiB at random from a file of the same size with io_uring, registered buffers and file; both take turns at each depth.
``tiers.read_share`` is the tier's best median over depths by fio's best, ``tiers.read_share_threads`` that of threads
in place of io_uring (they are as many as the depth). ``tiers.read_cpu_us`` is the CPU of the process by pages, Python,
checksum and the system's part in its threads included, where reads are the most. Without fio (apt-get install fio)
shares have no value.

Then rows of 16 and of 64 floats are handed over, until the disk has been filled several times; the second half counts.
Batches of distinct rows are drawn by power laws, in a fixed random order. ``tiers.writes_per_row`` is bytes written,
footers, cleaning and padding included, by bytes of rows and states handed over: the highest over both widths and
exponents of 1.05 and 1.2. ``tiers.writes_per_row_cached`` is the same of what leaves a cache of an eighth of the rows,
the least recently used first, where rows are asked for by these laws: what is often asked for stays there, so that rows
are handed over more alike, which takes more cleaning. Laws of 0.8 and 0 (all rows alike) are in the table.
``tiers.disk_per_row`` is the disk's bytes at their highest, space that is taken ahead included, by those of rows alive.

``tiers.memory_per_row`` is bytes of memory by rows of the table, as the process has them (RssAnon, all rows
written) and the tier counts them, the larger one.

Part ``checkpoint`` (``tiers_parts/checkpoint_part.py``): store ``disk`` in an eighth of the rows' bytes.
``tiers.checkpoint_bytes`` is what a checkpoint by links writes, what is dirty in memory and its own files, by the bytes
of rows and states; beside it, what it would copy where links cannot be had. ``tiers.resume_ratio`` is the time from an
open session to the end of the first step, from links by that from HDF5: medians of rounds that take turns, with nothing
of either checkpoint in the page cache. How long steps stand still for a checkpoint is shown for links, for HDF5 and for
rows that are all in memory.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import asked, claim, finish, options, spread
from tiers_parts import checkpoint_part

from hpcrec.disk.pages import page_io
from hpcrec.disk.tier import BlockRows, Settings, Tier, Wanted
from hpcrec.errors import ConfigError

PARTS = ("disk", "checkpoint")
DEPTHS = (16, 32, 64, 128)
WIDTH = 64
PAGE_BYTES = 4096  # of rows of this width
BATCH = 8192  # rows that are read at once
UPDATES = 1500  # rows that are handed over at once
LAWS = ((1.05, 0.0), (1.2, 0.0), (1.05, 0.125), (1.2, 0.125), (0.8, 0.0), (0.0, 0.0))  # exponent, share in a cache
NO_FIO, NO_RING = "fio is not installed", "io_uring cannot be had here"


def main() -> None:
    parser = options(__doc__, PARTS)
    parser.add_argument("--folder", type=Path, help="on the disk that is measured; a temporary one by default")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        if arguments.memory_of is not None:
            print(json.dumps(memory(Path(name), arguments.memory_of)))
            return
        for part, path in asked(parser, arguments, PARTS):
            if part == "disk":
                disk(Path(name), path, quick=arguments.quick)
            else:
                rows, claims = checkpoint_part.measure(Path(name), quick=arguments.quick)
                finish(f"tiers_{part}", [said(row) for row in rows], claims, path)


def disk(folder: Path, path: Path | None, *, quick: bool) -> None:
    n_rows, rounds, seconds = (800_000, 2, 1.0) if quick else (8_000_000, 3, 2.0)
    depths = DEPTHS[-2:] if quick else DEPTHS
    rows = [said(row) for row in reads(folder, n_rows, rounds, seconds, depths)]
    n_rows, fills, laws = (200_000, 3, LAWS[:4]) if quick else (1_000_000, 6, LAWS)
    for width in (16, 64):
        rows += [said(writes(folder, n_rows, fills, width, law, cache)) for law, cache in laws]
    rows.append(said(memory_apart(folder, 10_000_000)))
    finish("tiers", rows, claims_of(rows), path)


def said(row: dict[str, Any]) -> dict[str, Any]:
    """The row, shown as it is measured."""
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    return row


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
        for name, cached in (("", False), ("_cached", True))
    }
    takes = max(row["disk_of_alive"] for of in written.values() for row in of)
    remembered = next(row["memory_per_row"] for row in rows if "memory_per_row" in row)
    return [
        share("tiers.read_share", "io_uring", ">= 0.9"),
        share("tiers.read_share_threads", "threads", ">= 0.8"),
        claim(
            "tiers.read_cpu_us", best.get("io_uring", best["threads"])["cpu_us"]["median"], "us of CPU a page", "<= 4"
        ),
        *(
            claim(
                f"tiers.writes_per_row{name}", max(r["written_of_handed"] for r in of), "of bytes handed over", "<= 2"
            )
            for name, of in written.items()
        ),
        claim("tiers.disk_per_row", takes, "of the bytes alive", "<= 1.5"),
        claim("tiers.memory_per_row", remembered, "bytes a row of the table", "<= 4.5"),
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
    with_fio = shutil.which("fio") is not None
    if with_fio:
        fio(folder, n_bytes, 1, None)
    else:
        print(f"{NO_FIO}: shares of its reads are not measured. apt-get install fio")
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
        | ({"cpu_us": spread(cpu_us[way, depth])} if way != "fio" else {})
        for (way, depth), found in per_s.items()
    ]


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


def fio(folder: Path, n_bytes: int, depth: int, seconds: float | None) -> float:
    """Reads a second of pages at random; None: only makes the file."""
    size = n_bytes >> 20 << 20
    line = ["fio", "--name=reads", f"--filename={folder}/fio", f"--size={size}", "--direct=1"]
    line += ["--output-format=json", "--ioengine=io_uring", f"--iodepth={depth}"]
    if seconds is None:
        line += ["--rw=write", "--bs=1m"]
    else:
        line += [
            "--rw=randread",
            f"--bs={PAGE_BYTES}",
            "--fixedbufs=1",
            "--registerfiles=1",
            "--norandommap=1",
            "--randrepeat=0",
        ]
        line += ["--time_based=1", f"--runtime={seconds:g}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    found = json.loads(done.stdout[done.stdout.index("{") :])
    return float(found["jobs"][0]["read"]["iops"])


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
    """What leaves a cache of so many rows, the least recently used first, where these are asked for; 0: all of them."""
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


# Memory.


def memory_apart(folder: Path, n_rows: int) -> dict[str, Any]:
    """In a process of its own."""
    line = [sys.executable, __file__, "--folder", str(folder), "--memory-of", str(n_rows)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def memory(folder: Path, n_rows: int) -> dict[str, Any]:
    """What a tier of so many rows takes, all of them written and some read."""
    rng = np.random.default_rng(3)
    order, into = rng.permutation(n_rows), columns(1 << 15, 16)
    with Tier(folder / "warm", blocks(1 << 15, 16)) as warm:  # what does not depend on rows
        warm.write({0: Wanted(np.arange(1 << 15), into)})
        warm.read({0: Wanted(rng.permutation(1 << 15), into)}).wait()
    before = rss_bytes()
    with Tier(folder / "tier", blocks(n_rows, 16)) as tier:
        for start in range(0, n_rows, 1 << 15):
            some = order[start : start + (1 << 15)]
            tier.write({0: Wanted(some, {k: v[: len(some)] for k, v in into.items()})})
        for _ in range(10):
            tier.read({0: Wanted(rng.integers(0, n_rows, 1 << 15), into)}).wait()
        taken, counted = rss_bytes() - before, tier.n_bytes
    return {
        "rows": n_rows,
        "memory_per_row": max(taken, counted) / n_rows,
        "resident_bytes": taken,
        "counted_bytes": counted,
    }


def rss_bytes() -> int:
    """Of this process: memory that it shares with nobody."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
