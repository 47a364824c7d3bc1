"""The dense side of a step: how vectors get from the wire into the leaves, and gradients from the leaves to the wire.

A leaf is [B, F, D] (``layout.LeafGroup``). Moves are built when a batch is routed and used once forward, once backward.
Knows arrays and the places in them; knows no MPI and no features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcrec import kernels
from hpcrec.exchange.layout import Partial
from hpcrec.exchange.wire import cumulative
from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class CopyMove:
    """Form ``pooled``: each vector that arrives is (a part of) a pooled vector.

    Attributes
    ----------
    group : int
        Leaf group.
    width : int
        Columns of each vector.
    adds : bool
        Bags are split over owners, whose parts are added in owner order.
    value_start, gradient_start, leaf_start : int64 [V]
        First element of each vector in the values, the gradients and the leaf.
    scale : float [V] or None
        1 / ids of the bag, for means.
    """

    group: int
    width: int
    adds: bool
    value_start: Ints
    gradient_start: Ints
    leaf_start: Ints
    scale: Floats | None

    @property
    def written(self) -> int:
        """Elements of the leaf that ``forward`` sets, whatever they were."""
        return 0 if self.adds else len(self.leaf_start) * self.width

    def forward(self, values: Floats, leaves: Sequence[Floats]) -> None:
        """Values -> leaf."""
        kernels.copy_vectors(
            values,
            leaves[self.group].reshape(-1),
            self.width,
            source_start=self.value_start,
            target_start=self.leaf_start,
            accumulate=self.adds,
            scale=self.scale,
        )

    def backward(self, leaf_gradients: Sequence[Floats], gradients: Floats) -> None:
        """Leaf gradient -> gradients of the vectors."""
        kernels.copy_vectors(
            leaf_gradients[self.group].reshape(-1),
            gradients,
            self.width,
            source_start=self.leaf_start,
            target_start=self.gradient_start,
            scale=self.scale,
        )


@dataclass(frozen=True)
class Slab:
    """Consecutive vectors of one stream, and the rows of the cache that they are columns of."""

    value_start: int
    gradient_starts: tuple[int, ...]  # one a copy: replicated tables send every holder the same
    first: int
    count: int
    columns: tuple[int, int]


@dataclass(frozen=True)
class PoolMove:
    """Forms ``rows`` and ``replicate``: distinct rows are at hand, pooling and merging happen on this rank.

    Attributes
    ----------
    group, width : int
        Leaf group and its width.
    table_rows : float [N, D] or None
        The replica to read; None for ``rows``, whose rows arrive in the values.
    row_of : int64 [U] or None
        Row of ``table_rows`` of each distinct row.
    n_unique : int
    slabs : sequence of Slab
    index : int64 [K]
        Distinct row of each id, bag after bag.
    offsets : int64 [V + 1]
    leaf_start : int64 [V]
    weights : float [K] or None
    scale : float [V] or None
    grouping : kernels.Grouping or None
        Ids by distinct row, named by their bags, or by their positions where they carry weights; None in evaluation.
    """

    group: int
    width: int
    table_rows: Floats | None
    row_of: Ints | None
    n_unique: int
    slabs: Sequence[Slab]
    index: Ints
    offsets: Ints
    leaf_start: Ints
    weights: Floats | None
    scale: Floats | None
    grouping: kernels.Grouping | None

    @property
    def written(self) -> int:
        """As of ``CopyMove``; empty bags are written too."""
        return len(self.leaf_start) * self.width

    def forward(self, values: Floats, leaves: Sequence[Floats]) -> None:
        """Rows -> leaf, pooled."""
        if self.table_rows is not None:
            assert self.row_of is not None
            rows, index = self.table_rows, self.row_of[self.index]
        else:
            rows, index = np.empty((self.n_unique, self.width), values.dtype), self.index
            for slab in self.slabs:
                kernels.copy_vectors(
                    values,
                    rows.reshape(-1),
                    slab.columns[1] - slab.columns[0],
                    source_start=self._compact(slab.value_start, slab),
                    target_start=self._inside(slab),
                )
        kernels.pooled_gather(
            rows,
            index,
            self.offsets,
            leaves[self.group].reshape(-1),
            out_start=self.leaf_start,
            weights=self.weights,
            scale=self.scale,
        )

    def backward(self, leaf_gradients: Sequence[Floats], gradients: Floats) -> None:
        """Leaf gradient -> one gradient a distinct row."""
        assert self.grouping is not None, "this step was routed for evaluation"
        source_start, weights = self.leaf_start, self.scale
        if self.weights is not None:
            lengths_V = np.diff(self.offsets)
            source_start = np.repeat(source_start, lengths_V)
            weights = self.weights if weights is None else self.weights * np.repeat(weights, lengths_V)
        merged = kernels.merge(
            self.grouping, leaf_gradients[self.group].reshape(-1), source_start, self.width, weights=weights
        )
        for slab in self.slabs:
            for start in slab.gradient_starts:
                kernels.copy_vectors(
                    merged.reshape(-1),
                    gradients,
                    slab.columns[1] - slab.columns[0],
                    source_start=self._inside(slab),
                    target_start=self._compact(start, slab),
                )

    def _inside(self, slab: Slab) -> Ints:
        return (slab.first + np.arange(slab.count, dtype=np.int64)) * self.width + slab.columns[0]

    @staticmethod
    def _compact(start: int, slab: Slab) -> Ints:
        return start + np.arange(slab.count, dtype=np.int64) * (slab.columns[1] - slab.columns[0])


Move = CopyMove | PoolMove


@dataclass(frozen=True)
class PartialMove:
    """A holder's partial result of one operator: where it lies in the values, and its gradient in the gradients."""

    of: Partial
    n_samples: int
    value_start: int
    gradient_start: int

    def take(self, values: Floats) -> Floats:
        """It, [B, P], a view."""
        return self._view(values, self.value_start)

    def give(self, gradient_BP: Floats, gradients: Floats) -> None:
        """Its gradient, into the message."""
        self._view(gradients, self.gradient_start)[:] = gradient_BP

    def _view(self, flat: Floats, start: int) -> Floats:
        size = self.n_samples * self.of.elements
        return flat[start : start + size].reshape(self.n_samples, self.of.elements)


class CopyMoves:
    """Collects the vectors of form ``pooled`` and makes one move for each (group, width, adds)."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int, bool], list[tuple[Ints, ...]]] = {}
        self._scales: dict[tuple[int, int, bool], list[tuple[int, Floats | None]]] = {}

    def add(
        self,
        key: tuple[int, int, bool],
        value_start: int,
        gradient_start: int,
        leaf_start: Ints,
        scale: Floats | None,
    ) -> None:
        """One stream: its vectors lie one after the other on the wire, at ``leaf_start`` in the leaf."""
        steps = np.arange(len(leaf_start), dtype=np.int64) * key[1]
        self._parts.setdefault(key, []).append((value_start + steps, gradient_start + steps, leaf_start))
        self._scales.setdefault(key, []).append((len(leaf_start), scale))

    def finish(self, dtype: np.dtype) -> list[CopyMove]:
        """The moves."""
        moves = []
        for key, parts in self._parts.items():
            values, gradients, leaves = (np.concatenate(column) for column in zip(*parts, strict=True))
            scales = self._scales[key]
            scale = None
            if any(s is not None for _, s in scales):
                scale = np.concatenate([np.ones(n, dtype) if s is None else s for n, s in scales])
            moves.append(CopyMove(*key, values, gradients, leaves, scale))
        return moves


@dataclass(frozen=True, kw_only=True)
class PoolPart:
    """One bundle's share of a ``PoolMove``: the same fields, counted from 0, with lengths instead of offsets."""

    n_unique: int
    row_of: Ints | None
    slabs: Sequence[Slab]
    index: Ints
    lengths: Ints
    leaf_start: Ints
    weights: Floats | None
    scale: Floats | None


class PoolMoves:
    """Collects bundles of forms ``rows`` and ``replicate``; one move for each leaf group and source of rows."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], list[PoolPart]] = {}  # by (group, replicated arena, or -1)

    def add(self, group: int, arena: int, part: PoolPart) -> None:
        """One bundle's table; ``arena`` is -1 where the rows arrive in the values."""
        self._parts.setdefault((group, arena), []).append(part)

    def finish(
        self, widths: Sequence[int], replicas: Sequence[Floats], dtype: np.dtype, *, train: bool
    ) -> list[PoolMove]:
        """The moves; ``widths`` by leaf group, ``replicas`` the rows of each replicated arena."""
        return [
            _join(parts, group, widths[group], replicas[arena] if arena >= 0 else None, dtype, train)
            for (group, arena), parts in self._parts.items()
        ]


def _join(
    parts: Sequence[PoolPart], group: int, width: int, table_rows: Floats | None, dtype: np.dtype, train: bool
) -> PoolMove:
    base = cumulative(np.array([p.n_unique for p in parts], np.int64))
    index = np.concatenate([p.index + b for p, b in zip(parts, base, strict=False)])
    offsets = cumulative(np.concatenate([p.lengths for p in parts]))
    weights = filled([p.weights for p in parts], [len(p.index) for p in parts], dtype)
    return PoolMove(
        group=group,
        width=width,
        table_rows=table_rows,
        row_of=None if table_rows is None else np.concatenate([p.row_of for p in parts if p.row_of is not None]),
        n_unique=int(base[-1]),
        slabs=[replace(s, first=s.first + int(b)) for p, b in zip(parts, base, strict=False) for s in p.slabs],
        index=index,
        offsets=offsets,
        leaf_start=np.concatenate([p.leaf_start for p in parts]),
        weights=weights,
        scale=filled([p.scale for p in parts], [len(p.lengths) for p in parts], dtype),
        grouping=kernels.group(index, offsets if weights is None else None) if train else None,
    )


def filled(parts: Sequence[Floats | None], lengths: Sequence[int], dtype: np.dtype) -> Floats | None:
    """The parts joined, ones for the missing; None where all are missing."""
    if all(p is None for p in parts):
        return None
    return np.concatenate([np.ones(n, dtype) if p is None else p for p, n in zip(parts, lengths, strict=True)])
