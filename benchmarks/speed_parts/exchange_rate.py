"""Rate of hpcrec's exchange of pooled values between the ranks of one host, beside as many simultaneous copies.

    hpcrec run -n 2 -- benchmarks/speed_parts/exchange_rate.py OUT ROUNDS

Sizes are those of a step where every rank owns an equal part of the tables and has an equal part of the batch. What is
sent was just written, where a step writes it (the gather's output); it ends in memory of the receiver's own. The copies
are one memcpy a rank of as much that was just written, its own part included, at the same time on all ranks.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import workload
from mpi4py import MPI

from hpcrec.comm.sizes import padded_bytes
from hpcrec.comm.start import start
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World

CALLS = 10  # of each kind in a round


def main(out: str, rounds: str) -> None:
    rank = start(os.environ)
    world = World(MPI.COMM_WORLD, lambda host_of: assign_roles(host_of, mode="fused"))
    row = {name: share(world, name, int(rounds)) for name in ("w1", "w2")}
    if rank == 0:
        workload.write(Path(out), row)
    world.close()


def share(world: World, name: str, rounds: int) -> dict[str, float]:
    """Payload rate of the exchange and of the copies, GB/s a rank, and their ratio: medians over rounds."""
    w, size = workload.WORKLOADS[name], world.main.size
    vectors = len(w.rows) * w.batch // size**2
    bytes_R = padded_bytes(np.full(size, vectors * w.width * 4, np.int64))
    total = int(bytes_R.sum())
    private, received = np.ones(total, np.uint8), np.ones(total, np.uint8)

    def exchange() -> float:
        message = world.main.message(bytes_R, np.uint8)
        message[:] = 1
        return timed(lambda: world.main.alltoallv(message, bytes_R, bytes_R, "values"))

    def copy() -> float:
        private[:] = 1
        return timed(lambda: np.copyto(received, private))

    def timed(work: Callable[[], object]) -> float:
        world.main.barrier()
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    taken: dict[str, list[float]] = {"exchange": [], "copy": []}
    for number in range(rounds + 2):
        for what, once in (("exchange", exchange), ("copy", copy)):
            mine = sum(once() for _ in range(CALLS))
            if number >= 2:
                taken[what].append(max(world.main.allgather(mine)) / CALLS)
    exchange_s, copy_s = (float(np.median(taken[what])) for what in ("exchange", "copy"))
    rates = {"exchange_gb_per_s": total / exchange_s / 1e9, "copy_gb_per_s": total / copy_s / 1e9}
    return {"bytes_a_rank": total, **rates, "share": copy_s / exchange_s}


if __name__ == "__main__":
    main(*sys.argv[1:])
