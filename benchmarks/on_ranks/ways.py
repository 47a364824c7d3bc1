"""Ways of the same collective, in turns: MPI's own, and the one that the product has.

Knows MPI, ``MpiAllreduce`` and its communicator; knows no models.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.dense.mpi import DirectAllreduce, MpiAllreduce

WARMUP = 2
PLAIN, BLOCKING, OWN = "mpi", "mpi blocking", "own"


def summed(n_bytes: int, repeats: int) -> Any:
    """Sums over all ranks, as dense gradients are.

    Parameters
    ----------
    n_bytes : int
        Of float32.
    repeats : int

    Returns
    -------
    dict
        ``seconds`` of the slowest rank by way, repeat by repeat.
    """
    world = World(MPI.COMM_WORLD, lambda host_of: assign_roles(host_of, mode="fused"))
    try:
        assert world.dense is not None, "all ranks are dense"
        size = world.dense.size
        flat, whole = torch.zeros(n_bytes // 4), size * (size + 1) / 2

        def by(sums: MpiAllreduce) -> Callable[[], None]:
            return lambda: sums.wait(sums.start(flat, "sums"))

        def begin() -> None:
            flat[:] = world.main.rank + 1

        def check() -> None:
            assert bool((flat == whole).all()), "not the sum"

        def blocking() -> None:
            world.dense.comm.Allreduce(MPI.IN_PLACE, flat.numpy())  # what could not begin in backward

        ways = {PLAIN: by(MpiAllreduce(world.dense)), OWN: by(DirectAllreduce(world.dense)), BLOCKING: blocking}
        return {"seconds": _in_turns(ways, repeats, begin, check)}
    finally:
        world.close()


def exchanged(n_bytes: int, repeats: int) -> Any:
    """As many bytes from each rank to each other one, as rows are; ``seconds`` as of ``summed``."""
    comm = MPI.COMM_WORLD
    sizes = np.full(comm.size, n_bytes)
    sizes[comm.rank] = 0
    send, received = np.full(sizes.sum(), comm.rank, np.uint8), np.zeros(sizes.sum(), np.uint8)
    out, back = [send, sizes, MPI.BYTE], [received, sizes, MPI.BYTE]
    whole = np.repeat(np.arange(comm.size), sizes)

    def check() -> None:
        assert np.array_equal(received, whole), "not what was sent"

    ways = {PLAIN: lambda: comm.Alltoallv(out, back), OWN: lambda: comm.Ialltoallv(out, back).Wait()}
    return {"seconds": _in_turns(ways, repeats, lambda: received.fill(255), check)}


def _in_turns(
    ways: Mapping[str, Callable[[], object]], repeats: int, begin: Callable[[], object], check: Callable[[], None]
) -> dict[str, list[float]]:
    comm, seconds = MPI.COMM_WORLD, {way: list[float]() for way in ways}
    for repeat in range(WARMUP + repeats):
        for way, call in ways.items():
            begin()
            comm.Barrier()
            began_s = time.perf_counter()
            call()
            slowest_s = comm.allreduce(time.perf_counter() - began_s, MPI.MAX)
            check()
            if repeat >= WARMUP:
                seconds[way].append(slowest_s)
    return seconds
