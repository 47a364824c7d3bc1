"""Sums of dense gradients over all ranks: MPI's own nonblocking one, and the product's in two exchanges, in turns.

Knows ``MpiAllreduce`` and its communicator; knows no models.
"""

import time
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.dense.mpi import MpiAllreduce

WARMUP = 2
WAYS = {"mpi": False, "two exchanges": True}


def measured(elements: int, repeats: int) -> Any:
    """``seconds``: by way, those of the slowest rank, repeat by repeat; ``chosen``: whether the product takes its own.

    Parameters
    ----------
    elements : int
        Of float32.
    repeats : int
    """
    world = World(MPI.COMM_WORLD, lambda host_of: assign_roles(host_of, mode="fused"))
    try:
        assert world.dense is not None, "all ranks are dense"
        sums = {way: MpiAllreduce(world.dense, direct=direct) for way, direct in WAYS.items()}
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for repeat in range(WARMUP + repeats):
            for way, of in sums.items():
                flat = torch.full((elements,), float(world.dense.rank + 1))
                world.main.barrier()
                began_s = time.perf_counter()
                of.wait(of.start(flat, "sums"))
                took_s = np.array([time.perf_counter() - began_s])
                expected = world.dense.size * (world.dense.size + 1) / 2
                assert bool((flat == expected).all()), f"{way}: not the sum"
                slowest_s = float(world.main.allreduce(took_s, op="max")[0])
                if repeat >= WARMUP:
                    seconds[way].append(slowest_s)
        return {"seconds": seconds, "chosen": MpiAllreduce(world.dense)._direct}
    finally:
        world.close()
