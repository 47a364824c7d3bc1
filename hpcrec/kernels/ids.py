"""Kernels on ids: bags joined and picked, grouping, distinct ids, partition, seeded hash and permutation, initial rows.

Where ids live and who owns them is known above. Shapes: K ids, U distinct ids, D row width.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks, native
from hpcrec.kernels.backend import backend, native_fits
from hpcrec.kernels.reference import Grouping, Unpacked
from hpcrec.kernels.reference_mix import WORD
from hpcrec.kernels.reference_packed import PACKED_BLOCK
from hpcrec.types import Floats, Ints

_take_fits = native_fits(
    "items: number[any]", "offsets: int64[S + 1]", "rows: int64[B]", "out_offsets: int64[B + 1]",
    "written out: number[any]",
)  # fmt: skip
_group_fits = native_fits("index: int64[any]", "offsets?: int64[V + 1]")
_ids_fit = native_fits("ids: int64[any]")
_partition_fits = native_fits("part: int32[any]", "n_parts: D")
_map_fits = native_fits("ids: int64[any]", "rows: 1+")
_init_fits = native_fits("ids: int64[any]", "width: D", "column_start: 0+")


def unpack(
    message: NDArray[np.uint8], asked: Ints, width: int, *, values: bool = True, gradients: bool = True
) -> Unpacked:
    """Joins the bags that several senders ask for into what ``pooled_gather`` and ``merge`` take.

    Parameters
    ----------
    message : uint8 [n]
        Begins at a multiple of 8 bytes in memory.
    asked : int64 [P, 11]
        Of each piece: byte where its ids begin, how many; byte where the lengths of its bags begin (negative: each bag
        is one id), how many bags; what is added to each id; first element of its vectors in the values, and in the
        gradients; how it is coded, and, but for ``PLAIN``, distinct ids of a table, bytes of the ids and of the
        lengths. The vectors of a piece lie one after the other. Codings:

        ``PLAIN``    int64 ids, int32 lengths
        ``PACKED``   both as ``pack_numbers`` packs them
        ``RISING``   ids packed rising, lengths packed
        ``TABLE``    distinct ids packed rising, then the place of each id among them, packed; lengths packed
    width : int
        Elements of a vector.
    values, gradients : bool
        Whether ``value_start`` and ``gradient_start`` are wanted.

    Raises
    ------
    ValueError
        A piece is not inside the message or damaged, or its lengths are negative or do not add up to its ids.
    """
    if not (isinstance(message, np.ndarray) and message.dtype == np.uint8 and message.ndim == 1):
        raise checks.fail("message", message, "uint8[any]")
    if message.size and (not message.flags.c_contiguous or message.ctypes.data % 8):
        raise ValueError("message must be contiguous and begin at a multiple of 8 bytes in memory")
    if not (isinstance(asked, np.ndarray) and asked.dtype == np.int64 and asked.ndim == 2 and asked.shape[1] == 11):
        raise checks.fail("asked", asked, "int64[any, 11]")
    n_ids, n_bags = int(asked[:, 1].sum()), int(asked[:, 3].sum())
    if (asked[:, [1, 3]] < 0).any() or max(n_ids, n_bags) > PACKED_BLOCK * message.size:
        raise ValueError(f"asked: {n_ids} ids and {n_bags} bags are not inside a message of {message.size} bytes")
    checks.positive("width", width)
    return backend().unpack(message, np.ascontiguousarray(asked), width, n_ids, n_bags, values, gradients)


def take_bags(items: NDArray[Any], offsets: Ints, rows: Ints, out_offsets: Ints, out: NDArray[Any]) -> None:
    """Copies bags of numbers, picked by number.

    Parameters
    ----------
    items : int64 or float32 [K]
    offsets : int64 [S + 1]
        Bag s is ``items[offsets[s]:offsets[s + 1]]``.
    rows : int64 [B]
        Bags that are wanted.
    out_offsets : int64 [B + 1]
        Bag ``rows[b]`` goes to ``out[out_offsets[b]:out_offsets[b + 1]]``, which has to be as long.
    out : as `items`, [any]
        What no bag goes to is left as it is.

    Raises
    ------
    ValueError
        A type or shape is wrong, or a bag is not there, or not where it should lie.
    """
    if _take_fits(items, offsets, rows, out_offsets, out):
        native.take_bags(items, offsets, rows, out_offsets, out)
        return
    if not (isinstance(items, np.ndarray) and items.dtype in (checks.INT64, checks.FLOATS[0])):
        raise checks.fail("items", items, "int64[any] or float32[any]")
    checks.ints("items", items, dtype=items.dtype)
    checks.writable("out", checks.ints("out", out, dtype=items.dtype))
    if checks.ints("offsets", offsets).size == 0:
        raise checks.fail("offsets", offsets, "int64[S + 1]")
    checks.ints("out_offsets", out_offsets, checks.ints("rows", rows).size + 1)
    checks.apart("out", out, items=items, offsets=offsets, rows=rows, out_offsets=out_offsets)
    backend().take_bags(items, offsets, rows, out_offsets, out)


def group(index: Ints, offsets: Ints | None = None) -> Grouping:
    """Sort occurrences by value, stably: which k, or which bags, belong to which distinct value.

    Parameters
    ----------
    index : int64 [K]
        Any values; the sort takes as many passes as their range needs.
    offsets : int64 [V + 1], optional
        Bags of the K occurrences, as in ``pooled_gather``: occurrences are then named by the bag that they lie in.

    Returns
    -------
    Grouping
        ``unique`` ascending; ``order[segments[u]:segments[u + 1]]`` are the k (or their bags) of ``unique[u]``,
        ascending.

    Raises
    ------
    ValueError
        A type or shape is wrong, or ``offsets`` do not bound bags of K ids.
    """
    if _group_fits(index, offsets):
        return native.group(index, offsets)
    if offsets is not None and checks.ints("offsets", offsets).size == 0:
        raise checks.fail("offsets", offsets, "int64[V + 1]")
    return backend(index, offsets).group(checks.ints("index", index), offsets)


def dedup(ids: Ints) -> tuple[Ints, Ints]:
    """Distinct ids [U], ascending, and for each of the K ids its place among them: ``unique[inverse] == ids``."""
    if _ids_fit(ids):
        return native.dedup(ids)
    return backend(ids).dedup(checks.ints("ids", ids))


def partition(part: NDArray[np.int32], n_parts: int) -> tuple[Ints, Ints]:
    """Stable counting sort of K things by the part that each goes to.

    Parameters
    ----------
    part : int32 [K]
        In ``[0, n_parts)``.
    n_parts : int

    Returns
    -------
    counts : int64 [n_parts]
    order : int64 [K]
        Positions of the things of part 0, then of part 1, ...; ascending in each.
    """
    if _partition_fits(part, n_parts):
        return native.partition(part, n_parts)
    checks.ints("part", part, dtype=checks.INT32)
    return backend(part).partition(part, checks.whole("n_parts", n_parts, 1, checks.WIDEST))


def permute(ids: Ints, rows: int, seed: int) -> Ints:
    """A seeded bijection of ``[0, rows)``: spreads neighbouring ids, and can be undone by ``unpermute``.

    Parameters
    ----------
    ids : int64 [K]
        In ``[0, rows)``.
    rows : int
    seed : int
        Taken modulo 2^64.

    Returns
    -------
    int64 [K]
        In ``[0, rows)``.
    """
    if _map_fits(ids, rows):
        return native.permute(ids, rows, seed & WORD, False)
    return backend(ids).permute(checks.ints("ids", ids), checks.positive("rows", rows), seed & WORD, False)


def unpermute(ids: Ints, rows: int, seed: int) -> Ints:
    """What ``permute`` took to ``ids``."""
    if _map_fits(ids, rows):
        return native.permute(ids, rows, seed & WORD, True)
    return backend(ids).permute(checks.ints("ids", ids), checks.positive("rows", rows), seed & WORD, True)


def hash_ids(ids: Ints, rows: int, seed: int) -> Ints:
    """Any int64 ids [K] into ``[0, rows)``, seeded, uniform; two ids may meet."""
    if _map_fits(ids, rows):
        return native.hash_ids(ids, rows, seed & WORD)
    return backend(ids).hash_ids(checks.ints("ids", ids), checks.positive("rows", rows), seed & WORD)


def init_rows(
    seed: int,
    ids: Ints,
    width: int,
    *,
    column_start: int = 0,
    scale: float,
    dtype: np.dtype | type = np.float32,
) -> Floats:
    """Initial rows, from (seed, id, column) alone: whoever holds a row, or a part of its columns, starts it alike.

    Parameters
    ----------
    seed : int
        Of the table; taken modulo 2^64.
    ids : int64 [K]
        Any values.
    width, column_start : int
        Columns ``[column_start, column_start + width)`` of the table's rows.
    scale : float
        Values are uniform in ``[-scale, scale)``, before the rounding to ``dtype``; 0 gives zeros.
    dtype : float32 or float64

    Returns
    -------
    dtype [K, width]
    """
    if (
        _init_fits(ids, width, column_start)
        and column_start <= checks.LARGEST - width
        and np.dtype(dtype) in checks.FLOATS
        and scale != 0
    ):
        return native.init_rows(seed & WORD, ids, width, column_start, float(scale), np.dtype(dtype))
    checks.ints("ids", ids)
    width = checks.width_of("width", width)
    column_start = checks.whole("column_start", column_start, 0, checks.LARGEST - width)
    if np.dtype(dtype) not in checks.FLOATS:
        raise ValueError(f"dtype is {np.dtype(dtype)}; needed is float32 or float64")
    if scale == 0:
        return np.zeros((ids.size, width), dtype)
    return backend(ids).init_rows(seed & WORD, ids, width, column_start, float(scale), np.dtype(dtype))
