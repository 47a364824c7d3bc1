"""The dense side of a step: how vectors get from the wire into the leaves, and gradients from the leaves to the wire.

A leaf is [B, F, D] (``layout.LeafGroup``). Moves are built when a batch is routed (``dense_side``), and used once
forward and once backward. Knows arrays and the places in them; knows no MPI and no features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcrec import kernels
from hpcrec.exchange.copies import Kept
from hpcrec.exchange.layout import Partial
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
class MaxMove:
    """Form ``pooled``, rows dealt, pooled by max: the vectors that arrive are the largest of parts of bags.

    Parts that are empty are not sent, so their zeros win against nothing. Of equal parts the first owner's wins, and
    gets the gradient.

    Attributes
    ----------
    group, width : int
    value_start, gradient_start : int64 [N]
        As of ``CopyMove``, of each part; parts of one bag lie one after the other, in owner order.
    offsets : int64 [V + 1]
        Bags in those.
    leaf_start : int64 [V]
    winners : int32 [V, D] or None
        Which of its parts gave each column of a bag, once there was a step; None in evaluation.
    """

    group: int
    width: int
    value_start: Ints
    gradient_start: Ints
    offsets: Ints
    leaf_start: Ints
    winners: NDArray[np.int32] | None

    @property
    def written(self) -> int:
        """As of ``CopyMove``."""
        return len(self.leaf_start) * self.width

    def forward(self, values: Floats, leaves: Sequence[Floats]) -> None:
        """Values -> leaf: the largest of the parts."""
        n = len(self.value_start)
        parts_ND = kernels.room_beside(values, (n, self.width), values.dtype)
        kernels.copy_vectors(values, parts_ND.reshape(-1), self.width, source_start=self.value_start)
        leaf = leaves[self.group].reshape(-1)
        kernels.pooled_max(
            parts_ND, np.arange(n), self.offsets, leaf, out_start=self.leaf_start, winners=self.winners
        )  # fmt: skip

    def backward(self, leaf_gradients: Sequence[Floats], gradients: Floats) -> None:
        """Leaf gradient -> gradients of the parts: zero, column by column, for all but the one that won."""
        assert self.winners is not None, "this step was routed for evaluation"
        parts_ND = kernels.room_beside(gradients, (len(self.value_start), self.width), gradients.dtype)
        leaf = leaf_gradients[self.group].reshape(-1)
        kernels.pooled_max_backward(self.winners, self.offsets, leaf, parts_ND, source_start=self.leaf_start)
        kernels.copy_vectors(parts_ND.reshape(-1), gradients, self.width, target_start=self.gradient_start)


@dataclass(frozen=True)
class Crossing:
    """Vectors of one width that are columns of rows at hand: where they lie on the wire and among the rows.

    Attributes
    ----------
    width : int
    value_start : int64 [V] or None
        First element of each in the values; None where nothing comes.
    gradient_start : int64 [V]
        Likewise in the gradients; a row of a replicated table is there once for each copy.
    row_start : int64 [V]
        First element of the row's columns among the rows.
    """

    width: int
    value_start: Ints | None
    gradient_start: Ints
    row_start: Ints


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
    crossings : sequence of Crossing
    index : int64 [K]
        Distinct row of each id, bag after bag.
    offsets : int64 [V + 1]
    leaf_start : int64 [V]
    weights : float [K] or None
    scale : float [V] or None
    grouping : kernels.Grouping or None
        Ids by distinct row, named by their bags, or by their positions where they carry weights or are pooled by max;
        None in evaluation.
    largest : bool
        Bags are pooled by max, and have no weights and no scale.
    winners : int32 [V, D] or None
        As of ``MaxMove``, of the ids of each bag; None where there is no max.
    kept : sequence of (Kept, str)
        Of a conditional form: whose rows of which table these are, one after the other; else empty.
    """

    group: int
    width: int
    table_rows: Floats | None
    row_of: Ints | None
    n_unique: int
    crossings: Sequence[Crossing]
    index: Ints
    offsets: Ints
    leaf_start: Ints
    weights: Floats | None
    scale: Floats | None
    grouping: kernels.Grouping | None
    largest: bool
    winners: NDArray[np.int32] | None
    kept: Sequence[tuple[Kept, str]] = ()

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
            rows, index = kernels.room_beside(values, (self.n_unique, self.width), values.dtype), self.index
            if self.kept:
                rows[:] = np.concatenate([of.rows[table] for of, table in self.kept])
            for crossing in self.crossings:
                kernels.copy_vectors(
                    values,
                    rows.reshape(-1),
                    crossing.width,
                    source_start=crossing.value_start,
                    target_start=crossing.row_start,
                )
        leaf = leaves[self.group].reshape(-1)
        if self.largest:
            kernels.pooled_max(rows, index, self.offsets, leaf, out_start=self.leaf_start, winners=self.winners)
        else:
            kernels.pooled_gather(
                rows, index, self.offsets, leaf, out_start=self.leaf_start, weights=self.weights, scale=self.scale
            )

    def backward(self, leaf_gradients: Sequence[Floats], gradients: Floats) -> None:
        """Leaf gradient -> one gradient a distinct row."""
        assert self.grouping is not None, "this step was routed for evaluation"
        source, source_start, weights = leaf_gradients[self.group].reshape(-1), self.leaf_start, self.scale
        if self.winners is not None:
            ids_KD = kernels.room_beside(source, (len(self.index), self.width), source.dtype)
            kernels.pooled_max_backward(self.winners, self.offsets, source, ids_KD, source_start=source_start)
            source, source_start = ids_KD.reshape(-1), np.arange(len(ids_KD)) * self.width
        elif self.weights is not None:
            lengths_V = np.diff(self.offsets)
            source_start = np.repeat(source_start, lengths_V)
            weights = self.weights if weights is None else self.weights * np.repeat(weights, lengths_V)
        merged = kernels.merge(self.grouping, source, source_start, self.width, weights=weights)
        at = 0
        for of, table in self.kept:
            of.gradients[table] = np.asarray(merged[at : at + len(of.asked.rows)])
            at += len(of.asked.rows)
        for crossing in self.crossings:
            kernels.copy_vectors(
                merged.reshape(-1),
                gradients,
                crossing.width,
                source_start=crossing.row_start,
                target_start=crossing.gradient_start,
            )


Move = CopyMove | MaxMove | PoolMove


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
