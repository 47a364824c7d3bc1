"""The native module's kernels of rows, ids and vectors, under their references' names and signatures.

What loads the module is in ``native_module``. Knows nothing of what the kernels compute.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.beside import Beside, BesideStep
from hpcrec.kernels.half_rows import HalfRows, Rows, kind_argument, memory, rounding_arguments
from hpcrec.kernels.native_module import available, load_error, module
from hpcrec.kernels.reference import Grouping, Unpacked
from hpcrec.kernels.rules import RULES, StepNumbers
from hpcrec.types import Floats, Ints

__all__ = ["available", "load_error", "module"]


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
    module().pooled_gather(
        memory(rows), index, offsets, out, out_start, weights, scale, narrow, start, *kind_argument(rows)
    )


def to_half_rows(rows: Floats, first_row: int, out: HalfRows) -> None:
    """See the reference."""
    module().to_half_rows(rows, first_row, out.bits, *rounding_arguments(out, 0))


def from_half_rows(rows: HalfRows, out: Floats) -> None:
    """See the reference."""
    module().from_half_rows(rows.bits, out, *kind_argument(rows))


def pooled_max(
    rows: Rows,
    index: Ints,
    offsets: Ints,
    out: Floats,
    out_start: Ints | None,
    winners: NDArray[np.int32] | None,
) -> None:
    """See the reference."""
    module().pooled_max(memory(rows), index, offsets, out, out_start, winners, *kind_argument(rows))


def pooled_max_backward(
    winners: NDArray[np.int32], offsets: Ints, gradients: Floats, out: Floats, source_start: Ints | None
) -> None:
    """See the reference."""
    module().pooled_max_backward(winners, offsets, gradients, out, source_start)


def copy_vectors(
    source: Floats,
    target: Floats,
    width: int,
    n: int,
    source_start: Ints | None,
    target_start: Ints | None,
    accumulate: bool,
    scale: Floats | None,
) -> None:
    """See the reference."""
    module().copy_vectors(source, target, width, n, source_start, target_start, accumulate, scale)


def unpack(
    message: NDArray[np.uint8], asked: Ints, width: int, n_ids: int, n_bags: int, values: bool, gradients: bool
) -> Unpacked:
    """See the reference."""
    index, offsets = np.empty(n_ids, np.int64), np.empty(n_bags + 1, np.int64)
    value_start, gradient_start = (np.empty(n_bags, np.int64) if wanted else None for wanted in (values, gradients))
    module().unpack(message, asked, width, index, offsets, value_start, gradient_start)
    return Unpacked(index, offsets, value_start, gradient_start)


def packed_bytes(numbers: Ints) -> tuple[int, int]:
    """See the reference."""
    return module().packed_bytes(numbers)


def pack_numbers(numbers: Ints, rising: bool, out: NDArray[np.uint8]) -> None:
    """See the reference."""
    module().pack_numbers(numbers, rising, out)


def unpack_numbers(packed: NDArray[np.uint8], n: int, rising: bool) -> Ints:
    """See the reference."""
    out = np.empty(n, np.int64)
    module().unpack_numbers(packed, rising, out)
    return out


def fletcher32(data: NDArray[np.uint8]) -> int:
    """See the reference."""
    return module().fletcher32(data)


def read_chunks(file: int, chunk_at: Ints, checked: NDArray[np.uint8], wanted: Ints, out: NDArray[Any]) -> int:
    """See the reference."""
    return module().read_chunks(file, chunk_at, checked, wanted, out)


def take_bags(items: NDArray[Any], offsets: Ints, rows: Ints, out_offsets: Ints, out: NDArray[Any]) -> None:
    """See the reference."""
    module().take_bags(items, offsets, rows, out_offsets, out)


def group(index: Ints, offsets: Ints | None) -> Grouping:
    """See the reference."""
    unique, segments, order = (np.empty(index.size + extra, np.int64) for extra in (0, 1, 0))
    n_unique = module().group(index, offsets, unique, segments, order)
    return Grouping(unique[:n_unique], segments[: n_unique + 1], order)


def dedup(ids: Ints) -> tuple[Ints, Ints]:
    """See the reference."""
    unique, inverse = np.empty_like(ids), np.empty_like(ids)
    n_unique = module().dedup(ids, unique, inverse)
    return unique[:n_unique], inverse


def partition(part: NDArray[np.int32], n_parts: int) -> tuple[Ints, Ints]:
    """See the reference."""
    counts, order = np.empty(n_parts, np.int64), np.empty(part.size, np.int64)
    module().partition(part, counts, order)
    return counts, order


def permute(ids: Ints, rows: int, seed: int, inverse: bool) -> Ints:
    """See the reference."""
    out = np.empty_like(ids)
    module().permute(ids, rows, seed, inverse, out)
    return out


def hash_ids(ids: Ints, rows: int, seed: int) -> Ints:
    """See the reference."""
    out = np.empty_like(ids)
    module().hash_ids(ids, rows, seed, out)
    return out


def init_rows(seed: int, ids: Ints, width: int, column_start: int, scale: float, dtype: np.dtype) -> Floats:
    """See the reference."""
    out = np.empty((ids.size, width), dtype)
    module().init_rows(seed, ids, column_start, scale, out)
    return out


def merge(
    grouping: Grouping, gradients: Floats, source_start: Ints, width: int, weights: Floats | None, out: Floats
) -> None:
    """See the reference."""
    module().merge(grouping.segments, grouping.order, source_start, weights, gradients, width, out)


def squared_norm(merged: Floats) -> Floats:
    """See the reference."""
    out = np.empty(len(merged), merged.dtype)
    module().squared_norm(merged, out)
    return out


def _pair(rule: str, states: dict[str, Floats]) -> tuple[Floats | None, Floats | None]:
    """The states of a rule, in its order, padded to two."""
    found = [states[name] for name in RULES[rule].states]
    return (*found, None, None)[:2]  # type: ignore[return-value]


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
    module().update(
        memory(rows), unique, merged, *_numbers(rule, numbers, total_width), *_pair(rule, states), norm,
        *rounding_arguments(rows, numbers.step),
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
        narrow = its.rows, its.source_start, *_numbers(rule, beside[1], 1), *_pair(rule, its.states)
    module().merge_update(
        memory(rows), grouping.unique, grouping.segments, grouping.order, source_start, weights, gradients,
        *_numbers(rule, numbers, rows.shape[1]), *_pair(rule, states),
        *(rounding_arguments(rows, numbers.step) or (narrow,)),  # of halves, there is nothing beside
    )  # fmt: skip


def _numbers(rule: str, n: StepNumbers, width: int) -> tuple[int, float, float, float, float, float]:
    return RULES[rule].code, n.rate, n.eps, n.rest1, n.rest2, width


def fm_sums(vectors: Floats, sums: Floats, squares: Floats) -> None:
    """See the reference."""
    module().fm_sums(vectors, sums, squares)


def fm_sums_backward(vectors: Floats, sums_gradient: Floats, squares_gradient: Floats, gradient: Floats) -> None:
    """See the reference."""
    module().fm_sums_backward(vectors, sums_gradient, squares_gradient, gradient)


def dot_interaction(first: Floats | None, block: Floats, out: Floats) -> None:
    """See the reference."""
    module().dot_interaction(first, block, out)


def dot_interaction_backward(
    first: Floats | None,
    block: Floats,
    gradient: Floats,
    first_gradient: Floats | None,
    block_gradient: Floats,
) -> None:
    """See the reference."""
    module().dot_interaction_backward(first, block, gradient, first_gradient, block_gradient)
