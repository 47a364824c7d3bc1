"""Picks samples out of columns and joins them into bags; no loop over samples, no file.

Legend: ``S`` samples of the columns, ``B`` samples picked, ``K`` ids, ``F`` features.
"""

from collections.abc import Sequence

import numpy as np

from hpcrec import kernels
from hpcrec.data.layout import Column, Columns
from hpcrec.types import Bags, Floats, Ints


def take(columns: Columns, rows_B: Ints) -> Columns:
    """Samples `rows_B` of `columns`, in that order, as copies; ids of all features in one array."""
    bounds = {name: _bounds(column, rows_B) for name, column in columns.sparse.items()}
    counts = {name: len(rows_B) if offsets is None else int(offsets[-1]) for name, offsets in bounds.items()}
    joined = np.empty(sum(counts.values()), dtype=np.int64)
    sparse: dict[str, Column] = {}
    at = 0
    for name, column in columns.sparse.items():
        sparse[name] = _take_column(column, rows_B, bounds[name], joined[at : at + counts[name]])
        at += counts[name]
    return Columns(
        label=columns.label.take(rows_B, axis=0),
        dense=columns.dense.take(rows_B, axis=0),
        sparse=sparse,
        weight=None if columns.weight is None else columns.weight.take(rows_B),
        group=None if columns.group is None else columns.group.take(rows_B),
        time=None if columns.time is None else columns.time.take(rows_B),
        joined=joined,
    )


def take_column(column: Column, rows_B: Ints) -> Column:
    """Bags of samples `rows_B`, in that order."""
    offsets = _bounds(column, rows_B)
    n = len(rows_B) if offsets is None else int(offsets[-1])
    return _take_column(column, rows_B, offsets, np.empty(n, dtype=np.int64))


def _bounds(column: Column, rows_B: Ints) -> Ints | None:
    """Offsets of bags `rows_B`, one after the other."""
    offsets = column.offsets
    return None if offsets is None else ends(offsets.take(rows_B + 1) - offsets.take(rows_B))


def _take_column(column: Column, rows_B: Ints, offsets: Ints | None, ids: Ints) -> Column:
    """The same into `ids`, as long as `offsets` say."""
    weights = None if column.weights is None else np.empty(len(ids), dtype=np.float32)
    for items, out in ((column.ids, ids), (column.weights, weights)):
        if items is None or out is None:
            continue
        if column.offsets is None or offsets is None:
            out[:] = items.take(rows_B)
        else:
            kernels.take_bags(items, column.offsets, rows_B, offsets, out)
    return Column(ids, offsets, weights)


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """Samples ``[start, stop)`` of `columns`, without `time`. Copies, but for what `bags` copies."""
    return Columns(
        label=columns.label[start:stop].copy(),
        dense=columns.dense[start:stop].copy(),
        sparse={name: _cut_column(column, start, stop) for name, column in columns.sparse.items()},
        weight=None if columns.weight is None else columns.weight[start:stop].copy(),
        group=None if columns.group is None else columns.group[start:stop].copy(),
    )


def _cut_column(column: Column, start: int, stop: int) -> Column:
    offsets, ids = None, slice(start, stop)
    if column.offsets is not None:
        bounds = column.offsets[start : stop + 1]
        offsets, ids = bounds - bounds[0], slice(int(bounds[0]), int(bounds[-1]))
    return Column(column.ids[ids], offsets, None if column.weights is None else column.weights[ids])


def ends(lengths: Ints) -> Ints:
    """Offsets of bags of these lengths: 0 and the running sum; int64 [len + 1]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def join(parts: Sequence[Columns]) -> Columns:
    """Samples of `parts` one after the other; `time` is left out."""
    if len(parts) == 1:
        return parts[0]
    weight = None if parts[0].weight is None else np.concatenate([p.weight for p in parts if p.weight is not None])
    group = None if parts[0].group is None else np.concatenate([p.group for p in parts if p.group is not None])
    return Columns(
        label=np.concatenate([part.label for part in parts]),
        dense=np.concatenate([part.dense for part in parts]),
        sparse={name: _join_column([part.sparse[name] for part in parts]) for name in parts[0].sparse},
        weight=weight,
        group=group,
    )


def join_bags(parts: Sequence[Bags]) -> Bags:
    """Bags of the same features, the samples of `parts` one after the other."""
    if len(parts) == 1:
        return parts[0]
    ids, lengths, weights = [], [], []
    for f in range(len(parts[0].features)):
        for part in parts:
            n = (len(part.offsets) - 1) // len(part.features)
            bounds = part.offsets[f * n : (f + 1) * n + 1]
            here = slice(int(bounds[0]), int(bounds[-1]))
            ids.append(part.ids[here])
            lengths.append(np.diff(bounds))
            if part.weights is not None:
                weights.append(part.weights[here])
    weights_K = np.concatenate(weights) if weights else None
    return Bags(parts[0].features, np.concatenate(ids), ends(np.concatenate(lengths)), weights_K)


def _join_column(parts: Sequence[Column]) -> Column:
    ids = np.concatenate([part.ids for part in parts])
    weights = None if parts[0].weights is None else np.concatenate([p.weights for p in parts if p.weights is not None])
    if parts[0].offsets is None:
        return Column(ids, None, weights)
    return Column(ids, ends(np.concatenate([np.diff(p.offsets) for p in parts if p.offsets is not None])), weights)


def bags(columns: Columns, features: Sequence[str]) -> Bags:
    """Bags of `features`, feature-major in that order; see `hpcrec.types.Bags`. Ids that lie so are not copied."""
    chosen = [columns.sparse[name] for name in features]
    n = columns.samples
    if columns.joined is not None and tuple(columns.sparse) == tuple(features):
        ids_K = columns.joined
    else:
        ids_K = np.concatenate([np.empty(0, dtype=np.int64), *(column.ids for column in chosen)])
    if all(column.offsets is None for column in chosen):
        offsets = np.arange(len(chosen) * n + 1, dtype=np.int64)
    else:
        ones = np.ones(n, dtype=np.int64)
        offsets = ends(np.concatenate([ones if c.offsets is None else np.diff(c.offsets) for c in chosen]))
    weights_K: Floats | None = None
    if any(column.weights is not None for column in chosen):
        weights_K = np.concatenate(
            [np.ones(len(c.ids), np.float32) if c.weights is None else c.weights for c in chosen]
        )
    return Bags(tuple(features), ids_K, offsets, weights_K)
