"""Windows: shared memory by which the ranks of one host pass messages to each other with one copy.

A rank writes its messages to all ranks into a window of its own, one after the other. When all ranks of the host have
passed a barrier, each copies what is meant for it out of the others' windows. A window has two sides, used in turn:
who writes message n + 1 has passed the barrier of message n, which nobody passes who still reads message n - 1.

Beside it is room for messages that a rank has received for others of its host (``comm.levels``): written between the
barrier of message n and a second one, and read before the barrier of message n + 1.

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
from numpy.typing import NDArray

from hpcrec.comm.library import MPI
from hpcrec.errors import HpcrecError
from hpcrec.types import Ints
from hpcrec.units import format_bytes

_NAME = "hpcrec-window"
_SIDES = 2
_GROWN = 1.25  # sizes change from step to step; what is mapped and not written to takes no memory
_TOKEN = 1 << 62
_KNOWN = 2  # numbers before those of the messages: the token, and how many follow
_OF_A_RANK = 3


class Windows:
    """This rank's window and those of the other ranks of its host; ``open_windows`` makes them.

    Parameters
    ----------
    comm : MPI.Intracomm
    local : sequence of int
        Ranks of ``comm`` that are said to be on this host, this one among them, in order.
    relays : bool
        Whether there is room for messages that are for others of the host.

    Attributes
    ----------
    local_L : int64 [L]
        The same ranks.
    """

    def __init__(self, comm: MPI.Intracomm, local: Sequence[int], *, relays: bool = False) -> None:
        self.local_L: Ints = np.array(local, np.int64)
        self._local = tuple(local)
        self._rank = comm.rank
        self._turn = 0
        # Of a message: where those to each rank begin, their sizes, and those of what comes. Of the room beside: where
        # what came for others begins, by a number that these know.
        heads = [_OF_A_RANK * comm.size] * _SIDES + [comm.size] * relays
        self._size, self._own = comm.size, [_Side(numbers) for numbers in heads]
        self._theirs: dict[int, list[_View]] = {}
        self._host: MPI.Intracomm | None = None

    def names(self) -> list[tuple[int, int, int]]:
        """What the others open this rank's sides by: process, descriptor, and a number to know them by."""
        return [(os.getpid(), side.descriptor, side.token) for side in self._own]

    def open_theirs(self, names_R: Sequence[Sequence[tuple[int, int, int]]]) -> None:
        """Opens the other ranks' windows; raises OSError where that is not allowed, or finds something else."""
        for rank in self._local:
            if rank != self._rank:
                self._theirs[rank] = [_View(*name) for name in names_R[rank]]

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
        turn = self.begin(sent_at_R)
        self.take(turn, recv, recv_at_R, recv_bytes_R)

    def begin(self, sent_at_R: Ints, sent_bytes_R: Ints | None = None, recv_bytes_R: Ints | None = None) -> int:
        """Hands over the messages in this rank's window; returns by what number the others' are read.

        Sizes [R], where they are given, are there for the others of the host to see (``sizes``, ``due``).
        """
        turn, own = self._turn, self._own[self._turn]
        self._turn = (turn + 1) % _SIDES
        own.numbers[: self._size] = sent_at_R
        if sent_bytes_R is not None and recv_bytes_R is not None:
            own.numbers[self._size : 2 * self._size] = sent_bytes_R
            own.numbers[2 * self._size :] = recv_bytes_R
        self.meet()
        return turn

    def meet(self) -> None:
        """Waits for the ranks of the host."""
        assert self._host is not None
        self._host.Barrier()

    def take(self, turn: int, recv: NDArray[np.uint8], recv_at_R: Ints, recv_bytes_R: Ints) -> None:
        """Copies what the ranks of the host have for this one to ``recv``."""
        for rank in self._local:
            n_bytes, at = int(recv_bytes_R[rank]), int(recv_at_R[rank])
            if n_bytes:
                recv[at : at + n_bytes] = self.part(rank, turn, self._rank, n_bytes)

    def part(self, rank: int, turn: int, to: int, n_bytes: int) -> NDArray[np.uint8]:
        """The message of a rank of the host to any rank."""
        side = self._side(rank, turn)
        return side.part(int(side.numbers[to]), n_bytes)

    def sizes(self, rank: int, turn: int) -> Ints:
        """Bytes of a rank's messages [R]."""
        return self._side(rank, turn).numbers[self._size : 2 * self._size]

    def due(self, rank: int, turn: int) -> Ints:
        """Bytes that a rank of the host is to receive [R]."""
        return self._side(rank, turn).numbers[2 * self._size : 3 * self._size]

    def relay(self, n_bytes: int) -> NDArray[np.uint8]:
        """Room for what this rank receives for others of its host."""
        return self._own[_SIDES].room(n_bytes)

    def note(self, number: int, at: int) -> None:
        """Where in that room the message of a number begins, below R."""
        self._own[_SIDES].numbers[number] = at

    def noted(self, rank: int, number: int) -> int:
        """What a rank has noted."""
        return int(self._side(rank, _SIDES).numbers[number])

    def relayed(self, rank: int, at: int, n_bytes: int) -> NDArray[np.uint8]:
        """Of what a rank has received for others."""
        return self._side(rank, _SIDES).part(at, n_bytes)

    def _side(self, rank: int, which: int) -> "_Side | _View":
        return self._own[which] if rank == self._rank else self._theirs[rank][which]

    def close(self) -> None:
        """Gives the memory back; collective over the host."""
        if self._host is not None:
            self._host.Barrier()  # a neighbour may be about to look at what has grown
            self._host.Free()
        for side in self._own:
            side.close()
        self._own, self._theirs = [], {}


def open_windows(comm: MPI.Intracomm, local: Sequence[int], *, relays: bool = False) -> tuple[Windows | None, str]:
    """Makes windows on every rank; collective over ``comm``.

    Parameters
    ----------
    comm : MPI.Intracomm
    local : sequence of int
        As of ``Windows``.
    relays : bool
        Whether ranks receive for others of their host: then the only rank of a host has windows too.

    Returns
    -------
    (Windows or None, str)
        None on all ranks where any rank cannot open a neighbour's, and why; without a reason on a host of one rank.
    """
    windows, why = None, ""
    try:
        windows = Windows(comm, local, relays=relays)
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
    if windows is not None and (reasons or (len(local) == 1 and not relays)):
        windows.close()
        windows = None
    return windows, reasons[0] if reasons else ""


class _Side:
    """One side of this rank's window: pages of numbers, behind a token, then messages."""

    def __init__(self, n_numbers: int) -> None:
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self.descriptor)  # also where nobody closes it
        self.token = secrets.randbelow(_TOKEN)
        self._n_numbers = n_numbers
        self._fit(0)
        self._head[:2] = self.token, n_numbers

    def room(self, n_bytes: int) -> NDArray[np.uint8]:
        if n_bytes > len(self._messages):
            try:
                self._fit(int(n_bytes * _GROWN))
            except (OSError, ValueError) as error:
                raise _refused(n_bytes, error) from error
        return self._messages[:n_bytes]

    def part(self, at: int, n_bytes: int) -> NDArray[np.uint8]:
        return self._messages[at : at + n_bytes]

    def _fit(self, n_bytes: int) -> None:
        head_bytes = _head_bytes(self._n_numbers)
        os.ftruncate(self.descriptor, head_bytes + _pages(n_bytes))
        mapped = np.frombuffer(mmap.mmap(self.descriptor, 0), np.uint8)
        self._head = mapped[: 8 * (_KNOWN + self._n_numbers)].view(np.int64)
        self.numbers: Ints = self._head[_KNOWN:]
        self._messages = mapped[head_bytes:]


class _View:
    """Another rank's side, to read."""

    def __init__(self, process: int, descriptor: int, token: int) -> None:
        self._path = f"/proc/{process}/fd/{descriptor}"
        # Where processes are numbered otherwise it may be anything, a pipe that is waited for among them.
        if not Path(self._path).readlink().name.startswith(f"memfd:{_NAME}"):
            raise OSError(f"{self._path} is not the memory of that rank")
        self._map()
        if len(self._mapped) < _head_bytes(0) or self._head[0] != token:
            raise OSError(f"{self._path} is not the memory of that rank")

    @property
    def numbers(self) -> Ints:
        return self._head[_KNOWN : _KNOWN + int(self._head[1])]

    def part(self, at: int, n_bytes: int) -> NDArray[np.uint8]:
        at += _head_bytes(int(self._head[1]))
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
        self._head: Ints = self._mapped[: len(self._mapped) // 8 * 8].view(np.int64)


def _refused(n_bytes: int, error: Exception) -> HpcrecError:
    return HpcrecError(
        f"no shared memory for messages of {format_bytes(n_bytes)} to the ranks of this host: {error}. Raise the limit "
        "that it names (ulimit -n, -v, -f), or set exchange.windows = false and exchange.path = 'flat'."
    )


def _head_bytes(n_numbers: int) -> int:
    return _pages(8 * (_KNOWN + n_numbers))


def _pages(n_bytes: int) -> int:
    return -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
