"""Messages between hosts by way of few ranks of each: of two hosts one message each way, or one of each rank.

The ranks of a host share the other hosts among them: for each of these, one is the *gate*. All write their messages
into their windows (``comm.window``); the gate puts those of its host to the ranks of the other one behind each other,
sends them to the gate there, and lays what comes from it where the ranks of its own host read theirs. So a rank sends
about (hosts - 1) / (ranks of a host) messages in place of one to every rank of the other hosts. Where more crosses
between two hosts the link would wait for what is put together: then each rank sends what it has for all ranks of the
other host to one of them, its *peer*, who lays it there: hosts - 1 messages a rank. And where messages are large, or
peers would save few (``FEW``), each rank sends its own to each rank, for what is laid down is copied once more, and a
host's ranks meet for it.
What a rank is given is what was sent to it, byte for byte. Notes which hop a rank waits in (``comm.progress``), for
reports of stalls. Knows ranks, hosts and bytes, not what they mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcrec.comm.library import MPI
from hpcrec.comm.progress import AFTER, BEFORE, FROM, TO, Hop, Lane
from hpcrec.comm.window import Windows
from hpcrec.errors import HpcrecError
from hpcrec.types import Ints

_TAG, _ALONE, _PEER = 2, 3, 4
_MOST_UNITS = 2**31 - 1
# From rank to rank, in the mean of two hosts: from here on each rank sends to its peers, and to every rank.
PEER_BYTES, ALONE_BYTES = 8192, 65536
FEW = 16  # messages of a rank in a phase: as many as peers have to save
NOTHING, TOGETHER, PEERS, ALONE = range(4)
"""What crosses from one host to another: no byte, one message, one of each rank, one of each rank to each."""
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
    own, other : int
        Numbers of this host, and of that one.
    """

    there: Ints
    gate: int
    other_gate: int
    own: int
    other: int

    def peer(self, place: int) -> int:
        """The rank there to which the rank of this host with that place sends, where each sends to one.

        Another one for each host that sends, so that hosts of few ranks do not all send to the first.
        """
        return int(self.there[(place + self.own) % len(self.there)])

    def takers(self, ranks: int) -> Ints:
        """The places of those of so many ranks of this host to whom each rank there sends then [M]."""
        return (np.arange(len(self.there)) + self.other) % ranks

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
    return [Pair(np.array(ranks_of[hosts[n]]), gate(own, n), gate(n, own), own, n) for n in others]


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
            Messages that this rank has sent: to its host, to peers and others, and as a gate for all of its host.

        Raises
        ------
        HpcrecError
            More than one message can have crosses between two hosts; a message is not as long as who receives it has
            been told.
        """
        windows, self._lane.hop = self._windows, self._before
        turn = windows.begin(sent_at_R, sent_bytes_R, recv_bytes_R)
        sizes_LR, due_LR = (np.stack([of(rank, turn) for rank in self._local]) for of in (windows.sizes, windows.due))
        out, coming_in = self._how(sizes_LR), self._how(due_LR)
        coming = self._received(due_LR, coming_in)
        coming += self._received_alone(coming_in, recv, recv_at_R, recv_bytes_R)
        sends, to = list[MPI.Request](), list[int]()
        for rank, tag, message in self._sent(out, turn, sent_bytes_R):
            sends.append(self._comm.Isend(self._buffer(message, rank), rank, tag))
            to.append(rank)
        windows.take(turn, recv, recv_at_R, recv_bytes_R)  # of this host, while others are on their way
        self._wait(coming, sends, to)
        if any(how in (TOGETHER, PEERS) for how in coming_in):
            self._lane.hop = self._after
            windows.meet()
        for pair, how in zip(self._pairs, coming_in, strict=True):
            if how in (TOGETHER, PEERS):
                self._take(pair, how, recv, recv_at_R, recv_bytes_R, due_LR)
        messages_R = np.zeros(len(sent_bytes_R), np.int64)
        messages_R[self._local] = sent_bytes_R[self._local] > 0
        messages_R[to] = 1
        return messages_R

    def _how(self, bytes_LR: Ints) -> list[int]:
        """Of each pair, how what there is crosses one way, by numbers that ranks of both hosts have."""
        found = list[int]()
        for pair in self._pairs:
            n_bytes = int(bytes_LR[:, pair.there].sum())
            each = n_bytes / (len(self._local) * len(pair.there))
            if not n_bytes:
                found.append(NOTHING)
            elif each < PEER_BYTES:
                found.append(TOGETHER)
            else:  # numbers that both hosts have: of ranks, and of hosts
                saved = len(self._pairs) * (min(len(self._local), len(pair.there)) - 1)
                found.append(PEERS if each < ALONE_BYTES and saved >= FEW else ALONE)
        return found

    def _sent(self, out: Sequence[int], turn: int, sent_bytes_R: Ints) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        """What this rank sends: to whom, by which tag, and the message."""
        for pair, how in zip(self._pairs, out, strict=True):
            if how == TOGETHER and pair.gate == self._comm.rank:
                yield pair.other_gate, _TAG, self._outgoing(pair, turn, self._local)
            elif how == PEERS and sent_bytes_R[pair.there].any():
                yield pair.peer(self._place), _PEER, self._outgoing(pair, turn, [self._comm.rank])
            elif how == ALONE:
                for rank in pair.there[sent_bytes_R[pair.there] > 0].tolist():
                    yield rank, _ALONE, self._windows.part(self._comm.rank, turn, rank, int(sent_bytes_R[rank]))

    def _received(self, due_LR: Ints, coming_in: Sequence[int]) -> list[_Coming]:
        """Begins to receive what comes for this host by this rank: requests, bytes of each, and who sends them."""
        mine = list[tuple[int, int, int, int]]()  # who sends it, by which tag, its bytes, and the number to note it by
        for pair, how in zip(self._pairs, coming_in, strict=True):
            if how == TOGETHER and pair.gate == self._comm.rank:
                mine.append((pair.other_gate, _TAG, int(due_LR[:, pair.there].sum()), int(pair.there[0])))
            elif how == PEERS:
                for rank in pair.there[pair.takers(len(self._local)) == self._place].tolist():
                    mine.append((rank, _PEER, int(due_LR[:, rank].sum()), rank))
        room, at, found = self._windows.relay(sum(n_bytes for _, _, n_bytes, _ in mine)), 0, list[_Coming]()
        for sender, tag, n_bytes, number in mine:
            self._windows.note(number, at)
            if n_bytes:
                buffer = self._buffer(room[at : at + n_bytes], sender)
                found.append((self._comm.Irecv(buffer, sender, tag), n_bytes, sender))
            at += n_bytes
        return found

    def _received_alone(
        self, coming_in: Sequence[int], recv: NDArray[np.uint8], recv_at_R: Ints, recv_bytes_R: Ints
    ) -> list[_Coming]:
        """Likewise what comes from each rank by itself."""
        found = list[_Coming]()
        for pair, how in zip(self._pairs, coming_in, strict=True):
            for rank in pair.there[recv_bytes_R[pair.there] > 0].tolist() if how == ALONE else ():
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

    def _outgoing(self, pair: Pair, turn: int, ranks: Sequence[int]) -> NDArray[np.uint8]:
        """What ranks of this host send to those of the other one: by who sends it, and then by who receives it."""
        parts = []
        for rank in ranks:
            sizes = self._windows.sizes(rank, turn)[pair.there]
            if pair.consecutive:  # so are its messages to them
                parts.append(self._windows.part(rank, turn, int(pair.there[0]), int(sizes.sum())))
            else:
                to = zip(pair.there.tolist(), sizes.tolist(), strict=True)
                parts += [self._windows.part(rank, turn, there, n_bytes) for there, n_bytes in to if n_bytes]
        if len(parts) == 1:
            return parts[0]  # it stays until the next message but one
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)

    def _take(
        self, pair: Pair, how: int, recv: NDArray[np.uint8], recv_at_R: Ints, recv_bytes_R: Ints, due_LR: Ints
    ) -> None:
        """Copies what has come from the other host's ranks for this one."""
        if not recv_bytes_R[pair.there].any():
            return
        windows, of_senders = self._windows, due_LR[:, pair.there].sum(axis=0)
        before_M = due_LR[: self._place, pair.there].sum(axis=0)  # for ranks of this host before this one
        if how == TOGETHER:
            at_M = windows.noted(pair.gate, int(pair.there[0])) + np.cumsum(of_senders) - of_senders
            by = [pair.gate] * len(pair.there)
        else:
            by = [self._local[place] for place in pair.takers(len(self._local)).tolist()]
            at_M = np.array([windows.noted(rank, number) for rank, number in zip(by, pair.there.tolist(), strict=True)])
        for m, sender in enumerate(pair.there.tolist()):
            n_bytes, to = int(recv_bytes_R[sender]), int(recv_at_R[sender])
            if n_bytes:
                recv[to : to + n_bytes] = windows.relayed(by[m], int(at_M[m] + before_M[m]), n_bytes)
