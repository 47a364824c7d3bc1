"""Windows: shared memory by which the ranks of one host pass messages to each other with one copy.

A rank writes its messages to all ranks into a window of its own, one after the other. When all ranks of the host have
passed a barrier, each copies what is meant for it out of the others' windows. A window has two sides, used in turn:
who writes message n + 1 has passed the barrier of message n, which nobody passes who still reads message n - 1.

The memory is anonymous (memfd_create), opened by the others through /proc/<pid>/fd: a rank that is killed leaves no
file behind, and the size of /dev/shm does not bound it. Knows ranks and bytes, not what they mean.
"""

import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcrec.errors import HpcrecError
from hpcrec.types import Ints
from hpcrec.units import format_bytes

_NAME = "hpcrec-window"
_SIDES = 2
_GROWN = 1.25  # sizes change from step to step; what is mapped and not written to takes no memory
_TOKEN = 1 << 62


class Windows:
    """This rank's window and those of the other ranks of its host; ``open_windows`` makes them.

    Parameters
    ----------
    comm : MPI.Intracomm
    local : sequence of int
        Ranks of ``comm`` that are said to be on this host, this one among them, in order.

    Attributes
    ----------
    local_L : int64 [L]
        The same ranks.
    """

    def __init__(self, comm: MPI.Intracomm, local: Sequence[int]) -> None:
        self.local_L: Ints = np.array(local, np.int64)
        self._local = tuple(local)
        self._rank = comm.rank
        self._turn = 0
        self._own = [_Side(len(local)) for _ in range(_SIDES)]
        self._theirs: dict[int, list[_View]] = {}
        self._host: MPI.Intracomm | None = None

    def names(self) -> list[tuple[int, int, int]]:
        """What the others open this rank's sides by: process, descriptor, and a number to know them by."""
        return [(os.getpid(), side.descriptor, side.token) for side in self._own]

    def open_theirs(self, names_R: Sequence[Sequence[tuple[int, int, int]]]) -> None:
        """Opens the other ranks' windows; raises OSError where that is not allowed, or finds something else."""
        for rank in self._local:
            if rank != self._rank:
                self._theirs[rank] = [_View(*name, len(self._local)) for name in names_R[rank]]

    def split_host(self, comm: MPI.Intracomm) -> None:
        """Makes the host's communicator; collective over ``comm``."""
        host = comm.Split(self._local[0], comm.rank)
        assert isinstance(host, MPI.Intracomm)
        self._host = host

    def room(self, n_bytes: int) -> NDArray[np.uint8]:
        """Where the next messages are to be written."""
        return self._own[self._turn].room(n_bytes)

    def swap(self, recv: NDArray[np.uint8], sent_at_R: Ints, recv_at_R: Ints, recv_bytes_R: Ints) -> None:
        """Gives the messages in this rank's window to the ranks of the host, and copies theirs to ``recv``.

        Parameters
        ----------
        recv : uint8, flat
        sent_at_R, recv_at_R, recv_bytes_R : int64 [R]
            By rank of the communicator: where the message to it begins in this rank's window, where the one from it
            belongs, and how long that is.

        Raises
        ------
        HpcrecError
            A neighbour's window has grown and cannot be mapped.
        """
        assert self._host is not None
        turn, me = self._turn, self._local.index(self._rank)
        self._turn = (turn + 1) % _SIDES
        self._own[turn].places[:] = sent_at_R[self.local_L]
        self._host.Barrier()
        for rank in self._local:
            n_bytes, at = int(recv_bytes_R[rank]), int(recv_at_R[rank])
            if n_bytes:
                side = self._own[turn] if rank == self._rank else self._theirs[rank][turn]
                recv[at : at + n_bytes] = side.part(me, n_bytes)

    def close(self) -> None:
        """Gives the memory back; collective over the host."""
        if self._host is not None:
            self._host.Barrier()  # a neighbour may be about to look at what has grown
            self._host.Free()
        for side in self._own:
            side.close()
        self._own, self._theirs = [], {}


def open_windows(comm: MPI.Intracomm, local: Sequence[int]) -> tuple[Windows | None, str]:
    """Makes windows on every rank; collective over ``comm``.

    Parameters
    ----------
    comm : MPI.Intracomm
    local : sequence of int
        As of ``Windows``.

    Returns
    -------
    (Windows or None, str)
        None on all ranks where any rank cannot open a neighbour's, and why; without a reason on a host of one rank.
    """
    windows, why = None, ""
    try:
        windows = Windows(comm, local)
    except (OSError, AttributeError) as error:  # a Python that was built for an old C library has no memfd_create
        why = f"rank {comm.rank} cannot make shared memory: {error}"
    names_R = comm.allgather(windows.names() if windows is not None else None)
    if windows is not None and all(names_R[rank] for rank in local):
        try:
            windows.open_theirs([name or [] for name in names_R])
        except OSError as error:
            why = f"rank {comm.rank} cannot open a neighbour's memory: {error}"
    reasons = [reason for reason in comm.allgather(why) if reason]
    if windows is not None and not reasons:
        windows.split_host(comm)
    if windows is not None and (reasons or len(local) == 1):
        windows.close()
        windows = None
    return windows, reasons[0] if reasons else ""


class _Side:
    """One side of this rank's window: a page of numbers (its token, where each message begins), then messages."""

    def __init__(self, n_ranks: int) -> None:
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self.descriptor)  # also where nobody closes it
        self.token = secrets.randbelow(_TOKEN)
        self._n_ranks = n_ranks
        self._fit(0)
        self._numbers[0] = self.token

    def room(self, n_bytes: int) -> NDArray[np.uint8]:
        if n_bytes > len(self._messages):
            try:
                self._fit(int(n_bytes * _GROWN))
            except (OSError, ValueError) as error:
                raise _refused(n_bytes, error) from error
        return self._messages[:n_bytes]

    def part(self, index: int, n_bytes: int) -> NDArray[np.uint8]:
        at = int(self.places[index])
        return self._messages[at : at + n_bytes]

    def _fit(self, n_bytes: int) -> None:
        head = _head_bytes(self._n_ranks)
        os.ftruncate(self.descriptor, head + _pages(n_bytes))
        mapped = np.frombuffer(mmap.mmap(self.descriptor, 0), np.uint8)
        self._numbers = mapped[: 8 * (1 + self._n_ranks)].view(np.int64)
        self.places: Ints = self._numbers[1:]  # where the message to each rank of the host begins
        self._messages = mapped[head:]


class _View:
    """Another rank's side, to read."""

    def __init__(self, process: int, descriptor: int, token: int, n_ranks: int) -> None:
        self._path = f"/proc/{process}/fd/{descriptor}"
        self._head_bytes = _head_bytes(n_ranks)
        # Where processes are numbered otherwise it may be anything, a pipe that is waited for among them.
        if not Path(self._path).readlink().name.startswith(f"memfd:{_NAME}"):
            raise OSError(f"{self._path} is not the memory of that rank")
        self._map()
        if len(self._mapped) < self._head_bytes or self._numbers[0] != token:
            raise OSError(f"{self._path} is not the memory of that rank")

    def part(self, index: int, n_bytes: int) -> NDArray[np.uint8]:
        at = self._head_bytes + int(self._numbers[1 + index])
        if at + n_bytes > len(self._mapped):
            try:
                self._map()  # it has grown
            except OSError as error:
                raise _refused(n_bytes, error) from error
        return self._mapped[at : at + n_bytes]

    def _map(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._mapped = np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), np.uint8)
        finally:
            os.close(descriptor)
        self._numbers = self._mapped[: len(self._mapped) // 8 * 8].view(np.int64)


def _refused(n_bytes: int, error: Exception) -> HpcrecError:
    return HpcrecError(
        f"no shared memory for messages of {format_bytes(n_bytes)} to the ranks of this host: {error}. Raise the limit "
        "that it names (ulimit -n, -v, -f), or set exchange.windows = false."
    )


def _head_bytes(n_ranks: int) -> int:
    return _pages(8 * (1 + n_ranks))


def _pages(n_bytes: int) -> int:
    return -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
