"""The dense side of routing: from a batch's bags to the messages that ask for them, and the moves that follow.

Knows the layout and one batch; knows no MPI.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.shards import Family, table_seed
from hpcrec.embedding.store import RowStore
from hpcrec.errors import DataError
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.moves import CopyMoves, Move, PoolMoves, PoolPart, Slab, filled
from hpcrec.exchange.wire import Piece, cumulative, encode
from hpcrec.types import Bags, Floats, Ints


@dataclass(frozen=True)
class Asked:
    """One step's work of a dense rank.

    Attributes
    ----------
    message : uint8, flat
        Ids messages to all ranks, one after the other, padded.
    id_bytes_R, value_bytes_R, gradient_bytes_R : int64 [R]
        Sizes on the wire: of the messages, of what comes back, and of the gradients that follow.
    moves : sequence of Move
    n_samples : int
    """

    message: np.ndarray
    id_bytes_R: Ints
    value_bytes_R: Ints
    gradient_bytes_R: Ints
    moves: Sequence[Move]
    n_samples: int


@dataclass(frozen=True)
class _Column:
    """One feature's bags on this rank."""

    rows: Ints  # row numbers in the whole table
    lengths: Ints
    weights: Floats | None
    scale: Floats | None  # by bag, empty ones included


@dataclass(frozen=True)
class _Starts:
    """First element of each stream in this rank's messages, and its columns, by (holder, entry, table)."""

    value: dict[tuple[int, int, str], int]
    gradient: dict[tuple[int, int, str], int]
    columns: dict[tuple[int, int, str], tuple[int, int]]


@dataclass
class _Wanted:
    """A bundle's pieces: (holder, entry) -> piece, and how its vectors will be used."""

    features: tuple[str, ...]
    family: Family
    pieces: dict[tuple[int, int], Piece]
    bags: dict[int, Ints]  # pooled: holder -> sample of each bag
    index: Ints | None = None  # rows, replicate: distinct row of each id
    unique: Ints | None = None
    firsts: dict[int, int] | None = None  # rows: holder -> first cached row


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
        self._entry_at = {(r, e.features): i for r, leg in layout.legs.items() for i, e in enumerate(leg.entries)}
        self._copies = layout.bundles("pooled")
        self._pools = [b for form in ("rows", "replicate") for b in layout.bundles(form)]

    def ask(self, bags: Bags, *, train: bool) -> Asked:
        """Messages and moves for this rank's part of a batch.

        Raises
        ------
        DataError
            An id outside its table.
        """
        n_samples = (len(bags.offsets) - 1) // len(bags.features) if bags.features else 0
        columns = {f: self._column(bags, f, n_samples) for f in self._layout.form_of}
        wanted = [self._pooled(family, feats[0], columns[feats[0]]) for family, feats in self._copies]
        wanted += [self._distinct(family, feats, columns) for family, feats in self._pools]
        pieces = {key: piece for w in wanted for key, piece in w.pieces.items()}
        message, id_bytes_R = self._encode(pieces)
        starts, value_bytes_R, gradient_bytes_R = self._starts(pieces)
        copies, pools = CopyMoves(), PoolMoves()
        for w in wanted:
            if w.index is None:
                self._place_pooled(w, columns[w.features[0]], starts, copies)
            else:
                self._place_distinct(w, columns, starts, pools, n_samples)
        replicas = [] if self._replicas is None else [a.rows for a in self._replicas.arenas]
        widths = [g.width for g in self._layout.groups]
        moves: list[Move] = [*copies.finish(self._dtype), *pools.finish(widths, replicas, self._dtype, train=train)]
        return Asked(message, id_bytes_R, value_bytes_R, gradient_bytes_R, moves, n_samples)

    def _column(self, bags: Bags, feature: str, n_samples: int) -> _Column:
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
        return _Column(ids, lengths, weights, scale)

    # Form pooled: bags go out, pooled vectors come back.

    def _pooled(self, family: Family, feature: str, column: _Column) -> _Wanted:
        w = _Wanted((feature,), family, {}, {})
        filled = np.flatnonzero(column.lengths)
        if family.kind != "row":
            piece = Piece(column.rows, _lengths(column.lengths[filled]), column.weights)
            for holder in self._holders(family, w.features):
                w.pieces[holder, self._entry_at[holder, w.features]] = piece
                w.bags[holder] = filled
            return w
        dealt = kernels.permute(column.rows, family.rows, 0)
        parts = (dealt % family.row_parts).astype(np.int32)
        counts, order = kernels.partition(parts, family.row_parts)
        sample = np.repeat(np.arange(len(column.lengths)), column.lengths)
        ends = cumulative(counts)
        for part, holder in enumerate(family.holders):
            take = order[ends[part] : ends[part + 1]]
            bag = sample[take]
            first = np.flatnonzero(np.diff(bag, prepend=-1))  # order is stable, so a bag's ids are still together
            lengths = np.diff(np.append(first, len(bag)))
            weights = None if column.weights is None else column.weights[take]
            piece = Piece(dealt[take] // family.row_parts, _lengths(lengths), weights)
            w.pieces[holder, self._entry_at[holder, w.features]] = piece
            w.bags[holder] = bag[first]
        return w

    def _place_pooled(self, w: _Wanted, column: _Column, starts: _Starts, copies: CopyMoves) -> None:
        feature = w.features[0]
        for holder, entry in w.pieces:
            samples = w.bags[holder]
            scale = None if column.scale is None else column.scale[samples]
            for table in self._layout.tables_of[feature]:
                key = (holder, entry, table)
                if key not in starts.gradient:
                    continue
                group, position = self._layout.place[feature, table]
                g = self._layout.groups[group]
                start, stop = starts.columns[key]
                leaf_start = (samples * len(g.lookups) + position) * g.width + start
                splits = w.family.kind == "row" and w.family.row_parts > 1
                copies.add((group, stop - start, splits), starts.value[key], starts.gradient[key], leaf_start, scale)

    # Forms rows and replicate: distinct ids go out; pooling and merging happen here.

    def _distinct(self, family: Family, feats: tuple[str, ...], columns: dict[str, _Column]) -> _Wanted:
        unique, index = kernels.dedup(np.concatenate([columns[f].rows for f in feats]))
        w = _Wanted(feats, family, {}, {}, index=index, unique=unique, firsts={})
        if family.kind == "row":
            dealt = kernels.permute(unique, family.rows, 0)
            counts, order = kernels.partition((dealt % family.row_parts).astype(np.int32), family.row_parts)
            cached = np.empty_like(order)
            cached[order] = np.arange(len(order))
            w.index = cached[index]
            ends = cumulative(counts)
            for part, holder in enumerate(family.holders):
                take = order[ends[part] : ends[part + 1]]
                w.pieces[holder, self._entry_at[holder, feats]] = Piece(dealt[take] // family.row_parts, None, None)
                w.firsts[holder] = int(ends[part])  # type: ignore[index]
            return w
        for holder in self._holders(family, feats):
            w.pieces[holder, self._entry_at[holder, feats]] = Piece(unique, None, None)
            w.firsts[holder] = 0  # type: ignore[index]
        return w

    def _place_distinct(
        self, w: _Wanted, columns: dict[str, _Column], starts: _Starts, pools: PoolMoves, n_samples: int
    ) -> None:
        assert w.unique is not None and w.index is not None and w.firsts is not None
        ids = [len(columns[f].rows) for f in w.features]
        for table in self._layout.tables_of[w.features[0]]:
            arena, row_of = -1, None
            if w.family.kind == "replicate":
                assert self._replicas is not None
                found = self._replicas.find(table)
                assert found is not None
                arena, row_of = found[0], w.unique + found[1].base
            group = self._layout.place[w.features[0], table][0]  # one width, so one group
            g = self._layout.groups[group]
            samples = np.arange(n_samples, dtype=np.int64)
            positions = [self._layout.place[f, table][1] for f in w.features]
            bags = [len(columns[f].lengths) for f in w.features]
            part = PoolPart(
                n_unique=len(w.unique),
                row_of=row_of,
                slabs=self._slabs(w, table, starts),
                index=w.index,
                lengths=np.concatenate([columns[f].lengths for f in w.features]),
                leaf_start=np.concatenate([(samples * len(g.lookups) + p) * g.width for p in positions]),
                weights=filled([columns[f].weights for f in w.features], ids, self._dtype),
                scale=filled([columns[f].scale for f in w.features], bags, self._dtype),
            )
            pools.add(group, arena, part)

    def _slabs(self, w: _Wanted, table: str, starts: _Starts) -> list[Slab]:
        assert w.unique is not None and w.firsts is not None
        keys = [(h, e, table) for h, e in w.pieces if (h, e, table) in starts.gradient]
        if w.family.kind == "replicate":  # every copy gets the same gradients
            copies = tuple(starts.gradient[key] for key in keys)
            return [Slab(0, copies, 0, len(w.unique), starts.columns[keys[0]])]
        return [
            Slab(
                starts.value[key],
                (starts.gradient[key],),
                w.firsts[key[0]],
                len(w.pieces[key[:2]].rows),
                starts.columns[key],
            )
            for key in keys
        ]

    # Messages.

    def _holders(self, family: Family, features: tuple[str, ...]) -> list[int]:
        return [h for h in family.holders if (h, features) in self._entry_at]

    def _encode(self, pieces: dict[tuple[int, int], Piece]) -> tuple[np.ndarray, Ints]:
        size_R = np.zeros(self._size, np.int64)
        parts: dict[int, list[bytes | memoryview]] = {}
        for holder, leg in self._layout.legs.items():
            parts[holder] = encode([pieces[holder, e] for e in range(len(leg.entries))])
            size_R[holder] = sum(len(p) for p in parts[holder])
        padded_R = self._pad(size_R)
        message = np.zeros(int(padded_R.sum()), np.uint8)
        for holder, at in zip(range(self._size), cumulative(padded_R), strict=False):
            for part in parts.get(holder, ()):
                message[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
        return message, padded_R

    def _starts(self, pieces: dict[tuple[int, int], Piece]) -> tuple[_Starts, Ints, Ints]:
        item = self._dtype.itemsize
        value_R, gradient_R = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
        counts: dict[int, Ints] = {}
        for holder, leg in self._layout.legs.items():
            counts[holder] = np.array([pieces[holder, s.entry].n_bags * s.width for s in leg.streams], np.int64)
            value_R[holder] = counts[holder][: leg.n_value_streams].sum() * item
            gradient_R[holder] = counts[holder].sum() * item
        value_R, gradient_R = self._pad(value_R), self._pad(gradient_R)
        value_at, gradient_at = cumulative(value_R) // item, cumulative(gradient_R) // item
        starts = _Starts({}, {}, {})
        for holder, leg in self._layout.legs.items():
            inside = cumulative(counts[holder])
            for s, stream in enumerate(leg.streams):
                key = (holder, stream.entry, stream.table)
                starts.value[key] = int(value_at[holder] + inside[s])
                starts.gradient[key] = int(gradient_at[holder] + inside[s])
                starts.columns[key] = stream.columns
        return starts, value_R, gradient_R


def _lengths(lengths: Ints) -> Ints | None:
    """None where every bag is one id."""
    return None if len(lengths) == 0 or (lengths == 1).all() else lengths
