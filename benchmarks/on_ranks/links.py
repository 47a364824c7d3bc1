"""What links between ranks do: latency of a small message, messages from all owners to all dense ranks, a plain stream.

Knows MPI alone; the first half of the ranks are taken for owners.
"""

import time
from typing import Any

import numpy as np
from mpi4py import MPI

SIZES_BYTES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)  # of each message
ROUNDS, PINGS = 8, 200


def measured() -> Any:
    """``latency_s`` of one way, and ``points``: (bytes that leave an owner, seconds until all have arrived)."""
    comm = MPI.COMM_WORLD
    return {"latency_s": latency_s(comm), "points": [points(comm, size) for size in SIZES_BYTES]}


def stream(ranks_a_host: int, n_bytes: int) -> Any:
    """``mbit_per_s`` of so many bytes in messages of 1 MiB, from the first rank to the first one of the next host."""
    comm, piece = MPI.COMM_WORLD, np.ones(1 << 20, np.uint8)
    comm.Barrier()
    began_s = time.perf_counter()
    for _ in range(-(-n_bytes // piece.size)):
        if comm.rank == 0:
            comm.Send(piece, ranks_a_host)
        elif comm.rank == ranks_a_host:
            comm.Recv(piece, 0)
    took_s = comm.bcast(time.perf_counter() - began_s, ranks_a_host)  # what is sent may still be on its way
    comm.Barrier()
    return {"mbit_per_s": 8e-6 * -(-n_bytes // piece.size) * piece.size / took_s}


def latency_s(comm: MPI.Intracomm) -> float:
    """Of 8 bytes between the first rank and the last, a half of the median round trip."""
    trips_s, message = [], np.zeros(8, np.uint8)
    comm.Barrier()
    for _ in range(PINGS):
        began_s = time.perf_counter()
        if comm.rank == 0:
            comm.Send(message, comm.size - 1)
            comm.Recv(message, comm.size - 1)
        elif comm.rank == comm.size - 1:
            comm.Recv(message, 0)
            comm.Send(message, 0)
        trips_s.append(time.perf_counter() - began_s)
    return float(comm.bcast(float(np.median(trips_s)) / 2))


def points(comm: MPI.Intracomm, size: int) -> tuple[int, float]:
    """Median over rounds of the slowest rank's time, after two rounds more."""
    owners = comm.size // 2
    is_owner_R = np.arange(comm.size) < owners
    sends, receives = is_owner_R[comm.rank], ~is_owner_R[comm.rank]
    counts_R = np.where(~is_owner_R & sends, size, 0)
    wanted_R = np.where(is_owner_R & receives, size, 0)
    message, received = np.ones(counts_R.sum(), np.uint8), np.empty(wanted_R.sum(), np.uint8)
    taken_s = []
    for _ in range(ROUNDS + 2):
        comm.Barrier()
        began_s = time.perf_counter()
        comm.Alltoallv([message, counts_R, MPI.BYTE], [received, wanted_R, MPI.BYTE])
        taken_s.append(max(comm.allgather(time.perf_counter() - began_s)))
    return size * (comm.size - owners), float(np.median(taken_s[2:]))
