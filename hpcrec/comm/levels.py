"""Messages between hosts by way of one rank of each: of two hosts one message each way, whatever ranks they have.

The ranks of a host share the other hosts among them: for each of these, one is the *gate*. All write their messages
into their windows (``comm.window``); the gate puts those of its host to the ranks of the other one behind each other,
sends them to the gate there, and lays what comes from it where the ranks of its own host read theirs. So a rank sends
about (hosts - 1) / (ranks of a host) messages in place of one to every rank of the other hosts. Where much crosses
between two hosts that saves little, and the link would wait for what is put together: then each rank sends its own.
What a rank is given is what was sent to it, byte for byte. Notes which hop a rank waits in (``comm.progress``), for
reports of stalls. Knows ranks, hosts and bytes, not what they mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcrec.comm.library import MPI
from hpcrec.comm.progress import AFTER, BEFORE, FROM, TO, Hop, Lane
from hpcrec.comm.window import Windows
from hpcrec.errors import HpcrecError
from hpcrec.types import Ints

_TAG, _ALONE = 2, 3
_MOST_UNITS = 2**31 - 1
ALONE_BYTES = 8192  # from rank to rank, in the mean of two hosts: from here on each rank sends its own
_Coming = tuple[MPI.Request, int, int]


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
        self._from = {rank: Hop(FROM, (lane.ranks[rank],)) for pair in pairs for rank in pair.there.tolist()}

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
        sizes_LR, due_LR = (np.stack([of(rank, turn) for rank in self._local]) for of in (windows.sizes, windows.due))
        out, coming_in = self._together(sizes_LR), self._together(due_LR)
        coming = self._received(due_LR, coming_in)
        messages = {n: self._outgoing(pair, turn) for n, pair in self._mine if out[n]}
        coming += self._received_alone(coming_in, recv, recv_at_R, recv_bytes_R)
        sends = [
            self._comm.Isend(self._buffer(message, self._pairs[n].other_gate), self._pairs[n].other_gate, _TAG)
            for n, message in messages.items()
        ]
        alone_R = np.zeros(len(sent_bytes_R), np.int64)
        for pair, joint in zip(self._pairs, out, strict=True):
            alone_R[pair.there] = 0 if joint else sent_bytes_R[pair.there]
        for rank in np.flatnonzero(alone_R).tolist():
            message = windows.part(self._comm.rank, turn, rank, int(alone_R[rank]))
            sends.append(self._comm.Isend(self._buffer(message, rank), rank, _ALONE))
        windows.take(turn, recv, recv_at_R, recv_bytes_R)  # of this host, while others are on their way
        self._wait(coming, sends, [*(self._pairs[n].other_gate for n in messages), *np.flatnonzero(alone_R).tolist()])
        if any(coming_in):
            self._lane.hop = self._after
            windows.meet()
        for n, pair in enumerate(self._pairs):
            if coming_in[n]:
                self._take(n, pair, recv, recv_at_R, recv_bytes_R, due_LR)
        messages_R = (alone_R > 0).astype(np.int64)
        messages_R[self._local] = sent_bytes_R[self._local] > 0
        messages_R[[self._pairs[n].other_gate for n in messages]] = 1
        return messages_R

    def _together(self, bytes_LR: Ints) -> list[bool]:
        """Of each pair, whether what crosses one way is one message: something does, and it is not much.

        By numbers that ranks of both hosts have.
        """
        sums = [int(bytes_LR[:, pair.there].sum()) for pair in self._pairs]
        most = [ALONE_BYTES * len(self._local) * len(pair.there) for pair in self._pairs]
        return [0 < n_bytes < limit for n_bytes, limit in zip(sums, most, strict=True)]

    def _received(self, due_LR: Ints, joint: Sequence[bool]) -> list[_Coming]:
        """Begins to receive what comes for this host by this rank: requests, bytes of each, and who sends them."""
        mine = [(n, pair, int(due_LR[:, pair.there].sum())) for n, pair in self._mine if joint[n]]
        room, at, found = self._windows.relay(sum(n_bytes for *_, n_bytes in mine)), 0, list[_Coming]()
        for n, pair, n_bytes in mine:
            self._windows.note(n, at)
            buffer = self._buffer(room[at : at + n_bytes], pair.other_gate)
            found.append((self._comm.Irecv(buffer, pair.other_gate, _TAG), n_bytes, pair.other_gate))
            at += n_bytes
        return found

    def _received_alone(
        self, joint: Sequence[bool], recv: NDArray[np.uint8], recv_at_R: Ints, recv_bytes_R: Ints
    ) -> list[_Coming]:
        """Likewise what comes from each rank by itself."""
        found = list[_Coming]()
        for pair, together in zip(self._pairs, joint, strict=True):
            for rank in pair.there[recv_bytes_R[pair.there] > 0].tolist() if not together else ():
                at, n_bytes = int(recv_at_R[rank]), int(recv_bytes_R[rank])
                buffer = self._buffer(recv[at : at + n_bytes], rank)
                found.append((self._comm.Irecv(buffer, rank, _ALONE), n_bytes, rank))
        return found

    def _wait(self, coming: Sequence[_Coming], sends: list[MPI.Request], to: Sequence[int]) -> None:
        status = MPI.Status()
        for request, n_bytes, sender in coming:
            self._lane.hop = self._from[sender]
            request.Wait(status)
            if (came := status.Get_count(self._unit) * self._unit_bytes) != n_bytes:
                raise HpcrecError(
                    f"rank {self._comm.rank}: {came} bytes came from rank {sender} for the ranks of this host, which "
                    f"were told of {n_bytes}."
                )
        if sends:
            self._lane.hop = Hop(TO, tuple(self._lane.ranks[rank] for rank in to))
            MPI.Request.Waitall(sends)

    def _buffer(self, array: NDArray[np.uint8], other: int) -> tuple[NDArray[np.uint8], int, MPI.Datatype]:
        n = len(array) // self._unit_bytes
        if n > _MOST_UNITS:
            raise HpcrecError(
                f"rank {self._comm.rank}: {len(array)} bytes would cross in one message between this host and that of "
                f"rank {other}; it can have {_MOST_UNITS * self._unit_bytes}. Set exchange.path = 'flat', or a smaller "
                "train.batch_size."
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
