"""Small collectives of a thread beside the main one: it waits by looking now and then, and takes no core meanwhile.

For what takes seconds, such as files. Knows nothing of what is said; takes MPI_THREAD_MULTIPLE.
"""

import pickle
import time
from typing import Any

import numpy as np
from mpi4py import MPI

_LOOK_S = 0.005


class Aside:
    """Collectives of the same ranks as ``comm``, apart from all others; one thread of each rank calls them.

    See ``comm.ranks.Ranks``. Made by every rank of ``comm``, and ended by ``close``: both collective.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm.Dup()
        self.rank: int = comm.rank
        self.size: int = comm.size

    def allgather(self, thing: Any) -> list[Any]:
        """See ``Ranks``."""
        mine = np.frombuffer(pickle.dumps(thing), np.uint8)
        bytes_R = np.zeros(self.size, np.int64)
        _wait(self._comm.Iallgather(np.array([len(mine)], np.int64), bytes_R))
        everyone = np.empty(int(bytes_R.sum()), np.uint8)
        _wait(self._comm.Iallgatherv(mine, [everyone, bytes_R.tolist(), MPI.BYTE]))
        return [pickle.loads(part.data) for part in np.split(everyone, np.cumsum(bytes_R)[:-1])]

    def bcast(self, thing: Any, root: int = 0) -> Any:
        """See ``Ranks``."""
        return self.allgather(thing if self.rank == root else None)[root]

    def close(self) -> None:
        """Frees the communicator."""
        self._comm.Free()


def _wait(request: MPI.Request) -> None:
    while not request.Test():
        time.sleep(_LOOK_S)
