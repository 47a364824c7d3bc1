"""The holder's side of a step: answers ids with pooled vectors, applies the gradients that come back.

The same for every form: a message is bags of row numbers, the answer is one vector a bag and table, and the gradients
have the layout of the answer. For ``rows`` and ``replicate`` each bag is one row. Gradients of a row are summed in the
order (dense rank, entry, sample, position), whatever the number of holders or threads. Knows no MPI.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.load import Load
from hpcrec.embedding.store import Arena, Part, RowStore
from hpcrec.exchange.layout import Leg
from hpcrec.exchange.substitute import Substitute
from hpcrec.exchange.wire import Header, cumulative, read_header
from hpcrec.exchange.work import ArenaWork, Served, as_before, needs_norms, pairs_of
from hpcrec.operators.base import Operator
from hpcrec.types import Floats, Ints

# Column-sharded row-wise Adagrad needs squared norms over all columns: own norms [U] by table -> the sums by table.
NormSum = Callable[[dict[str, Floats]], dict[str, Floats]]


class Holder:
    """Serves one rank's arenas.

    Parameters
    ----------
    store : RowStore
    leg : Leg
        This rank's leg of the layout.
    operators : mapping of str to Operator
    pooling : mapping of str to str
        ``sum`` or ``mean`` of each feature.
    weighted : sequence of bool
        By entry: whether its ids carry weights.
    size : int
        Ranks in the world.
    pad : callable
        Bytes of messages -> bytes on the wire.
    load : Load, optional
        What was asked of this rank before.

    Attributes
    ----------
    load : Load
        What training has asked of it so far.
    """

    def __init__(
        self,
        store: RowStore,
        leg: Leg,
        operators: Mapping[str, Operator],
        pooling: Mapping[str, str],
        *,
        weighted: Sequence[bool],
        size: int,
        pad: Callable[[Ints], Ints],
        load: Load | None = None,
    ) -> None:
        self.store = store
        self.load = Load() if load is None else load
        self._leg = leg
        self._size = size
        self._pad = pad
        self._weighted_E = np.array(weighted, bool)
        streams = (*leg.streams, *leg.hidden)
        self._entry_S = np.array([s.entry for s in streams], np.int64)
        self._width_S = np.array([s.width for s in leg.streams], np.int64)
        self._valued = leg.n_value_streams
        self._substitute = Substitute(leg, operators) if leg.partials else None
        self._means = [h for h, s in enumerate(leg.hidden) if pooling[leg.entries[s.entry].features[0]] == "mean"]
        self._streams_of: list[tuple[Ints, Ints]] = []  # by arena: its streams, and where their part begins in it
        places = [store.find(s.table) for s in streams]
        for a in range(len(store.arenas)):
            mine = [(s, place[1].base) for s, place in enumerate(places) if place is not None and place[0] == a]
            self._streams_of.append((np.array([m[0] for m in mine]), np.array([m[1] for m in mine])))

    def read(self, received: np.ndarray, bytes_R: Ints, *, train: bool) -> Served:
        """Reads the messages of all ranks (uint8, one after the other in rank order)."""
        began_s = time.thread_time()
        size, item = self._size, self.store.dtype.itemsize
        place_R = cumulative(bytes_R)
        senders = np.flatnonzero(bytes_R)
        headers = [read_header(received, int(place_R[r]), int(place_R[r + 1]), self._weighted_E, item) for r in senders]
        n_streams = len(self._width_S)
        counts = np.array([h.n_bags[self._entry_S[:n_streams]] * self._width_S for h in headers], np.int64)
        counts = counts.reshape(len(headers), n_streams)  # elements by sender and stream
        samples_P = self._samples(headers)
        partial_P = samples_P * (0 if self._substitute is None else self._substitute.elements)
        values_P, gradients_P = counts[:, : self._valued].sum(axis=1), counts.sum(axis=1)
        value_bytes_R, gradient_bytes_R = np.zeros(size, np.int64), np.zeros(size, np.int64)
        value_bytes_R[senders] = self._pad((values_P + partial_P) * item)
        gradient_bytes_R[senders] = self._pad((gradients_P + partial_P) * item)
        value_base = cumulative(value_bytes_R)[senders] // item
        gradient_base = cumulative(gradient_bytes_R)[senders] // item
        inside = np.cumsum(counts, axis=1) - counts
        places = value_base[:, None] + inside, gradient_base[:, None] + inside
        partials = None
        if self._substitute is not None:
            ends = value_base + values_P, gradient_base + gradients_P
            behind = int(value_bytes_R.sum()) // item, int(gradient_bytes_R.sum()) // item
            lengths = self._mean_lengths(received, headers)
            partials, hidden_PH = self._substitute.place(samples_P, ends, behind, lengths)
            places = np.hstack([places[0], behind[0] + hidden_PH]), np.hstack([places[1], behind[1] + hidden_PH])
        alike: dict[bytes, ArenaWork] = {}
        works = tuple(
            self._arena_work(a, received, headers, *places, alike, train=train) for a in range(len(self.store.arenas))
        )
        if train:
            sorted_rows = [work.grouping for work in works if work.grouping is not None]
            self.load.add_step(sum(len(g.order) for g in sorted_rows), sum(len(g.unique) for g in sorted_rows))
            self.load.add_time("read", began_s)
        return Served(works, pairs_of(self.store.arenas, works), value_bytes_R, gradient_bytes_R, partials)

    def _samples(self, headers: Sequence[Header]) -> Ints:
        """Samples of each sender, as entries tell that have all their bags; 0 where nobody asks."""
        of = self._entry_S[-1:] if self._substitute is not None else self._entry_S[:0]
        return np.array([h.n_bags[of].sum() for h in headers], np.int64)

    def _mean_lengths(self, received: np.ndarray, headers: Sequence[Header]) -> dict[int, Ints]:
        first = len(self._width_S)
        return {
            s: np.concatenate(
                [h.lengths(received, int(self._entry_S[first + s])) for h in headers] or [np.zeros(0, np.int64)]
            )
            for s in self._means
        }

    def _arena_work(
        self,
        a: int,
        received: np.ndarray,
        headers: Sequence[Header],
        value_at: Ints,
        gradient_at: Ints,
        alike: dict[bytes, ArenaWork],
        *,
        train: bool,
    ) -> ArenaWork:
        """``alike``: the works of arenas read before, by what was asked of them."""
        streams, bases = self._streams_of[a]
        entries = self._entry_S[streams]
        replicated = bool(len(streams)) and self._valued <= streams[0] < len(self._width_S)  # all of an arena, or none
        valued = bool(len(streams)) and not replicated
        asked_PX = np.empty((len(headers), len(streams), 11), np.int64)
        for i, h in enumerate(headers):
            places_SX = h.places_EX[entries]
            asked_PX[i, :, :4], asked_PX[i, :, 7:] = places_SX[:, :4], places_SX[:, 4:]
            asked_PX[i, :, 5], asked_PX[i, :, 6] = value_at[i, streams], gradient_at[i, streams]
        asked_PX[:, :, 4] = bases
        width = self.store.arenas[a].width
        key = asked_PX[:, :, :5].tobytes()
        if key in alike:  # tables of several widths over the same features: their rows are listed and sorted once
            return as_before(alike[key], asked_PX.reshape(-1, asked_PX.shape[2]), width, values=valued)
        joined = kernels.unpack(
            received, asked_PX.reshape(-1, asked_PX.shape[2]), width, values=valued, gradients=train
        )
        weights, weighted = None, bool(self._weighted_E.any())
        if weighted:
            weights = _join([h.weights(received, e, self.store.dtype) for h in headers for e in entries])
        grouping, source_start = None, joined.gradient_start
        if train:
            assert source_start is not None
            if weighted:  # occurrences differ by weight, so that each is told apart, not its bag alone
                source_start = np.repeat(source_start, np.diff(joined.offsets))
            grouping = kernels.group(joined.index, None if weighted else joined.offsets)
        alike[key] = ArenaWork(
            index=joined.index,
            offsets=joined.offsets,
            value_start=joined.value_start,
            weights=weights,
            grouping=grouping,
            source_start=joined.index[:0] if source_start is None else source_start,
        )
        return alike[key]

    def answer(self, served: Served, values: Floats) -> None:
        """Fills the values messages: pooled vectors and partial results for every rank, one rank after the other.

        ``values`` has room for ``served.elements_behind`` more behind them.
        """
        began_s = time.thread_time()
        for a, (arena, work) in enumerate(zip(self.store.arenas, served.works, strict=True)):
            if work.value_start is None or not len(work.value_start) or a in served.beside.values():
                continue
            beside = None
            if a in served.beside:
                narrow = served.works[served.beside[a]]
                assert narrow.value_start is not None
                beside = kernels.Beside(self.store.arenas[served.beside[a]].rows, narrow.value_start)
            kernels.pooled_gather(
                arena.rows,
                work.index,
                work.offsets,
                values,
                out_start=work.value_start,
                weights=work.weights,
                beside=beside,
            )
        if self._substitute is not None and served.partials is not None:
            self._substitute.forward(served.partials, values, train=all(w.grouping is not None for w in served.works))
        if all(work.grouping is not None for work in served.works):  # else it is an evaluation
            self.load.add_time("gather", began_s)

    def apply(self, served: Served, gradients: Floats, *, step: int, lr_scale: float, norm_sum: NormSum) -> None:
        """Sums the gradients of each row and steps its optimizer.

        Parameters
        ----------
        gradients : float, flat
            The messages of all ranks, one after the other, and room for ``served.elements_behind`` more.
        step : int
            Global step, from 1.
        lr_scale : float
            What the schedule multiplies each table's learning rate by.
        norm_sum : callable
            See ``NormSum``.
        """
        began_s = time.thread_time()
        if self._substitute is not None and served.partials is not None:
            self._substitute.backward(served.partials, gradients)
        split = {
            a: self._merged(arena, work, gradients)
            for a, (arena, work) in enumerate(zip(self.store.arenas, served.works, strict=True))
            if needs_norms(arena)
        }
        self.load.add_time("update", began_s)  # ranks wait for each other in the sum of norms, which is no work
        norms = norm_sum(
            {
                part.table: split[a][1][span]
                for a in split
                for part, span in _spans(self.store.arenas[a], served.works[a])
            }
        )
        began_s = time.thread_time()
        for a, (arena, work) in enumerate(zip(self.store.arenas, served.works, strict=True)):
            assert work.grouping is not None, "this step was routed for evaluation"
            lr = arena.spec.lr * lr_scale
            if a in split:
                merged, total = split[a]
                for part, span in _spans(arena, work):
                    total[span] = norms[part.table]
                kernels.update(
                    arena.spec,
                    arena.rows,
                    arena.states,
                    work.grouping.unique,
                    merged,
                    lr=lr,
                    step=step,
                    squared_norm=total,
                    total_width=arena.total_width,
                )
            elif len(work.index) and a not in served.beside.values():
                beside = None
                if a in served.beside:
                    narrow = self.store.arenas[served.beside[a]]
                    its_start = served.works[served.beside[a]].source_start
                    its_lr = narrow.spec.lr * lr_scale
                    beside = kernels.BesideStep(narrow.spec, narrow.rows, narrow.states, its_start, its_lr)
                kernels.merge_update(
                    arena.spec,
                    arena.rows,
                    arena.states,
                    work.grouping,
                    gradients,
                    work.source_start,
                    weights=work.weights,
                    lr=lr,
                    step=step,
                    beside=beside,
                )
        self.load.add_time("update", began_s)

    @staticmethod
    def _merged(arena: Arena, work: ArenaWork, gradients: Floats) -> tuple[Floats, Floats]:
        assert work.grouping is not None, "this step was routed for evaluation"
        merged = kernels.merge(work.grouping, gradients, work.source_start, arena.width, weights=work.weights)
        return merged, kernels.squared_norm(merged)


def _spans(arena: Arena, work: ArenaWork) -> list[tuple[Part, slice]]:
    """Each part of an arena with its share of the step's touched rows, which are in ascending order."""
    assert work.grouping is not None
    unique = work.grouping.unique
    return [(p, slice(*np.searchsorted(unique, (p.base, p.base + p.rows)).tolist())) for p in arena.parts]


def _join(parts: Sequence[Floats]) -> Floats | None:
    return np.concatenate(parts) if parts else None
