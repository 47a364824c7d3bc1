"""The definition, in NumPy, of how bags are joined that several senders ask for, and how bags are picked.

See ``reference``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.types import Ints


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
    for i, (ids_at, n, lengths_at, n_vectors, base, value_at, gradient_at) in enumerate(asked.tolist()):
        if not _inside(ids_at, n, 8, message.size):
            raise ValueError(f"asked[{i}]: its ids are not inside the message")
        has_lengths = lengths_at >= 0
        if not _inside(lengths_at, n_vectors, 4, message.size) if has_lengths else n_vectors != n:
            raise ValueError(f"asked[{i}]: its lengths are not inside the message, or missing")
        lengths = np.ones(n_vectors, np.int64)
        if has_lengths:
            lengths = message[lengths_at : lengths_at + 4 * n_vectors].view(np.int32).astype(np.int64)
        if (lengths < 0).any() or lengths.sum() != n:
            raise ValueError(f"asked[{i}]: its lengths do not add up to its ids")
        out.index[k : k + n] = message[ids_at : ids_at + 8 * n].view(np.int64) + base
        out.offsets[v + 1 : v + n_vectors + 1] = k + np.cumsum(lengths)
        steps = np.arange(n_vectors, dtype=np.int64) * width
        if out.value_start is not None:
            out.value_start[v : v + n_vectors] = value_at + steps
        if out.gradient_start is not None:
            out.gradient_start[v : v + n_vectors] = gradient_at + steps
        k, v = k + n, v + n_vectors
    return out


def _inside(at: int, n: int, item: int, size: int) -> bool:
    return at >= 0 and n >= 0 and at % item == 0 and at + n * item <= size


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
