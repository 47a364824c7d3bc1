"""The owner's side of a step, from top to bottom: what was asked, pooled vectors out, gradients back in, rows stepped.

The same for every form: a request is bags of row numbers (of dynamic tables: of ids, whose rows are found first), the
answer is one vector a bag and table, and the gradients have the layout of the answer. Gradients of a row are summed in
the order (dense rank, entry, sample, position), those of bags pooled by max last, whatever the number of owners or
threads. Owners may read the ids themselves (``IdReader``): results do not depend on which way ids took. Knows requests
and a store; knows no MPI.

Legend: ``P`` senders, ``E`` entries of this owner, ``S`` its streams, ``N`` cells, ``I`` cells of one block.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked, Maxima
from hpcrec.embedding.load import Load
from hpcrec.embedding.sets import name_in
from hpcrec.embedding.store import NormSum, Store
from hpcrec.exchange.bags import Received, Splitter, cumulative, ranges, weights_by_id
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.staged import Mover, brought, written
from hpcrec.exchange.substitute import Substitute
from hpcrec.exchange.work import Served, Spans
from hpcrec.operators.base import Operator
from hpcrec.types import Floats, GlobalIds, Ints


class IdReader:
    """Makes what all dense ranks would ask of an owner from the ids of the global batch, which it reads itself.

    The data set is columnar, and which samples a batch has is known to every rank. Nothing is written and read again.

    Parameters
    ----------
    splitter : Splitter
        Of this owner alone, of the features that it holds.
    dense : sequence of int
        Dense ranks, in the order of their parts of a batch.
    """

    def __init__(self, splitter: Splitter, dense: Sequence[int]) -> None:
        self._splitter = splitter
        self._dense = np.array(dense, np.int64)

    def received(self, ids: GlobalIds) -> Received:
        """What all of them ask.

        Raises
        ------
        DataError
            An id outside its table.
        """
        first = ids.first_D.tolist()
        splitter = self._splitter
        every = [
            splitter.requests(splitter.columns(ids.bags, first[-1], slice(start, stop)))
            for start, stop in pairwise(first)
        ]
        asking = [d for d in np.argsort(self._dense).tolist() if len(every[d].cells)]
        asked, none = [every[d] for d in asking], np.zeros(0, np.int64)
        cells = [np.column_stack([np.full(len(r.cells), p), r.cells[:, 1:]]) for p, r in enumerate(asked)]
        cells_N4 = np.concatenate([none.reshape(0, 4), *cells])
        weights = np.concatenate([np.zeros(0, np.uint8), *(r.weights for r in asked)])
        entries = splitter.entries
        return Received(
            self._dense[asking],
            np.concatenate([none, *(r.ids for r in asked)]),
            cumulative(np.concatenate([none, *(r.lengths for r in asked)])),
            cells_N4,
            weights_by_id(cells_N4, entries.weighted, weights, splitter.dtype) if entries.carries_weights else None,
        )


class OwnerSide:
    """Of one rank's rows.

    Parameters
    ----------
    store : Store
    layout : Layout
    rank : int
        This rank, which has a leg in the layout.
    operators : mapping of str to Operator
    weighted : set of str
        Features whose ids carry weights.
    size : int
        Ranks in the world.
    pad : callable
        Bytes of messages -> bytes on the wire.
    load : Load, optional
        What was asked of this rank before.
    sent : callable, optional
        Dense rank -> numbers of this owner's partial results that it is sent; default: all.
    sets : int
        Sets of tables (``embedding.sets``).
    teller : int
        The dense rank that tells the verdict (``verdict``).
    keeps : bool
        Other steps may be answered before a step's gradients come.

    Attributes
    ----------
    load : Load
        What training has asked of it so far.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        rank: int,
        operators: Mapping[str, Operator],
        *,
        weighted: set[str],
        size: int,
        pad: Callable[[Ints], Ints],
        load: Load | None = None,
        sent: Callable[[int], Sequence[int]] | None = None,
        sets: int = 1,
        teller: int = 0,
        keeps: bool = False,
    ) -> None:
        self.store = store
        self.load = load or Load()
        leg, forms = layout.legs[rank], layout.bundled()
        self._size, self._pad, self._teller = size, pad, teller
        self._weighted = np.array([form.carries_weights(weighted) for form in forms], bool)  # by bundle
        number = {entry.features: e for e, entry in enumerate(leg.entries)}
        self._entry_of = np.array([number.get(form.features, -1) for form in forms], np.int64)  # by bundle
        self._carries = bool((self._weighted & (self._entry_of >= 0)).any())  # ids of what is held here
        streams = (*leg.streams, *leg.hidden)
        self._n_entries, self._n_sent, self._valued = len(leg.entries), len(leg.streams), leg.n_value_streams
        self._entry_S = np.array([s.entry for s in streams], np.int64)
        self._width_S = np.array([s.width for s in leg.streams], np.int64)
        self._substitute = Substitute(leg, operators, sent, keeps=keeps) if leg.partials else None
        pooling = [layout.pooling[entry.features[0]] for entry in leg.entries]
        self._means = [h for h, s in enumerate(leg.hidden) if pooling[s.entry] == "mean"]
        largest = [not leg.entries[s.entry].form.pools and pooling[s.entry] == "max" for s in streams]
        places = [[store.place(name_in(g, s.table)) for g in range(sets)] for s in streams]
        # By block: its streams, and where their part of each set begins in it, [G, S]; those pooled by max apart.
        self._streams_of = [self._of_block(b, places, largest, False, sets) for b in range(len(store.blocks))]
        self._maxima_of = [self._of_block(b, places, largest, True, sets) for b in range(len(store.blocks))]
        held = [rows.family.name for rows in store.dynamic.values()]
        family = {f: i for i, f in enumerate(held)}
        self._families = held
        self._family_GE = np.array(
            [[family.get(name_in(g, entry.family.name), -1) for entry in leg.entries] for g in range(sets)], np.int64
        ).reshape(sets, len(leg.entries))
        self._numbers = count()

    @staticmethod
    def _of_block(
        block: int, places: Sequence[Sequence[object]], largest: Sequence[bool], wanted: bool, sets: int
    ) -> tuple[Ints, Ints]:
        mine = [
            (s, [found[1].base for found in places_G if found is not None])  # type: ignore[index]
            for s, places_G in enumerate(places)
            if places_G[0] is not None and places_G[0][0] == block and largest[s] == wanted  # type: ignore[index]
        ]
        bases_SG = np.array([bases for _, bases in mine], np.int64).reshape(len(mine), sets)
        return np.array([s for s, _ in mine], np.int64), bases_SG.T

    @property
    def slices(self) -> list[Slice]:
        """Parts of operators' dense parameters that are used here."""
        return [] if self._substitute is None else self._substitute.slices

    def decoded(self, message: np.ndarray, bytes_R: Ints, *, train: bool = False) -> Received:
        """The messages of all ranks (uint8, one after the other in rank order). ``train``: its time counts as reading.

        Raises
        ------
        ValueError
            One is damaged, or asks for what this rank does not hold.
        """
        began_s = time.thread_time()
        senders, item = np.flatnonzero(bytes_R), self.store.dtype.itemsize
        at_P = cumulative(bytes_R)[senders]
        asked = kernels.read_requests(message, at_P, bytes_R[senders], self._weighted, item)
        foreign = np.flatnonzero(self._entry_of[asked.cells[:, 1]] < 0)
        if len(foreign):
            sender, bundle = asked.cells[foreign[0], :2].tolist()
            raise ValueError(
                f"rank {senders[sender]} asks for the features of number {bundle} of the layout, which this rank does "
                "not hold: the message is damaged, or the two ranks have different layouts."
            )
        weights = weights_by_id(asked.cells, self._weighted, asked.weights, self.store.dtype) if self._carries else None
        if train:
            self.load.add_time("read", began_s)
        return Received(senders, asked.ids, asked.offsets, asked.cells, weights)

    def read(self, received: Received, sets: Sequence[int] | None = None, *, train: bool) -> Served:
        """Reads what all ranks ask, each of its rank's set of tables.

        It may run ahead of the steps before. Of dynamic tables it reads how much is asked; which rows, ``answer`` does,
        for an id may get the row that another has until the step before.
        """
        with nullcontext() if self.store.device is None else self.store.device.aside():
            served = self._read(received, sets, train=train)
        if served.find is None:
            self.store.prefetch(served.number, served.works)
        return served

    def _read(self, received: Received, sets: Sequence[int] | None, *, train: bool) -> Served:
        began_s = time.thread_time()
        size, item, senders = self._size, self.store.dtype.itemsize, received.senders
        sender_N, entry_N = received.cells[:, 0], self._entry_of[received.cells[:, 1]]
        bags_PE = np.zeros((len(senders), self._n_entries), np.int64)
        bags_PE[sender_N, entry_N] = received.cells[:, 3]
        counts = bags_PE[:, self._entry_S[: self._n_sent]] * self._width_S  # elements by sender and stream
        samples_P = bags_PE[:, self._entry_S[-1]] if self._substitute is not None else np.zeros(len(senders), np.int64)
        hidden_E = self._entry_S[self._n_sent :]
        if (bags_PE[:, hidden_E] != samples_P[:, None]).any():
            bad = int(np.flatnonzero((bags_PE[:, hidden_E] != samples_P[:, None]).any(axis=1))[0])
            raise ValueError(
                f"rank {senders[bad]} asks for {bags_PE[bad, hidden_E].tolist()} bags of the features that operators "
                "here read; each has one a sample: the message is damaged."
            )
        partial_P = samples_P * (0 if self._substitute is None else self._substitute.elements(senders))
        values_P, gradients_P = counts[:, : self._valued].sum(axis=1), counts.sum(axis=1)
        value_bytes_R, gradient_bytes_R = np.zeros(size, np.int64), np.zeros(size, np.int64)
        value_bytes_R[senders] = self._pad((values_P + partial_P) * item)
        gradient_bytes_R[senders] = (gradients_P + partial_P) * item
        verdict_in = int(gradient_bytes_R[self._teller]) // item
        gradient_bytes_R[self._teller] += item
        gradient_bytes_R = self._pad(gradient_bytes_R)
        value_base = cumulative(value_bytes_R)[senders] // item
        gradient_at = cumulative(gradient_bytes_R) // item
        gradient_base = gradient_at[senders]
        verdict_at = int(gradient_at[self._teller]) + verdict_in
        inside = np.cumsum(counts, axis=1) - counts
        places = value_base[:, None] + inside, gradient_base[:, None] + inside
        partials, ids_at = None, int(gradient_bytes_R.sum()) // item
        cell_PE = np.full((len(senders), self._n_entries), -1, np.int64)
        cell_PE[sender_N, entry_N] = np.arange(len(sender_N))
        if self._substitute is not None:
            ends = value_base + values_P, gradient_base + gradients_P
            behind = int(value_bytes_R.sum()) // item, int(gradient_bytes_R.sum()) // item
            lengths = self._mean_lengths(received, cell_PE)
            partials, hidden_PH = self._substitute.place(senders, samples_P, ends, behind, lengths)
            places = np.hstack([places[0], behind[0] + hidden_PH]), np.hstack([places[1], behind[1] + hidden_PH])
            ids_at += partials.elements
        sets_P = np.array([0 if sets is None else sets[r] for r in senders.tolist()], np.int64)
        spans = Spans(senders, sets_P, value_base, value_base + values_P + partial_P, counts[:, : self._valued])
        served = Served(value_bytes_R, gradient_bytes_R, spans, partials, None, verdict_at, verdict_in)
        served.find = partial(self._works, received, cell_PE, sets_P, places, ids_at, train=train)
        if not self._families:
            self._find(served)
        if train:
            self.load.add_time("read", began_s)
        return served

    def _mean_lengths(self, received: Received, cell_PE: Ints) -> dict[int, Ints]:
        """Ids of the bags of each hidden stream that is a mean, of all senders."""
        lengths, found = np.diff(received.offsets), {}
        first_N, bags_N = cumulative(received.cells[:, 3])[:-1], received.cells[:, 3]
        for h in self._means:
            cells = cell_PE[:, self._entry_S[self._n_sent + h]]
            cells = cells[cells >= 0]
            found[h] = lengths[ranges(first_N[cells], bags_N[cells])]
        return found

    def _find(self, served: Served) -> None:
        """Which rows are asked for, unless that is known."""
        if served.find is not None:
            served.works, served.find, served.number = served.find(), None, next(self._numbers)

    def _works(
        self,
        received: Received,
        cell_PE: Ints,
        sets_P: Ints,
        places: tuple[Ints, Ints],
        ids_at: int,
        *,
        train: bool,
    ) -> tuple[Asked, ...]:
        """What is asked of each block; in training, ids of dynamic tables get their rows here."""
        ids, move, alike = self._rows_of(received, sets_P, train=train), Mover(self.store.device), dict[bytes, Asked]()
        works = []
        for b in range(len(self.store.blocks)):
            cells = _Cells(received, ids, cell_PE, sets_P, self._entry_S, places)
            works.append(move.asked(self._asked_of(b, cells, alike, ids_at, move, train=train)))
        if train:
            sorted_rows = [work.grouping for work in works if work.grouping is not None]
            self.load.add_step(sum(len(g.order) for g in sorted_rows), sum(len(g.unique) for g in sorted_rows))
        return tuple(works)

    def _rows_of(self, received: Received, sets_P: Ints, *, train: bool) -> Ints:
        """The ids, rows in place of those of dynamic tables.

        All that a step asks of a family of dynamic tables, whoever asks, is one batch of distinct ids: so who gets the
        last rows depends on no form, no order of messages and no number of dense ranks.
        """
        if not self._families:
            return received.ids
        ids, cells = received.ids.copy(), received.cells
        first_N = cumulative(cells[:, 2])[:-1]
        family_N = self._family_GE[sets_P[cells[:, 0]], self._entry_of[cells[:, 1]]]
        for f, name in enumerate(self._families):
            mine = np.flatnonzero(family_N == f)
            at = ranges(first_N[mine], cells[mine, 2])
            ids[at] = self.store.find(name, ids[at], admit=train)
        return ids

    def _asked_of(
        self, b: int, cells: "_Cells", alike: dict[bytes, Asked], ids_at: int, move: Mover, *, train: bool
    ) -> Asked:
        """``alike``: what was asked of blocks read before; ``ids_at``: ``Maxima.behind``.

        Arrays are the host's; occurrences are grouped where the rows are, which takes the most time.
        """
        streams, bases = self._streams_of[b]
        has_maxima = bool(len(self._maxima_of[b][0]))
        replicated = bool(len(streams)) and self._valued <= streams[0] < self._n_sent  # all of a block, or none
        width = self.store.blocks[b].width
        part = cells.of(streams, bases, width, gradients=train)
        value_start = None if replicated or not len(streams) else part.value_start
        before = alike.get(part.key)
        if before is not None and not has_maxima:  # tables of several widths over the same features: sorted once
            return self._as_before(before, part, value_start)
        weights = None if cells.received.weights is None else cells.received.weights[part.taken]
        grouping, source_start = None, part.gradient_start
        if train:
            if weights is not None or has_maxima:  # occurrences differ, so that each is told apart, not its bag alone
                source_start = np.repeat(source_start, np.diff(part.offsets))
            if not has_maxima:
                grouping = kernels.group(move(part.index), None if weights is not None else move(part.offsets))
        asked = Asked(
            index=part.index,
            offsets=part.offsets,
            value_start=value_start,
            weights=weights,
            grouping=grouping,
            source_start=source_start,
        )
        if has_maxima:
            found = cells.of(*self._maxima_of[b], width, gradients=train)
            maxima = Maxima(
                index=found.index,
                offsets=found.offsets,
                value_start=found.value_start,
                gradient_start=found.gradient_start,
                winners=np.empty((len(found.offsets) - 1, width), np.int32) if train else None,
                behind=ids_at,
            )
            return _with_maxima(asked, maxima, width, move)
        alike[part.key] = asked
        return asked

    @staticmethod
    def _as_before(before: Asked, part: "_Part", value_start: Ints | None) -> Asked:
        """The same rows of a block of another width, whose vectors begin elsewhere."""
        source_start = part.gradient_start
        if before.grouping is None:
            source_start = before.source_start
        elif before.weights is not None:
            source_start = np.repeat(source_start, np.diff(part.offsets))
        return replace(before, value_start=value_start, source_start=source_start)

    def answer(self, served: Served, values: Floats) -> None:
        """Fills the values messages with pooled vectors for every rank, one rank after the other.

        ``values`` has room for ``served.values_behind`` more behind them. Partial results are computed, in
        ``served.partials``, and put into the messages by ``write``. Called in the order of steps, each after the update
        of the step before.
        """
        began_s = time.thread_time()
        if served.find is not None:
            self._find(served)
            self.store.prefetch(served.number, served.works)
            self.load.add_time("find", began_s)
            began_s = time.thread_time()
        with written(self.store.device, values, served.values_behind) as there:
            self.store.gather(served.number, served.works, there)
            if self._substitute is not None and served.partials is not None:
                train = all(w.grouping is not None for w in served.works)
                self._substitute.forward(served.partials, there, train=train)
        if all(work.grouping is not None for work in served.works):
            self.load.add_time("gather", began_s)
        else:  # it is an evaluation, of which nothing comes back
            self.store.release(served.number)

    def release(self, served: Served) -> None:
        """The step is over, learned or left out."""
        self.store.release(served.number)

    def close(self) -> None:
        """Nothing is asked any more."""
        self.store.close()

    def write(self, served: Served, values: Floats) -> None:
        """Puts the partial results into the values messages."""
        if self._substitute is not None and served.partials is not None:
            self._substitute.write(served.partials, values)

    def read_gradients(self, served: Served, gradients: Floats) -> None:
        """Takes those of the partial results that were sent out of the messages, into ``served.partials``."""
        if self._substitute is not None and served.partials is not None:
            self._substitute.read(served.partials, gradients)

    def apply(self, served: Served, gradients: Floats, *, step: int, lr_scale: float, norm_sum: NormSum) -> None:
        """Sums the gradients of each row and steps its optimizer; follows ``read_gradients``.

        Parameters
        ----------
        gradients : float, flat
            The messages of all ranks, one after the other, and room for ``served.gradients_behind`` more.
        step : int
            Global step, from 1.
        lr_scale : float
            What the schedule multiplies each table's learning rate by.
        norm_sum : callable
            See ``NormSum``.
        """
        n = int(served.gradient_bytes_R.sum()) // self.store.dtype.itemsize
        with brought(self.store.device, gradients, n, served.gradients_behind) as there:
            self._apply(served, there, step, lr_scale, norm_sum)

    def _apply(self, served: Served, gradients: Floats, step: int, lr_scale: float, norm_sum: NormSum) -> None:
        began_s, waited_s = time.thread_time(), 0.0
        if self._substitute is not None and served.partials is not None:
            self._substitute.backward(served.partials, gradients)

        def norms(own: dict[str, Floats]) -> dict[str, Floats]:
            nonlocal waited_s
            before_s = time.thread_time()
            total = norm_sum(own)
            waited_s += time.thread_time() - before_s  # ranks wait for each other, which is no work
            return total

        self.store.learn(served.number, served.works, gradients, norms, number=step, lr_scale=lr_scale)
        self.load.add_time("update", began_s + waited_s)
        self.store.release(served.number)


@dataclass(frozen=True)
class _Part:
    """Cells of one block, joined.

    ``taken`` are the places of the ids among all; ``key`` is the same where the same rows are asked for.
    """

    index: Ints
    offsets: Ints
    value_start: Ints
    gradient_start: Ints
    taken: Any
    key: bytes


@dataclass(frozen=True)
class _Cells:
    """All that was asked in one step, and where each stream of each sender lies in the messages."""

    received: Received
    ids: Ints
    cell_PE: Ints
    sets_P: Ints
    entry_S: Ints
    places: tuple[Ints, Ints]

    def of(self, streams: Ints, bases_GS: Ints, width: int, *, gradients: bool) -> _Part:
        """Those of these streams, sender after sender; rows are counted from where each stream's part begins."""
        cells = self.received.cells
        cell_PS = self.cell_PE[:, self.entry_S[streams]]
        p_I, i_I = np.nonzero(cell_PS >= 0)
        cell_I, base_I = cell_PS[p_I, i_I], bases_GS[self.sets_P[p_I], i_I]
        ids_I, bags_I = cells[cell_I, 2], cells[cell_I, 3]
        lengths: Ints = np.diff(self.received.offsets)
        taken: Any = slice(None)
        if len(cell_I) != len(cells) or (cell_I != np.arange(len(cells))).any():
            taken = ranges(cumulative(cells[:, 2])[cell_I], ids_I)
            lengths = lengths[ranges(cumulative(cells[:, 3])[cell_I], bags_I)]
        index = self.ids[taken] + np.repeat(base_I, ids_I)
        offsets = cumulative(lengths)
        steps = np.arange(len(lengths)) * width
        before_I = cumulative(bags_I)[:-1] * width
        at = [np.repeat(places[p_I, streams[i_I]] - before_I, bags_I) + steps for places in self.places]
        key = np.concatenate([cell_I, base_I]).tobytes()
        return _Part(index, offsets, at[0], at[1] if gradients else index[:0], taken, key)


def _with_maxima(asked: Asked, maxima: Maxima, width: int, move: Callable[[Ints], Ints]) -> Asked:
    """The same, and bags of the same block that are pooled by max; ``asked`` has no grouping yet.

    A row has one gradient a step, whatever bags it is in, so both kinds are grouped together, by position; where, that
    ``move`` says.
    """
    n = len(maxima.index)
    index, weights = np.concatenate([asked.index, maxima.index]), asked.weights
    if weights is not None:
        weights = np.concatenate([weights, np.ones(n, weights.dtype)])
    grouping, source_start = None, asked.source_start
    if maxima.winners is not None:
        own_start = maxima.behind + np.arange(n, dtype=np.int64) * width
        source_start = np.concatenate([source_start, own_start])
        grouping = kernels.group(move(index))
    return replace(asked, index=index, weights=weights, grouping=grouping, source_start=source_start, maxima=maxima)
