"""Four ranks, two of them dense: run by a test in processes of its own, since Horovod starts once a process."""

import sys

import numpy as np
import torch
from mpi4py import MPI

from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.dense.allreduce import make_allreduce

ROUNDS = 100


def exchange(world: World, number: int) -> None:
    """A world Alltoallv whose pieces tell sender, receiver and round."""
    comm, rank, size = world.main.comm, world.topology.rank, world.topology.size
    sent = np.repeat(np.arange(size) + 10 * rank + 100 * number, 50).astype(np.int64)
    received = np.empty_like(sent)
    comm.Alltoallv([sent, [50] * size], [received, [50] * size])
    expected = rank + 10 * np.arange(size) + 100 * number
    assert (received.reshape(size, 50) == expected[:, None]).all()


def main() -> None:
    world = World(MPI.COMM_WORLD, lambda host_of: assign_roles(host_of, mode="split", owners=2, dense=2))
    for number in range(20):
        exchange(world, number)
    if world.dense is not None:
        allreduce = make_allreduce("horovod", world.dense)
        flat = torch.empty(100_000)
    for number in range(ROUNDS):
        if world.dense is not None:
            flat.fill_(world.topology.rank + number)
            handle = allreduce.start(flat, "bucket")
        exchange(world, number)
        if world.dense is not None:
            allreduce.wait(handle)
            assert (flat == 5 + 2 * number).all()
    world.main.barrier()
    if world.dense is not None:
        allreduce.close()
    assert ("horovod" in sys.modules) == (world.dense is not None)
    for number in range(20):
        exchange(world, number)
    sent_bytes = world.ledger.snapshot().sum()
    assert sent_bytes == (ROUNDS * 400_000 if world.dense is not None else 0)
    sys.stdout.write(f"rank {world.topology.rank} done\n")  # in one piece: MPICH mixes the pieces of several ranks
    world.close()


main()
