"""Measures what Horovod's cycle time costs: a step's sums, a compute loop, and a small Alltoallv beside its thread.

    python benchmarks/horovod_cycle.py [--quick] [--json FILE]

Horovod's thread wakes once a cycle to look for tensors and to agree with the other ranks' threads. A short cycle starts
a sum sooner and takes CPU time from the rank; a long one lets a sum wait. The default, ``dense.horovod.CYCLE_TIME_MS``,
is chosen from this table. The row ``mpi`` has no Horovod: the floor for an Alltoallv, and the other reducer.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim, finish
from _report import options as benchmark_options

CYCLES_MS = (1.0, 2.0, 5.0, 10.0)
BUCKETS, BUCKET_BYTES = 4, 500_000
LAUNCHES = 3
BACKWARD_MS = 8.0  # compute of a step, during which the buckets become ready one by one
SMALL_BYTES = 2048  # of the Alltoallv, a rank
COLUMNS = {
    "sum_ms": "4 buckets, nothing to overlap",
    "step_extra_ms": f"the same, in the course of {BACKWARD_MS:.0f} ms of compute: what the step gains on it",
    "compute_slowdown_percent": "compute beside the idle thread, against before; the slowest rank",
    "idle_cpu_percent": "CPU time of a rank that sleeps; the busiest rank",
    "alltoallv_us": "median beside the idle thread",
    "alltoallv_p95_us": "the slow ones",
}


def main() -> None:
    parser = benchmark_options(__doc__)
    parser.add_argument("--worker", type=float, metavar="MS", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker, options.quick, options.out)
        return
    rows = []
    for ranks in (2,) if options.quick else (2, 4):
        rows += measured(ranks, options.quick)
    show(rows)
    finish("horovod_cycle", rows, claimed(rows), options.json)


def measured(ranks: int, quick: bool) -> list[dict[str, Any]]:
    """One row a cycle time: the mean of launches of their own, since phases of the threads differ by launch."""
    rows: list[dict[str, Any]] = []
    for cycle_ms in (0.0, *CYCLES_MS):
        launches = [launched(ranks, cycle_ms, quick) for _ in range(1 if quick else LAUNCHES)]
        means = {name: statistics.mean(launch[name] for launch in launches) for name in launches[0]}
        rows.append({"ranks": ranks, "cycle": f"{cycle_ms:g}" if cycle_ms else "mpi", **means})
    return rows


def launched(ranks: int, cycle_ms: float, quick: bool) -> dict[str, float]:
    """What one launch measures."""
    start = "import os, sys; from hpcrec.launcher.mpirun import run_command; sys.exit(run_command(int(sys.argv[1]), \
sys.argv[2:], environment=os.environ, threads=1, program=(sys.executable,)))"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        argv = [sys.executable, "-c", start, str(ranks), __file__, "--worker", str(cycle_ms), "--out", str(out)]
        argv += ["--quick"] if quick else []
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(out.read_text())


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the table and what its columns are."""
    print("ranks  cycle_ms  " + "  ".join(COLUMNS))
    for row in rows:
        cells = "  ".join(f"{row[name]:>{len(name)}.2f}" for name in COLUMNS)
        print(f"{row['ranks']:>5}  {row['cycle']:>8}  {cells}")
    for name, meaning in COLUMNS.items():
        print(f"  {name}: {meaning}")


def claimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the default is chosen for, over 2 ranks: sums that wait little, and a thread that leaves the core alone."""
    from hpcrec.dense.horovod import CYCLE_TIME_MS  # imports MPI, which would make the launching process a rank

    default = f"{CYCLE_TIME_MS:g}"
    row = next(row for row in rows if row["ranks"] == 2 and row["cycle"] == default)
    limits = (("horovod-cycle-sum", "sum_ms", "ms", 3.0), ("horovod-cycle-idle-cpu", "idle_cpu_percent", "%", 50.0))
    return [claim(name, row[value], unit, f"<= {limit:g}") for name, value, unit, limit in limits]


def worker(cycle_ms: float, quick: bool, out: Path) -> None:
    """One rank of one row."""
    import torch
    from mpi4py import MPI

    from hpcrec.comm.topology import assign_roles
    from hpcrec.comm.world import World
    from hpcrec.dense.horovod import HorovodAllreduce
    from hpcrec.dense.mpi import MpiAllreduce

    torch.set_num_threads(1)
    world = World(MPI.COMM_WORLD, lambda host_of: assign_roles(host_of, mode="fused"))
    assert world.dense is not None
    barrier = world.main.barrier
    compute = Compute(BACKWARD_MS / BUCKETS, MPI.COMM_WORLD)
    repeats = 40 if quick else 120

    def compute_only() -> None:
        for _ in range(BUCKETS):
            compute()

    alone_ms = 1e3 * usual_s(compute_only, repeats, barrier)  # before there is a thread beside it
    allreduce = HorovodAllreduce(world.dense, cycle_time_ms=cycle_ms) if cycle_ms else MpiAllreduce(world.dense)
    flats = [torch.ones(BUCKET_BYTES // 4) for _ in range(BUCKETS)]

    def step(work: bool) -> None:
        handles = []
        for number, flat in enumerate(flats):
            if work:
                compute()
            handles.append(allreduce.start(flat, f"bucket.{number}"))
        for handle in handles:
            allreduce.wait(handle)

    step_ms = 1e3 * usual_s(lambda: step(True), repeats, barrier)
    compute_ms = 1e3 * usual_s(compute_only, repeats, barrier)
    row = {
        "sum_ms": 1e3 * usual_s(lambda: step(False), repeats, barrier),
        "step_ms": step_ms,
        "step_extra_ms": step_ms - alone_ms,
        "compute_slowdown_percent": max(world.main.allgather(100.0 * (compute_ms / alone_ms - 1.0))),
        "idle_cpu_percent": max(world.main.allgather(idle_cpu_percent(0.5))),
    }
    times_us = 1e6 * small_alltoallv(world.main.comm, 1000 if quick else 5000)
    row["alltoallv_us"], row["alltoallv_p95_us"] = (float(np.percentile(times_us, q)) for q in (50, 95))
    barrier()
    allreduce.close()
    if world.topology.rank == 0:
        out.write_text(json.dumps(row))
    world.close()


class Compute:
    """A loop of small matrix products that takes about ``target_ms`` on every rank, the same number on each."""

    def __init__(self, target_ms: float, comm: Any) -> None:
        self._a = np.random.default_rng(0).standard_normal((96, 96), dtype=np.float32)
        self._n = 20
        self()
        began = time.perf_counter()
        self()
        once_ms = 1e3 * (time.perf_counter() - began) / self._n
        self._n = comm.bcast(max(1, round(target_ms / once_ms)))

    def __call__(self) -> None:
        """Computes."""
        for _ in range(self._n):
            self._a @ self._a


def usual_s(work: Any, repeats: int, barrier: Any) -> float:
    """Lower quartile of the seconds of ``work``, all ranks starting together: others may use the machine."""
    taken = []
    for number in range(repeats + 5):
        barrier()
        began = time.perf_counter()
        work()
        if number >= 5:
            taken.append(time.perf_counter() - began)
    return float(np.percentile(taken, 25))


def idle_cpu_percent(seconds: float) -> float:
    """CPU time that this process takes while its main thread sleeps, threads of libraries included."""
    began = time.process_time()
    time.sleep(seconds)
    return 100.0 * (time.process_time() - began) / seconds


def small_alltoallv(comm: Any, rounds: int) -> np.ndarray:
    """Seconds of each of many small Alltoallv."""
    send = np.zeros(SMALL_BYTES, np.uint8)
    counts = [SMALL_BYTES // comm.size] * comm.size
    recv = np.zeros(sum(counts), np.uint8)
    taken = np.empty(rounds)
    for number in range(rounds):
        began = time.perf_counter()
        comm.Alltoallv([send, counts], [recv, counts])
        taken[number] = time.perf_counter() - began
    return taken


if __name__ == "__main__":
    main()
