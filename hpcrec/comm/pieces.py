"""Messages between all ranks in pieces, of which few are under way at once.

A large message fills the queues of a link, and of its connection, first in first out: what another thread sends then,
a sum of a few bytes for which ranks wait, comes behind all of it. In pieces it comes behind those that are under way. A
piece begins when one before it has been taken: a synchronous send of a piece that is too large to be buffered ends when
the receiver has room for it, and its bytes are on their way. What is waited for may hold the others back (``held``).
Knows bytes and ranks.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcrec.comm.library import MPI
from hpcrec.types import Ints

UNDER_WAY = 6  # pieces that a rank has sent and that are not taken
MOST_HELD_S = 1.0  # longer than what is to go first takes, much shorter than what is reported as a stall
_TAG = 1


class Pieces:
    """How messages cross that threads beside the steps send, the same for all communicators of a rank.

    Parameters
    ----------
    n_bytes : int
        Of a piece, at most; 0: messages cross whole.
    """

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._free, self._until_s = threading.Event(), 0.0
        self._free.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it lasts this rank begins no piece: what crosses then comes behind those of its own that are under way.

        For ``MOST_HELD_S`` at most: then pieces cross again, so that a rank that never comes is found as ever.
        Nothing that is waited for meanwhile may need a message in pieces of any rank. Not inside itself.
        """
        self._until_s = time.monotonic() + MOST_HELD_S
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def may_begin(self) -> None:
        """Waits while they are held back."""
        if not self._free.is_set():
            self._free.wait(max(0.0, self._until_s - time.monotonic()))


class Messages(NamedTuple):
    """One to each rank, or from each.

    Attributes
    ----------
    array : uint8
    sizes_R, at_R : int64 [R]
        Bytes of each, and where it begins.
    """

    array: NDArray[np.uint8]
    sizes_R: Ints
    at_R: Ints

    def of(self, rank: int) -> NDArray[np.uint8]:
        """That of a rank."""
        at = int(self.at_R[rank])
        return self.array[at : at + int(self.sizes_R[rank])]


def alltoallv_in_pieces(comm: MPI.Intracomm, send: Messages, recv: Messages, pieces: Pieces) -> None:
    """``Alltoallv`` in pieces; collective. What a rank sends to itself is copied."""
    me, size = comm.rank, comm.size
    before, after = ([(me + sign * distance) % size for distance in range(1, size)] for sign in (-1, 1))
    receives = [
        comm.Irecv([part, MPI.BYTE], rank, _TAG) for rank in before for part in _cut(recv.of(rank), pieces.n_bytes)
    ]
    recv.of(me)[:] = send.of(me)
    sends: list[MPI.Request] = []
    for rank, part in _in_turn({rank: _cut(send.of(rank), pieces.n_bytes) for rank in after}):
        if len(sends) == UNDER_WAY:
            sends.pop(MPI.Request.Waitany(sends))
        pieces.may_begin()
        sends.append(comm.Issend([part, MPI.BYTE], rank, _TAG))
    MPI.Request.Waitall(receives + sends)


def _cut(message: NDArray[np.uint8], n_bytes: int) -> Iterator[NDArray[np.uint8]]:
    """Consecutive ones."""
    return (message[first : first + n_bytes] for first in range(0, len(message), n_bytes))


def _in_turn(of_ranks: dict[int, Iterator[NDArray[np.uint8]]]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """A piece of each rank's, again and again until there are none."""
    while of_ranks:
        for rank, pieces in list(of_ranks.items()):
            part = next(pieces, None)
            if part is None:
                del of_ranks[rank]
            else:
                yield rank, part
