"""What hpcrec asks of MPI, for one rank and without a library: what it sends to itself is copied.

Takes the place of ``mpi4py.MPI`` where no library can be loaded (``comm.library``), under its names. Has what this
package calls where there is one rank, and nothing else: an attribute that is missing is an error, not a wrong answer.
Knows arrays and bytes.
"""

import os
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
SUM, MAX, MIN, IN_PLACE = "sum", "max", "min", "in place"
UNDEFINED, COMM_TYPE_SHARED, ANY_SOURCE, ANY_TAG = -32766, 0, -1, -1
__version__ = "none"
_Buffer = Any  # an array, or a list that begins with one


class Datatype:
    """So many bytes each."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes

    def Create_contiguous(self, count: int) -> "Datatype":
        """One of so many of them."""
        return Datatype(self._n_bytes * count)

    def Commit(self) -> "Datatype":
        """Itself."""
        return self

    def Get_size(self) -> int:
        """Bytes."""
        return self._n_bytes

    def Free(self) -> None:
        """Nothing is held."""


BYTE = Datatype(1)


class Status:
    """Of a message; there are none."""


class Request:
    """What has been done already."""

    def Wait(self, status: Status | None = None) -> None:
        """Nothing is left to wait for."""

    def Test(self) -> bool:
        """It is done."""
        return True


class Comm:
    """A communicator of this rank alone. All of them are alike."""

    rank, size = 0, 1

    def Dup(self) -> "Comm":
        """Another one."""
        return Intracomm()

    def Split(self, color: int = 0, key: int = 0) -> "Comm | None":
        """Another one, unless this rank is to be in none."""
        return None if color == UNDEFINED else Intracomm()

    def Split_type(self, split_type: int, key: int = 0) -> "Comm":
        """Another one: the rank is alone on its host."""
        return Intracomm()

    def Free(self) -> None:
        """Nothing is held."""

    def Abort(self, code: int = 0) -> NoReturn:
        """Ends the process."""
        os._exit(code)

    def Barrier(self) -> None:
        """Every rank is here."""

    def Ibarrier(self) -> Request:
        """Every rank is here."""
        return Request()

    def bcast(self, thing: Any, root: int = 0) -> Any:
        """The thing itself."""
        return thing

    def gather(self, thing: Any, root: int = 0) -> list[Any]:
        """It alone."""
        return [thing]

    def allgather(self, thing: Any) -> list[Any]:
        """It alone."""
        return [thing]

    def allreduce(self, thing: Any, op: str = SUM) -> Any:
        """The thing itself."""
        return thing

    def iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> bool:
        """Nobody sends."""
        return False

    def Bcast(self, buffer: _Buffer, root: int = 0) -> None:
        """It is there."""

    def Allreduce(self, send: _Buffer, recv: _Buffer, op: str = SUM) -> None:
        """The sum or maximum of one rank's values."""
        if send is not IN_PLACE:
            _bytes(recv)[:] = _bytes(send)

    def Alltoall(self, send: _Buffer, recv: _Buffer) -> None:
        """What this rank has for itself."""
        _bytes(recv)[:] = _bytes(send)

    def Alltoallv(self, send: _Buffer, recv: _Buffer) -> None:
        """What this rank has for itself; buffers are (array, counts, displacements, type) or (array, counts, type)."""
        _part(recv)[:] = _part(send)

    Allgather = Alltoall

    def Allgatherv(self, send: _Buffer, recv: _Buffer) -> None:
        """What this rank has."""
        _part(recv)[:] = _bytes(send)

    def __getattr__(self, name: str) -> Any:
        """Collectives that begin and are waited for later: done at once."""
        whole = {
            "Iallreduce": self.Allreduce,
            "Ialltoall": self.Alltoall,
            "Ialltoallv": self.Alltoallv,
            "Iallgather": self.Allgather,
            "Iallgatherv": self.Allgatherv,
        }.get(name)
        if whole is None:
            raise AttributeError(f"one rank without an MPI library has no {name}")
        return _begun(whole)


class Intracomm(Comm):
    """The name by which communicators are known."""


COMM_WORLD = Intracomm()


def Query_thread() -> int:
    """Any thread may ask: each is answered by itself."""
    return THREAD_MULTIPLE


def Get_library_version() -> str:
    """Said in summaries."""
    return "none: one rank"


def Get_version() -> tuple[int, int]:
    """Of no standard."""
    return (0, 0)


def Wtime() -> float:
    """Seconds."""
    return time.perf_counter()


def _begun(whole: Callable[..., None]) -> Callable[..., Request]:
    def begin(*given: Any, **named: Any) -> Request:
        whole(*given, **named)
        return Request()

    return begin


def _bytes(buffer: _Buffer) -> NDArray[np.uint8]:
    """Of a whole array."""
    array: NDArray[Any] = buffer[0] if isinstance(buffer, list | tuple) else buffer
    flat: NDArray[np.uint8] = np.asarray(array).reshape(-1).view(np.uint8)
    return flat


def _part(buffer: _Buffer) -> NDArray[np.uint8]:
    """What is for, or from, the only rank."""
    _, counts, *at, kind = buffer
    first = int(at[0][0]) if at else 0
    return _bytes(buffer)[first * kind.Get_size() :][: int(counts[0]) * kind.Get_size()]
