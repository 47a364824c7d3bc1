"""Forms that send distinct ids: ``rows`` and ``replicate``. See ``exchange.forms``.

Knows one batch and the layout; knows no MPI.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.sets import name_in
from hpcrec.embedding.shards import Family
from hpcrec.embedding.store import Store
from hpcrec.exchange.collect import PoolPart, filled
from hpcrec.exchange.forms import Collected, Column, Entry, Starts
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.moves import Slab
from hpcrec.exchange.wire import Piece, cumulative
from hpcrec.types import Ints


class DistinctForm:
    """Forms ``rows`` and ``replicate``: see the module."""

    def __init__(
        self, layout: Layout, family: Family, features: tuple[str, ...], replicas: Store | None, dtype: np.dtype
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
            # part after part, in which order rows arrive, and so that what each part is asked rises
            unique, order, ends = _by_part(unique, family)
            arrived = np.empty_like(order)
            arrived[order] = np.arange(len(order))
            index = arrived[index]
            for part, entry in enumerate(self._entries):
                pieces[entry] = Piece(unique[ends[part] : ends[part + 1]], None, None)
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
                number, there = family.deal(rows)
                rows = there[number == part]
            return {entry: Piece(kernels.dedup(rows)[0], None, None)}
        return {}


@dataclass(frozen=True)
class DistinctPart:
    """``unique`` are the distinct rows, part after part where they are dealt; ``index`` is that of each id.

    ``firsts`` is the first of them that each holder answers with.
    """

    layout: Layout
    family: Family
    features: tuple[str, ...]
    replicas: Store | None
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
            block, row_of = self._replica(name_in(moves.tables_of, table))
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
            moves.pools.add(places[0][0], block, part)

    def _replica(self, table: str) -> tuple[int, Ints | None]:
        """Block and rows of the copy here; (-1, None) where rows arrive in the values."""
        if self.family.kind != "replicate":
            return -1, None
        found = None if self.replicas is None else self.replicas.place(table)
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


def _by_part(unique: Ints, family: Family) -> tuple[Ints, Ints, Ints]:
    """What ascending rows are called at their parts, rising in each; their order; and bounds of the parts."""
    number, there = family.deal(unique)
    if family.dynamic is not None:  # ids that ascend still do in each part
        counts, order = kernels.partition(number.astype(np.int32), family.row_parts)
        return there[order], order, cumulative(counts)
    stride = family.part_rows(0)
    numbered, _, order = kernels.group(number * stride + there)
    ends = np.searchsorted(numbered, stride * np.arange(family.row_parts + 1))
    return numbered - np.repeat(np.arange(family.row_parts), np.diff(ends)) * stride, order, ends
