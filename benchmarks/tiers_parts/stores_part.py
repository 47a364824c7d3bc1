"""Existing stores beside the tier, under the same memory limit: a mapped file, LMDB, RocksDB.

What is measured, and of what, is said by ``benchmarks/tiers.py``. Each store is a process that takes commands
(``worker.h``); knows laws, memory groups and command lines.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from _report import CONFIDENCE, claim, finish, spread
from tiers_parts import laws, limits
from tiers_parts.shown import said

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=c++17", "-O2", "-pthread")
LIBRARIES = {"mapped": (), "lmdb": ("-llmdb",), "rocksdb": ("-lrocksdb",)}
PACKAGES = {"lmdb": "liblmdb-dev", "rocksdb": "librocksdb-dev"}
ALL = ("tier", *LIBRARIES)
THREADS = (1, 8)  # of existing stores, one after the other
PROGRAM_BYTES = 32 << 20  # of each limit
EXPONENT, KEPT = 1.05, 1 / 8  # of the law; the part of rows that the best fixed set has
BATCH = 2000
PAIRS_A_SECOND = 60  # of batches, at most: what files of numbers have
AGAIN = 2000  # times that turns are drawn again
RATIOS = {"tiers.over_mmap": ("mapped",), "tiers.over_store": ("lmdb", "rocksdb")}

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done.

    Attributes
    ----------
    rows : dict of int to int
        By width.
    rounds : int
    seconds : float
        Of a turn, without what it has to write at its end.
    threads : tuple of int
    """

    rows: dict[int, int]
    rounds: int
    seconds: float
    threads: tuple[int, ...]


FULL = Size(rows={16: 15_000_000, 64: 6_000_000}, rounds=8, seconds=8.0, threads=THREADS)
QUICK = Size(rows={16: 2_000_000, 64: 800_000}, rounds=3, seconds=1.0, threads=THREADS[-1:])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of this part."""
    parser.add_argument("--stores", default=",".join(ALL), help=f"part stores: which ({','.join(ALL)})")


def stores(folder: Path, path: Path | None, arguments: argparse.Namespace) -> None:
    """The part; writes its JSON to ``path``."""
    reason = limits.why_none()
    if reason is not None:
        print(f"stores: not measured: {reason}")
        finish("tiers", [], [claim(name, None, "times", ">= 2", reason=reason) for name in RATIOS], path)
        return
    size = QUICK if arguments.quick else FULL
    size = replace(size, rounds=arguments.turns or size.rounds)
    programs, lacking = compiled(folder, arguments.stores.split(","))
    rows, turns = [], {}
    for width in size.rows:
        turns[width] = measured(folder / str(width), programs, width, size)
        rows += [said(row) for row in summed_up(turns[width], width, size)]
    rows += [{"store": name, "status": "skipped", "reason": why} for name, why in lacking.items()]
    finish("tiers", rows, claims_of(turns, lacking), path)


def compiled(folder: Path, wanted: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Commands of the stores, and why there is none of others."""
    programs, lacking = {}, {}
    for name in wanted:
        if name not in ALL:
            sys.exit(f"--stores has {name!r}; allowed are {', '.join(ALL)}")
        if name == "tier":
            programs[name] = [sys.executable, str(HERE / "tier_worker.py")]
            continue
        program = folder / name
        line = [os.environ.get("CXX", "c++"), *FLAGS, "-o", str(program), str(HERE / f"{name}.cpp"), *LIBRARIES[name]]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            hint = f"apt-get install {PACKAGES[name]}" if name in PACKAGES else done.stderr.strip()[-300:]
            lacking[name] = f"{name} does not compile: {hint}"
            print(lacking[name])
        else:
            programs[name] = [str(program)]
    return programs, lacking


class Worker:
    """A store's process."""

    def __init__(self, line: Sequence[str]) -> None:
        self._line = list(line)
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: str) -> Row:
        """What it says of a command."""
        found = ""
        with suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
            found = self._process.stdout.readline()
        if not found:
            sys.exit(f"{' '.join(self._line)} ended with {self._over()} at: {command}")
        answer: Row = json.loads(found)
        return answer

    def end(self) -> None:
        """Closes the store."""
        code = self._over()
        if code:
            sys.exit(f"{' '.join(self._line)} ended with {code}")

    def kill(self) -> None:
        """Where something else has failed."""
        if self._process.poll() is None:
            self._process.kill()
        self._over()

    def _over(self) -> int:
        """Its exit code, once it has seen that nobody asks any more."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait()
        self._process.stdout.close()
        return code


def measured(folder: Path, programs: dict[str, list[str]], width: int, size: Size) -> dict[tuple[str, int], list[Row]]:
    """What each store did with so many threads, turn by turn."""
    n_rows, record_bytes = size.rows[width], 4 * (width + 1)
    limit_bytes = round(KEPT * n_rows * record_bytes)
    words = [str(n_rows), str(record_bytes), str(limit_bytes)]
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    with ExitStack() as stack:
        workers = {}
        for name, program in programs.items():
            place = folder / name
            place.mkdir(parents=True)
            line = [*program, str(place), *words]
            prepared(line, place, n_rows, folder / "order")
            group = stack.enter_context(limits.Group(f"{name}-{width}"))
            workers[name] = Worker(group.inside(line))
            stack.callback(workers[name].kill)
            workers[name].ask(f"turn 0 1 {BATCH} {folder / 'order'}")  # it is open, which takes more for a moment
            group.limit(limit_bytes + PROGRAM_BYTES)
        arms = [(name, n) for name in workers for n in (size.threads if name != "tier" else (1,))]
        batches = pairs(n_rows, size.seconds)
        for turn in range(size.rounds):
            for name, threads in (*arms[turn % len(arms) :], *arms[: turn % len(arms)]):
                next(batches).tofile(folder / "batches")
                command = f"turn {size.seconds} {threads} {BATCH} {folder / 'batches'}"
                found[name, threads].append(workers[name].ask(command))
        for worker in workers.values():
            worker.end()
    return found


def prepared(line: Sequence[str], place: Path, n_rows: int, order: Path) -> None:
    """All rows written, and written over once, without a limit; then nothing of them is in the page cache."""
    if not order.exists():
        np.random.default_rng(1).permutation(n_rows).astype(np.int32).tofile(order)
    worker = Worker(line)
    worker.ask(f"fill {n_rows}")
    worker.ask(f"over {order}")
    worker.end()
    limits.dropped(place)


def pairs(n_rows: int, seconds: float) -> Iterator[np.ndarray]:
    """Batches of distinct rows that are read, and written, of the tail of the law: int32 [pairs, 2, BATCH]."""
    rng = np.random.default_rng(2)
    kept = round(KEPT * n_rows)
    ends, row_of = laws.tail(n_rows, EXPONENT, kept), rng.permutation(n_rows).astype(np.int32)
    while True:
        found = np.empty((max(1, round(PAIRS_A_SECOND * seconds)), 2, BATCH), np.int32)
        for batch in found.reshape(-1, BATCH):
            drawn = np.searchsorted(ends, rng.random(2 * BATCH))
            batch[:] = np.sort(row_of[kept + rng.permutation(np.unique(drawn))[:BATCH]])
        yield found


def summed_up(turns: dict[tuple[str, int], list[Row]], width: int, size: Size) -> list[Row]:
    """A line of the table for each store and number of threads."""
    n_rows = size.rows[width]
    rows = []
    for (name, threads), of in turns.items():
        n, seconds, cpu_s = (sum(turn[key] for turn in of) for key in ("rows", "seconds", "cpu_s"))
        rows.append(
            {
                "store": name,
                "width": width,
                "rows": n_rows,
                "threads": threads,
                "limit_mb": (round(KEPT * n_rows * 4 * (width + 1)) + PROGRAM_BYTES) / 1e6,
                "rows_per_s": n / seconds,
                "by_turn": spread([turn["rows"] / turn["seconds"] for turn in of]),
                "cpu_us": 1e6 * cpu_s / n,
            }
        )
    return rows


def claims_of(turns: dict[int, dict[tuple[str, int], list[Row]]], lacking: dict[str, str]) -> list[Row]:
    """The tier's rate by that of the fastest of these, the less over widths."""
    claims = []
    for name, others in RATIOS.items():
        ratios = []
        for found in turns.values():
            known = [arm for arm in found if arm[0] in others]
            if ("tier", 1) in found and known:
                best = max(known, key=lambda arm: rate(found[arm], range(len(found[arm]))))
                ratios.append(ratio(found["tier", 1], found[best]))
        why = "; ".join(lacking[o] for o in others if o in lacking) or "not among --stores"
        if ratios:
            value, low, high = min(ratios)
            claims.append(claim(name, value, "times the rows/s", ">= 2", sure=(low, high)))
        else:
            claims.append(claim(name, None, "times the rows/s", ">= 2", reason=why))
    return claims


def rate(of: Sequence[Row], turns: Sequence[int]) -> float:
    """Rows a second of these turns."""
    return float(sum(of[turn]["rows"] for turn in turns) / sum(of[turn]["seconds"] for turn in turns))


def ratio(ours: Sequence[Row], theirs: Sequence[Row]) -> tuple[float, float, float]:
    """Of rates of all turns, and the interval of that where turns are drawn again, those of both together."""
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, len(ours), (AGAIN, len(ours)))
    found = np.sort([rate(ours, turns) / rate(theirs, turns) for turns in drawn.tolist()])
    beyond = round((1 - CONFIDENCE) / 2 * AGAIN)
    every = range(len(ours))
    return rate(ours, every) / rate(theirs, every), float(found[beyond]), float(found[-1 - beyond])
