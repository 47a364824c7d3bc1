"""Times the kernels on flat arrays for ``kernels.py``: those on ids, and those that make messages small.

The latter are given as shares of a copy: the time in which a copy moves the bytes that the kernel has to move, over the
kernel's. These are what it reads and writes once; of values that are not next to each other their whole cache lines.
Few positions fit a cache that the copied array does not: their share may be more than 1.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from _limits import Limits
from _timing import Rounds
from _workloads import zipf_ids

from hpcrec import kernels
from hpcrec.kernels import PositionCoding
from hpcrec.units import MiB

Rows = list[dict[str, Any]]
N_VALUES = 32 * MiB  # float32: beyond the last-level cache
LINE_BYTES = 64


@dataclass(frozen=True)
class Case:
    """A call to be timed, and the bytes that it has to move."""

    name: str
    run: Callable[[], Any]
    n_bytes: int


def void(_: Any) -> None:
    """For runs whose value is not their time."""


def time_ids(n: int, n_rounds: int) -> Rows:
    """Kernels that see n ids only."""
    n_rows = 1_000_000
    ids = zipf_ids(n_rows, n, (1, 0))
    part, some = (ids % 64).astype(np.int32), ids[: n // 8]
    rounds = Rounds(
        {
            "dedup": lambda: void(kernels.dedup(ids)),
            "partition, 64 parts": lambda: void(kernels.partition(part, 64)),
            "hash_ids": lambda: void(kernels.hash_ids(ids, n_rows, 1)),
            "permute": lambda: void(kernels.permute(ids, n_rows, 1)),
            "init_rows, width 64": lambda: void(kernels.init_rows(1, some, 64, scale=0.1)),
        },
        n_rounds,
    )
    return [{"case": name, "ids": some.size if "init" in name else n, "ms": rounds.median(name)} for name in rounds.ms]


def time_messages(limits: Limits, n_rounds: int) -> Rows:
    """Halves, thresholds and positions, each beside a copy."""
    values, spare = (kernels.aligned_empty((N_VALUES,), np.float32) for _ in range(2))
    values[:] = np.random.default_rng(3).standard_normal(N_VALUES, np.float32)
    spare.fill(0)
    rows: Rows = []
    for cases in (halves(values, spare), picks(values), places(values, spare, 1), places(values, spare, 25)):
        by_name = {case.name: case for case in cases}
        runs = {name: case.run for name, case in by_name.items()}
        rounds = Rounds({"copy": lambda: limits.copy(values, spare), **runs}, n_rounds)
        for name, case in by_name.items():
            share = partial(of_copy, name, case.n_bytes / (2 * values.nbytes))
            row = {"case": name, "bytes_moved": case.n_bytes, "ms": rounds.median(name)}
            rows.append(row | {"copy_ms": rounds.median("copy"), "of_copy": rounds.ratio(share)})
    return rows


def of_copy(name: str, copies: float, ms: Callable[[str], float]) -> float:
    """Time of so many copies over that of the run."""
    return copies * ms("copy") / ms(name)


def halves(values: np.ndarray, spare: np.ndarray) -> Iterator[Case]:
    """Conversions there and back."""
    for kind in ("bf16", "fp16"):
        out = np.zeros(kernels.half_bytes(values.size, kind), np.uint8)
        kernels.write_halves(values, out, kind)
        n_bytes = values.nbytes + out.nbytes
        yield Case(f"write_halves, {kind}", partial(kernels.write_halves, values, out, kind), n_bytes)
        yield Case(f"read_halves, {kind}", partial(kernels.read_halves, out, spare, kind), n_bytes)


def picks(values: np.ndarray) -> Iterator[Case]:
    """A threshold, and what is picked by those of three shares."""
    yield Case("threshold_of, 1 %", lambda: void(kernels.threshold_of(values, values.size // 100)), values.nbytes)
    minus = -values
    for percent in (0.1, 1, 10):
        n_picked = int(values.size * percent / 100)
        tau, n_bytes = kernels.threshold_of(values, n_picked), values.nbytes + 12 * n_picked
        yield Case(f"select_above, {percent} %", partial(kernels.select_above, values, tau), n_bytes)
        residual = np.zeros_like(values)
        turns = itertools.cycle((values, minus))  # so that the same are picked each time

        def feedback(tau: float = tau, residual: np.ndarray = residual, turns: Iterator[np.ndarray] = turns) -> None:
            kernels.select_with_feedback(next(turns), residual, tau)

        yield Case(f"select_with_feedback, {percent} %", feedback, n_bytes + 2 * values.nbytes)
    for keep, width in ((5, 64), (10, 128)):
        vectors = values[: values.size // width * width].reshape(-1, width)
        n_bytes = values.nbytes * (width + 3 * keep) // width  # of each chosen one 12 bytes
        yield Case(f"select_largest, {keep} of {width}", partial(kernels.select_largest, vectors, keep), n_bytes)


def places(values: np.ndarray, out: np.ndarray, percent: int) -> Iterator[Case]:
    """What is done with the positions of so many."""
    n = values.size
    positions, chosen = kernels.select_above(values, kernels.threshold_of(values, n * percent // 100))
    picked, touched = positions.nbytes + chosen.nbytes, min(values.nbytes, LINE_BYTES * positions.size)
    yield Case(f"scatter_add, {percent} %", partial(kernels.scatter_add, out, positions, chosen), picked + 2 * touched)
    expanded = out.copy()
    yield Case(f"expand, {percent} %", partial(kernels.expand, expanded, positions, chosen), picked + out.nbytes)
    yield Case(f"gather, {percent} %", partial(kernels.gather, values, positions), picked + touched)
    for coding in PositionCoding:
        mask = coding == PositionCoding.MASK
        written = np.zeros(-(-n // 8) if mask else kernels.packed_bytes(positions)[1], np.uint8)
        kernels.write_positions(positions, n, coding, written)
        n_bytes, name = positions.nbytes + written.nbytes, f"positions, {coding.name}, {percent} %"
        yield Case(f"write_{name}", partial(kernels.write_positions, positions, n, coding, written), n_bytes)
        yield Case(f"read_{name}", partial(kernels.read_positions, written, positions.size, n, coding), n_bytes)
