"""Probe: what ``hpcrec doctor`` asks of MPI, apart from a run's communicators so that nothing of a run need work.

Gathers by polling, so that whoever watches the time can say which rank has not answered. Knows messages and clocks;
judges nothing.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.comm.library import MPI
from hpcrec.comm.world import hosts_of, versions
from hpcrec.types import Ints

_POLL_S = 0.0005
_ANSWER_TAG, _CLOCK_TAG, _SWAP_TAG = 1, 2, 3
_ABORT_LIMIT_S = 2.0
_CLOCK_ROUNDS = 5


class Probe:
    """All ranks of the job, on a communicator of its own.

    Parameters
    ----------
    comm : MPI.Intracomm or None
        None is ``MPI.COMM_WORLD``.

    Attributes
    ----------
    rank, size : int
    host_of : tuple of int
        Host number of each rank.
    missing : frozenset of int
        Ranks that the gather in progress waits for; on rank 0.
    """

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self.comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size
        self.host_of = hosts_of(self.comm)
        self.missing: frozenset[int] = frozenset()
        self._plain = self.everyone()
        self._shared = Collectives(self.comm.Dup(), range(self.size), Ledger(self.rank, self.host_of), windows=True)

    @property
    def mpi(self) -> Mapping[str, str]:
        """Library, standard and thread level, as ``comm.world.versions`` names them."""
        return versions()

    def gather(self, thing: Any) -> list[Any] | None:
        """Small Python objects from every rank, in rank order, on rank 0; None elsewhere. Collective."""
        if self.rank != 0:
            self.comm.send(thing, dest=0, tag=_ANSWER_TAG)
            return None
        answers = {0: thing}
        while len(answers) < self.size:
            self.missing = frozenset(range(self.size)) - set(answers)
            arrived = [r for r in self.missing if self.comm.iprobe(source=r, tag=_ANSWER_TAG)]
            answers.update({r: self.comm.recv(source=r, tag=_ANSWER_TAG) for r in arrived})
            if not arrived:
                time.sleep(_POLL_S)
        self.missing = frozenset()
        return [answers[r] for r in range(self.size)]

    def share(self, thing: Any) -> list[Any]:
        """The same, on every rank."""
        answers: list[Any] = self.comm.bcast(self.gather(thing))
        return answers

    def barrier(self) -> None:
        """Waits for every rank."""
        self.share(None)

    def swap(self, peer: int, send: NDArray[Any], recv: NDArray[Any]) -> None:
        """Sends to a rank and receives as much from it."""
        self.comm.Sendrecv(send, peer, _SWAP_TAG, recv, peer, _SWAP_TAG)

    @contextlib.contextmanager
    def meeting(self, other_host: int | None) -> Iterator["Meeting | None"]:
        """The ranks of this host and of another, who name each other's host; collective over all ranks.

        None, inside the block as outside, for a host that meets no other.
        """
        own = self.host_of[self.rank]
        met = other_host is not None
        number = min(own, other_host) if other_host is not None else MPI.UNDEFINED
        comm = self.comm.Split(number, self.rank)
        try:
            yield Meeting(comm, [h for h in self.host_of if h in (own, other_host)]) if met else None
        finally:
            if met:
                comm.Free()

    def alltoallv(self, send: NDArray[Any], send_bytes_R: Ints, recv_bytes_R: Ints, *, windows: bool) -> NDArray[Any]:
        """As a step does it: see ``Collectives.alltoallv``; ``windows``: through shared memory within hosts."""
        part = self._shared if windows else self._plain
        return part.alltoallv(send, send_bytes_R, recv_bytes_R, "control")

    @property
    def without_windows(self) -> str:
        """As of ``Collectives``: why ranks of a host send each other messages; empty where they share memory."""
        return self._shared.without_windows

    def clock_s(self) -> float:
        """This host's time of day."""
        return time.time()

    def clock_offsets_s(self) -> list[float]:
        """How far each rank's clock is ahead of rank 0's, to within half a message's round trip; on every rank."""
        offsets = [0.0] * self.size
        for other in range(1, self.size):
            if self.rank == other:
                for _ in range(_CLOCK_ROUNDS):
                    self.comm.recv(source=0, tag=_CLOCK_TAG)
                    self.comm.send(self.clock_s(), dest=0, tag=_CLOCK_TAG)
            elif self.rank == 0:
                tries = []
                for _ in range(_CLOCK_ROUNDS):
                    sent_s = self.clock_s()
                    self.comm.send(None, dest=other, tag=_CLOCK_TAG)
                    theirs_s = self.comm.recv(source=other, tag=_CLOCK_TAG)
                    back_s = self.clock_s()
                    tries.append((back_s - sent_s, theirs_s - (sent_s + back_s) / 2))
                offsets[other] = min(tries)[1]  # of the quickest answer
        result: list[float] = self.comm.bcast(offsets)
        return result

    def everyone(self) -> Collectives:
        """All ranks as the dense reducers take them; to be closed."""
        return Collectives(self.comm.Dup(), range(self.size), Ledger(self.rank, self.host_of))

    def abort(self, code: int) -> NoReturn:
        """Ends every rank of the job, from any thread."""
        last_resort = threading.Timer(_ABORT_LIMIT_S, _leave, (code,))
        last_resort.daemon = True
        last_resort.start()
        self.comm.Abort(code)
        _leave(code)

    def close(self) -> None:
        """Frees the communicators; collective."""
        self._shared.close()
        self._plain.close()
        self.comm.Free()


class Meeting:
    """The ranks of two hosts, on a communicator of their own.

    Parameters
    ----------
    comm : MPI.Comm
    host_of : list of int
        Host number of each of its ranks.
    """

    def __init__(self, comm: MPI.Comm, host_of: list[int]) -> None:
        self._comm = comm
        self._host_of = host_of
        self.host = host_of[comm.rank]

    def send_s(self, source_host: int, to_each_bytes: int) -> float:
        """Seconds of an all-to-all in which every rank of a host sends to every rank of the other, and nobody else.

        From when all of them are ready to when the last one has what is due; the same on every rank.
        """
        sends = self.host == source_host
        sizes = [to_each_bytes * (sends and h != self.host) for h in self._host_of]
        due = [to_each_bytes * (h != self.host and h == source_host) for h in self._host_of]
        send, recv = np.zeros(sum(sizes), np.uint8), np.zeros(sum(due), np.uint8)
        self._comm.Barrier()
        began_s = time.perf_counter()
        self._comm.Ialltoallv([send, sizes, MPI.BYTE], [recv, due, MPI.BYTE]).Wait()  # as messages cross in a step
        took_s: float = self._comm.allreduce(time.perf_counter() - began_s, op=MPI.MAX)
        return took_s

    def links(self) -> int:
        """Pairs of ranks of different hosts."""
        own = self._host_of.count(self.host)
        return own * (len(self._host_of) - own)


def pair_rounds(size: int, rank: int) -> list[int | None]:
    """Whom a rank meets in each round of a tournament in which each pair of ranks meets once; None: nobody."""
    seats = size + size % 2
    rounds: list[int | None] = []
    for number in range(seats - 1):
        # the last seat stays, the others turn around it
        if rank == seats - 1:
            peer = number * (seats // 2) % (seats - 1)
        else:
            peer = (number - rank) % (seats - 1)
            peer = seats - 1 if peer == rank else peer
        rounds.append(peer if peer < size else None)
    return rounds


def random_bytes(n: int, seed: int) -> NDArray[np.uint8]:
    """Contents that a receiver can make again."""
    return np.random.Generator(np.random.Philox(seed)).integers(0, 256, n, np.uint8)


def _leave(code: int) -> NoReturn:
    os._exit(code)
