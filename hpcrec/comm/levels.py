"""Messages between hosts by way of one rank of each: of two hosts one message each way, whatever ranks they have.

The ranks of a host share the other hosts among them: for each of these, one is the *gate*. All write their messages
into their windows (``comm.window``); the gate puts those of its host to the ranks of the other one behind each other,
sends them to the gate there, and lays what comes from it where the ranks of its own host read theirs. So a rank sends
about (hosts - 1) / (ranks of a host) messages in place of one to every rank of the other hosts. What a rank is given is
what was sent to it, byte for byte. Notes which hop a rank waits in (``comm.progress``), for reports of stalls. Knows
ranks, hosts and bytes, not what they mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcrec.comm.progress import AFTER, BEFORE, FROM, TO, Hop, Lane
from hpcrec.comm.window import Windows
from hpcrec.errors import HpcrecError
from hpcrec.types import Ints

_TAG = 2
_MOST_UNITS = 2**31 - 1


@dataclass(frozen=True)
class Pair:
    """Another host, whose messages to and from this one pass a rank of each.

    Attributes
    ----------
    there : int64 [M]
        Its ranks, in order.
    gate, other_gate : int
        The rank of this host, and of that one.
    """

    there: Ints
    gate: int
    other_gate: int

    @property
    def consecutive(self) -> bool:
        """Whether its ranks are."""
        return int(self.there[-1] - self.there[0]) + 1 == len(self.there)


def pairs_of(host_of: Sequence[int], rank: int) -> list[Pair]:
    """Of a rank's host with each of the others, in their order.

    Each host deals its pairs over its ranks: the n-th other host to the rank n modulo their number.
    """
    ranks_of: dict[int, list[int]] = {}
    for other, host in enumerate(host_of):
        ranks_of.setdefault(host, []).append(other)
    hosts = sorted(ranks_of)
    own = hosts.index(host_of[rank])

    def gate(host: int, other: int) -> int:
        ranks = ranks_of[hosts[host]]
        return ranks[(other - (other > host)) % len(ranks)]

    others = [n for n in range(len(hosts)) if n != own]
    return [Pair(np.array(ranks_of[hosts[n]]), gate(own, n), gate(n, own)) for n in others]


class Levels:
    """The messages of one communicator between hosts.

    Parameters
    ----------
    comm : MPI.Intracomm
    windows : Windows
        Of this host.
    pairs : sequence of Pair
        Of this host, by ranks of ``comm``.
    lane : Lane
        That of ``comm``.
    unit : MPI.Datatype, optional
        Of which messages are whole numbers; default: bytes.
    """

    def __init__(
        self, comm: MPI.Intracomm, windows: Windows, pairs: Sequence[Pair], lane: Lane, unit: MPI.Datatype = MPI.BYTE
    ) -> None:
        self._comm, self._windows, self._pairs = comm, windows, pairs
        self._local = windows.local_L.tolist()
        self._place = self._local.index(comm.rank)
        self._mine = [(n, pair) for n, pair in enumerate(pairs) if pair.gate == comm.rank]
        self._unit, self._unit_bytes = unit, unit.Get_size()
        self._lane, host = lane, tuple(lane.ranks[rank] for rank in self._local)
        self._before, self._after = Hop(BEFORE, host), Hop(AFTER, host)
        self._from = {pair.other_gate: Hop(FROM, (lane.ranks[pair.other_gate],)) for _, pair in self._mine}
        self._to = Hop(TO, tuple(lane.ranks[pair.other_gate] for _, pair in self._mine))

    def swap(
        self, recv: NDArray[np.uint8], sent_at_R: Ints, sent_bytes_R: Ints, recv_at_R: Ints, recv_bytes_R: Ints
    ) -> Ints:
        """Gives the messages in this rank's window to all ranks, and copies theirs to ``recv``; collective.

        Parameters
        ----------
        recv : uint8, flat
        sent_at_R, sent_bytes_R, recv_at_R, recv_bytes_R : int64 [R]
            Where the message to a rank begins in this rank's window, and how long it is; and of the one from it, in
            ``recv``.

        Returns
        -------
        int64 [R]
            Messages that this rank has sent: of its own to its host, and as a gate.

        Raises
        ------
        HpcrecError
            More than one message can have crosses between two hosts; a message is not as long as who receives it has
            been told.
        """
        windows, self._lane.hop = self._windows, self._before
        turn = windows.begin(sent_at_R, sent_bytes_R, recv_bytes_R)
        due_LR = np.stack([windows.due(rank, turn) for rank in self._local])
        coming, messages = self._received(due_LR), [self._outgoing(pair, turn) for _, pair in self._mine]
        sends = [
            self._comm.Isend(self._buffer(message, pair), pair.other_gate, _TAG)
            for (_, pair), message in zip(self._mine, messages, strict=True)
            if len(message)
        ]
        windows.take(turn, recv, recv_at_R, recv_bytes_R)  # of this host, while others are on their way
        self._wait(coming, sends)
        self._lane.hop = self._after
        windows.meet()
        for n, pair in enumerate(self._pairs):
            self._take(n, pair, recv, recv_at_R, recv_bytes_R, due_LR)
        messages_R = np.zeros(len(sent_bytes_R), np.int64)
        messages_R[self._local] = sent_bytes_R[self._local] > 0
        for (_, pair), message in zip(self._mine, messages, strict=True):
            messages_R[pair.other_gate] = len(message) > 0
        return messages_R

    def _received(self, due_LR: Ints) -> list[tuple[MPI.Request, int, Pair]]:
        """Begins to receive what comes for this host by this rank: requests, and bytes of each."""
        sizes = [int(due_LR[:, pair.there].sum()) for _, pair in self._mine]
        room, at, found = self._windows.relay(sum(sizes)), 0, list[tuple[MPI.Request, int, Pair]]()
        for (n, pair), n_bytes in zip(self._mine, sizes, strict=True):
            self._windows.note(n, at)
            if n_bytes:
                buffer = self._buffer(room[at : at + n_bytes], pair)
                found.append((self._comm.Irecv(buffer, pair.other_gate, _TAG), n_bytes, pair))
            at += n_bytes
        return found

    def _wait(self, coming: Sequence[tuple[MPI.Request, int, Pair]], sends: list[MPI.Request]) -> None:
        status = MPI.Status()
        for request, n_bytes, pair in coming:
            self._lane.hop = self._from[pair.other_gate]
            request.Wait(status)
            if (came := status.Get_count(self._unit) * self._unit_bytes) != n_bytes:
                raise HpcrecError(
                    f"rank {self._comm.rank}: {came} bytes came from rank {pair.other_gate} for the ranks of this "
                    f"host, which were told of {n_bytes}."
                )
        if sends:
            self._lane.hop = self._to
            MPI.Request.Waitall(sends)

    def _buffer(self, array: NDArray[np.uint8], pair: Pair) -> tuple[NDArray[np.uint8], int, MPI.Datatype]:
        n = len(array) // self._unit_bytes
        if n > _MOST_UNITS:
            raise HpcrecError(
                f"rank {self._comm.rank}: {len(array)} bytes would cross in one message between this host and that of "
                f"rank {pair.other_gate}; it can have {_MOST_UNITS * self._unit_bytes}. Set exchange.path = 'flat', or "
                "a smaller train.batch_size."
            )
        return array, n, self._unit

    def _outgoing(self, pair: Pair, turn: int) -> NDArray[np.uint8]:
        """What this host's ranks send to those of the other one: by who sends it, and then by who receives it."""
        parts = []
        for rank in self._local:
            sizes = self._windows.sizes(rank, turn)[pair.there]
            if pair.consecutive:  # so are its messages to them
                parts.append(self._windows.part(rank, turn, int(pair.there[0]), int(sizes.sum())))
            else:
                to = zip(pair.there.tolist(), sizes.tolist(), strict=True)
                parts += [self._windows.part(rank, turn, there, n_bytes) for there, n_bytes in to if n_bytes]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)

    def _take(
        self, number: int, pair: Pair, recv: NDArray[np.uint8], recv_at_R: Ints, recv_bytes_R: Ints, due_LR: Ints
    ) -> None:
        """Copies what has come from the other host's ranks for this one."""
        mine = recv_bytes_R[pair.there]
        if not mine.any():
            return
        due_LM = due_LR[:, pair.there]
        of_senders = due_LM.sum(axis=0)
        at_M = np.cumsum(of_senders) - of_senders + due_LM[: self._place].sum(axis=0)
        noted = self._windows.noted(pair.gate, number)
        whole = self._windows.relayed(pair.gate, noted, int(of_senders.sum()))
        to_M = recv_at_R[pair.there]
        for at, to, n_bytes in zip(at_M.tolist(), to_M.tolist(), mine.tolist(), strict=True):
            recv[to : to + n_bytes] = whole[at : at + n_bytes]
