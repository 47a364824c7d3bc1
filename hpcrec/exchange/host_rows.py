"""Rows that several dense ranks of a host want, asked for once, and their gradients, added before they cross.

::

    dense rank                    runner of the rows (``runners``)              owner on another host
    distinct rows ------ ids ---> each once, rising -------------------- ids ->
                 <--- values ---  those that each has asked for  <---- values -- one vector a row, written by the codec
    gradients -----------------> adds in the order of ranks  ------ gradients -> one a row

An owner is asked, and answers, as ever: by runners alone. A dense rank has its messages as if owners had answered it
itself; what crosses is put together here, and taken apart. Inside a host ids and vectors cross as they are, so that
sums are made before a codec writes them, once. This is the dense ranks' half of ``between_hosts``. Knows places of
vectors in messages; does not know what they are of.

Legend: ``E`` entries of all owners, ``S`` their streams, ``L`` dense ranks of this host, ``Q`` entries that this rank
runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.sizes import padded_bytes
from hpcrec.comm.world import World
from hpcrec.exchange.bags import Entries, Requests, cumulative, ranges
from hpcrec.exchange.dense_places import MessagePlaces, Streams, Tails
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.runners import Runners
from hpcrec.exchange.vectors import move_vectors
from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class Together:
    """One step's rows that ranks of a host ask for together.

    Attributes
    ----------
    asked_E : int64 [E]
        Bags that this rank asks of owners, for its host.
    wanted_LQ : int64 [L, Q]
        Of entries that this rank runs: rows that each rank of the host wants.
    slot : int64 [...]
        The place of each of these among the rows that are asked for, by rank, entry and row.
    bags_E : int64 [E]
        Vectors that answer this rank, whoever asks for them.
    whole, crossing : MessagePlaces or None
        Of messages as this rank has them, and as they cross.
    tails : Tails or None
    """

    asked_E: Ints
    wanted_LQ: Ints
    slot: Ints
    bags_E: Ints
    whole: MessagePlaces | None = None
    crossing: MessagePlaces | None = None
    tails: Tails | None = None


@dataclass(frozen=True)
class _Run:
    """Streams of some entries: whose they are, and how wide; ``entry_Q`` is the number of each one's among those."""

    stream_Q: Ints
    entry_Q: Ints
    width_Q: Ints

    def packed(self, n_Q: Ints) -> Ints:
        """Where each begins, if they lie one after the other."""
        return cumulative(n_Q * self.width_Q)[:-1]

    def elements(self, n_Q: Ints) -> int:
        """Of all of them."""
        return int((n_Q * self.width_Q).sum())


class HostAsks:
    """What dense ranks of a host ask of owners on others, together.

    Parameters
    ----------
    runners : Runners
    rank : int
        This one, in the world.
    entries : Entries
        Of all owners, as every dense rank of the host has them.
    ranks : Collectives
        Dense ranks of this host, of the thread that asks.

    Attributes
    ----------
    place : int
        This rank's among those of its host.
    alone_E : bool [E]
        What each asks for by itself.
    run_by : list of int64 arrays
        By rank of the host: the entries that it runs, rising.
    """

    def __init__(self, runners: Runners, rank: int, entries: Entries, ranks: Collectives) -> None:
        self._ranks, self._entries = ranks, entries
        self.place = ranks.ranks.index(rank)
        names = entries.names()
        runner_E = np.array([runners.of(f, o, rank) if runners.merges(f, o, rank) else -1 for o, f in names], np.int64)
        self.alone_E = runner_E < 0
        self.run_by = [np.flatnonzero(runner_E == other) for other in ranks.ranks]

    def merge(self, requests: Requests) -> tuple[Requests, Together]:
        """What this rank wants -> what it asks for, for its host; collective in the host."""
        asked, ranks = np.flatnonzero(requests.bags_E), self._ranks
        ids_E = np.zeros(len(requests.bags_E), np.int64)
        ids_E[asked] = requests.cells[:, 2]
        first_E = cumulative(ids_E)[:-1]
        pieces, bytes_L = list[tuple[Ints, Ints]](), np.zeros(ranks.size, np.int64)
        for place, run in enumerate(self.run_by):
            pieces.append((ids_E[run], requests.ids[ranges(first_E[run], ids_E[run])]))
            if place != self.place:
                bytes_L[place] = padded_bytes(np.array(sum(part.nbytes for part in pieces[-1])))
        message, at = ranks.message(bytes_L, np.uint8), 0
        for place, mine in enumerate(pieces):
            if place != self.place:
                words = np.concatenate(mine)
                message[at : at + words.nbytes] = words.view(np.uint8)
                at += int(bytes_L[place])
        came = ranks.alltoallv_told(message, bytes_L, "ids")
        own, n = self.run_by[self.place], len(self.run_by[self.place])
        wanted_LQ, parts = np.zeros((ranks.size, n), np.int64), list[Ints]()
        for place, piece in enumerate(came):
            if place == self.place:
                wanted_LQ[place], ids = pieces[place]
            elif n:
                wanted_LQ[place] = piece[: 8 * n].view(np.int64)
                ids = piece[8 * n : 8 * (n + int(wanted_LQ[place].sum()))].view(np.int64)
            else:
                continue
            parts.append(ids)
        number = np.repeat(np.tile(np.arange(n), ranks.size), wanted_LQ.reshape(-1)) if n else np.zeros(0, np.int64)
        union, union_Q, slot = union_of(number, np.concatenate(parts) if n else number, n)
        asked_E = np.where(self.alone_E, requests.bags_E, 0)
        asked_E[own] = union_Q
        together = Together(asked_E, wanted_LQ, slot, requests.bags_E)
        return self._asking(requests, ids_E, own, union, asked_E), together

    def _asking(self, requests: Requests, ids_E: Ints, own: Ints, union: Ints, asked_E: Ints) -> Requests:
        """The requests with these rows in place of what is asked together."""
        asks_ids_E = np.where(self.alone_E, ids_E, 0)
        asks_ids_E[own] = asked_E[own]
        alone = np.flatnonzero(self.alone_E)

        def put(old: Ints, old_E: Ints, new_E: Ints, joint: Ints) -> Ints:
            out, at_E = np.empty(int(new_E.sum()), np.int64), cumulative(new_E)[:-1]
            out[ranges(at_E[alone], new_E[alone])] = old[ranges(cumulative(old_E)[alone], old_E[alone])]
            out[ranges(at_E[own], new_E[own])] = joint
            return out

        ids = put(requests.ids, ids_E, asks_ids_E, union)
        lengths = put(requests.lengths, requests.bags_E, asked_E, np.ones(len(union), np.int64))
        asked, entries = np.flatnonzero(asked_E), self._entries
        columns = entries.owner_E[asked], entries.bundle_E[asked], asks_ids_E[asked], asked_E[asked]
        cells, none = np.stack(columns, axis=1), np.zeros(0, np.int64)  # whose bag each is says what is wanted
        return replace(requests, ids=ids, lengths=lengths, bag=none, cells=cells, bags_E=asked_E)

    def handed(self, requests: Requests) -> Ints:
        """Rows of each entry that another rank of the host asks for, for this one, int64 [E]."""
        others = [run for place, run in enumerate(self.run_by) if place != self.place]
        return np.where(np.isin(np.arange(len(self.alone_E)), np.concatenate(others)), requests.bags_E, 0)

    def sent_E(self, together: Together, bags_E: Ints) -> Ints:
        """Vectors that owners send this rank, where they would send so many if each asked by itself: int64 [E]."""
        return np.where(self.alone_E, bags_E, together.asked_E)


class HostRows:
    """One dense rank's part in them.

    Parameters
    ----------
    asks : HostAsks
    streams : Streams
        Of all owners.
    lane : Collectives
        Dense ranks of this host: of the thread that values and gradients cross by.
    dtype : numpy float type

    Attributes
    ----------
    asks : HostAsks
    """

    def __init__(self, asks: HostAsks, streams: Streams, lane: Collectives, dtype: np.dtype[Any]) -> None:
        self.asks, self._lane, self._dtype = asks, lane, np.dtype(dtype)
        self._place, self._run_by = asks.place, asks.run_by
        self._streams_by = [self._streams(streams, mine) for mine in self._run_by]
        kept_S = asks.alone_E[streams.entry_S]
        kept = {"values": np.flatnonzero(kept_S & streams.valued_S), "gradients": np.flatnonzero(kept_S)}
        self._kept = {tag: (of, _runs(of, streams.owner_S[of])) for tag, of in kept.items()}
        self._entry_S, self._width_S = streams.entry_S, streams.width_S

    @staticmethod
    def _streams(streams: Streams, entries: Ints) -> _Run:
        stream_Q = np.flatnonzero(np.isin(streams.entry_S, entries))
        return _Run(stream_Q, np.searchsorted(entries, streams.entry_S[stream_Q]), streams.width_S[stream_Q])

    def forward(self, of: Together, came: Floats) -> Floats:
        """Values that crossed -> of this rank's messages; collective in the host."""
        assert of.whole is not None and of.crossing is not None and of.tails is not None, "it is placed first"
        whole, crossing = of.whole, of.crossing
        out: Floats = np.empty(int(whole.value_bytes_R.sum()) // self._dtype.itemsize, self._dtype)
        self._pass_on(of, "values", (came, crossing.value_S), (out, whole.value_S))
        _copy_tails((came, crossing.value_tail_R), (out, whole.value_tail_R), of.tails.partial_R)
        mine, bytes_L = self._streams_by[self._place], self._bytes(of, runs=True)
        message, at_L = self._lane.message(bytes_L, self._dtype), cumulative(bytes_L) // self._dtype.itemsize
        for place, (n_Q, bag_Q) in enumerate(self._wanted(of)):
            to, to_Q = (message, at_L[place] + mine.packed(n_Q))
            if place == self._place:
                to, to_Q = out, whole.value_S[mine.stream_Q]
            from_Q = crossing.value_S[mine.stream_Q]
            move_vectors(came, to, mine.width_Q, n_Q, from_Q, to_Q, bag_Q=bag_Q, from_slot=of.slot)
        due_L = self._bytes(of, runs=False)
        got = self._lane.alltoallv(message, bytes_L, due_L.copy(), "values")
        for run, n_Q, at in self._asked(of, due_L):
            move_vectors(got, out, run.width_Q, n_Q, at + run.packed(n_Q), whole.value_S[run.stream_Q])
        return out

    def backward(self, of: Together, flat: Floats, room: Callable[[Ints], Floats]) -> Floats:
        """Gradients of this rank's messages -> of those that cross, in ``room`` of their sizes; collective as that."""
        assert of.whole is not None and of.crossing is not None and of.tails is not None, "it is placed first"
        whole, crossing, tails = of.whole, of.crossing, of.tails
        bytes_L, due_L = self._bytes(of, runs=False), self._bytes(of, runs=True)
        message = self._lane.message(bytes_L, self._dtype)
        for run, n_Q, at in self._asked(of, bytes_L):
            move_vectors(flat, message, run.width_Q, n_Q, whole.gradient_S[run.stream_Q], at + run.packed(n_Q))
        got = self._lane.alltoallv(message, bytes_L, due_L.copy(), "gradients")
        out = room(crossing.gradient_bytes_R)
        out[:] = 0.0  # sums begin with it
        self._pass_on(of, "gradients", (flat, whole.gradient_S), (out, crossing.gradient_S))
        n_R = tails.partial_R + tails.told_R
        _copy_tails((flat, whole.gradient_tail_R), (out, crossing.gradient_tail_R), n_R)
        mine, at_L = self._streams_by[self._place], cumulative(due_L) // self._dtype.itemsize
        to_Q = crossing.gradient_S[mine.stream_Q]
        for place, (n_Q, bag_Q) in enumerate(self._wanted(of)):
            source, from_Q = got, at_L[place] + mine.packed(n_Q)
            if place == self._place:
                source, from_Q = flat, whole.gradient_S[mine.stream_Q]
            slots = {"bag_Q": bag_Q, "to_slot": of.slot}
            move_vectors(source, out, mine.width_Q, n_Q, from_Q, to_Q, **slots, accumulate=True)
        return out

    def _bytes(self, of: Together, *, runs: bool) -> Ints:
        """Bytes of vectors between this rank and each of its host: of rows that it runs, or that are run for it."""
        elements_L = np.zeros(self._lane.size, np.int64)
        if runs:
            elements_L[:] = [self._streams_by[self._place].elements(n_Q) for n_Q, _ in self._wanted(of)]
        else:
            elements_L[:] = [run.elements(self._n(of, p)[run.entry_Q]) for p, run in enumerate(self._streams_by)]
        elements_L[self._place] = 0
        return padded_bytes(elements_L * self._dtype.itemsize)

    def _n(self, of: Together, place: int) -> Ints:
        """Rows of each entry that a rank of this host runs for this one."""
        return of.bags_E[self._run_by[place]]

    def _wanted(self, of: Together) -> list[tuple[Ints, Ints]]:
        """By rank of this host: how many rows of each stream that this rank runs, and where their slots begin."""
        first_LQ = cumulative(of.wanted_LQ.reshape(-1))[:-1].reshape(of.wanted_LQ.shape)
        entry_Q = self._streams_by[self._place].entry_Q
        return [(n_Q[entry_Q], first_Q[entry_Q]) for n_Q, first_Q in zip(of.wanted_LQ, first_LQ, strict=True)]

    def _asked(self, of: Together, bytes_L: Ints) -> list[tuple[_Run, Ints, int]]:
        """Streams that others run for this rank, how many rows each has, and where they begin in messages of these."""
        at_L = (cumulative(bytes_L) // self._dtype.itemsize).tolist()
        runs = zip(range(self._lane.size), self._streams_by, at_L, strict=False)
        return [(run, self._n(of, place)[run.entry_Q], at) for place, run, at in runs if place != self._place]

    def _pass_on(self, of: Together, tag: str, source: tuple[Floats, Ints], target: tuple[Floats, Ints]) -> None:
        """Vectors of what each rank asks for by itself: neighbours in both."""
        kept, first_Q = self._kept[tag]
        if not len(kept):
            return
        n_Q = np.add.reduceat(of.bags_E[self._entry_S[kept]] * self._width_S[kept], first_Q)
        there = zip(source[1][kept[first_Q]].tolist(), target[1][kept[first_Q]].tolist(), n_Q.tolist(), strict=True)
        for at, to, n in there:
            target[0][to : to + n] = source[0][at : at + n]


def _runs(kept: Ints, owner: Ints) -> Ints:
    """Where runs of streams begin that are behind each other in the messages of one owner."""
    return np.flatnonzero(np.diff(kept, prepend=-2) + (np.diff(owner, prepend=-1) != 0) != 1)


def make_host_rows(
    world: World, layout: Layout, entries: Entries, streams: Streams, dtype: np.dtype[Any]
) -> HostRows | None:
    """A dense rank's part; None where its host asks for nothing together."""
    asks = make_host_asks(world, layout, entries)
    return None if asks is None or world.host_dense is None else HostRows(asks, streams, world.host_dense, dtype)


def make_host_asks(world: World, layout: Layout, entries: Entries) -> HostAsks | None:
    """Likewise, of the thread that routes."""
    topology, ranks = world.topology, world.host_route
    if ranks is None or not layout.merged:
        return None
    runners = Runners(layout, topology.dense, topology.host_of)
    some = runners.any_on(topology.host_of[topology.rank])
    return HostAsks(runners, topology.rank, entries, ranks) if some else None


def union_of(number: Ints, ids: Ints, groups: int) -> tuple[Ints, Ints, Ints]:
    """Distinct ids of each group.

    Parameters
    ----------
    number, ids : int64 [K]
        Group of each id.
    groups : int

    Returns
    -------
    (int64 [U], int64 [groups], int64 [K])
        These, rising in each group, one group after the other; how many each has; and the place in its group of each
        id that was given.
    """
    distinct, at = kernels.dedup(ids)
    key, slot = kernels.dedup(number * len(distinct) + at)
    n = np.bincount(key // len(distinct), minlength=groups) if len(key) else np.zeros(groups, np.int64)
    union = distinct[key % len(distinct)] if len(key) else ids
    return union, n, slot - cumulative(n)[:-1][number]


def _copy_tails(source: tuple[Floats, Ints], target: tuple[Floats, Ints], n_R: Ints) -> None:
    """Partial results, and verdicts."""
    for rank in np.flatnonzero(n_R).tolist():
        at, to, n = int(source[1][rank]), int(target[1][rank]), int(n_R[rank])
        target[0][to : to + n] = source[0][at : at + n]
