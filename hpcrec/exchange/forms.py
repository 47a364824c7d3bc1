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
from hpcrec.exchange.collect import CopyMoves, PoolMoves
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.wire import Piece, cumulative
from hpcrec.types import Floats, Ints

Entry = tuple[int, int]  # (holder's world rank, number of the entry in its leg)


@dataclass(frozen=True)
class Column:
    """One feature's bags on this rank.

    Attributes
    ----------
    rows : int64 [K]
        Row numbers in the whole table; ids, where it is dynamic.
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
    """Where the parts of a batch put their moves; copies of tables on this rank are read of set ``tables_of``."""

    copies: CopyMoves
    pools: PoolMoves
    tables_of: int


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
            there, order, ends = _deal(column.rows, family)
            sample = _sample_of(column)
            made = {
                entry: self._dealt(column, sample, there, order[ends[part] : ends[part + 1]], entry)
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
            number, there = family.deal(column.rows)
            take = np.flatnonzero(number == part)
            return {entry: self._dealt(column, _sample_of(column), there, take, entry)[0]}
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

    def _dealt(self, column: Column, sample: Ints, there: Ints, take: Ints, entry: Entry) -> tuple[Piece, Ints]:
        """One holder's ids, at positions ``take`` (ascending), and the samples of its bags."""
        n_samples, bag = len(column.lengths), sample[take]
        first = np.flatnonzero(np.diff(bag, prepend=-1))  # positions ascend, so a bag's ids are still together
        weights = None if column.weights is None else column.weights[take]
        lengths, samples = np.diff(np.append(first, len(bag))), bag[first]
        if self._every_bag(entry):
            lengths, samples = np.bincount(bag, minlength=n_samples), np.arange(n_samples)
        return Piece(there[take], _lengths(lengths), weights), samples


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


def _deal(rows: Ints, family: Family) -> tuple[Ints, Ints, Ints]:
    """What each row is called at its part, their order by part, and where each part ends."""
    number, there = family.deal(rows)
    counts, order = kernels.partition(number.astype(np.int32), family.row_parts)
    return there, order, cumulative(counts)


def _sample_of(column: Column) -> Ints:
    """The sample of each id."""
    return np.repeat(np.arange(len(column.lengths)), column.lengths)


def _lengths(lengths: Ints) -> Ints | None:
    """None where every bag is one id."""
    return None if len(lengths) == 0 or (lengths == 1).all() else lengths
