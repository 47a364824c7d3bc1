"""Reads the bags of many features at once, of samples that follow each other in one file: two reads in all.

For files whose columns `direct` reads, and values that are right. Otherwise it reads nothing: `reader` then reads
column by column, and says what is wrong. Knows nothing of weights.
"""

from collections.abc import Sequence

import numpy as np

from hpcrec.data import layout
from hpcrec.data.hdf5 import File
from hpcrec.types import Feature, Ints

# Of a feature: offsets of its bags (None where each is one id), first of its ids in the file, and how many they are.
Bounds = tuple[Ints | None, int, int]


def read_bags(
    file: File, start: int, stop: int, features: Sequence[Feature], jagged: frozenset[str]
) -> tuple[dict[str, Bounds], Ints] | None:
    """Bounds of each feature's bags, and the ids of all features, one feature after the other.

    Parameters
    ----------
    file : File
    start, stop : int
        Samples ``[start, stop)`` of it.
    features : sequence of Feature
        Each once.
    jagged : frozenset of str
        Which of them have offsets.
    """
    offsets = _read_offsets(file, start, stop, [feature.name for feature in features if feature.name in jagged])
    if offsets is None:
        return None
    bounds = {feature.name: offsets.get(feature.name, (None, start, stop - start)) for feature in features}
    counts = [n for _, _, n in bounds.values()]
    ids = np.empty(sum(counts), dtype=np.int64)
    paths = [layout.sparse_path(feature.name, "ids") for feature in features]
    starts, limits = [first for _, first, _ in bounds.values()], [feature.cardinality for feature in features]
    return (bounds, ids) if file.read_together(paths, starts, counts, limits, ids) else None


def _read_offsets(file: File, start: int, stop: int, jagged: list[str]) -> dict[str, Bounds] | None:
    if not jagged:
        return {}
    n, rows = len(jagged), stop - start + 1
    offsets_JS = np.empty((n, rows), dtype=np.int64)
    paths, limits = [layout.sparse_path(name, "offsets") for name in jagged], [file.n_ids[name] + 1 for name in jagged]
    if not file.read_together(paths, [start] * n, [rows] * n, limits, offsets_JS):
        return None
    if (offsets_JS[:, 1:] < offsets_JS[:, :-1]).any():
        return None
    first_J = offsets_JS[:, 0].tolist()
    offsets_JS -= offsets_JS[:, :1].copy()
    found = zip(offsets_JS, first_J, offsets_JS[:, -1].tolist(), strict=True)
    return dict(zip(jagged, found, strict=True))
