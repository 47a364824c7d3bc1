"""Small collectives of a thread beside the main one: it waits by looking now and then, and takes no core meanwhile.

For what takes seconds, such as files. Knows nothing of what is said; takes MPI_THREAD_MULTIPLE. Its waits, and that the
work between them comes on, are noted for the stall watch and the board (``comm.progress``).
"""

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpcrec.comm.library import MPI
from hpcrec.comm.progress import Lane

_LOOK_S = 0.005


class Aside:
    """Collectives of the same ranks as ``comm``, apart from all others; one thread of each rank calls them.

    See ``comm.ranks.Ranks``. Made by every rank of ``comm``, and ended by ``close``: both collective.
    """

    def __init__(self, comm: MPI.Intracomm, lane: Lane) -> None:
        self._comm = comm.Dup()
        self._lane = lane
        self._tag: str | None = None  # of the work under way
        self.rank: int = comm.rank
        self.size: int = comm.size

    def allgather(self, thing: Any) -> list[Any]:
        """See ``Ranks``."""
        mine = np.frombuffer(pickle.dumps(thing), np.uint8)
        bytes_R = np.zeros(self.size, np.int64)
        with self._lane.inside(self._tag or "control"):
            _wait(self._comm.Iallgather(np.array([len(mine)], np.int64), bytes_R))
            everyone = np.empty(int(bytes_R.sum()), np.uint8)
            _wait(self._comm.Iallgatherv(mine, [everyone, bytes_R.tolist(), MPI.BYTE]))
        self.comes_on()
        return [pickle.loads(part.data) for part in np.split(everyone, np.cumsum(bytes_R)[:-1])]

    def bcast(self, thing: Any, root: int = 0) -> Any:
        """See ``Ranks``."""
        return self.allgather(thing if self.rank == root else None)[root]

    @contextmanager
    def working(self, tag: str) -> Iterator[None]:
        """While the block lasts this thread works, and says so by ``comes_on``; its collectives are under ``tag``."""
        self._tag = tag
        self.comes_on()
        try:
            yield
        finally:
            self._tag = None
            self._lane.rests()

    def comes_on(self) -> None:
        """Some of the work is done: whoever waits for this rank does not wait in vain."""
        if self._tag is not None:
            self._lane.works(self._tag)

    def close(self) -> None:
        """Frees the communicator."""
        self._comm.Free()


def _wait(request: MPI.Request) -> None:
    while not request.Test():
        time.sleep(_LOOK_S)
