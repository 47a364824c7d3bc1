"""Ways of the same collective, in turns: MPI's own, and the one that the product has.

Knows MPI, ``MpiAllreduce`` and its communicator; knows no models.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from hpcrec.comm.ledger import TAGS
from hpcrec.comm.sizes import UNIT_BYTES
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


def levelled(n_bytes: int, repeats: int) -> Any:
    """The same: MPI's two calls, and the product's by each rank and by one rank of each host; ``seconds``, likewise.

    And ``messages``: those that the rank that sends most sends to other hosts, by the ledger, by the product's paths.
    """
    comm, many = MPI.COMM_WORLD, -(-n_bytes // UNIT_BYTES) * UNIT_BYTES
    sizes = np.full(comm.size, many)
    send, received, calls = np.zeros(sizes.sum(), np.uint8), np.zeros(sizes.sum(), np.uint8), [0]
    out, back = [send, sizes, MPI.BYTE], [received, sizes, MPI.BYTE]

    def content(source: Any, to: Any) -> NDArray[np.uint8]:
        """Of a call, from one rank to another."""
        return np.asarray((7 * source + 13 * to + calls[0]) % 251).astype(np.uint8)

    def begin() -> None:
        calls[0] += 1
        send[:] = np.repeat(content(comm.rank, np.arange(comm.size)), many)

    worlds = {
        path: World(None, lambda host_of: assign_roles(host_of, mode="fused"), levels=path == "levels")
        for path in ("flat", "levels")
    }
    came = {"": received}

    def by(path: str) -> Callable[[], None]:
        main = worlds[path].main

        def call() -> None:
            message = main.message(sizes, np.uint8)
            message[:] = send
            came[""] = main.alltoallv(message, sizes.copy(), sizes.copy(), "values")

        return call

    def library(call: Callable[[], object]) -> Callable[[], None]:
        def into() -> None:
            call()
            came[""] = received

        return into

    def check() -> None:
        assert np.array_equal(came[""], np.repeat(content(np.arange(comm.size), comm.rank), many)), "not what was sent"

    ways = {
        PLAIN: library(lambda: comm.Alltoallv(out, back)),
        "mpi nonblocking": library(lambda: comm.Ialltoallv(out, back).Wait()),
        **{path: by(path) for path in worlds},
    }
    try:
        seconds, at = _in_turns(ways, repeats, begin, check), TAGS.index("values")
        messages = {
            path: comm.allreduce(int(of.ledger.messages()[at, 1]), MPI.MAX) / (WARMUP + repeats)
            for path, of in worlds.items()
        }
        algorithm = os.environ.get("OMPI_MCA_coll_tuned_alltoallv_algorithm", "0")  # noqa: SIM112 - Open MPI's
        return {
            "seconds": seconds,
            "messages": messages,
            "by_levels": worlds["levels"].by_levels,
            "algorithms": sorted(set(comm.allgather(algorithm))),
        }
    finally:
        for world in worlds.values():
            world.close()


def _in_turns(
    ways: Mapping[str, Callable[[], object]], repeats: int, begin: Callable[[], object], check: Callable[[], None]
) -> dict[str, list[float]]:
    comm, seconds = MPI.COMM_WORLD, {way: list[float]() for way in ways}
    for repeat in range(WARMUP + repeats):
        first = repeat % len(ways)
        for way, call in [*list(ways.items())[first:], *list(ways.items())[:first]]:
            begin()
            comm.Barrier()
            began_s = time.perf_counter()
            call()
            slowest_s = comm.allreduce(time.perf_counter() - began_s, MPI.MAX)
            check()
            if repeat >= WARMUP:
                seconds[way].append(slowest_s)
    return seconds
