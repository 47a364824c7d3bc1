"""The holder's side of a step: answers ids with pooled vectors, applies the gradients that come back.

The same for every form: a message is bags of row numbers (of dynamic tables: of ids, whose rows are found first), the
answer is one vector a bag and table, and the gradients have the layout of the answer. For ``rows`` and ``replicate``
each bag is one row. Gradients of a row are summed in the order (dense rank, entry, sample, position), those of bags
pooled by max last, whatever the number of holders or threads. Knows no MPI.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count

import numpy as np

from hpcrec.embedding.asked import Asked
from hpcrec.embedding.load import Load
from hpcrec.embedding.store import NormSum, Store
from hpcrec.exchange.arenas import BlockReader
from hpcrec.exchange.find_rows import RowFinder
from hpcrec.exchange.layout import Leg
from hpcrec.exchange.staged import brought, written
from hpcrec.exchange.substitute import Slice, Substitute
from hpcrec.exchange.wire import Header, cumulative, read_header
from hpcrec.exchange.work import Served, Spans
from hpcrec.operators.base import Operator
from hpcrec.types import Floats, Ints


class Holder:
    """Serves one rank's rows.

    Parameters
    ----------
    store : Store
    leg : Leg
        This rank's leg of the layout.
    operators : mapping of str to Operator
    pooling : mapping of str to str
        That of each feature.
    weighted : sequence of bool
        By entry: whether its ids carry weights.
    size : int
        Ranks in the world.
    pad : callable
        Bytes of messages -> bytes on the wire.
    load : Load, optional
        What was asked of this rank before.
    sent : callable, optional
        Dense rank -> numbers of this holder's partial results that it is sent; default: all.
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
        leg: Leg,
        operators: Mapping[str, Operator],
        pooling: Mapping[str, str],
        *,
        weighted: Sequence[bool],
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
        self._leg = leg
        self._size, self._pad, self._teller = size, pad, teller
        self._weighted_E = np.array(weighted, bool)
        streams = (*leg.streams, *leg.hidden)
        self._entry_S = np.array([s.entry for s in streams], np.int64)
        self._width_S = np.array([s.width for s in leg.streams], np.int64)
        self._valued = leg.n_value_streams
        self._substitute = Substitute(leg, operators, sent, keeps=keeps) if leg.partials else None
        self._means = [h for h, s in enumerate(leg.hidden) if pooling[leg.entries[s.entry].features[0]] == "mean"]
        self._rows = RowFinder(store, leg, sets)
        self._blocks = BlockReader(store, leg, pooling, self._weighted_E, sets)
        self._numbers = count()

    @property
    def slices(self) -> list[Slice]:
        """Parts of operators' dense parameters that are used here."""
        return [] if self._substitute is None else self._substitute.slices

    def read(self, received: np.ndarray, bytes_R: Ints, sets: Sequence[int] | None = None, *, train: bool) -> Served:
        """Reads the messages of all ranks (uint8, one after the other in rank order), each to its rank's set of tables.

        It may run ahead of the steps before. Of dynamic tables it reads how much is asked; which rows, ``answer`` does,
        for an id may get the row that another has until the step before. ``received`` is not to change until then.
        """
        with nullcontext() if self.store.device is None else self.store.device.aside():
            served = self._read(received, bytes_R, sets, train=train)
        if served.find is None:
            self.store.prefetch(served.number, served.works)
        return served

    def _read(self, received: np.ndarray, bytes_R: Ints, sets: Sequence[int] | None, *, train: bool) -> Served:
        began_s = time.thread_time()
        size, item, weighted_E = self._size, self.store.dtype.itemsize, self._weighted_E
        at, of = cumulative(bytes_R).tolist(), sets or (0,) * size
        senders = np.flatnonzero(bytes_R)
        headers = [read_header(received, at[r], at[r + 1], weighted_E, item, of[r]) for r in senders.tolist()]
        n_streams = len(self._width_S)
        counts = np.array([h.n_bags[self._entry_S[:n_streams]] * self._width_S for h in headers], np.int64)
        counts = counts.reshape(len(headers), n_streams)  # elements by sender and stream
        samples_P = self._samples(headers)
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
        if self._substitute is not None:
            ends = value_base + values_P, gradient_base + gradients_P
            behind = int(value_bytes_R.sum()) // item, int(gradient_bytes_R.sum()) // item
            lengths = self._mean_lengths(received, headers)
            partials, hidden_PH = self._substitute.place(senders, samples_P, ends, behind, lengths)
            places = np.hstack([places[0], behind[0] + hidden_PH]), np.hstack([places[1], behind[1] + hidden_PH])
            ids_at += partials.elements
        sets_P = np.array([h.tables_of for h in headers], np.int64)
        spans = Spans(senders, sets_P, value_base, value_base + values_P + partial_P, counts[:, : self._valued])
        served = Served(value_bytes_R, gradient_bytes_R, spans, partials, None, verdict_at, verdict_in)
        served.find = partial(self._works, received, headers, places, ids_at, train=train)
        if not self._rows.any:
            self._find(served)
        if train:
            self.load.add_time("read", began_s)
        return served

    def _find(self, served: Served) -> None:
        """Which rows are asked for, unless that is known."""
        if served.find is not None:
            served.works, served.find, served.number = served.find(), None, next(self._numbers)

    def _works(
        self, received: np.ndarray, headers: Sequence[Header], places: tuple[Ints, Ints], ids_at: int, *, train: bool
    ) -> tuple[Asked, ...]:
        """What is asked of each block; in training, ids of dynamic tables get their rows here."""
        received, headers = self._rows.find(received, headers, train=train)
        works = self._blocks.read(received, headers, *places, ids_at, train=train)
        if train:
            sorted_rows = [work.grouping for work in works if work.grouping is not None]
            self.load.add_step(sum(len(g.order) for g in sorted_rows), sum(len(g.unique) for g in sorted_rows))
        return works

    def _samples(self, headers: Sequence[Header]) -> Ints:
        """Samples of each sender, as entries tell that have all their bags; 0 where nobody asks."""
        of = self._entry_S[-1:] if self._substitute is not None else self._entry_S[:0]
        return np.array([h.n_bags[of].sum() for h in headers], np.int64)

    def _mean_lengths(self, received: np.ndarray, headers: Sequence[Header]) -> dict[int, Ints]:
        first, none = len(self._width_S), np.zeros(0, np.int64)
        return {
            s: np.concatenate([none, *(h.lengths(received, int(self._entry_S[first + s])) for h in headers)])
            for s in self._means
        }

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
