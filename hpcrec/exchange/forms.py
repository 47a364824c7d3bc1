"""The forms in which a feature's vectors cross: what a dense rank asks each holder for, and how it uses the answer.

``pooled``     bags go out, one pooled vector a bag comes back (a part of it where rows are dealt to several owners)
``partial``    as ``pooled``; but where all operators that read a table can be computed at the holders, these send one
               partial result a sample and operator, and no vectors of that table cross. Its empty bags go out too
``rows``       distinct ids go out, their rows come back; this rank pools, and merges the gradients by row
``replicate``  this rank has the rows; distinct ids go to all copies, so that their gradients can follow

Each form splits one bundle of features (``Layout.bundles``) by holder. A new form is one more class with ``split``.
Knows one batch and the layout; knows no MPI.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.shards import Family
from hpcrec.embedding.store import RowStore
from hpcrec.exchange.collect import CopyMoves, PoolMoves, PoolPart, filled
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.moves import Slab
from hpcrec.exchange.wire import Piece, cumulative
from hpcrec.types import Floats, Ints

Entry = tuple[int, int]  # (holder's world rank, number of the entry in its leg)


@dataclass(frozen=True)
class Column:
    """One feature's bags on this rank.

    Attributes
    ----------
    rows : int64 [K]
        Row numbers in the whole table.
    lengths : int64 [B]
    weights : float [K] or None
    scale : float [B] or None
        1 / ids of the bag, for means.
    """

    rows: Ints
    lengths: Ints
    weights: Floats | None
    scale: Floats | None


@dataclass(frozen=True)
class Starts:
    """First element of each stream in this rank's messages, and its columns, by (holder, entry, table)."""

    value: dict[tuple[int, int, str], int]
    gradient: dict[tuple[int, int, str], int]
    columns: dict[tuple[int, int, str], tuple[int, int]]


@dataclass
class Collected:
    """Where the parts of a batch put their moves."""

    copies: CopyMoves
    pools: PoolMoves


class Part(Protocol):
    """A bundle of one batch, split by holder."""

    @property
    def pieces(self) -> Mapping[Entry, Piece]:
        """What each holder is asked."""

    def place(self, starts: Starts, moves: Collected) -> None:
        """Says how the vectors that answer ``pieces`` are used, once it is known where they will be."""


class Form(Protocol):
    """One bundle of features under one form."""

    def split(self, columns: Mapping[str, Column]) -> Part:
        """This rank's ids by holder."""

    def asked_of(self, holder: int, columns: Mapping[str, Column]) -> Mapping[Entry, Piece]:
        """The pieces of ``split`` for one holder; those of the others are not made."""


class PooledForm:
    """See the module; one feature a bundle."""

    def __init__(self, layout: Layout, family: Family, features: tuple[str, ...]) -> None:
        self._layout = layout
        self._family = family
        self._feature = features[0]
        self._entries = layout.entries_of(family, features)

    def split(self, columns: Mapping[str, Column]) -> "PooledPart":
        """See ``Form``."""
        column, family = columns[self._feature], self._family
        if family.kind == "row":
            dealt, order, ends = _deal(column.rows, family)
            sample = _sample_of(column)
            made = {
                entry: self._dealt(column, sample, dealt, order[ends[part] : ends[part + 1]], entry)
                for part, entry in enumerate(self._entries)
            }
        else:
            whole = {every: self._whole(column, every_bag=every) for every in {*map(self._every_bag, self._entries)}}
            made = {entry: whole[self._every_bag(entry)] for entry in self._entries}
        pieces = {entry: piece for entry, (piece, _) in made.items()}
        samples = {entry: of for entry, (_, of) in made.items()}
        return PooledPart(self._layout, family, self._feature, column, pieces, samples)

    def asked_of(self, holder: int, columns: Mapping[str, Column]) -> Mapping[Entry, Piece]:
        """See ``Form``."""
        column, family = columns[self._feature], self._family
        for part, entry in enumerate(self._entries):
            if entry[0] != holder:
                continue
            if family.kind != "row":
                return {entry: self._whole(column, every_bag=self._every_bag(entry))[0]}
            dealt = kernels.permute(column.rows, family.rows, 0)
            take = np.flatnonzero(dealt % family.row_parts == part)
            return {entry: self._dealt(column, _sample_of(column), dealt, take, entry)[0]}
        return {}

    def _every_bag(self, entry: Entry) -> bool:
        return self._layout.legs[entry[0]].entries[entry[1]].every_bag

    def _whole(self, column: Column, *, every_bag: bool) -> tuple[Piece, Ints]:
        """All ids for one holder, and the samples of its bags."""
        samples, lengths = np.arange(len(column.lengths)), _lengths(column.lengths)
        if lengths is not None and not every_bag:
            samples = np.flatnonzero(column.lengths)
            lengths = _lengths(column.lengths[samples])
        return Piece(column.rows, lengths, column.weights), samples

    def _dealt(self, column: Column, sample: Ints, dealt: Ints, take: Ints, entry: Entry) -> tuple[Piece, Ints]:
        """One holder's ids, at positions ``take`` (ascending), and the samples of its bags."""
        n_samples, bag = len(column.lengths), sample[take]
        first = np.flatnonzero(np.diff(bag, prepend=-1))  # positions ascend, so a bag's ids are still together
        weights = None if column.weights is None else column.weights[take]
        lengths, samples = np.diff(np.append(first, len(bag))), bag[first]
        if self._every_bag(entry):
            lengths, samples = np.bincount(bag, minlength=n_samples), np.arange(n_samples)
        return Piece(dealt[take] // self._family.row_parts, _lengths(lengths), weights), samples


@dataclass(frozen=True)
class PooledPart:
    """``samples`` are those of each piece's bags."""

    layout: Layout
    family: Family
    feature: str
    column: Column
    pieces: Mapping[Entry, Piece]
    samples: Mapping[Entry, Ints]

    def place(self, starts: Starts, moves: Collected) -> None:
        """See ``Part``."""
        largest = self.layout.pooling[self.feature] == "max"
        meets = "set" if self.family.row_parts == 1 else "max" if largest else "add"
        for entry, samples in self.samples.items():
            scale = None if self.column.scale is None else self.column.scale[samples]
            for table in self.layout.tables_of[self.feature]:
                key = (*entry, table)
                if key not in starts.gradient:
                    continue  # no column of this table is there
                group, position = self.layout.place[self.feature, table]
                leaf = self.layout.groups[group]
                first, last = starts.columns[key]
                at = (samples * len(leaf.lookups) + position) * leaf.width + first
                moves.copies.add((group, last - first, meets), starts.value[key], starts.gradient[key], at, scale)


class DistinctForm:
    """Forms ``rows`` and ``replicate``: see the module."""

    def __init__(
        self, layout: Layout, family: Family, features: tuple[str, ...], replicas: RowStore | None, dtype: np.dtype
    ) -> None:
        self._layout = layout
        self._family = family
        self._features = features
        self._replicas = replicas
        self._dtype = dtype
        self._entries = layout.entries_of(family, features)

    def split(self, columns: Mapping[str, Column]) -> "DistinctPart":
        """See ``Form``."""
        mine, family = [columns[f] for f in self._features], self._family
        unique, index = kernels.dedup(np.concatenate([c.rows for c in mine]))
        pieces: dict[Entry, Piece] = {}
        firsts: dict[Entry, int] = dict.fromkeys(self._entries, 0)
        if family.kind == "row":
            dealt, stride = kernels.permute(unique, family.rows, 0), family.part_rows(0)
            local = dealt // family.row_parts
            # numbered part after part: in that order rows arrive, and what each part is asked rises
            unique, _, order = kernels.group((dealt - local * family.row_parts) * stride + local)
            arrived = np.empty_like(order)
            arrived[order] = np.arange(len(order))
            index = arrived[index]
            ends = np.searchsorted(unique, stride * np.arange(family.row_parts + 1))
            for part, entry in enumerate(self._entries):
                pieces[entry] = Piece(unique[ends[part] : ends[part + 1]] - part * stride, None, None)
                firsts[entry] = int(ends[part])
        else:
            pieces = dict.fromkeys(self._entries, Piece(unique, None, None))
        return DistinctPart(
            self._layout, self._family, self._features, self._replicas, self._dtype, mine, unique, index, pieces, firsts
        )

    def asked_of(self, holder: int, columns: Mapping[str, Column]) -> Mapping[Entry, Piece]:
        """See ``Form``."""
        rows, family = np.concatenate([columns[f].rows for f in self._features]), self._family
        for part, entry in enumerate(self._entries):
            if entry[0] != holder:
                continue
            if family.kind == "row":
                dealt = kernels.permute(rows, family.rows, 0)
                rows = dealt[dealt % family.row_parts == part] // family.row_parts
            return {entry: Piece(kernels.dedup(rows)[0], None, None)}
        return {}


@dataclass(frozen=True)
class DistinctPart:
    """``unique`` are the distinct rows, numbered part after part where they are dealt; ``index`` is that of each id.

    ``firsts`` is the first of them that each holder answers with.
    """

    layout: Layout
    family: Family
    features: tuple[str, ...]
    replicas: RowStore | None
    dtype: np.dtype
    columns: list[Column]
    unique: Ints
    index: Ints
    pieces: Mapping[Entry, Piece]
    firsts: Mapping[Entry, int]

    def place(self, starts: Starts, moves: Collected) -> None:
        """See ``Part``."""
        n_ids = [len(c.rows) for c in self.columns]
        n_bags = [len(c.lengths) for c in self.columns]
        samples = np.arange(n_bags[0], dtype=np.int64)
        for table in self.layout.tables_of[self.features[0]]:
            arena, row_of = self._replica(table)
            places = [self.layout.place[feature, table] for feature in self.features]
            leaf = self.layout.groups[places[0][0]]  # one table has one width, so one leaf
            part = PoolPart(
                n_unique=len(self.unique),
                row_of=row_of,
                slabs=self._slabs(table, starts),
                index=self.index,
                lengths=np.concatenate([c.lengths for c in self.columns]),
                leaf_start=np.concatenate([(samples * len(leaf.lookups) + p) * leaf.width for _, p in places]),
                weights=filled([c.weights for c in self.columns], n_ids, self.dtype),
                scale=filled([c.scale for c in self.columns], n_bags, self.dtype),
                largest=self.layout.pooling[self.features[0]] == "max",
            )
            moves.pools.add(places[0][0], arena, part)

    def _replica(self, table: str) -> tuple[int, Ints | None]:
        """Arena and rows of the copy here; (-1, None) where rows arrive in the values."""
        if self.family.kind != "replicate":
            return -1, None
        found = None if self.replicas is None else self.replicas.find(table)
        assert found is not None, "every dense rank has every replicated table"
        return found[0], self.unique + found[1].base

    def _slabs(self, table: str, starts: Starts) -> list[Slab]:
        keys = {(*entry, table): entry for entry in self.pieces if (*entry, table) in starts.gradient}
        if self.family.kind == "replicate":  # every copy gets the same gradients
            copies = tuple(starts.gradient[key] for key in keys)
            return [Slab(0, copies, 0, len(self.unique), starts.columns[next(iter(keys))])]
        return [
            Slab(
                starts.value[key],
                (starts.gradient[key],),
                self.firsts[entry],
                len(self.pieces[entry].rows),
                starts.columns[key],
            )
            for key, entry in keys.items()
        ]


def _deal(rows: Ints, family: Family) -> tuple[Ints, Ints, Ints]:
    """Dealt numbers of rows (part = number mod parts), their order by part, and where each part ends."""
    dealt = kernels.permute(rows, family.rows, 0)
    counts, order = kernels.partition((dealt % family.row_parts).astype(np.int32), family.row_parts)
    return dealt, order, cumulative(counts)


def _sample_of(column: Column) -> Ints:
    """The sample of each id."""
    return np.repeat(np.arange(len(column.lengths)), column.lengths)


def _lengths(lengths: Ints) -> Ints | None:
    """None where every bag is one id."""
    return None if len(lengths) == 0 or (lengths == 1).all() else lengths
