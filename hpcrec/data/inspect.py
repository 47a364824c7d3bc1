"""What is in a data set: counts, label rate, features' ids and how skewed they are, ranges of dense columns.

Reads one column after the other, block by block, so memory does not grow with the data. Values that are not allowed
are counted, not refused. Knows nothing of training.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.data import layout
from hpcrec.data.counts import IdCounts
from hpcrec.data.hdf5 import File
from hpcrec.data.index import open_files
from hpcrec.data.reader import DataSet
from hpcrec.types import Feature

_BLOCK = layout.CHUNK_SAMPLES * 16  # rows read at once

# A file, and how many of its first samples are looked at.
_Taken = tuple[File, int]


def inspect(path: Path, samples: int | None = None, top: int = 5) -> dict[str, Any]:
    """What is in a data set, JSON-like.

    Parameters
    ----------
    path : Path
        A data set file or an index file.
    samples : int, optional
        Look at so many samples from its beginning; all by default.
    top : int
        How many of the most frequent ids of a feature to list.

    Raises
    ------
    DataError
        A file that cannot be read or departs from the schema.
    UnreadableError
        A file that cannot be read just now.
    """
    with DataSet(path) as data:
        features, total, attributes, optional = data.features, data.samples, data.attributes, data.optional
    files, _ = open_files(path)
    looked_at = total if samples is None else min(samples, total)
    taken: list[_Taken] = []
    for file in files:
        taken.append((file, min(file.samples, looked_at - sum(n for _, n in taken))))
    recorded = [crc is not None for file in files for crc in file.columns.values()]
    return {
        "path": str(path),
        "schema_version": layout.SCHEMA_VERSION,
        "files": len(files),
        "samples": total,
        "inspected": looked_at,
        "checksums": "all" if all(recorded) else "some" if any(recorded) else "none",
        "labels": _ranges(taken, "/label", files[0].n_labels),
        "features": [_feature(taken, feature, top) for feature in features],
        "dense": _ranges(taken, "/dense", files[0].n_dense) if files[0].n_dense else [],
        "optional": {name: _ranges(taken, f"/{name}", 1)[0] for name in optional},
        "attributes": attributes,
    }


def _ranges(taken: Sequence[_Taken], name: str, n_columns: int) -> list[dict[str, Any]]:
    """Range and mean of each column's finite values, and how many are not."""
    low, high = np.full(n_columns, np.inf), np.full(n_columns, -np.inf)
    total, count, nan, infinite = np.zeros((4, n_columns))
    for file, n in taken:
        for start in range(0, n, _BLOCK):
            values = np.asarray(file.read(name, start, min(start + _BLOCK, n)), np.float64).reshape(-1, n_columns)
            finite = np.isfinite(values)
            low = np.minimum(low, np.where(finite, values, np.inf).min(axis=0))
            high = np.maximum(high, np.where(finite, values, -np.inf).max(axis=0))
            total += np.where(finite, values, 0).sum(axis=0)
            count += finite.sum(axis=0)
            nan += np.isnan(values).sum(axis=0)
            infinite += np.isinf(values).sum(axis=0)
    return [
        {
            "min": float(low[i]) if count[i] else None,
            "mean": float(total[i] / count[i]) if count[i] else None,
            "max": float(high[i]) if count[i] else None,
            "nan": int(nan[i]),
            "inf": int(infinite[i]),
        }
        for i in range(n_columns)
    ]


def _feature(taken: Sequence[_Taken], feature: Feature, top: int) -> dict[str, Any]:
    counts = IdCounts()
    empty = longest = zeros = outside = 0
    for ids, lengths in _bags(taken, feature.name):
        empty += int(np.count_nonzero(lengths == 0))
        longest = max(longest, int(lengths.max(initial=0)))
        zeros += int(np.count_nonzero(ids == 0))
        if feature.cardinality:
            outside += int(np.count_nonzero((ids < 0) | (ids >= feature.cardinality)))
        counts.add(ids)
    samples = max(sum(n for _, n in taken), 1)
    return {
        "name": feature.name,
        "cardinality": feature.cardinality,
        "jagged": any(feature.name in file.jagged for file, _ in taken),
        "weighted": feature.weighted,
        "ids": counts.lookups,
        "mean_ids": counts.lookups / samples,
        "max_ids": longest,
        "empty_share": empty / samples,
        "id_0_share": zeros / max(counts.lookups, 1),
        "outside": outside,
        **counts.describe(top),
    }


def _bags(taken: Sequence[_Taken], feature: str) -> Iterator[tuple[Any, Any]]:
    """Ids of consecutive samples, and how many each sample has; a block of samples may come in several pieces."""
    for file, n in taken:
        for start in range(0, n, _BLOCK):
            offsets = file.read_offsets(feature, start, min(start + _BLOCK, n))
            lengths = np.diff(offsets)
            for first in range(int(offsets[0]), int(offsets[-1]), _BLOCK):
                last = min(first + _BLOCK, int(offsets[-1]))
                yield np.asarray(file.read(layout.sparse_path(feature, "ids"), first, last), np.int64), lengths
                lengths = lengths[:0]  # counted once
            if len(lengths):
                yield np.empty(0, np.int64), lengths  # all bags are empty
