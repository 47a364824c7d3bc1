"""Windows: shared memory by which the ranks of one host pass messages to each other with one copy.

A rank writes its messages to all ranks into a window of its own, one after the other. When all ranks of the host have
met, each copies what is meant for it out of the others' windows. A window has two sides, used in turn: who writes
message n + 1 has met the others for message n, and nobody does who still reads message n - 1.

Beside it is room for messages that a rank has received for others of its host (``comm.levels``): written after ranks
have met for message n and before they meet for it again, and read before they meet for message n + 1.

Who waits for the others sleeps, and takes no core from those that still compute; where there is a core for each rank
of the machine it looks for a while first. Every ``_LIMIT_NS`` it lets MPI do what it does of messages under way, for
another rank may wait for one of these; where ranks share cores, every ``_CROWDED_NS``.

The memory is anonymous (memfd_create), opened by the others through /proc/<pid>/fd: a rank that is killed leaves no
file behind, and the size of /dev/shm does not bound it. Knows ranks and bytes, not what they mean.
"""

import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcrec.comm.library import MPI
from hpcrec.errors import HpcrecError
from hpcrec.kernels.native_module import available, loaded
from hpcrec.types import Ints
from hpcrec.units import format_bytes

_NAME = "hpcrec-window"
_SIDES = 2
_GROWN = 1.25  # sizes change from step to step; what is mapped and not written to takes no memory
_TOKEN = 1 << 62
# Numbers before those of the messages: the token, and how many follow; on a cache line of its own, where ranks meet.
_MEETING, _KNOWN = 8, 16
_OF_A_RANK = 3
DONE, MEETS, CROSSES, TAKEN, _GREW = range(5)  # where a phase halts, as the native module numbers it
_LIMIT_NS, _CROWDED_NS = 500_000, 4_000_000
_NOBODY = 32_000  # a tag that nobody sends by
_LOOKS_NS = 50_000  # as long as the kernel takes to wake who sleeps

Names = tuple[list[tuple[int, int, int]], str, list[int]]
Task = tuple[int, int, int]
"""Number of another host, how messages cross to it or from it, and how many bytes."""


class Plan(NamedTuple):
    """What a rank has to do; ``relayed``: whether what comes for its host is handed over, by this rank or another."""

    sends: list[Task]
    receives: list[Task]
    relayed: bool


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
    turn : int
        Side of the phase that has begun.
    """

    def __init__(self, comm: MPI.Intracomm, local: Sequence[int], *, relays: bool = False) -> None:
        self.local_L: Ints = np.array(local, np.int64)
        self._comm, self._rank, self._size = comm, comm.rank, comm.size
        self._place = self.local_L.tolist().index(comm.rank)
        self.turn = self._turn = 0
        # Of a message: where those to each rank begin, their sizes, and those of what comes. Of the room beside: where
        # what came for others begins, by a number that these know.
        heads = [_OF_A_RANK * comm.size] * _SIDES + [comm.size] * relays
        self._own = [_Side(numbers) for numbers in heads]
        self._sides: list[list[_Side | _View]] = []  # by place and side
        self._phase: Any = None
        self._limit_ns = _LIMIT_NS
        self._shown: dict[tuple[int, int], int] = {}  # bytes of a side, by place and side, that the native module knows
        self._messages = loaded.HostMessages(comm.size, self.local_L.tolist(), self._place)

    def names(self) -> Names:
        """By what the others open them: process, descriptor and a number to know each by; its machine and cores."""
        sides = [(os.getpid(), side.descriptor, side.token) for side in self._own]
        return sides, os.uname().nodename, sorted(os.sched_getaffinity(0))

    def open_theirs(self, names_R: Sequence[Names]) -> None:
        """Opens the other ranks' windows; raises OSError where that is not allowed, or finds something else."""
        for place, rank in enumerate(self.local_L.tolist()):
            names = names_R[rank][0]
            if place == self._place:
                self._sides.append([*self._own])
            else:  # ranks meet in the window of the first
                self._sides.append([_View(*name, write=place == side == 0) for side, name in enumerate(names)])
            for which in range(len(names)):
                self._show(place, which)
        # Hosts may be declared: of a machine they share the cores.
        machine = [cores for _, name, cores in names_R if name == os.uname().nodename]
        crowded = len(machine) > len({core for cores in machine for core in cores})
        looks_ns, self._limit_ns = (0, _CROWDED_NS) if crowded else (_LOOKS_NS, _LIMIT_NS)
        self._phase = loaded.Phase(self._messages, self._sides[0][0].meeting, looks_ns)

    @property
    def mapped(self) -> NDArray[np.uint8]:
        """Where the next messages are to be written, as long as it has become."""
        return self._own[self._turn].messages

    def room(self, n_bytes: int) -> NDArray[np.uint8]:
        """Where the next messages are to be written, as long as it has to be."""
        return self._room(self._turn, n_bytes)

    def begin(
        self, sent_bytes_R: Ints, recv_bytes_R: Ints, unit: int = 1, *, by_levels: bool = False
    ) -> tuple[int, int]:
        """Begins a phase of the messages in this rank's window, which lie behind each other; no other rank sees it yet.

        Parameters
        ----------
        sent_bytes_R, recv_bytes_R : int64 [R]
            By rank of the communicator: how long the message to it is, and the one from it.
        unit : int
            Of which messages are whole numbers.
        by_levels : bool
            Whether what is for other hosts goes by ranks of this one (``set_others``).

        Returns
        -------
        (int, int)
            Where the last message ends, sent and received; below 0 where one is no whole number of units, and then
            nothing has begun.
        """
        self.turn, numbers = self._turn, self._own[self._turn].numbers
        return self._phase.begin(self.turn, numbers, sent_bytes_R, recv_bytes_R, unit, by_levels)

    def go(self, recv: NDArray[np.uint8]) -> int:
        """Goes on with a phase: what the ranks of the host have for this one is copied to ``recv``.

        Returns
        -------
        int
            ``DONE``; ``MEETS``: it waits for ranks of the host, and has for a while; ``CROSSES``: messages of ``plan``
            are to be begun before it goes on; ``TAKEN``: those have to be here before it goes on, to meet the ranks of
            the host once more.

        Raises
        ------
        HpcrecError
            A neighbour's window has grown and cannot be mapped.
        """
        self._turn = (self.turn + 1) % _SIDES
        while (halt := self._phase.go(recv, self._limit_ns)) == _GREW:
            self._grow(*self._phase.grown())
        if halt == MEETS:
            self._lets_mpi()
        return int(halt)

    @property
    def all_are_there(self) -> bool:
        """Whether all ranks of the host have begun the phase that this one has."""
        return bool(self._phase.all_are_there())

    def swap(self, recv: NDArray[np.uint8], sent_bytes_R: Ints, recv_bytes_R: Ints) -> None:
        """Gives the messages in this rank's window to the ranks of the host, and copies theirs to ``recv``.

        Those of other hosts are left out, in both. Raises as ``go`` does.
        """
        self.begin(sent_bytes_R, recv_bytes_R)
        while self.go(recv) == MEETS:
            pass

    def meet(self) -> None:
        """Waits for the ranks of the host."""
        if not self._phase.arrive():
            while not self._phase.wait(self._limit_ns):
                self._lets_mpi()

    def _lets_mpi(self) -> None:
        # For what MPI does meanwhile, which a probe that finds something leaves out; and a signal is handled.
        self._comm.Iprobe(self._rank, _NOBODY)

    def set_others(self, *others: Any) -> None:
        """Says what other hosts there are: members of the native module's ``OtherHosts``, as lists, in its order."""
        self._messages.set_others(*others)

    def plan(self) -> Plan:
        """What this rank sends and receives in the phase."""
        return Plan(*self._phase.plan())

    def due(self, m: int) -> int:
        """Bytes that come from the rank of that number, among those of other hosts, for all of this one."""
        return int(self._messages.due(m))

    def packed(self, rank: int | None, there_M: Ints, n_bytes: int) -> NDArray[np.uint8]:
        """What a rank of the host, or (None) each of them, sends to some ranks: by sender, and then by receiver."""
        out, place = np.empty(n_bytes, np.uint8), -1 if rank is None else self._place_of(rank)
        while (grown := self._messages.pack(self.turn, place, there_M, out)) >= 0:
            self._grow(grown, self.turn)
        return out

    def part(self, rank: int, to: int, n_bytes: int) -> NDArray[np.uint8]:
        """The message of a rank of the host to any rank."""
        side = self._side(rank, self.turn)
        return side.part(int(side.numbers[to]), n_bytes)

    def sizes(self, rank: int) -> Ints:
        """Bytes of a rank's messages [R]."""
        return self._side(rank, self.turn).numbers[self._size : 2 * self._size]

    def relay(self, n_bytes: int) -> NDArray[np.uint8]:
        """Room for what this rank receives for others of its host."""
        return self._room(_SIDES, n_bytes)

    def note(self, number: int, at: int) -> None:
        """Where in that room the message of a number begins, below R."""
        self._own[_SIDES].numbers[number] = at

    def _side(self, rank: int, which: int) -> "_Side | _View":
        return self._sides[self._place_of(rank)][which]

    def _place_of(self, rank: int) -> int:
        return int(np.searchsorted(self.local_L, rank))

    def _room(self, which: int, n_bytes: int) -> NDArray[np.uint8]:
        side = self._own[which]
        before = side.messages
        room = side.room(n_bytes)
        if side.messages is not before:
            self._show(self._place, which)
        return room

    def _show(self, place: int, which: int) -> None:
        side = self._sides[place][which]
        self._messages.show(place, which, side.numbers, side.messages)
        self._shown[place, which] = len(side.messages)

    def _grow(self, place: int, which: int) -> None:
        """Maps what a rank has made longer."""
        side = self._sides[place][which]
        side.grow()
        if len(side.messages) == self._shown[place, which]:
            raise HpcrecError(f"rank {self._rank}: a message of rank {self.local_L[place]} is not in its window.")
        self._show(place, which)

    def close(self) -> None:
        """Gives the memory back; collective over the host.

        Where an error ended a phase, it has to have ended it on all ranks: who is left in one waits for ever. Where it
        may not have, ``abandon``.
        """
        if self._phase.all_are_there():  # else an error ended a meeting, which would count this rank twice
            self.meet()  # a neighbour may be about to look at what has grown
        self.abandon()

    def abandon(self) -> None:
        """Gives the memory back where nobody has sent anything."""
        self._phase = self._messages = None
        for side in self._own:
            side.close()
        self._own, self._sides = [], []


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
        if not available():
            raise OSError("the native module of hpcrec is not there")
        windows = Windows(comm, local, relays=relays)
    except (OSError, AttributeError) as error:  # a Python that was built for an old C library has no memfd_create
        why = f"rank {comm.rank} cannot make shared memory: {error}"
    names_R = comm.allgather(windows.names() if windows is not None else ([], "", []))
    if windows is not None and all(names_R[rank][0] for rank in local):
        try:
            windows.open_theirs(names_R)
        except (OSError, ValueError) as error:
            why = f"rank {comm.rank} cannot open a neighbour's memory: {error}"
    reasons = [reason for reason in comm.allgather(why) if reason]
    if windows is not None and (reasons or (len(local) == 1 and not relays)):
        windows.abandon()
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

    @property
    def meeting(self) -> NDArray[np.uint32]:
        """Words for ranks to meet by."""
        return self._head[_MEETING:_KNOWN].view(np.uint32)

    def room(self, n_bytes: int) -> NDArray[np.uint8]:
        if n_bytes > len(self.messages):
            try:
                self._fit(int(n_bytes * _GROWN))
            except (OSError, ValueError) as error:
                raise _refused(n_bytes, error) from error
        return self.messages[:n_bytes]

    def grow(self) -> None:
        """Nobody else makes it longer."""

    def part(self, at: int, n_bytes: int) -> NDArray[np.uint8]:
        return self.messages[at : at + n_bytes]

    def _fit(self, n_bytes: int) -> None:
        head_bytes = _head_bytes(self._n_numbers)
        os.ftruncate(self.descriptor, head_bytes + _pages(n_bytes))
        mapped = np.frombuffer(mmap.mmap(self.descriptor, 0), np.uint8)
        self._head = mapped[: 8 * (_KNOWN + self._n_numbers)].view(np.int64)
        self.numbers: Ints = self._head[_KNOWN:]
        self.messages: NDArray[np.uint8] = mapped[head_bytes:]


class _View:
    """Another rank's side, to read; and to meet by, where ``write`` is set."""

    def __init__(self, process: int, descriptor: int, token: int, *, write: bool = False) -> None:
        self._path, self._write, self._bytes = f"/proc/{process}/fd/{descriptor}", write, 0
        # Where processes are numbered otherwise it may be anything, a pipe that is waited for among them.
        if not Path(self._path).readlink().name.startswith(f"memfd:{_NAME}"):
            raise OSError(f"{self._path} is not the memory of that rank")
        self._map(token)

    @property
    def meeting(self) -> NDArray[np.uint32]:
        """Words for ranks to meet by."""
        return self._head[_MEETING:_KNOWN].view(np.uint32)

    def grow(self) -> None:
        """Maps what its rank has made longer."""
        try:
            self._map(int(self._head[0]))
        except OSError as error:
            raise _refused(self._bytes, error) from error

    def part(self, at: int, n_bytes: int) -> NDArray[np.uint8]:
        if at + n_bytes > len(self.messages):
            self.grow()
        return self.messages[at : at + n_bytes]

    def _map(self, token: int) -> None:
        self._bytes = Path(self._path).stat().st_size
        descriptor = os.open(self._path, (os.O_RDWR if self._write else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            how = mmap.PROT_READ | (mmap.PROT_WRITE if self._write else 0)
            mapped = np.frombuffer(mmap.mmap(descriptor, 0, prot=how), np.uint8)
        finally:
            os.close(descriptor)
        head: Ints = mapped[: len(mapped) // 8 * 8].view(np.int64)
        if len(mapped) < _head_bytes(0) or head[0] != token:
            raise OSError(f"{self._path} is not the memory of that rank")
        n_numbers = int(head[1])
        self._head, self.numbers = head, head[_KNOWN : _KNOWN + n_numbers]
        self.messages = mapped[_head_bytes(n_numbers) :]


def _refused(n_bytes: int, error: Exception) -> HpcrecError:
    return HpcrecError(
        f"no shared memory of {format_bytes(n_bytes)} for messages to the ranks of this host: {error}. Raise the limit "
        "that it names (ulimit -n, -v, -f), or set exchange.windows = false and exchange.path = 'flat'."
    )


def _head_bytes(n_numbers: int) -> int:
    return _pages(8 * (_KNOWN + n_numbers))


def _pages(n_bytes: int) -> int:
    return -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
