"""The owner's side of a step, from top to bottom: what was asked, pooled vectors out, gradients back in, rows stepped.

The same for every form: a request is bags of row numbers (of dynamic tables: of ids, whose rows are found first), the
answer is one vector a bag and table, and the gradients have the layout of the answer. Gradients of a row are summed in
the order (dense rank, entry, sample, position), those of bags pooled by max last, whatever the number of owners or
threads. Owners may read the ids themselves (``id_reader``): results do not depend on which way ids took. Knows requests
and a store; knows no MPI.

Legend: ``P`` senders, ``E`` entries of this owner, ``S`` its streams, ``N`` cells, ``I`` cells of one block.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, islice

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked, Maxima, some_bags, some_rows, with_maxima, without_any
from hpcrec.embedding.load import Load
from hpcrec.embedding.sets import name_in
from hpcrec.embedding.store import NormSum, Store
from hpcrec.exchange.bags import Received, cumulative, ranges, weights_by_id
from hpcrec.exchange.cells import Cells, Part, Those
from hpcrec.exchange.copies import Served as Apart
from hpcrec.exchange.copies import Vectors
from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.exchange.id_reader import IdReader
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.parts import Marks, Packed, places_of
from hpcrec.exchange.rules import OwnerRules
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.staged import Mover, brought, written
from hpcrec.exchange.substitute import Substitute
from hpcrec.exchange.work import Parts, Served, Spans, ages_of
from hpcrec.operators.base import Operator
from hpcrec.types import Floats, GlobalIds, Ints


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
    parts : bool
        Steps may be answered, and learned, in two parts.
    keeping : Keeping, optional
        By what conditional forms keep rows.

    Attributes
    ----------
    load : Load
        What training has asked of it so far.
    rules : OwnerRules or None
        Of conditional forms; None where none is held here.
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
        parts: bool = False,
        keeping: Keeping | None = None,
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
        self._coming: Iterator[GlobalIds] | None = None  # whose rows the store is told of
        self._unlearned: dict[int, Served] = {}  # training steps that were answered and not released, by number
        self.rules = OwnerRules(leg, store, size, keeping or Keeping()) if leg.apart else None
        self._marks: Marks | None = None
        self._before: Parts | None = None  # of the training step that was read last
        if parts:
            number_of = {name: f for f, name in enumerate(dict.fromkeys(entry.family.name for entry in leg.entries))}
            of = np.array([number_of[entry.family.name] for entry in leg.entries], np.int64)
            by_max = [not e.form.pools and p == "max" for e, p in zip(leg.entries, pooling, strict=True)]
            self._marks = Marks(of, np.array(by_max, bool))

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
        """Reads what all ranks ask, each of its rank's set of tables; what was received is this side's from now on.

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
        cell_PE = self._cells_of(received)
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
        served.number = next(self._numbers)
        if self._marks is not None and train:
            served.parts = self._parts(self._marks, received, entry_N, cell_PE, places)
        if not self._families:
            self._find(served)
        elif train and self.store.looks_ahead:
            self.store.foresee(served.number, self._known_rows(received, cell_PE, sets_P))
        if train:
            self.load.add_time("read", began_s)
        return served

    def _known_rows(self, received: Received, cell_PE: Ints, sets_P: Ints) -> list[Ints]:
        """Rows that a step will ask for, by block, as far as ids have rows by now."""
        ids = self._rows_of(received, sets_P, train=False)
        cells = Cells(received, ids, cell_PE, sets_P, self._entry_S, (ids[:0], ids[:0]))
        streams_B = zip(self._streams_of, self._maxima_of, strict=True)
        return [np.concatenate([cells.rows(cells.those(*of)) for of in both]) for both in streams_B]

    def look(self, coming: Iterator[GlobalIds], reader: IdReader, sets: Sequence[int]) -> None:
        """Tells the store which rows steps to come will ask for: two more, where it wants to know of any."""
        if coming is not self._coming:  # those after the step that was read last
            self._coming = coming
            self.store.look_anew()
        for ids in islice(coming, 2 if self.store.looks_further else 0):
            received = reader.received(ids)
            sets_P = np.array([sets[r] for r in received.senders.tolist()], np.int64)
            self.store.look(self._known_rows(received, self._cells_of(received), sets_P))

    def _cells_of(self, received: Received) -> Ints:
        """Number of the cell of each sender and entry, -1 where there is none, int64 [P, E]."""
        cell_PE = np.full((len(received.senders), self._n_entries), -1, np.int64)
        cell_PE[received.cells[:, 0], self._entry_of[received.cells[:, 1]]] = np.arange(len(received.cells))
        return cell_PE

    def _parts(self, marks: Marks, received: Received, entry_N: Ints, cell_PE: Ints, at_PS: tuple[Ints, Ints]) -> Parts:
        """Which bags are early, and where the vectors that cross are; tells the step before which are urgent."""
        cells = received.cells

        bags_R = np.bincount(received.senders[cells[:, 0]], cells[:, 3], self._size).astype(np.int64)
        early, urgent = marks.of(received, entry_N)
        if self._before is not None:
            self._before.urgent = urgent
        values, gradients = (
            places_of(received, cell_PE[:, self._entry_S[:n]], at[:, :n], self._width_S[:n])
            for at, n in zip(at_PS, (self._valued, self._n_sent), strict=True)
        )
        self._before = Parts(early, values, gradients, bags_R)
        return self._before

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
            (served.works, served.apart, bags_of), served.find = served.find(), None
            if served.parts is not None:
                served.parts.bags_of = bags_of

    def find(self, served: Served) -> None:
        """Which rows are asked for, where that depends on the updates of all steps before; in the order of steps."""
        if served.find is not None:
            began_s = time.thread_time()
            self._find(served)
            self.store.prefetch(served.number, served.works)
            self.load.add_time("find", began_s)

    def _works(
        self,
        received: Received,
        cell_PE: Ints,
        sets_P: Ints,
        places: tuple[Ints, Ints],
        ids_at: int,
        *,
        train: bool,
    ) -> tuple[tuple[Asked, ...], Apart | None, list[Ints]]:
        """What is asked of each block, and apart; in training, ids of dynamic tables get their rows here.

        And which bags are asked of each block, where steps come in parts.
        """
        ids, move, alike = self._rows_of(received, sets_P, train=train), Mover(self.store.device), dict[bytes, Asked]()
        works, bags_of = [], list[Ints]()
        apart = None if self.rules is None else self._apart(received, ids, self.rules)
        cells = Cells(received, ids, cell_PE, sets_P, self._entry_S, places)
        those_of = [cells.those(*self._streams_of[b]) for b in range(len(self.store.blocks))]
        keys = {those.key for those in those_of if len(those.cell_I)}
        if len(keys) == 1 and not any(len(of) for of, _ in self._maxima_of):
            cells = replace(cells, may_overwrite=True)
        for b, those in enumerate(those_of):
            if self._marks is not None:
                bags_of.append(cells.bags(self._streams_of[b][0]))
            works.append(move.asked(self._asked_of(b, cells, those, alike, ids_at, move, train=train)))
        if train:
            blocks = zip(works, self.store.blocks, strict=True)
            of_B = [
                (len(w.grouping.order), len(w.grouping.unique), b.width) for w, b in blocks if w.grouping is not None
            ]
            more = (0, 0) if apart is None else (len(apart.row_K), len(np.unique(apart.row_K)))
            lookups, distinct = sum(n for n, _, _ in of_B), sum(n for _, n, _ in of_B)
            elements = sum(width * (ids + rows) for ids, rows, width in of_B)
            self.load.add_step(lookups + more[0], distinct + more[1], elements)
        return tuple(works), apart, bags_of

    def _apart(self, received: Received, ids: Ints, rules: OwnerRules) -> Apart:
        """What conditional forms ask for."""
        cells = received.cells
        entry_N = rules.number_E[self._entry_of[cells[:, 1]]]
        mine = np.flatnonzero(entry_N >= 0)
        n = cells[mine, 2]
        rows = ids[ranges(cumulative(cells[:, 2])[mine], n)]
        return Apart(np.repeat(received.senders[cells[mine, 0]], n), np.repeat(entry_N[mine], n), rows)

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
        self,
        b: int,
        cells: Cells,
        those: Those,
        alike: dict[bytes, Asked],
        ids_at: int,
        move: Mover,
        *,
        train: bool,
    ) -> Asked:
        """``alike``: what was asked of blocks read before; ``ids_at``: ``Maxima.behind``.

        Arrays are the host's; occurrences are grouped where the rows are, which takes the most time.
        """
        streams = self._streams_of[b][0]
        has_maxima = bool(len(self._maxima_of[b][0]))
        replicated = bool(len(streams)) and self._valued <= streams[0] < self._n_sent  # all of a block, or none
        width = self.store.blocks[b].width
        # Tables of several widths over the same features are sorted once.
        before = None if has_maxima else alike.get(those.key)
        part = cells.of(those, width, gradients=train, before=before)
        value_start = None if replicated or not len(streams) else part.value_start
        if before is not None:
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
            found = cells.of(cells.those(*self._maxima_of[b]), width, gradients=train)
            maxima = Maxima(
                index=found.index,
                offsets=found.offsets,
                value_start=found.value_start,
                gradient_start=found.gradient_start,
                winners=np.empty((len(found.offsets) - 1, width), np.int32) if train else None,
                behind=ids_at,
            )
            return with_maxima(asked, maxima, width, move)
        alike[those.key] = asked
        return asked

    @staticmethod
    def _as_before(before: Asked, part: Part, value_start: Ints | None) -> Asked:
        """The same rows of a block of another width, whose vectors begin elsewhere."""
        source_start = part.gradient_start
        if before.grouping is None:
            source_start = before.source_start
        elif before.weights is not None:
            source_start = np.repeat(source_start, np.diff(part.offsets))
        return replace(before, value_start=value_start, source_start=source_start)

    def answer(self, served: Served, values: Floats, apart: Vectors | None = None) -> Floats | None:
        """Fills the values messages with pooled vectors for every rank, one rank after the other.

        ``values`` has room for ``served.values_behind`` more behind them, and behind these for the vectors ``apart``
        that conditional forms are sent, which are returned. Partial results are computed, in ``served.partials``, and
        put into the messages by ``write``. Called in the order of steps, each after ``find`` and after the update of
        the step before.
        """
        began_s, works, copied = time.thread_time(), served.works, None
        n_apart = 0 if apart is None else int(apart.bytes_R.sum()) // self.store.dtype.itemsize
        at = len(values) - n_apart
        if apart is not None and served.apart is not None and self.rules is not None:
            works = tuple(self.rules.with_rows(works, served.apart, apart, at, train=False))
            self.store.extend(served.number, works)
        with written(self.store.device, values, served.values_behind + n_apart) as there:
            if n_apart:
                there[at:] = 0.0  # padding crosses too, and may scale what is beside it
            self.store.gather(served.number, works, there)
            if apart is not None and served.apart is not None and self.rules is not None:
                copied = np.asarray(there[at : at + n_apart])
                self.rules.note_accumulators(served.apart, served.number)
            if self._substitute is not None and served.partials is not None:
                train = all(w.grouping is not None for w in served.works)
                self._substitute.forward(served.partials, there, train=train)
        if all(work.grouping is not None for work in served.works):
            self._unlearned[served.number] = served
            self.load.add_time("gather", began_s)
        else:  # it is an evaluation, of which nothing comes back
            self.store.release(served.number)
        return copied

    def ages(self, served: Served, most: int) -> Ints:
        """Of the distinct rows that a step asks for: how many lack 0, 1, ... updates of steps that were answered.

        Int64 [most]. A row counts at one rank, once for all tables that share its ids.
        """
        return ages_of(self.store.blocks, served, self._unlearned.values(), most)

    def answer_part(self, served: Served, values: Floats, *, early: bool) -> Packed:
        """Gathers the early bags' vectors, or the others', to their places in ``values``; returns what crosses."""
        parts, began_s = served.parts, time.thread_time()
        assert parts is not None, "the step is read in parts"
        keep = parts.early if early else ~parts.early
        works = [
            some_bags(asked, keep[bags], maxima=not early, device=self.store.device)
            for asked, bags in zip(served.works, parts.bags_of, strict=True)
        ]
        with written(self.store.device, values, 0) as there:
            self.store.gather(served.number, works, there)
        self.load.add_time("gather", began_s)
        return parts.places.of(keep, self.store.dtype.itemsize, np.zeros(self._size, np.int64))

    def learned_part(self, served: Served, *, urgent: bool) -> Packed:
        """Where the gradients of urgent bags, or of the others, come; the verdict is behind the first."""
        parts = served.parts
        assert parts is not None and parts.urgent is not None, "the step after it is routed"
        told_R = (np.arange(self._size) == self._teller) & urgent
        return parts.back.of(
            parts.urgent if urgent else ~parts.urgent, self.store.dtype.itemsize, told_R.astype(np.int64)
        )

    def part_to_learn(self, served: Served, ahead: Served, *, asked: bool) -> tuple[Asked, ...]:
        """Of a step's rows those that the step after it asks for, or the others."""
        works = []
        for own, after in zip(served.works, ahead.works, strict=True):
            assert own.grouping is not None, "the step is learned from"
            keep = np.isin(np.asarray(own.grouping.unique), np.asarray(after.index)) == asked
            works.append(some_rows(own, keep, self.store.device))
        return tuple(works)

    def release(self, served: Served) -> None:
        """The step is over, learned or left out."""
        self._unlearned.pop(served.number, None)
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

    def leave_out(self, served: Served) -> None:
        """Nothing of the step is learned, but what may be pushed in it."""
        served.works, served.partials = tuple(without_any(asked) for asked in served.works), None

    def pushed(
        self, served: Served, gradients: Floats, apart: Apart, v: Vectors, floats: Floats, squares_P: Floats | None
    ) -> Floats:
        """Has ``apply`` learn these rows too, which dense ranks push; returns the gradients with theirs behind."""
        assert self.rules is not None
        works = self.rules.with_rows(served.works, apart, v, len(gradients), train=True, squares_P=squares_P)
        served.works = tuple(works)
        served.pushed = apart
        self.store.extend(served.number, served.works)
        return np.concatenate([gradients, floats])

    def apply(
        self,
        served: Served,
        gradients: Floats,
        *,
        step: int,
        lr_scale: float,
        norm_sum: NormSum,
        works: tuple[Asked, ...] | None = None,
        last: bool = True,
    ) -> None:
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
        works : tuple of Asked, optional
            The part that is learned; default: all.
        last : bool
            No other part follows.
        """
        n, behind = int(served.gradient_bytes_R.sum()) // self.store.dtype.itemsize, served.gradients_behind
        if self.rules is not None:
            n, behind = len(gradients), 0  # what conditional forms push lies behind
        with brought(self.store.device, gradients, n, behind) as there:
            self._apply(served, served.works if works is None else works, there, step, lr_scale, norm_sum)
        if last:
            self.release(served)

    def _apply(
        self,
        served: Served,
        works: tuple[Asked, ...],
        gradients: Floats,
        step: int,
        lr_scale: float,
        norm_sum: NormSum,
    ) -> None:
        began_s, waited_s = time.thread_time(), 0.0
        if self._substitute is not None and served.partials is not None:
            self._substitute.backward(served.partials, gradients)

        def norms(own: dict[str, Floats]) -> dict[str, Floats]:
            nonlocal waited_s
            before_s = time.thread_time()
            total = norm_sum(own)
            waited_s += time.thread_time() - before_s  # ranks wait for each other, which is no work
            return total

        self.store.learn(served.number, works, gradients, norms, number=step, lr_scale=lr_scale)
        if self.rules is not None:
            self.rules.learned(served.works, served.pushed)
        self.load.add_time("update", began_s + waited_s)
