"""Times one owner of a dynamic table that nobody told how many ids would come; and what its memory takes.

    python benchmarks/ids.py [--quick] [--threads N] [--ids N] [--json FILE]

The owner is what a run has: a ``MemoryStore`` with one dynamic family and its rows; a step is what
``OwnerSide`` does with the ids of its messages, which are not made here: distinct ids, ``DynamicRows.admit``, and
``MemoryStore.start_rows`` for new ones. 50 million ids from the whole of 64 bits (``--ids`` says another number;
``--quick``: 4 million) come in batches of 131,072 that are all new, get rows of 16 elements made from the id, and the
state of row-wise Adagrad.

``ids.lookups_per_s``    distinct ids of a step admitted a second, by the clock, with ``--threads`` threads, where all
                         have rows: median of steps of ids drawn uniformly, the hard case for memory. They are
                         ascending, as they come out of the removal of repeated ones, whose time is not in it: the row
                         "with repeated ids removed" has both
``ids.memory_overhead``  what the process has grown by / (row + state + 16 bytes) x ids: the worst of 16 moments while
                         the map grows, from a million ids on
``ids.longest_batch``    CPU time of this thread in the batch of new ids that took longest / its median in the 32
                         batches around: what growth adds to a step

"1 thread" is the same by one thread, also by its CPU time (``ids_per_cpu_s``), in which a core that is shared is not
waited for. Other rows are by the clock and of ``--threads`` threads, whatever else the machine does: skewed (Zipf) ids,
of which a step has fewer distinct ones, ids without a row, and a table at its capacity, from which each step evicts a
quarter of what it asks for. Ids a second are those of a batch, repeated ones too, but for the claim and "1 thread",
which count distinct ones. Where less memory is free than is needed, the run is left out and says so.
"""

import mmap
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _report import available_bytes, claim, finish, options

from hpcrec import kernels
from hpcrec.embedding.shards import Family
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.types import Dynamic, OptimizerSpec, TableSpec

BATCH = 1 << 17
FULL_IDS, QUICK_IDS = 50_000_000, 4_000_000
WIDTH, SEED = 16, 7
SPEC = OptimizerSpec(name="rowwise_adagrad")
ROW_BYTES = WIDTH * 4 + 4  # and its state
ID_BYTES = 16
MOMENTS, FIRST_MOMENT = 16, 1_000_000
NEIGHBOURS = 32  # batches that one is compared with
NEEDED = 1.35  # times what the claim allows has to be free
KINDS: tuple[Literal["lru", "lfu"], ...] = ("lru", "lfu")
Rows = list[dict[str, Any]]


class Owner:
    """One owner of a dynamic table, alone in its family."""

    def __init__(self, capacity: int, evict: Literal["lru", "lfu"] | None = None) -> None:
        rules = Dynamic(evict=evict, seed=SEED)
        table = TableSpec(name="t", rows=capacity, width=WIDTH, optimizer=SPEC, dynamic=rules)
        family = Family(
            name="t",
            rows=capacity,
            hashed=False,
            tables=("t",),
            features=("t",),
            kind="table",
            holders=(0,),
            dynamic=rules,
        )
        self.store = MemoryStore({"t": table}, [family], rank=0, seed=SEED, dtype=np.dtype(np.float32))
        self.held = self.store.dynamic["t"]

    def admit(self, unique: np.ndarray) -> np.ndarray:
        """Rows of the distinct ids of a step; new ones are made."""
        rows, fresh = self.held.admit(unique)
        if len(fresh):
            self.store.start_rows("t", rows[fresh], unique[fresh])
        return rows

    def step(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the ids of a step, of which some may be repeated."""
        unique, place = kernels.dedup(ids)
        return self.admit(unique)[place]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of the kernels; 2 by default")
    parser.add_argument("--ids", type=int, metavar="N", help=f"distinct ids; {FULL_IDS:,} by default")
    asked = parser.parse_args()
    n_ids = asked.ids or (QUICK_IDS if asked.quick else FULL_IDS)
    kernels.set_threads(asked.threads)
    needed = round(NEEDED * n_ids * (ROW_BYTES + ID_BYTES))
    if available_bytes() < needed:
        print(f"skipped: {available_bytes() / 1e9:.1f} GB are free, {needed / 1e9:.1f} are needed")
        finish("ids", [], claims_of(None, None, None), asked.json)
        return
    owner = Owner(n_ids)
    grown, overhead, longest = grow(owner, n_ids)
    n_batches = 20 if asked.quick else 60
    uniform = partial(drawn, n_ids)
    both = lookups("uniform", owner.admit, n_batches, lambda rng: np.unique(uniform(rng)))
    kernels.set_threads(1)
    one = lookups("uniform, 1 thread", owner.admit, n_batches, lambda rng: np.unique(uniform(rng)))
    kernels.set_threads(asked.threads)
    looked_up = [
        both,
        one,
        lookups("uniform, with repeated ids removed", owner.step, n_batches, uniform),
        lookups("Zipf, with repeated ids removed", owner.step, n_batches, lambda rng: named(skewed(rng, n_ids))),
        lookups("uniform, find", owner.held.find, n_batches, uniform),
        lookups("no row, find", owner.held.find, n_batches, lambda rng: named(n_ids + rng.integers(0, n_ids, BATCH))),
    ]
    assert owner.held.figures().admitted == n_ids, "all of them had rows"
    del owner
    n_kept = min(n_ids, 20 * BATCH)
    looked_up += [evicting(kind, n_kept, n_batches) for kind in KINDS]
    rows = [*grown, *looked_up]
    for row in rows:
        print("  ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    finish("ids", rows, claims_of(both["ids_per_s"], overhead, longest), asked.json)


def claims_of(lookups_per_s: float | None, overhead: float | None, longest: float | None) -> Rows:
    return [
        claim("ids.lookups_per_s", lookups_per_s, "ids/s", ">= 1e7"),
        claim("ids.memory_overhead", overhead, "of row + state + 16 bytes", "<= 1.2"),
        claim("ids.longest_batch", longest, "of the median batch of new ids"),
    ]


def grow(owner: Owner, n_ids: int) -> tuple[Rows, float, float]:
    """One row for each of ``MOMENTS`` moments; the worst overhead, and the longest batch over its neighbours."""
    rows, cpu_s, wall_s = [], list[float](), list[float]()
    warm = Owner(2 * BATCH)
    warm.admit(named(np.arange(BATCH)))  # what the first calls take is not the map's
    del warm
    base, made = resident_bytes(), 0
    for moment in range(1, MOMENTS + 1):
        first = len(cpu_s)
        until = n_ids * moment // MOMENTS
        while made < until:
            ids = named(np.arange(made, min(made + BATCH, until)))
            cpu, wall = time.thread_time(), time.perf_counter()
            owner.admit(ids)
            if len(ids) == BATCH:  # not the remainders
                cpu_s.append(time.thread_time() - cpu)
                wall_s.append(time.perf_counter() - wall)
            made += len(ids)
        assert len(owner.held) == made
        per_id = (resident_bytes() - base) / made
        rows.append(
            {
                "ids": made,
                "bytes_per_id": per_id,
                "overhead": per_id / (ROW_BYTES + ID_BYTES),
                "new_ids_per_s": BATCH / statistics.median(wall_s[first:]),
                "longest_batch_ms": 1e3 * max(wall_s[first:]),
                "longest_batch_cpu_ms": 1e3 * max(cpu_s[first:]),
            }
        )
    around = [statistics.median(cpu_s[max(0, i - NEIGHBOURS // 2) : i + NEIGHBOURS // 2]) for i in range(len(cpu_s))]
    longest = max(cpu / usual for cpu, usual in zip(cpu_s, around, strict=True))
    return rows, max(row["overhead"] for row in rows if row["ids"] >= FIRST_MOMENT), longest


def lookups(
    name: str, call: Callable[[np.ndarray], Any], n_batches: int, draw: Callable[[np.random.Generator], np.ndarray]
) -> dict[str, Any]:
    """Ids a second: the median of batches, each of ids of its own, drawn beforehand."""
    rng = np.random.default_rng(5)
    batches = [draw(rng) for _ in range(n_batches + 1)]
    cpu_s, wall_s = list[float](), list[float]()
    for ids in batches:
        cpu, wall = time.thread_time(), time.perf_counter()
        call(ids)
        cpu_s.append(time.thread_time() - cpu)
        wall_s.append(time.perf_counter() - wall)
    n_ids, cpu_s, wall_s = [len(ids) for ids in batches[1:]], cpu_s[1:], wall_s[1:]
    found = {"lookups": name, "ids_per_s": statistics.median(n / s for n, s in zip(n_ids, wall_s, strict=True))}
    alone = kernels.get_threads() == 1  # other threads' CPU time is not seen
    return (
        {**found, "ids_per_cpu_s": statistics.median(n / s for n, s in zip(n_ids, cpu_s, strict=True))}
        if alone
        else found
    )


def evicting(kind: Literal["lru", "lfu"], n_kept: int, n_batches: int) -> dict[str, Any]:
    """A full map, and batches of which a quarter is new and takes rows from others."""
    owner = Owner(n_kept, kind)
    for first in range(0, n_kept, BATCH):
        owner.admit(named(np.arange(first, min(first + BATCH, n_kept))))
    came = [n_kept]

    def draw(rng: np.random.Generator) -> np.ndarray:
        new = np.arange(came[0], came[0] + BATCH // 4)
        came[0] += len(new)
        return named(rng.permutation(np.r_[new, rng.integers(0, n_kept, BATCH - len(new))]))

    found = lookups(f"{kind} at capacity, 1/4 new", owner.step, n_batches, draw)
    evicted = owner.held.figures().evicted
    assert evicted >= n_batches * BATCH // 4
    return {**found, "evicted": evicted}


def drawn(n_ids: int, rng: np.random.Generator) -> np.ndarray:
    """Ids that have rows, all as likely."""
    return named(rng.integers(0, n_ids, BATCH))


def skewed(rng: np.random.Generator, n_ids: int) -> np.ndarray:
    """Numbers below n_ids, n with a chance of about 1 / n: Zipf's law."""
    return np.minimum(n_ids ** rng.random(BATCH), n_ids - 1).astype(np.int64)


def named(numbers: np.ndarray) -> np.ndarray:
    """A 64-bit id for each number: distinct, and spread over negative and positive ones."""
    return kernels.permute(numbers.astype(np.int64), 2**63 - 1, SEED) * np.where(numbers % 2, 1, -1)


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


if __name__ == "__main__":
    main()
