"""The definition, in NumPy, of how bags are joined that several senders ask for, and how bags are picked.

See ``reference``.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.kernels.reference_packed import PACKED_BLOCK, read_packed
from hpcrec.types import Ints


class Coding(IntEnum):
    """How ids and the lengths of their bags are written; see ``kernels.unpack``."""

    PLAIN = 0
    PACKED = 1
    RISING = 2
    TABLE = 3


@dataclass(frozen=True)
class Unpacked:
    """Bags of several senders, joined.

    Attributes
    ----------
    index : int64 [K]
    offsets : int64 [V + 1]
        Bags in ``index``.
    value_start : int64 [V] or None
        Where the vector of each bag begins in the values.
    gradient_start : int64 [V] or None
        Where the gradient of each bag begins in the gradients.
    """

    index: Ints
    offsets: Ints
    value_start: Ints | None
    gradient_start: Ints | None


def unpack(
    message: NDArray[np.uint8], asked: Ints, width: int, n_ids: int, n_bags: int, values: bool, gradients: bool
) -> Unpacked:
    """Joins the bags piece by piece; see ``kernels.unpack``."""
    out = Unpacked(
        np.empty(n_ids, np.int64),
        np.zeros(n_bags + 1, np.int64),
        np.empty(n_bags, np.int64) if values else None,
        np.empty(n_bags, np.int64) if gradients else None,
    )
    k = v = 0
    for i, (*places, base, value_at, gradient_at, coding, n_distinct, ids_bytes, lengths_bytes) in enumerate(
        asked.tolist()
    ):
        ids_at, n, lengths_at, n_vectors = places
        if coding not in tuple(Coding):
            raise ValueError(f"asked[{i}]: its coding is not known")
        if coding == Coding.PLAIN:
            ids_bytes, lengths_bytes = 8 * n, 4 * n_vectors
        least = [0, 0] if coding == Coding.PLAIN else [n // PACKED_BLOCK, n_vectors // PACKED_BLOCK]
        unit = (8, 4) if coding == Coding.PLAIN else (1, 1)
        if ids_bytes < least[0] or not _inside(ids_at, ids_bytes, unit[0], message.size):
            raise ValueError(f"asked[{i}]: its ids are not inside the message")
        has_lengths = lengths_at >= 0
        fits = lengths_bytes >= least[1] and _inside(lengths_at, lengths_bytes, unit[1], message.size)
        if not fits if has_lengths else n_vectors != n:
            raise ValueError(f"asked[{i}]: its lengths are not inside the message, or missing")
        if coding == Coding.TABLE and not bool(n) <= n_distinct <= n:
            raise ValueError(f"asked[{i}]: its table has more rows than it has ids, or none")
        ids = _ids(message[ids_at : ids_at + ids_bytes], n, coding, n_distinct)
        if ids is None:
            raise ValueError(f"asked[{i}]: its packed ids are damaged")
        lengths: Ints | None = np.ones(n_vectors, np.int64)
        if has_lengths:
            lengths = _lengths(message[lengths_at : lengths_at + lengths_bytes], n_vectors, coding)
        if lengths is None or (lengths < 0).any() or (lengths > n).any() or lengths.sum() != n:
            raise ValueError(f"asked[{i}]: its lengths do not add up to its ids")
        out.index[k : k + n] = ids + base
        out.offsets[v + 1 : v + n_vectors + 1] = k + np.cumsum(lengths)
        steps = np.arange(n_vectors, dtype=np.int64) * width
        if out.value_start is not None:
            out.value_start[v : v + n_vectors] = value_at + steps
        if out.gradient_start is not None:
            out.gradient_start[v : v + n_vectors] = gradient_at + steps
        k, v = k + n, v + n_vectors
    return out


def _ids(section: NDArray[np.uint8], n: int, coding: int, n_distinct: int) -> Ints | None:
    if coding == Coding.PLAIN:
        return section.view(np.int64)
    table, at = None, 0
    if coding == Coding.TABLE:
        found = read_packed(section, n_distinct, True)
        if found is None:
            return None
        table, at = found
    found = read_packed(section[at:], n, coding == Coding.RISING)
    if found is None or at + found[1] != section.size:
        return None
    if table is None:
        return found[0]
    return table[found[0]] if ((found[0] >= 0) & (found[0] < n_distinct)).all() else None


def _lengths(section: NDArray[np.uint8], n: int, coding: int) -> Ints | None:
    if coding == Coding.PLAIN:
        return section.view(np.int32).astype(np.int64)
    found = read_packed(section, n, False)
    return None if found is None or found[1] != section.size else found[0]


def _inside(at: int, n_bytes: int, unit: int, size: int) -> bool:
    return at >= 0 and n_bytes >= 0 and at % unit == 0 and at + n_bytes <= size


def take_bags(items: NDArray[Any], offsets: Ints, rows: Ints, out_offsets: Ints, out: NDArray[Any]) -> None:
    """Each id of each bag by itself; see ``kernels.take_bags``."""
    checks.require_below("rows", rows, offsets.size - 1)
    low, high = offsets.take(rows), offsets.take(rows + 1)
    _require_inside("offsets", low, high, items.size)
    _require_inside("out_offsets", out_offsets[:-1], out_offsets[1:], out.size)
    lengths = high - low
    if not np.array_equal(np.diff(out_offsets), lengths):
        raise ValueError("out_offsets: a bag has a place that is not as long")
    # Number k of bag b stands at low[b] + k - (first k of bag b): one shift a bag, repeated over its numbers.
    shifts = np.repeat(low - out_offsets[:-1], lengths)
    if rows.size:
        to = np.repeat(out_offsets[:-1] - np.r_[0, np.cumsum(lengths)[:-1]], lengths) + np.arange(lengths.sum())
        out[to] = items[to + shifts]


def _require_inside(name: str, low: Ints, high: Ints, n: int) -> None:
    if ((low < 0) | (low > high) | (high > n)).any():
        raise ValueError(f"{name}: a bag is not inside its array of {n} numbers")
