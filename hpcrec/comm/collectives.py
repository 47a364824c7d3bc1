"""Collectives on one communicator, each under a tag and counted by the ledger.

Every collective of hpcrec goes through here, Horovod's excepted, which reports to the same ledger. Knows bytes, not
what they mean.

Messages of an all-to-all are whole numbers of 64-byte units: counts and displacements then stay under 2**31 up to
137 GB a rank and phase, without the large-count calls that an MPI 3.1 library lacks, and every message starts on a
cache line.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcrec.comm.ledger import Ledger
from hpcrec.comm.progress import Lane
from hpcrec.errors import HpcrecError
from hpcrec.types import Ints

UNIT_BYTES = 64
_MAX_UNITS = 2**31 - 1


def padded_bytes(n_bytes: Ints) -> Ints:
    """Sizes of messages on the wire: rounded up to whole units."""
    return -(-n_bytes // UNIT_BYTES) * UNIT_BYTES


class Started:
    """A collective under way."""

    def __init__(self, request: MPI.Request, lane: Lane, tag: str) -> None:
        self._request = request
        self._lane = lane
        self._number = lane.started()
        self._tag = tag

    def wait(self) -> None:
        """Waits for its end."""
        with self._lane.waits(self._number, self._tag):
            self._request.Wait()


class Collectives:
    """Collectives over the ranks of ``comm``.

    Parameters
    ----------
    comm : MPI.Intracomm
    ranks : sequence of int
        World rank of each rank of ``comm``.
    ledger : Ledger
    lane : Lane, optional
        Where it is noted which collective this rank is in; nobody looks at it by default.
    """

    def __init__(self, comm: MPI.Intracomm, ranks: Sequence[int], ledger: Ledger, lane: Lane | None = None) -> None:
        self.comm = comm
        self.ranks = tuple(ranks)
        self.ledger = ledger
        self.lane = lane or Lane("", ranks)
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._unit = MPI.BYTE.Create_contiguous(UNIT_BYTES).Commit()

    def alltoall(self, send_RM: Ints, tag: str) -> Ints:
        """Row ``i`` of int64 [R, M] goes to rank ``i``; returns what came from each."""
        recv_RM = np.empty_like(send_RM)
        self.ledger.add(tag, self.ranks, np.full(self.size, send_RM[0].nbytes, np.int64))
        with self.lane.inside(tag):
            self.comm.Alltoall(send_RM, recv_RM)
        return recv_RM

    def alltoallv(
        self, send: NDArray[Any], send_bytes_R: Ints, recv: NDArray[Any], recv_bytes_R: Ints, tag: str
    ) -> None:
        """Sends consecutive pieces of ``send`` to the ranks in order; fills ``recv`` likewise.

        Sizes are in bytes, whole units each (``padded_bytes``).
        """
        sizes, places = self._units(send_bytes_R, "send")
        recv_sizes, recv_places = self._units(recv_bytes_R, "receive")
        self.ledger.add(tag, self.ranks, send_bytes_R)
        with self.lane.inside(tag):
            self.comm.Alltoallv([send, sizes, places, self._unit], [recv, recv_sizes, recv_places, self._unit])

    def allreduce(self, values: NDArray[Any], tag: str = "control", op: str = "sum") -> NDArray[Any]:
        """Sum or maximum over the ranks."""
        out = np.empty_like(values)
        self.ledger.add_allreduce(tag, self.ranks, values.nbytes)
        with self.lane.inside(tag):
            self.comm.Allreduce(values, out, op={"sum": MPI.SUM, "max": MPI.MAX}[op])
        return out

    def start_allreduce(self, values: NDArray[Any], tag: str) -> Started:
        """Starts a sum over the ranks, in place; ``wait()`` on what it returns ends it."""
        self.ledger.add_allreduce(tag, self.ranks, values.nbytes)
        return Started(self.comm.Iallreduce(MPI.IN_PLACE, values, op=MPI.SUM), self.lane, tag)

    def gather_arrays(self, part: NDArray[Any], tag: str = "control", root: int = 0) -> list[NDArray[Any]] | None:
        """Arrays of any first dimension to ``root``, in rank order; None elsewhere."""
        if self.rank != root:
            self.ledger.add(tag, [self.ranks[root]], np.array([part.nbytes], np.int64))
        with self.lane.inside(tag):
            return self.comm.gather(part, root=root)

    def allgather(self, thing: Any) -> list[Any]:
        """Small Python objects from every rank, in rank order. For set-up, not for steps."""
        with self.lane.inside("control"):
            return self.comm.allgather(thing)

    def bcast(self, thing: Any, root: int = 0) -> Any:
        """A small Python object from ``root``. For set-up, not for steps."""
        with self.lane.inside("control"):
            return self.comm.bcast(thing, root=root)

    def bcast_array(self, values: NDArray[Any], tag: str = "control", root: int = 0) -> None:
        """Fills ``values`` on every rank from ``root``."""
        self.ledger.add_ring(tag, self.ranks, values.nbytes if self.size > 1 else 0)
        with self.lane.inside(tag):
            self.comm.Bcast(values, root=root)

    def barrier(self) -> None:
        """Waits for every rank."""
        with self.lane.inside("control"):
            self.comm.Barrier()

    def close(self) -> None:
        """Frees the communicator; collective."""
        self._unit.Free()
        self.comm.Free()

    def _units(self, n_bytes_R: Ints, what: str) -> tuple[Ints, Ints]:
        units_R, odd_R = np.divmod(n_bytes_R, UNIT_BYTES)
        assert not odd_R.any(), f"{what} sizes are not whole units of {UNIT_BYTES} bytes: {n_bytes_R}"
        places_R = np.concatenate([np.zeros(1, np.int64), np.cumsum(units_R)])
        if places_R[-1] > _MAX_UNITS:
            raise HpcrecError(
                f"rank {self.rank} would {what} {places_R[-1] * UNIT_BYTES} bytes in one phase; one call moves at most "
                f"{_MAX_UNITS * UNIT_BYTES}. Use more ranks or a smaller train.batch_size."
            )
        return units_R, places_R[:-1]
