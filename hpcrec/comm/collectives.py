"""Collectives on one communicator, each under a tag and counted by the ledger.

Every collective of hpcrec goes through here, Horovod's excepted, which reports to the same ledger. Knows bytes, not
what they mean.

Messages between ranks of one host go through shared memory (``comm.window``), the others through MPI.

Messages of an all-to-all are whole numbers of 64-byte units: counts and displacements then stay under 2**31 up to
137 GB a rank and phase, without the large-count calls that an MPI 3.1 library lacks, and every message starts on a
cache line.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hpcrec.comm.ledger import Ledger
from hpcrec.comm.levels import Levels, pairs_of
from hpcrec.comm.library import MPI
from hpcrec.comm.pieces import Messages, Pieces, alltoallv_in_pieces
from hpcrec.comm.progress import Lane
from hpcrec.comm.sizes import UNIT_BYTES, clear_padding, places
from hpcrec.comm.window import Windows, open_windows
from hpcrec.errors import HpcrecError
from hpcrec.types import Ints

_MAX_UNITS = 2**31 - 1


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


class StartedParts(Started):
    """A collective under way that brings something from every rank.

    Attributes
    ----------
    received : array [R, ...] or list of arrays
        In rank order; to be read after ``wait``.
    """

    def __init__(self, request: MPI.Request, lane: Lane, tag: str, received: Any) -> None:
        super().__init__(request, lane, tag)
        self.received = received


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
    windows : bool
        Whether messages between ranks of one host go through shared memory, where the system lets them.
    pieces : Pieces, optional
        Those in which messages of ``alltoallv`` go through MPI; by default they go whole.
    host_of : sequence of int, optional
        Host of each rank of ``comm``, where messages between hosts go by levels (``comm.levels``), for
        which windows are needed; then whole. By default each rank sends its own.

    Attributes
    ----------
    without_windows : str
        Why they do not; empty where they do, or would if a host had several ranks.
    by_levels : bool
        Whether messages between hosts go by levels; see ``take_path``.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        ranks: Sequence[int],
        ledger: Ledger,
        lane: Lane | None = None,
        *,
        windows: bool = False,
        pieces: Pieces | None = None,
        host_of: Sequence[int] | None = None,
    ) -> None:
        self.comm, self._pieces = comm, pieces or Pieces(0)
        self.ranks = tuple(ranks)
        self._ranks_R = np.array(self.ranks, np.int64)
        self.ledger = ledger
        self.lane = lane or Lane("", ranks)
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._unit = MPI.BYTE.Create_contiguous(UNIT_BYTES).Commit()
        self._rows: dict[int, Ints] = {}
        self._in_window: NDArray[Any] | None = None  # what ``message`` gave last, where that lies in the window
        self._windows: Windows | None = None
        self._levels: Levels | None = None
        self._small_windows: Windows | None = None  # for numbers, which are sent between two messages
        self.by_levels = False
        self.without_windows = "" if windows else "not asked for"
        if windows and comm.size > 1:
            here = [rank for rank, same in enumerate(ledger.same_host(ranks)) if same]
            levels = host_of is not None and 1 < len(set(host_of)) < comm.size
            self._windows, self.without_windows = open_windows(comm, here, relays=levels)
            if levels and host_of is not None and self._windows is not None:
                self._small_windows, self.without_windows = open_windows(comm, here, relays=True)
                if self._small_windows is not None:
                    pairs = pairs_of(host_of, comm.rank)
                    self._levels = Levels(comm, self._windows, pairs, self.lane, self._unit)
                    self._small_levels = Levels(comm, self._small_windows, pairs, self.lane)
        self.by_levels = self._levels is not None

    def take_path(self, path: str) -> None:
        """From the next message on they go ``flat``, or by ``levels`` where they can; alike on every rank."""
        self.by_levels = self._levels is not None and path == "levels"

    def alltoall(self, send_RM: Ints, tag: str) -> Ints:
        """Row ``i`` of int64 [R, M] goes to rank ``i``; returns what came from each."""
        recv_RM = np.empty(send_RM.shape, send_RM.dtype)
        if self.by_levels and self._small_windows is not None:
            bytes_R, windows = self._rows_of(send_RM[0].nbytes), self._small_windows
            windows.room(send_RM.nbytes)[:] = np.ascontiguousarray(send_RM).view(np.uint8).reshape(-1)
            with self.lane.inside(tag):
                windows.begin(bytes_R, bytes_R, by_levels=True)
                across = self._small_levels.swap(recv_RM.view(np.uint8).reshape(-1), bytes_R, bytes_R)
            self.ledger.add(tag, self._ranks_R, bytes_R, across=across)
            return recv_RM
        self.ledger.add(tag, self.ranks, np.full(self.size, send_RM[0].nbytes, np.int64))
        with self.lane.inside(tag):
            self.comm.Alltoall(send_RM, recv_RM)
        return recv_RM

    def _rows_of(self, n_bytes: int) -> Ints:
        """Sizes of messages of so many bytes each, which are the same in every step."""
        if n_bytes not in self._rows:
            self._rows[n_bytes] = np.full(self.size, n_bytes, np.int64)
        return self._rows[n_bytes]

    def message(self, bytes_R: Ints, dtype: npt.DTypeLike, behind_bytes: int = 0) -> NDArray[Any]:
        """Where the messages of the next ``alltoallv`` are best written: flat, of ``dtype``, only their padding set.

        ``behind_bytes`` more, behind the messages, are the caller's to use until the next message but one.
        """
        if self._windows is None:
            room = np.empty(int(bytes_R.sum()) + behind_bytes, np.uint8)
            clear_padding(room, bytes_R)
            return room.view(dtype)
        room = self._windows.mapped
        if (end := clear_padding(room, bytes_R) + behind_bytes) > len(room):
            room = self._windows.room(end)
            clear_padding(room, bytes_R)
        self._in_window = message = room[:end].view(dtype)
        return message

    def alltoallv(
        self, send: NDArray[Any], send_bytes_R: Ints, recv_bytes_R: Ints, tag: str, behind_bytes: int = 0
    ) -> NDArray[Any]:
        """Sends consecutive pieces of ``send`` to the ranks in order; returns what came from them, likewise.

        Sizes are in bytes, whole units each (``padded_bytes``). A single rank is given ``send`` itself.
        ``behind_bytes`` more are left behind what came, for the caller to use.

        Raises
        ------
        HpcrecError
            More than one call can move, or than the shared memory of this host can hold.
        """
        windows, in_window, self._in_window = self._windows, self._in_window, None
        if self.by_levels and windows is not None and self._levels is not None:
            self._in_windows(windows, send, in_window)
            sent, received = windows.begin(send_bytes_R, recv_bytes_R, UNIT_BYTES, by_levels=True)
            if not 0 <= min(sent, received) <= max(sent, received) <= _MAX_UNITS * UNIT_BYTES:
                self._can_move(sent, send_bytes_R, "send")
                self._can_move(received, recv_bytes_R, "receive")
            recv = np.empty(received + behind_bytes, np.uint8)
            with self.lane.inside(tag):
                across = self._levels.swap(recv, send_bytes_R, recv_bytes_R)
            self.ledger.add(tag, self._ranks_R, send_bytes_R, across=across)
            return recv.view(send.dtype)
        sent_at_R = self._places(send_bytes_R, "send")
        recv_at_R = self._places(recv_bytes_R, "receive")
        self.ledger.add(tag, self._ranks_R, send_bytes_R)
        total = int(recv_bytes_R.sum()) + behind_bytes
        if self.size == 1 and send.nbytes >= total:
            return send
        recv = np.empty(total, np.uint8)
        if windows is not None:
            send = self._in_windows(windows, send, in_window)
        with self.lane.inside(tag):
            if windows is None or len(windows.local_L) < self.size:
                sizes_R, recv_sizes_R = send_bytes_R // UNIT_BYTES, recv_bytes_R // UNIT_BYTES
                if windows is not None:
                    sizes_R[windows.local_L], recv_sizes_R[windows.local_L] = 0, 0
                self._through_mpi(send, sizes_R, sent_at_R, recv, recv_sizes_R, recv_at_R)
            if windows is not None:
                windows.swap(recv, send_bytes_R, recv_bytes_R)
        return recv.view(send.dtype)

    def _in_windows(self, windows: Windows, send: NDArray[Any], in_window: NDArray[Any] | None) -> NDArray[Any]:
        """These messages where the ranks of the host read them."""
        if send is in_window:
            return send
        room = windows.room(send.nbytes).view(send.dtype)
        room[:] = send
        return room

    def alltoallv_told(self, send: NDArray[Any], send_bytes_R: Ints, tag: str) -> list[NDArray[np.uint8]]:
        """The same between ranks of which each knows just what it sends; returns what came from each, to be read soon.

        Through shared memory that is what lies in the others' windows, until this rank's next message.

        Raises
        ------
        HpcrecError
            As of ``alltoallv``.
        """
        windows = self._windows
        if windows is None or len(windows.local_L) < self.size or self.by_levels:
            sizes_R = self.alltoall(send_bytes_R[:, None], tag)[:, 0]
            came = self.alltoallv(send, send_bytes_R, sizes_R, tag).view(np.uint8)
            return np.split(came[: int(sizes_R.sum())], np.cumsum(sizes_R)[:-1])
        self._in_windows(windows, send, self._in_window)
        self._in_window = None
        self._places(send_bytes_R, "send")
        self.ledger.add(tag, self._ranks_R, send_bytes_R)
        with self.lane.inside(tag):
            windows.swap(np.empty(0, np.uint8), send_bytes_R, np.zeros(self.size, np.int64))
        sizes = [int(windows.sizes(rank)[self.rank]) for rank in range(self.size)]
        return [windows.part(rank, self.rank, n_bytes) for rank, n_bytes in enumerate(sizes)]

    def _through_mpi(
        self, send: NDArray[Any], sizes_R: Ints, at_R: Ints, recv: NDArray[Any], recv_sizes_R: Ints, recv_at_R: Ints
    ) -> None:
        """Messages of so many units each, at these bytes."""
        if self._pieces.n_bytes:
            out = Messages(send.view(np.uint8), sizes_R * UNIT_BYTES, at_R)
            back = Messages(recv, recv_sizes_R * UNIT_BYTES, recv_at_R)
            alltoallv_in_pieces(self.comm, out, back, self._pieces)
        else:
            # Not the blocking call: Open MPI's goes pair by pair, by which 256 KiB to each of 3 others took 1.4
            # times as long at 100 Mbit/s; small messages, and 1 Gbit/s, were alike (benchmarks/collectives.py).
            self.comm.Ialltoallv(
                [send, sizes_R, at_R // UNIT_BYTES, self._unit],
                [recv, recv_sizes_R, recv_at_R // UNIT_BYTES, self._unit],
            ).Wait()

    def alltoallv_between(self, send: Any, send_bytes_R: Ints, recv: Any, recv_bytes_R: Ints, tag: str) -> None:
        """The same between buffers that MPI takes as they are, perhaps in a GPU's memory; through MPI alone.

        Raises
        ------
        HpcrecError
            More than one call can move.
        """
        sent_at_R, recv_at_R = self._places(send_bytes_R, "send"), self._places(recv_bytes_R, "receive")
        self.ledger.add(tag, self._ranks_R, send_bytes_R)
        with self.lane.inside(tag):
            self.comm.Alltoallv(
                [send, send_bytes_R // UNIT_BYTES, sent_at_R // UNIT_BYTES, self._unit],
                [recv, recv_bytes_R // UNIT_BYTES, recv_at_R // UNIT_BYTES, self._unit],
            )

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

    def start_alltoall(self, send_RM: Ints, tag: str) -> StartedParts:
        """Starts ``alltoall``; ``received`` is int64 [R, M]."""
        recv_RM = np.empty_like(send_RM)
        self.ledger.add(tag, self.ranks, np.full(self.size, send_RM[0].nbytes, np.int64))
        return StartedParts(self.comm.Ialltoall(send_RM, recv_RM), self.lane, tag, recv_RM)

    def start_allgather(self, part_M: Ints, tag: str) -> StartedParts:
        """Starts handing int64 [M] of this rank to every rank; ``received`` is int64 [R, M]."""
        recv_RM = np.empty((self.size, *part_M.shape), part_M.dtype)
        self.ledger.add_allgather(tag, self.ranks, part_M.nbytes)
        return StartedParts(self.comm.Iallgather(part_M, recv_RM), self.lane, tag, recv_RM)

    def start_alltoallv(
        self, send: NDArray[np.uint8], send_bytes_R: Ints, recv_bytes_R: Ints, tag: str
    ) -> StartedParts:
        """Starts sending consecutive pieces of ``send`` to the ranks in order; ``received`` are those that come.

        Through MPI alone, and in bytes: for messages that are small, or that computing goes on beside.

        Raises
        ------
        HpcrecError
            More than one call can move.
        """
        sizes, due = self._small(send_bytes_R, "send"), self._small(recv_bytes_R, "receive")
        recv = np.empty(sum(due), np.uint8)
        self.ledger.add(tag, self._ranks_R, send_bytes_R)
        request = self.comm.Ialltoallv([send, sizes, MPI.BYTE], [recv, due, MPI.BYTE])
        return StartedParts(request, self.lane, tag, np.split(recv, np.cumsum(due)[:-1]))

    def start_allgatherv(self, part: NDArray[np.uint8], bytes_R: Ints, tag: str) -> StartedParts:
        """Starts handing bytes of this rank to every rank, of ``bytes_R`` each; ``received`` are those of all ranks.

        Raises
        ------
        HpcrecError
            More than one call can move.
        """
        due = self._small(bytes_R, "receive")
        recv = np.empty(sum(due), np.uint8)
        self.ledger.add_allgather(tag, self.ranks, part.nbytes)
        request = self.comm.Iallgatherv(part, [recv, due, MPI.BYTE])
        return StartedParts(request, self.lane, tag, np.split(recv, np.cumsum(due)[:-1]))

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

    def comes_on(self) -> None:
        """Says that work on files, for which the others wait, has come on; until this rank's next collective."""
        self.lane.works("checkpoint")

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
        for windows in (self._windows, self._small_windows):
            if windows is not None:
                windows.close()
        self._windows = self._small_windows = self._levels = self._in_window = None
        self._unit.Free()
        self.comm.Free()

    def _places(self, n_bytes_R: Ints, what: str) -> Ints:
        """Where each of consecutive messages begins, in bytes."""
        at_R, end = places(n_bytes_R)
        self._can_move(end, n_bytes_R, what)
        return at_R

    def _can_move(self, end: int, n_bytes_R: Ints, what: str) -> None:
        """Refuses messages of which the last ends there."""
        assert end >= 0, f"{what} sizes are no whole units: {n_bytes_R}"
        if end > _MAX_UNITS * UNIT_BYTES:
            raise HpcrecError(
                f"rank {self.rank} would {what} {end} bytes in one phase; one call moves at most "
                f"{_MAX_UNITS * UNIT_BYTES}. Use more ranks or a smaller train.batch_size."
            )

    def _small(self, n_bytes_R: Ints, what: str) -> list[int]:
        """Sizes of messages that are counted in single bytes."""
        if n_bytes_R.sum() > _MAX_UNITS:
            raise HpcrecError(
                f"rank {self.rank} would {what} {n_bytes_R.sum()} bytes in one call; such a call moves at most "
                f"{_MAX_UNITS}. Lower dense.dct.density, or dense.bucket_bytes."
            )
        return n_bytes_R.tolist()
