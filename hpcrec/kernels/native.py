"""The native module's kernels of rows, ids and vectors, under their references' names and signatures.

What loads the module is in ``native_module``. Knows nothing of what the kernels compute.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.beside import Beside, BesideStep
from hpcrec.kernels.half_rows import HalfRows, Rows, kind_argument, rounding_arguments
from hpcrec.kernels.native_module import available, load_error, loaded, module
from hpcrec.kernels.reference import Grouping, Unpacked
from hpcrec.kernels.rules import RULES, StepNumbers
from hpcrec.types import Floats, Ints

__all__ = ["available", "load_error", "loaded", "module"]

# Those that take just what the references take.
copy_vectors = loaded.copy_vectors
pooled_max_backward = loaded.pooled_max_backward
fm_sums = loaded.fm_sums
fm_sums_backward = loaded.fm_sums_backward
dot_interaction = loaded.dot_interaction
dot_interaction_backward = loaded.dot_interaction_backward
take_bags = loaded.take_bags
packed_bytes = loaded.packed_bytes
pack_numbers = loaded.pack_numbers
fletcher32 = loaded.fletcher32
read_chunks = loaded.read_chunks
kept_copies = loaded.kept_copies
read_copies = loaded.read_copies
tick_copies = loaded.tick_copies
add_to_copies = loaded.add_to_copies
sums_of_copies = loaded.sums_of_copies
end_ticks = loaded.end_ticks


def pooled_gather(
    rows: Rows,
    index: Ints,
    offsets: Ints,
    out: Floats,
    out_start: Ints | None,
    weights: Floats | None,
    scale: Floats | None,
    beside: Beside | None,
) -> None:
    """See the reference."""
    narrow, start = (None, None) if beside is None else (beside.rows.reshape(-1), beside.start)
    bits, kind = (rows.bits, kind_argument(rows)) if isinstance(rows, HalfRows) else (rows, ())
    loaded.pooled_gather(bits, index, offsets, out, out_start, weights, scale, narrow, start, *kind)


def to_half_rows(rows: Floats, first_row: int, out: HalfRows) -> None:
    """See the reference."""
    loaded.to_half_rows(rows, first_row, out.bits, *rounding_arguments(out, 0))


def from_half_rows(rows: HalfRows, out: Floats) -> None:
    """See the reference."""
    loaded.from_half_rows(rows.bits, out, *kind_argument(rows))


def pooled_max(
    rows: Rows,
    index: Ints,
    offsets: Ints,
    out: Floats,
    out_start: Ints | None,
    winners: NDArray[np.int32] | None,
) -> None:
    """See the reference."""
    bits, kind = (rows.bits, kind_argument(rows)) if isinstance(rows, HalfRows) else (rows, ())
    loaded.pooled_max(bits, index, offsets, out, out_start, winners, *kind)


def unpack(
    message: NDArray[np.uint8], asked: Ints, width: int, n_ids: int, n_bags: int, values: bool, gradients: bool
) -> Unpacked:
    """See the reference."""
    index, offsets = np.empty(n_ids, np.int64), np.empty(n_bags + 1, np.int64)
    value_start, gradient_start = (np.empty(n_bags, np.int64) if wanted else None for wanted in (values, gradients))
    loaded.unpack(message, asked, width, index, offsets, value_start, gradient_start)
    return Unpacked(index, offsets, value_start, gradient_start)


def unpack_numbers(packed: NDArray[np.uint8], n: int, rising: bool) -> Ints:
    """See the reference."""
    out = np.empty(n, np.int64)
    loaded.unpack_numbers(packed, rising, out)
    return out


def group(index: Ints, offsets: Ints | None) -> Grouping:
    """See the reference."""
    unique, segments, order = (np.empty(index.size + extra, np.int64) for extra in (0, 1, 0))
    n_unique = loaded.group(index, offsets, unique, segments, order)
    return Grouping(unique[:n_unique], segments[: n_unique + 1], order)


def dedup(ids: Ints) -> tuple[Ints, Ints]:
    """See the reference."""
    unique, inverse = np.empty_like(ids), np.empty_like(ids)
    n_unique = loaded.dedup(ids, unique, inverse)
    return unique[:n_unique], inverse


def partition(part: NDArray[np.int32], n_parts: int) -> tuple[Ints, Ints]:
    """See the reference."""
    counts, order = np.empty(n_parts, np.int64), np.empty(part.size, np.int64)
    loaded.partition(part, counts, order)
    return counts, order


def permute(ids: Ints, rows: int, seed: int, inverse: bool) -> Ints:
    """See the reference."""
    out = np.empty_like(ids)
    loaded.permute(ids, rows, seed, inverse, out)
    return out


def hash_ids(ids: Ints, rows: int, seed: int) -> Ints:
    """See the reference."""
    out = np.empty_like(ids)
    loaded.hash_ids(ids, rows, seed, out)
    return out


def init_rows(seed: int, ids: Ints, width: int, column_start: int, scale: float, dtype: np.dtype) -> Floats:
    """See the reference."""
    out = np.empty((ids.size, width), dtype)
    loaded.init_rows(seed, ids, column_start, scale, out)
    return out


def merge(
    grouping: Grouping, gradients: Floats, source_start: Ints, width: int, weights: Floats | None, out: Floats
) -> None:
    """See the reference."""
    loaded.merge(grouping.segments, grouping.order, source_start, weights, gradients, width, out)


def squared_norm(merged: Floats) -> Floats:
    """See the reference."""
    out = np.empty(len(merged), merged.dtype)
    loaded.squared_norm(merged, out)
    return out


def _how(rule: str, n: StepNumbers, states: dict[str, Floats], width: int) -> tuple[Any, ...]:
    """What native code is told of a step: numbers, the width, and the rule's states in its order, padded to two."""
    its = RULES[rule]
    found = [states[name] for name in its.states]
    return its.code, n.rate, n.eps, n.rest1, n.rest2, n.bound, width, *(*found, None, None)[:2]


def update(
    rule: str,
    numbers: StepNumbers,
    rows: Rows,
    states: dict[str, Floats],
    unique: Ints,
    merged: Floats,
    norm: Floats | None,
    total_width: int,
) -> None:
    """See the reference."""
    bits, rounding = (rows.bits, rounding_arguments(rows, numbers.step)) if isinstance(rows, HalfRows) else (rows, ())
    loaded.update(bits, unique, merged, *_how(rule, numbers, states, total_width), norm, *rounding)


def update_sums(
    rule: str,
    numbers: StepNumbers,
    rows: Rows,
    states: dict[str, Floats],
    unique: Ints,
    merged: Floats,
    ticks: Ints,
    squares: Floats,
) -> None:
    """See the reference."""
    bits, rounding = (rows.bits, rounding_arguments(rows, numbers.step)) if isinstance(rows, HalfRows) else (rows, ())
    n, state = numbers, states["accumulator"]
    loaded.update_sums(
        bits, unique, merged, RULES[rule].code, n.rate, n.eps, n.bound, state, ticks, squares, *rounding
    )  # fmt: skip


def merge_update(
    rule: str,
    numbers: StepNumbers,
    rows: Rows,
    states: dict[str, Floats],
    grouping: Grouping,
    gradients: Floats,
    source_start: Ints,
    weights: Floats | None,
    beside: tuple[BesideStep, StepNumbers] | None,
) -> None:
    """See the reference."""
    narrow = None
    if beside is not None:
        its = beside[0]
        narrow = its.rows, its.source_start, *_how(rule, beside[1], its.states, 1)
    bits: Any = rows
    last: tuple[Any, ...] = (narrow,)
    if isinstance(rows, HalfRows):  # which have nothing beside
        bits, last = rows.bits, rounding_arguments(rows, numbers.step)
    loaded.merge_update(
        bits, grouping.unique, grouping.segments, grouping.order, source_start, weights, gradients,
        *_how(rule, numbers, states, rows.shape[1]), *last,
    )  # fmt: skip
