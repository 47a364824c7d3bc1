"""The holder's side of a step: answers ids with pooled vectors, applies the gradients that come back.

The same for every form: a message is bags of row numbers, the answer is one vector a bag and table, and the gradients
have the layout of the answer. For ``rows`` and ``replicate`` each bag is one row. Gradients of a row are summed in the
order (dense rank, entry, sample, position), whatever the number of holders or threads. Knows no MPI.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.store import Arena, Part, RowStore
from hpcrec.exchange.layout import Leg
from hpcrec.exchange.wire import Message, cumulative, decode, ranges
from hpcrec.types import Floats, Ints

# Column-sharded row-wise Adagrad needs squared norms over all columns: own norms [U] by table -> the sums by table.
NormSum = Callable[[dict[str, Floats]], dict[str, Floats]]


@dataclass(frozen=True)
class ArenaWork:
    """What one step wants of one arena.

    Attributes
    ----------
    index : int64 [K]
        Rows of the arena, bag after bag.
    offsets : int64 [V + 1]
        Bags in ``index``.
    value_start : int64 [V] or None
        First element of each bag's vector in the values sent; None for replicated tables, which have gradients only.
    weights : float [K] or None
    grouping : kernels.Grouping or None
        Occurrences by row, named by their bags, or by their positions where ids carry weights; None where no gradients
        will come.
    source_start : int64 [V] or [K]
        First element of the gradient of each bag, or of each position's bag, in the gradients received.
    """

    index: Ints
    offsets: Ints
    value_start: Ints | None
    weights: Floats | None
    grouping: kernels.Grouping | None
    source_start: Ints


@dataclass(frozen=True)
class Served:
    """One step's work at a holder: sizes of its messages and what each arena does.

    ``value_elements_R`` and ``gradient_elements_R`` are elements to and from each world rank, before padding.
    """

    works: tuple[ArenaWork, ...]
    value_bytes_R: Ints
    gradient_bytes_R: Ints


class Holder:
    """Serves one rank's arenas.

    Parameters
    ----------
    store : RowStore
    leg : Leg
        This rank's leg of the layout.
    weighted : sequence of bool
        By entry: whether its ids carry weights.
    size : int
        Ranks in the world.
    pad : callable
        Bytes of messages -> bytes on the wire.
    """

    def __init__(
        self, store: RowStore, leg: Leg, *, weighted: Sequence[bool], size: int, pad: Callable[[Ints], Ints]
    ) -> None:
        self.store = store
        self._leg = leg
        self._size = size
        self._pad = pad
        self._weighted_E = np.array(weighted, bool)
        self._entry_S = np.array([s.entry for s in leg.streams], np.int64)
        self._width_S = np.array([s.width for s in leg.streams], np.int64)
        self._valued = leg.n_value_streams
        self._streams_of: list[tuple[Ints, Ints]] = []  # by arena: its streams, and where their part begins in it
        places = [store.find(s.table) for s in leg.streams]
        for a in range(len(store.arenas)):
            mine = [(s, place[1].base) for s, place in enumerate(places) if place is not None and place[0] == a]
            self._streams_of.append((np.array([m[0] for m in mine]), np.array([m[1] for m in mine])))

    def read(self, received: np.ndarray, bytes_R: Ints, *, train: bool) -> Served:
        """Decodes the messages of all ranks (uint8, one after the other in rank order)."""
        size, item = self._size, self.store.dtype.itemsize
        place_R = cumulative(bytes_R)
        senders = np.flatnonzero(bytes_R)
        n_entries = len(self._leg.entries)
        messages = [
            decode(received[place_R[r] : place_R[r + 1]], n_entries, self._weighted_E, self.store.dtype)
            for r in senders
        ]
        counts = np.array([m.n_bags[self._entry_S] * self._width_S for m in messages], np.int64)
        counts = counts.reshape(len(messages), len(self._entry_S))  # elements by sender and stream
        value_bytes_R, gradient_bytes_R = np.zeros(size, np.int64), np.zeros(size, np.int64)
        value_bytes_R[senders] = self._pad(counts[:, : self._valued].sum(axis=1) * item)
        gradient_bytes_R[senders] = self._pad(counts.sum(axis=1) * item)
        value_base = cumulative(value_bytes_R)[senders] // item
        gradient_base = cumulative(gradient_bytes_R)[senders] // item
        inside = np.cumsum(counts, axis=1) - counts
        works = tuple(
            self._arena_work(a, messages, value_base[:, None] + inside, gradient_base[:, None] + inside, train)
            for a in range(len(self.store.arenas))
        )
        return Served(works, value_bytes_R, gradient_bytes_R)

    def _arena_work(
        self, a: int, messages: Sequence[Message], value_at: Ints, gradient_at: Ints, train: bool
    ) -> ArenaWork:
        streams, bases = self._streams_of[a]
        width = self.store.arenas[a].width
        entries = self._entry_S[streams]
        valued = bool(len(streams)) and streams[0] < self._valued  # an arena is all replicated or not at all
        index, lengths, value_start, gradient_start, weights = [], [], [], [], []
        for i, m in enumerate(messages):
            n_ids, n_bags = m.n_ids[entries], m.n_bags[entries]
            ids_at, bags_at = cumulative(m.n_ids)[entries], cumulative(m.n_bags)[entries]
            take = ranges(ids_at, n_ids)
            index.append(m.rows[take] + np.repeat(bases, n_ids))
            lengths.append(m.lengths[ranges(bags_at, n_bags)])
            value_start.append(ranges(value_at[i, streams], n_bags, width))
            gradient_start.append(ranges(gradient_at[i, streams], n_bags, width))
            if self._weighted_E.any():
                weights.append(np.ones(len(take), self.store.dtype) if m.weights is None else m.weights[take])
        joined = _join(index)
        lengths_V = _join(lengths)
        offsets, source_start = cumulative(lengths_V), _join(gradient_start)
        if weights and train:
            source_start = np.repeat(source_start, lengths_V)
        return ArenaWork(
            index=joined,
            offsets=offsets,
            value_start=_join(value_start) if valued else None,
            weights=np.concatenate(weights) if weights else None,
            grouping=kernels.group(joined, None if weights else offsets) if train else None,
            source_start=source_start,
        )

    def answer(self, served: Served) -> Floats:
        """The values message: pooled vectors for every rank, one rank after the other."""
        values = np.zeros(int(served.value_bytes_R.sum()) // self.store.dtype.itemsize, self.store.dtype)
        for arena, work in zip(self.store.arenas, served.works, strict=True):
            if work.value_start is not None and len(work.index):
                kernels.pooled_gather(
                    arena.rows, work.index, work.offsets, values, out_start=work.value_start, weights=work.weights
                )
        return values

    def apply(self, served: Served, gradients: Floats, *, step: int, lr_scale: float, norm_sum: NormSum) -> None:
        """Sums the gradients of each row and steps its optimizer.

        Parameters
        ----------
        gradients : float, flat
            The messages of all ranks, one after the other.
        step : int
            Global step, from 1.
        lr_scale : float
            What the schedule multiplies each table's learning rate by.
        norm_sum : callable
            See ``NormSum``.
        """
        split = {
            a: self._merged(arena, work, gradients)
            for a, (arena, work) in enumerate(zip(self.store.arenas, served.works, strict=True))
            if needs_norms(arena)
        }
        norms = norm_sum(
            {
                part.table: split[a][1][span]
                for a in split
                for part, span in _spans(self.store.arenas[a], served.works[a])
            }
        )
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
            elif len(work.index):
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
                )

    @staticmethod
    def _merged(arena: Arena, work: ArenaWork, gradients: Floats) -> tuple[Floats, Floats]:
        assert work.grouping is not None, "this step was routed for evaluation"
        merged = kernels.merge(work.grouping, gradients, work.source_start, arena.width, weights=work.weights)
        return merged, kernels.squared_norm(merged)


def needs_norms(arena: Arena) -> bool:
    """Whether a step of this arena needs squared norms over columns that other ranks hold."""
    return arena.width != arena.total_width and arena.spec.name == "rowwise_adagrad"


def _spans(arena: Arena, work: ArenaWork) -> list[tuple[Part, slice]]:
    """Each part of an arena with its share of the step's touched rows, which are in ascending order."""
    assert work.grouping is not None
    unique = work.grouping.unique
    return [(p, slice(*np.searchsorted(unique, (p.base, p.base + p.rows)).tolist())) for p in arena.parts]


def _join(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
