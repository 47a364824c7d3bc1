"""The dense side of routing: from a batch's bags to the messages that ask for them, and the moves that follow.

Knows the layout, the forms and one batch; knows no MPI.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.shards import table_seed
from hpcrec.embedding.store import RowStore
from hpcrec.errors import DataError
from hpcrec.exchange.forms import Collected, Column, DistinctForm, Form, PooledForm, Starts
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.moves import CopyMoves, Move, PartialMove, PoolMoves
from hpcrec.exchange.wire import Piece, cumulative, encode
from hpcrec.types import Bags, Ints


@dataclass(frozen=True)
class Asked:
    """One step's work of a dense rank.

    Attributes
    ----------
    id_bytes_R, value_bytes_R, gradient_bytes_R : int64 [R]
        Sizes on the wire: of the ids messages, of what comes back, and of the gradients that follow.
    moves : sequence of Move
    partials : sequence of PartialMove
    n_samples : int
    filled : sequence of bool
        By leaf group: whether the moves write every element of the leaf; if not, it has to start as zeros.
    """

    id_bytes_R: Ints
    value_bytes_R: Ints
    gradient_bytes_R: Ints
    moves: Sequence[Move]
    partials: Sequence[PartialMove]
    n_samples: int
    filled: Sequence[bool]


class Asker:
    """Turns batches into messages.

    Parameters
    ----------
    layout : Layout
    seed : int
        The run's seed, for hashed ids.
    replicas : RowStore or None
        The replicated tables on this rank.
    weighted : set of str
        Features whose ids carry weights.
    size : int
        Ranks in the world.
    pad : callable
        Bytes of messages -> bytes on the wire.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        seed: int,
        replicas: RowStore | None,
        weighted: set[str],
        size: int,
        pad: Callable[[Ints], Ints],
        dtype: np.dtype,
    ) -> None:
        self._layout = layout
        self._seed = seed
        self._replicas = replicas
        self._weighted = weighted
        self._size = size
        self._pad = pad
        self._dtype = np.dtype(dtype)
        self._forms: list[Form] = [
            PooledForm(layout, *bundle) for form in ("pooled", "partial") for bundle in layout.bundles(form)
        ]
        for form in ("rows", "replicate"):
            self._forms += [DistinctForm(layout, *bundle, replicas, self._dtype) for bundle in layout.bundles(form)]

    def ask(self, bags: Bags, room: Callable[[Ints], np.ndarray], *, train: bool) -> tuple[Asked, np.ndarray]:
        """Messages and moves for this rank's part of a batch.

        Parameters
        ----------
        bags : Bags
        room : callable
            Bytes of the messages on the wire, int64 [R] -> where to write them, uint8.
        train : bool
            Whether gradients will come back.

        Returns
        -------
        (Asked, uint8, flat)
            The second: ids messages to all ranks, one after the other, padded.

        Raises
        ------
        DataError
            An id outside its table.
        """
        n_samples = (len(bags.offsets) - 1) // len(bags.features)
        columns = {f: self._column(bags, f, n_samples) for f in self._layout.form_of}
        parts = [form.split(columns) for form in self._forms]
        pieces = {key: piece for part in parts for key, piece in part.pieces.items()}
        message, id_bytes_R = self._encode(pieces, room)
        starts, partials, value_bytes_R, gradient_bytes_R = self._starts(pieces, n_samples)
        collected = Collected(CopyMoves(), PoolMoves())
        for part in parts:
            part.place(starts, collected)
        replicas = [] if self._replicas is None else [a.rows for a in self._replicas.arenas]
        widths = [g.width for g in self._layout.groups]
        moves: list[Move] = [
            *collected.copies.finish(self._dtype),
            *collected.pools.finish(widths, replicas, self._dtype, train=train),
        ]
        written = [sum(m.written for m in moves if m.group == g) for g in range(len(widths))]
        filled = [
            n == n_samples * len(group.lookups) * group.width
            for n, group in zip(written, self._layout.groups, strict=True)
        ]
        return Asked(id_bytes_R, value_bytes_R, gradient_bytes_R, moves, partials, n_samples, filled), message

    def _column(self, bags: Bags, feature: str, n_samples: int) -> Column:
        f = bags.features.index(feature)
        offsets = bags.offsets[f * n_samples : (f + 1) * n_samples + 1]
        here = slice(int(offsets[0]), int(offsets[-1]))
        ids, lengths = bags.ids[here], np.diff(offsets)
        family = self._layout.family_of[feature]
        if family.hashed:
            ids = kernels.hash_ids(ids, family.rows, table_seed(self._seed, family.name))
        elif len(ids) and (ids.min() < 0 or ids.max() >= family.rows):
            bad = ids[(ids < 0) | (ids >= family.rows)][0]
            raise DataError(
                f"feature {feature!r} has id {bad}. Allowed: 0 to {family.rows - 1}, the rows of table "
                f"{family.name!r}. Set embedding.tables.{family.name}.hashed = true, or raise its rows."
            )
        weights = None
        if feature in self._weighted:
            weights = np.ones(len(ids), self._dtype) if bags.weights is None else bags.weights[here]
            weights = weights.astype(self._dtype, copy=False)
        scale = None
        if self._layout.pooling[feature] == "mean":
            scale = (1.0 / np.maximum(lengths, 1)).astype(self._dtype)
        return Column(ids, lengths, weights, scale)

    def _encode(
        self, pieces: Mapping[tuple[int, int], Piece], room: Callable[[Ints], np.ndarray]
    ) -> tuple[np.ndarray, Ints]:
        size_R = np.zeros(self._size, np.int64)
        parts: dict[int, list[bytes | memoryview]] = {}
        for holder, leg in self._layout.legs.items():
            parts[holder] = encode([pieces[holder, e] for e in range(len(leg.entries))])
            size_R[holder] = sum(len(p) for p in parts[holder])
        padded_R = self._pad(size_R)
        message = room(padded_R)
        for holder, at in zip(range(self._size), cumulative(padded_R), strict=False):
            for part in parts.get(holder, ()):
                message[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
        return message, padded_R

    def _starts(
        self, pieces: Mapping[tuple[int, int], Piece], n_samples: int
    ) -> tuple[Starts, list[PartialMove], Ints, Ints]:
        item = self._dtype.itemsize
        value_R, gradient_R = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
        counts: dict[int, Ints] = {}
        for holder, leg in self._layout.legs.items():
            counts[holder] = np.array([pieces[holder, s.entry].n_bags * s.width for s in leg.streams], np.int64)
            partial = n_samples * sum(p.elements for p in leg.partials)
            value_R[holder] = (counts[holder][: leg.n_value_streams].sum() + partial) * item
            gradient_R[holder] = (counts[holder].sum() + partial) * item
        value_R, gradient_R = self._pad(value_R), self._pad(gradient_R)
        value_at, gradient_at = cumulative(value_R) // item, cumulative(gradient_R) // item
        starts, partials = Starts({}, {}, {}), list[PartialMove]()
        for holder, leg in self._layout.legs.items():
            inside = cumulative(counts[holder])
            for s, stream in enumerate(leg.streams):
                key = (holder, stream.entry, stream.table)
                starts.value[key] = int(value_at[holder] + inside[s])
                starts.gradient[key] = int(gradient_at[holder] + inside[s])
                starts.columns[key] = stream.columns
            value_from = int(value_at[holder] + inside[leg.n_value_streams])
            gradient_from = int(gradient_at[holder] + inside[-1])
            for p in leg.partials:
                partials.append(PartialMove(p, n_samples, value_from, gradient_from))
                value_from += n_samples * p.elements
                gradient_from += n_samples * p.elements
        return starts, partials, value_R, gradient_R
