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
from hpcrec.comm.window import CROSSES, MEETS, TAKEN, Task, Windows
from hpcrec.errors import HpcrecError
from hpcrec.types import Ints

_TAG, _ALONE, _PEER = 2, 3, 4
_MOST_UNITS = 2**31 - 1
# From rank to rank, in the mean of two hosts: from here on each rank sends to its peers, and to every rank.
PEER_BYTES, ALONE_BYTES = 8192, 65536
FEW = 16  # messages of a rank in a phase: as many as peers have to save
TOGETHER, ALONE = 1, 3  # how messages cross, as the native module numbers it; 2: one of each rank, to its peer
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
        # Of each pair: where its ranks begin among those of all, and who of this host takes what comes from each there.
        ranks = len(self._local)
        self._begins = np.cumsum([0] + [len(pair.there) for pair in pairs]).tolist()
        self._takers = [pair.takers(ranks) for pair in pairs]
        windows.set_others(
            [rank for pair in pairs for rank in pair.there.tolist()],
            self._begins,
            [self._local.index(pair.gate) for pair in pairs],
            np.concatenate(self._takers).tolist(),
            # Whether peers save enough, by numbers that both hosts have: of hosts, and of ranks.
            [len(pairs) * (min(ranks, len(pair.there)) - 1) >= FEW for pair in pairs],
            PEER_BYTES,
            ALONE_BYTES,
        )

    def swap(self, recv: NDArray[np.uint8], sent_bytes_R: Ints, recv_bytes_R: Ints) -> int:
        """Gives the messages in this rank's window to all ranks, and copies theirs to ``recv``; collective.

        The phase has begun (``Windows.begin``).

        Parameters
        ----------
        recv : uint8, flat
        sent_bytes_R, recv_bytes_R : int64 [R]
            As it has begun with.

        Returns
        -------
        int
            Messages that this rank has sent to other hosts: its own, and as a gate for all of its host.

        Raises
        ------
        HpcrecError
            More than one message can have crosses between two hosts; a message is not as long as who receives it has
            been told.
        """
        windows, self._lane.hop = self._windows, self._before
        coming, sends, to = list[_Coming](), list[MPI.Request](), list[int]()
        if (halt := self._go(recv)) == CROSSES:
            plan = windows.plan()
            coming = self._received(plan.receives, recv, recv_bytes_R)
            for rank, tag, message in self._sent(plan.sends, sent_bytes_R):
                sends.append(self._comm.Isend(self._buffer(message, rank), rank, tag))
                to.append(rank)
            halt = self._go(recv)  # what is of this host, while others are on their way
        if halt == TAKEN:
            if coming or sends:
                self._wait(coming, sends, to)
            self._lane.hop = self._after
            self._go(recv)
        return len(to)

    def _go(self, recv: NDArray[np.uint8]) -> int:
        while (halt := self._windows.go(recv)) == MEETS:
            self._lane.hop = self._after if self._windows.all_are_there else self._before
        return halt

    def _sent(self, tasks: Sequence[Task], sent_bytes_R: Ints) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        """What this rank sends: to whom, by which tag, and the message."""
        windows, me = self._windows, self._comm.rank
        for host, how, n_bytes in tasks:
            pair = self._pairs[host]
            if how == TOGETHER:
                yield pair.other_gate, _TAG, windows.packed(None, pair.there, n_bytes)
            elif how == ALONE:
                for rank in pair.there[sent_bytes_R[pair.there] > 0].tolist():
                    yield rank, _ALONE, windows.part(me, rank, int(sent_bytes_R[rank]))
            elif pair.consecutive:  # so are the messages to its ranks, and they stay until the next message but one
                yield pair.peer(self._place), _PEER, windows.part(me, int(pair.there[0]), n_bytes)
            else:
                yield pair.peer(self._place), _PEER, windows.packed(me, pair.there, n_bytes)

    def _received(self, tasks: Sequence[Task], recv: NDArray[np.uint8], recv_bytes_R: Ints) -> list[_Coming]:
        """Begins to receive what comes to this rank, for its host or itself: requests, bytes of each, and who sends."""
        found, relays = list[_Coming](), list[tuple[int, int, int, int]]()
        recv_at_R = np.cumsum(recv_bytes_R) - recv_bytes_R
        for host, how, n_bytes in tasks:
            pair = self._pairs[host]
            if how == ALONE:
                for rank in pair.there[recv_bytes_R[pair.there] > 0].tolist():
                    at, many = int(recv_at_R[rank]), int(recv_bytes_R[rank])
                    found.append(self._receive(recv[at : at + many], rank, _ALONE))
            elif how == TOGETHER:
                relays.append((pair.other_gate, _TAG, n_bytes, int(pair.there[0])))
            else:
                for m in np.flatnonzero(self._takers[host] == self._place).tolist():
                    rank = int(pair.there[m])
                    relays.append((rank, _PEER, self._windows.due(self._begins[host] + m), rank))
        if not relays:
            return found
        room, at = self._windows.relay(sum(n_bytes for _, _, n_bytes, _ in relays)), 0
        for sender, tag, n_bytes, number in relays:
            self._windows.note(number, at)
            if n_bytes:
                found.append(self._receive(room[at : at + n_bytes], sender, tag))
            at += n_bytes
        return found

    def _receive(self, into: NDArray[np.uint8], sender: int, tag: int) -> _Coming:
        return self._comm.Irecv(self._buffer(into, sender), sender, tag), len(into), sender

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
