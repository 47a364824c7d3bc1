"""Vectors of bags whose rows are dealt, added among the owners of a host before they cross to another one.

::

    member                        root of the sum (``roots``)                    dense rank of another host
    vectors of its parts -------> adds in the order of members ----------------> one vector a bag
    gradients            <------- those of the bags that each has a part of <--- one gradient a bag

An owner gathers its messages as if it sent them itself. From them come what it gives to roots, through its host's
windows, and the messages that cross: those hold sums, where this owner is their root, and nothing where another one is.
Gradients take the same way back. So vectors are whole when they are added, and a codec writes each message that crosses
once; one that chooses elements chooses of sums, by thresholds of the owner that sends them. Which bags a member has
parts of it says with them; how many a root sends, dense ranks know by themselves. This is the owners' half of
``between_hosts``. Knows places of vectors in messages; does not know where they come from.

Legend: ``P`` dense ranks that ask, ``E`` entries of this owner, ``S`` its streams, ``C`` cells (what a dense rank asks
of an entry) whose vectors are added, ``Q`` streams of cells, ``V`` vectors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.comm.sizes import padded_bytes
from hpcrec.comm.world import World
from hpcrec.exchange.bags import Received, cumulative, ranges
from hpcrec.exchange.codec import Codec
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.roots import Roots
from hpcrec.exchange.vectors import move_vectors
from hpcrec.exchange.work import Served, Spans
from hpcrec.types import Floats, Ints

_HEAD = np.dtype(np.int32)


@dataclass(frozen=True)
class _Cells:
    """Cells of this owner, and for each of them bags of which some owner has a part.

    Attributes
    ----------
    sender_C, entry_C : int64 [C]
        Number of the dense rank among those that ask, and of the entry.
    bags_C : int64 [C]
        How many bags each has.
    bag : int64 [...]
        Samples that they are of, cell by cell.
    """

    sender_C: Ints
    entry_C: Ints
    bags_C: Ints
    bag: Ints

    def some(self, keep_C: NDArray[np.bool_]) -> "_Cells":
        """Those of them."""
        bag = self.bag[np.repeat(keep_C, self.bags_C)]
        return _Cells(self.sender_C[keep_C], self.entry_C[keep_C], self.bags_C[keep_C], bag)


@dataclass(frozen=True)
class _Given:
    """What a member has for the sums of which this owner is the root: the bags of its parts, and their places there."""

    member: int
    cells: _Cells
    slot: Ints


@dataclass(kw_only=True)
class Added:
    """One step's bags that are added, as an owner has them.

    Attributes
    ----------
    served : Served or None
    cells : _Cells
        Those whose vectors are added, with the bags that this owner has parts of.
    root_C : int64 [C]
        World rank that adds each.
    samples : int
        The most bags that a cell is asked for, empty ones too.
    bags_PE, sent_PE : int64 [P, E]
        Vectors of each stream: that this owner gathers, and that it sends.
    given : list of _Given
        Of each member of the sums of which this owner is the root, itself among them.
    """

    served: Served | None
    cells: _Cells
    root_C: Ints
    samples: int
    bags_PE: Ints
    sent_PE: Ints
    given: list[_Given] = field(default_factory=list)

    @property
    def adds(self) -> bool:
        """Whether this owner has a part in sums."""
        return len(self.root_C) > 0


@dataclass(frozen=True)
class Places:
    """Where streams are in messages to, or from, dense ranks.

    Attributes
    ----------
    start_PS : int64 [P, S]
        First element of each.
    tail_P : int64 [P]
        First element behind them.
    bytes_R : int64 [R]
        Of each message, with its padding.
    verdict, verdict_in : int
        Place of the verdict, in gradients: in all, and in the message that has it.
    elements_PS : int64 [P, S]
        Of each stream.
    """

    start_PS: Ints
    tail_P: Ints
    bytes_R: Ints
    verdict: int
    verdict_in: int
    elements_PS: Ints


@dataclass(frozen=True)
class _Streams:
    """Streams of cells, cell by cell: ``bag_Q`` is where the bags of each one's cell begin among those of all."""

    cell_Q: Ints
    stream_Q: Ints
    width_Q: Ints
    n_Q: Ints
    bag_Q: Ints

    @property
    def packed_Q(self) -> Ints:
        """Where each begins, if they lie one after the other."""
        return cumulative(self.n_Q * self.width_Q)[:-1]

    @property
    def elements(self) -> int:
        """Of all of them."""
        return int((self.n_Q * self.width_Q).sum())


class HostSums:
    """One rank's part in them.

    Parameters
    ----------
    world : World
    layout : Layout
    dtype : numpy float type
    codec : Codec
        Of what crosses.
    teller : int
        The dense rank that tells this one the verdict (``verdict``); -1 for none.
    """

    def __init__(self, world: World, layout: Layout, dtype: np.dtype[Any], codec: Codec, teller: int) -> None:
        topology, leg = world.topology, layout.legs.get(world.topology.rank)
        roots = Roots(layout, topology.dense, topology.host_of)
        self._rank, self._size, self._teller = topology.rank, topology.size, teller
        self._dtype, self._codec = np.dtype(dtype), codec
        self._owners = world.host_owners if roots.on_host(topology.rank) and topology.is_owner else None
        entries, streams = ((), ()) if leg is None else (leg.entries, leg.streams)
        number = {entry.features: e for e, entry in enumerate(entries)}
        self._entry_B = np.array([number.get(form.features, -1) for form in layout.bundled()], np.int64)
        self._adds_E = np.array([entry.features[0] in layout.added for entry in entries], bool)
        self._n_valued = 0 if leg is None else leg.n_value_streams
        self._entry_S = np.array([s.entry for s in streams], np.int64)
        self._width_S = np.array([s.width for s in streams], np.int64)
        self._n_streams_E = np.bincount(self._entry_S, minlength=len(entries))
        self._first_stream_E = np.searchsorted(self._entry_S, np.arange(len(entries)))  # those of an entry are together
        self._root_RE = np.full((self._size, len(entries)), -1, np.int64)  # -1: vectors are sent as they are
        for e, entry in enumerate(entries):
            for d in topology.dense:
                if roots.adds(entry.features, topology.rank, d):
                    self._root_RE[d, e] = roots.of(entry.features, topology.rank, d)
        owners = () if self._owners is None else self._owners.ranks
        members_E = [roots.members(entry.features, topology.rank) for entry in entries]
        self._member_LE = np.array([[rank in of for of in members_E] for rank in owners], bool)

    def without_empty(self, received: Received) -> Received:
        """What an owner was asked, but for empty bags of what is added, which are answered by nothing."""
        left_V, number_V = self._empty(received)
        cells = received.cells.copy()
        cells[:, 3] -= np.bincount(number_V[left_V], minlength=len(cells))
        return replace(received, cells=cells, offsets=cumulative(np.diff(received.offsets)[~left_V]))

    def _empty(self, received: Received) -> tuple[NDArray[np.bool_], Ints]:
        """Which bags are left out, and the number of each one's cell."""
        cells = received.cells
        adds_N = self._adds_E[self._entry_B[cells[:, 1]]]
        left_V = np.repeat(adds_N, cells[:, 3]) & (np.diff(received.offsets) == 0)
        return left_V, np.repeat(np.arange(len(cells)), cells[:, 3])

    def added(self, served: Served | None, received: Received | None) -> Added:
        """One step's; ``received`` as it came, with empty bags; None where nothing is held."""
        none = np.zeros(0, np.int64)
        if received is None:
            table = none.reshape(0, len(self._adds_E))
            cells = _Cells(none, none, none, none)
            return Added(served=served, cells=cells, root_C=none, samples=0, bags_PE=table, sent_PE=table)
        asked_N4, (left_V, number_V) = received.cells, self._empty(received)
        entry_N = self._entry_B[asked_N4[:, 1]]
        bags_PE = np.zeros((len(received.senders), len(self._adds_E)), np.int64)
        bags_N = np.bincount(number_V[~left_V], minlength=len(asked_N4))
        bags_PE[asked_N4[:, 0], entry_N] = bags_N
        root_N = self._root_RE[received.senders[asked_N4[:, 0]], entry_N]
        adds_N = root_N >= 0
        bag_V = np.arange(len(number_V)) - cumulative(asked_N4[:, 3])[:-1][number_V]
        mine = _Cells(asked_N4[adds_N, 0], entry_N[adds_N], bags_N[adds_N], bag_V[~left_V & adds_N[number_V]])
        samples = int(asked_N4[adds_N, 3].max()) if adds_N.any() else 0
        sent_PE = np.where(self._root_RE[received.senders] >= 0, 0, bags_PE)
        return Added(
            served=served,
            cells=mine,
            root_C=root_N[adds_N],
            samples=samples,
            bags_PE=bags_PE,
            sent_PE=sent_PE,
        )

    def sum(self, added: Added, flat: Floats, *, train: bool) -> tuple[Floats, Ints, Spans] | None:
        """Values of this owner's messages -> those that it sends, their sizes, and where streams are in them.

        Collective in the host. None where it sends them as they are.
        """
        if self._owners is None:
            return None
        came, found = self._give(added, flat), None
        if added.adds:
            self._meet(added, came)
            found = self._summed(added, flat, came)
        if not train:
            added.given = []
        return found

    def crossing(self, added: Added) -> Places | None:
        """Where the gradients are that come for what it has sent; None where they are those of its messages."""
        return self._places(added, added.sent_PE, gradients=True) if added.adds else None

    def part(self, added: Added, came: Floats, crossing: Places | None, room: Callable[[Ints], Floats]) -> Floats:
        """Gradients that came -> of this owner's messages, in ``room`` of their sizes; collective in the host."""
        if crossing is not None:
            return self._parted(added, came, crossing, room)
        if self._owners is not None:
            self._owners.alltoallv(*self._nothing(), "gradients")
        return came

    def _nothing(self) -> tuple[NDArray[np.uint8], Ints, Ints]:
        assert self._owners is not None
        none_L = np.zeros(self._owners.size, np.int64)
        return self._owners.message(none_L, np.uint8), none_L, none_L.copy()

    def _streams(self, cells: _Cells) -> _Streams:
        """Those that answer cells."""
        n_C = self._n_streams_E[cells.entry_C]
        stream_Q = ranges(self._first_stream_E[cells.entry_C], n_C)
        cell_Q = np.repeat(np.arange(len(n_C)), n_C)
        bag_Q = cumulative(cells.bags_C)[:-1][cell_Q]
        return _Streams(cell_Q, stream_Q, self._width_S[stream_Q], cells.bags_C[cell_Q], bag_Q)

    def _places(self, added: Added, bags_PE: Ints, *, gradients: bool) -> Places:
        """Of messages with so many vectors; partial results follow them, and the verdict."""
        assert added.served is not None, "it is asked for something"
        spans, item, n = added.served.spans, self._dtype.itemsize, None if gradients else self._n_valued
        counts_PS = bags_PE[:, self._entry_S[:n]] * self._width_S[:n]
        tail_P = _tails(spans)
        elements_R = np.zeros(self._size, np.int64)
        elements_R[spans.ranks_P] = counts_PS.sum(axis=1) + tail_P
        verdict_in = int(elements_R[self._teller])
        if gradients:
            elements_R[self._teller] += 1
        bytes_R = padded_bytes(elements_R * item)
        at_R = cumulative(bytes_R) // item
        start_PS = at_R[spans.ranks_P][:, None] + np.cumsum(counts_PS, axis=1) - counts_PS
        return Places(
            start_PS=start_PS,
            tail_P=at_R[spans.ranks_P] + counts_PS.sum(axis=1),
            bytes_R=bytes_R,
            verdict=int(at_R[self._teller]) + verdict_in,
            verdict_in=verdict_in,
            elements_PS=counts_PS,
        )

    def _give(self, added: Added, flat: Floats) -> list[NDArray[np.uint8]]:
        """Vectors that other owners of this host add, and which bags they are of, cross to these; what came of each."""
        assert self._owners is not None
        pieces, bytes_L = [], np.zeros(self._owners.size, np.int64)
        places = self._places(added, added.bags_PE, gradients=False) if added.adds else None
        for place, rank in enumerate(self._owners.ranks):
            cells = added.cells.some(added.root_C == rank)
            if rank != self._rank and len(cells.bags_C):
                streams = self._streams(cells)
                head = np.concatenate([cells.bags_C, cells.bag]).astype(_HEAD)
                pieces.append((cells, streams, head))
                bytes_L[place] = _head_bytes(len(head)) + _float_bytes(streams.elements, self._dtype)
        message, at = self._owners.message(bytes_L, np.uint8), 0
        for cells, streams, head in pieces:
            assert places is not None
            message[at : at + head.nbytes] = head.view(np.uint8)
            at += _head_bytes(len(head))
            room = message[at : at + _float_bytes(streams.elements, self._dtype)]
            from_Q = places.start_PS[cells.sender_C[streams.cell_Q], streams.stream_Q]
            _move(flat, room.view(self._dtype), streams, from_Q, streams.packed_Q)
            at += len(room)
        return self._owners.alltoallv_told(message, bytes_L, "values")

    def _meet(self, added: Added, came: Sequence[NDArray[np.uint8]]) -> None:
        """Which bags the members of this owner's sums have parts of, and where these are among those of each sum."""
        assert self._owners is not None
        own = added.cells.some(added.root_C == self._rank)
        found: list[tuple[int, Ints, _Cells]] = []
        for rank, piece, member_E in zip(self._owners.ranks, came, self._member_LE, strict=True):
            keep_C = member_E[own.entry_C]
            number_C, n = np.flatnonzero(keep_C), int(keep_C.sum())
            if rank == self._rank:
                found.append((rank, number_C, own))
            elif n:
                bags_C = piece[: n * _HEAD.itemsize].view(_HEAD).astype(np.int64)
                words = piece[: (n + int(bags_C.sum())) * _HEAD.itemsize].view(_HEAD)
                cells = _Cells(own.sender_C[keep_C], own.entry_C[keep_C], bags_C, words[n:].astype(np.int64))
                found.append((rank, number_C, cells))
        some_CB = np.zeros((len(own.bags_C), added.samples), bool)
        for _, number_C, cells in found:
            some_CB[np.repeat(number_C, cells.bags_C), cells.bag] = True
        slot_CB = np.cumsum(some_CB, axis=1) - 1
        added.sent_PE[own.sender_C, own.entry_C] = some_CB.sum(axis=1)
        added.given = [
            _Given(rank, cells, slot_CB[np.repeat(number_C, cells.bags_C), cells.bag])
            for rank, number_C, cells in found
        ]

    def _summed(self, added: Added, flat: Floats, came: Sequence[NDArray[np.uint8]]) -> tuple[Floats, Ints, Spans]:
        """The messages that cross, their sizes, and where streams are in them."""
        assert self._owners is not None and added.served is not None
        whole = self._places(added, added.bags_PE, gradients=False)
        crossing = self._places(added, added.sent_PE, gradients=False)
        message = self._codec.message(crossing.bytes_R)
        message[:] = 0.0  # sums begin with it
        self._pass_on(added, (flat, whole), (message, crossing))
        by_rank = dict(zip(self._owners.ranks, came, strict=True))
        for given in added.given:
            streams, source = self._streams(given.cells), flat
            at = given.cells.sender_C[streams.cell_Q], streams.stream_Q
            from_Q = whole.start_PS[at]
            if given.member != self._rank:
                words = len(given.cells.bags_C) + len(given.cells.bag)
                source = by_rank[given.member][_head_bytes(words) :].view(self._dtype)
                from_Q = streams.packed_Q
            _move(source, message, streams, from_Q, crossing.start_PS[at], to_slot=given.slot, accumulate=True)
        spans, begin_P = added.served.spans, crossing.tail_P - crossing.elements_PS.sum(axis=1)
        ends_P = crossing.tail_P + _tails(spans)
        return message, crossing.bytes_R, replace(spans, at_P=begin_P, end_P=ends_P, elements_PS=crossing.elements_PS)

    def _pass_on(self, added: Added, source: tuple[Floats, Places], target: tuple[Floats, Places]) -> None:
        """What is not added, from messages to messages: vectors, and what follows them."""
        assert added.served is not None
        (here, from_), (there, to) = source, target
        spans, n = added.served.spans, from_.start_PS.shape[1]
        as_they_are_PE = self._root_RE[spans.ranks_P] < 0
        p_Q, stream_Q = np.nonzero(as_they_are_PE[:, self._entry_S[:n]])
        n_Q = added.bags_PE[p_Q, self._entry_S[stream_Q]]
        streams = _Streams(p_Q, stream_Q, self._width_S[stream_Q], n_Q, cumulative(n_Q)[:-1])
        _move(here, there, streams, from_.start_PS[p_Q, stream_Q], to.start_PS[p_Q, stream_Q])
        tails = _tails(spans)
        for at, to_at, size in zip(from_.tail_P.tolist(), to.tail_P.tolist(), tails.tolist(), strict=True):
            there[to_at : to_at + size] = here[at : at + size]

    def _parted(self, added: Added, came: Floats, crossing: Places, room: Callable[[Ints], Floats]) -> Floats:
        """Gradients of messages as they cross -> of messages as this owner has them."""
        assert self._owners is not None and added.served is not None
        whole = self._places(added, added.bags_PE, gradients=True)
        out = room(whole.bytes_R)
        self._pass_on(added, (came, crossing), (out, whole))
        out[whole.verdict] = came[crossing.verdict]
        given = {g.member: (g, self._streams(g.cells)) for g in added.given}
        asked = {rank: added.cells.some(added.root_C == rank) for rank in self._owners.ranks if rank != self._rank}
        mine = {rank: (cells, self._streams(cells)) for rank, cells in asked.items()}  # that other owners add
        bytes_L, due_L = np.zeros(self._owners.size, np.int64), np.zeros(self._owners.size, np.int64)
        for place, rank in enumerate(self._owners.ranks):
            if rank != self._rank:
                bytes_L[place] = _float_bytes(given[rank][1].elements, self._dtype) if rank in given else 0
                due_L[place] = _float_bytes(mine[rank][1].elements, self._dtype)
        message, item = self._owners.message(bytes_L, self._dtype), self._dtype.itemsize
        at_L = dict(zip(self._owners.ranks, (cumulative(bytes_L) // item).tolist(), strict=False))
        for member, (g, streams) in given.items():
            where = g.cells.sender_C[streams.cell_Q], streams.stream_Q
            to, to_Q = message, at_L[member] + streams.packed_Q
            if member == self._rank:
                to, to_Q = out, whole.start_PS[where]
            _move(came, to, streams, crossing.start_PS[where], to_Q, from_slot=g.slot)
        got = self._owners.alltoallv(message, bytes_L, due_L, "gradients")
        at_L = dict(zip(self._owners.ranks, (cumulative(due_L) // item).tolist(), strict=False))
        for rank, (cells, streams) in mine.items():
            to_Q = whole.start_PS[cells.sender_C[streams.cell_Q], streams.stream_Q]
            _move(got, out, streams, at_L[rank] + streams.packed_Q, to_Q)
        added.given = []
        return out


def _tails(spans: Spans) -> Ints:
    """Elements of partial results in each message."""
    return spans.end_P - spans.at_P - spans.elements_PS.sum(axis=1)


def _head_bytes(words: int) -> int:
    return int(padded_bytes(np.array(words * _HEAD.itemsize)))


def _float_bytes(elements: int, dtype: np.dtype[Any]) -> int:
    return int(padded_bytes(np.array(elements * dtype.itemsize)))


def _move(
    source: Floats,
    target: Floats,
    streams: _Streams,
    from_Q: Ints,
    to_Q: Ints,
    *,
    from_slot: Ints | None = None,
    to_slot: Ints | None = None,
    accumulate: bool = False,
) -> None:
    """Vectors of streams, which begin there; slots: the place of each bag among a stream's vectors, else its number."""
    slots = {"bag_Q": streams.bag_Q, "from_slot": from_slot, "to_slot": to_slot}
    move_vectors(source, target, streams.width_Q, streams.n_Q, from_Q, to_Q, **slots, accumulate=accumulate)
