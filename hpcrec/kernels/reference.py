"""The kernels' definition, in NumPy: what the native module must equal bit for bit, and what runs where it is missing.

Equal bits need fixed orders of addition, so they are part of the definition: a bag adds its rows in the order of its
ids, from +0; a merge adds in blocks of ``BLOCK`` occurrences and folds the blocks in order; a squared norm runs in
``LANES`` strided sums that are folded in halves. Each product and each sum rounds once. NaN payloads are not defined.
Arguments have passed the checks of the public functions; contents are checked here. Knows nothing of threads.

Shapes: N rows, D row width, K ids or occurrences, V vectors (bags), U unique rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.kernels.beside import Beside, BesideStep
from hpcrec.kernels.half_rows import Rows
from hpcrec.kernels.reference_bags import Coding, Unpacked, take_bags, unpack
from hpcrec.kernels.reference_chunks import fletcher32, read_chunks
from hpcrec.kernels.reference_fm import fm_sums, fm_sums_backward
from hpcrec.kernels.reference_half_rows import from_half_rows, read_rows, to_half_rows, write_rows
from hpcrec.kernels.reference_interaction import dot_interaction, dot_interaction_backward
from hpcrec.kernels.reference_maximum import pooled_max, pooled_max_backward
from hpcrec.kernels.reference_mix import GOLDEN, Words, mix, word
from hpcrec.kernels.reference_packed import pack_numbers, packed_bytes, unpack_numbers
from hpcrec.kernels.rules import StepNumbers
from hpcrec.types import Floats, Ints

# Definitions of this backend that have a file of their own.
__all__ = [
    "Coding", "Unpacked", "dot_interaction", "dot_interaction_backward", "fletcher32", "fm_sums", "fm_sums_backward",
    "from_half_rows", "pack_numbers", "packed_bytes", "pooled_max", "pooled_max_backward", "read_chunks", "take_bags",
    "to_half_rows", "unpack", "unpack_numbers",
]  # fmt: skip

BLOCK = 128
LANES = 16
ROUNDS = 4


class Grouping(NamedTuple):
    """Occurrences sorted by what they are occurrences of, each named by its source: its position, or its bag.

    Attributes
    ----------
    unique : int64 [U]
        Distinct values, ascending.
    segments : int64 [U + 1]
        Occurrences of ``unique[u]`` are ``order[segments[u]:segments[u + 1]]``, ascending.
    order : int64 [K]
    """

    unique: Ints
    segments: Ints
    order: Ints


# --- moving rows -----------------------------------------------------------------------------------------------------


def _sum_bags(terms: Callable[[Ints], Floats], offsets: Ints, width: int, dtype: np.dtype) -> Floats:
    """[V, D]: for each bag, ``terms(k)`` over its k, added in order from +0. Place j of all bags is added at once."""
    sums_VD = np.zeros((len(offsets) - 1, width), dtype)
    lengths = np.diff(offsets)
    place, bags = 0, np.flatnonzero(lengths)
    while bags.size:
        sums_VD[bags] += terms(offsets[bags] + place)
        place += 1
        bags = bags[lengths[bags] > place]
    return sums_VD


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
    """Vector v: ``scale[v] * sum(weights[k] * rows[index[k]])`` over its bag; the same of what is beside."""
    width = rows.shape[1]
    checks.require_offsets("offsets", offsets, index.size)
    checks.require_below("index", index, len(rows))
    to = checks.starts("out_start", out_start, len(offsets) - 1, width, out.size)

    def terms(k: Ints) -> Floats:
        terms_ND = read_rows(rows, index[k])
        return terms_ND if weights is None else weights[k, None] * terms_ND

    sums_VD = _sum_bags(terms, offsets, width, out.dtype)
    out[to[:, None] + np.arange(width)] = sums_VD if scale is None else scale[:, None] * sums_VD
    if beside is not None:
        pooled_gather(beside.rows, index, offsets, out, beside.start, weights, scale, None)


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
    """Vector v of the target becomes, or grows by, ``scale[v]`` times vector v of the source."""
    columns = np.arange(width)
    values_VD = source[checks.starts("source_start", source_start, n, width, source.size)[:, None] + columns]
    if scale is not None:
        values_VD = scale[:, None] * values_VD
    to = checks.starts("target_start", target_start, n, width, target.size)[:, None] + columns
    if accumulate:
        np.add.at(target, to, values_VD)
    else:
        target[to] = values_VD


# --- ids -------------------------------------------------------------------------------------------------------------


def group(index: Ints, offsets: Ints | None) -> Grouping:
    """Stable sort by value; then positions become bags, if there are any."""
    order = np.argsort(index, kind="stable").astype(np.int64)
    ascending = index[order]
    heads = np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]]) if index.size else np.zeros(0, np.int64)
    if offsets is not None:
        checks.require_offsets("offsets", offsets, index.size)
        order = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))[order]
    return Grouping(ascending[heads], np.r_[heads, index.size].astype(np.int64), order)


def dedup(ids: Ints) -> tuple[Ints, Ints]:
    """Distinct ids and each id's place among them."""
    unique, inverse = np.unique(ids, return_inverse=True)
    return unique, inverse.astype(np.int64)


def partition(part: NDArray[np.int32], n_parts: int) -> tuple[Ints, Ints]:
    """Stable counting sort."""
    checks.require_below("part", part.astype(np.int64), n_parts)
    return np.bincount(part, minlength=n_parts).astype(np.int64), np.argsort(part, kind="stable").astype(np.int64)


def _feistel(x: Words, rows: int, seed: int, inverse: bool) -> Words:
    """A bijection of ``[0, 4^h)``, the smallest such range that holds ``rows``: h bits a half, ``ROUNDS`` rounds."""
    half = next(h for h in range(1, 33) if 4**h >= rows)
    shift, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = x >> shift, x & mask
    for turn in reversed(range(ROUNDS)) if inverse else range(ROUNDS):
        key = mix(word(seed + GOLDEN * turn))
        if inverse:
            left, right = right ^ (mix(left + key) & mask), left
        else:
            left, right = right, left ^ (mix(right + key) & mask)
    return left << shift | right


def permute(ids: Ints, rows: int, seed: int, inverse: bool) -> Ints:
    """Feistel network; what falls outside ``[0, rows)`` goes through it again, which keeps it a bijection."""
    checks.require_below("ids", ids, rows)
    out = _feistel(ids.astype(np.uint64), rows, seed, inverse)
    while (outside := np.flatnonzero(out >= np.uint64(rows))).size:
        out[outside] = _feistel(out[outside], rows, seed, inverse)
    return out.astype(np.int64)


def hash_ids(ids: Ints, rows: int, seed: int) -> Ints:
    """High word of ``mix(id ^ mix(seed)) * rows``."""
    x = mix(ids.view(np.uint64) ^ mix(word(seed)))
    low_bits, shift = np.uint64(2**32 - 1), np.uint64(32)
    a, b = x >> shift, x & low_bits
    c, d = word(rows >> 32), word(rows & (2**32 - 1))
    carry = ((a * d & low_bits) + (b * c & low_bits) + (b * d >> shift)) >> shift
    return (a * c + (a * d >> shift) + (b * c >> shift) + carry).astype(np.int64)


def init_rows(seed: int, ids: Ints, width: int, column_start: int, scale: float, dtype: np.dtype) -> Floats:
    """``(2 u - 1) * scale`` in float64, u the top 53 bits of a word made from (seed, id, column)."""
    keys_N = mix(ids.view(np.uint64) ^ mix(word(seed)))
    columns_D = np.arange(column_start, column_start + width).astype(np.uint64) * np.uint64(GOLDEN)
    u_ND = (mix(keys_N[:, None] + columns_D) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return ((2.0 * u_ND - 1.0) * scale).astype(dtype)


# --- learning --------------------------------------------------------------------------------------------------------


def merge(
    grouping: Grouping, gradients: Floats, source_start: Ints, width: int, weights: Floats | None, out: Floats
) -> None:
    """Row u: sum over its occurrences' sources s of ``weights[s] * gradients[source_start[s]:][:width]``, in blocks."""
    _, segments, order = grouping
    checks.require_offsets("segments", segments, order.size)
    checks.require_below("order", order, source_start.size)
    checks.starts("source_start", source_start, source_start.size, width, gradients.size)
    blocks_U = -(-np.diff(segments) // BLOCK)
    block_segments = np.r_[0, np.cumsum(blocks_U)]
    place_in_row = np.arange(block_segments[-1]) - np.repeat(block_segments[:-1], blocks_U)
    block_offsets = np.r_[np.repeat(segments[:-1], blocks_U) + BLOCK * place_in_row, order.size].astype(np.int64)

    def terms(j: Ints) -> Floats:
        k = order[j]
        values = gradients[source_start[k][:, None] + np.arange(width)]
        return values if weights is None else weights[k, None] * values

    sums = _sum_bags(terms, block_offsets, width, gradients.dtype)
    out[:] = _sum_bags(lambda block: sums[block], block_segments, width, gradients.dtype)


def squared_norm(merged: Floats) -> Floats:
    """Lane i adds the squares of columns i, i + LANES, ... in order; then the upper half of the lanes is added on."""
    n, width = merged.shape
    lanes = np.zeros((n, LANES), merged.dtype)
    for first in range(0, width, LANES):
        part = merged[:, first : first + LANES]
        lanes[:, : part.shape[1]] += part * part
    half = LANES // 2
    while half:
        lanes[:, :half] += lanes[:, half : 2 * half]
        half //= 2
    return lanes[:, 0].copy()


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
    """One step of the touched rows. The order of operations is the definition."""
    checks.require_below("unique", unique, len(rows))
    scalar = merged.dtype.type
    row_UD = read_rows(rows, unique)
    rate, eps = scalar(numbers.rate), scalar(numbers.eps)
    g_UD = merged
    if rule == "sgd":
        row_UD -= rate * g_UD
    elif rule == "adagrad":
        sums_UD = states["accumulator"][unique] + g_UD * g_UD
        states["accumulator"][unique] = sums_UD
        row_UD -= rate * g_UD / (np.sqrt(sums_UD) + eps)
    elif rule == "rowwise_adagrad":
        squares_U = squared_norm(g_UD) if norm is None else norm
        sums_U = states["accumulator"][unique] + squares_U / scalar(total_width)
        states["accumulator"][unique] = sums_U
        row_UD -= (rate / (np.sqrt(sums_U) + eps))[:, None] * g_UD
    elif rule == "adam":
        m_UD, v_UD = states["exp_avg"][unique], states["exp_avg_sq"][unique]
        m_UD += (g_UD - m_UD) * scalar(numbers.rest1)
        v_UD += (g_UD * g_UD - v_UD) * scalar(numbers.rest2)
        states["exp_avg"][unique], states["exp_avg_sq"][unique] = m_UD, v_UD
        row_UD -= rate * (m_UD / (np.sqrt(v_UD) + eps))
    bound = scalar(numbers.bound)
    write_rows(rows, unique, np.clip(row_UD, -bound, bound), numbers.step)


def mean_rate(rate: Floats, eps: Floats, accumulator: Floats, squares: Floats, ticks: Ints) -> Floats:
    """What a gradient that is a sum of several steps' is multiplied by, in place of ``rate / (sqrt(sum) + eps)``.

    The mean over its steps of what each would have met, had each added its part of the squares: of
    ``1 / sqrt(accumulator + i squares / n)``, i = 1 .. n, the integral between the middles of the steps, which is
    within 2.5 % of it for every n > 1.
    """
    half = squares / (2 * ticks).astype(squares.dtype)
    return (rate + rate) / (np.sqrt(accumulator + half) + np.sqrt(accumulator + squares + half) + (eps + eps))


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
    """One step of the touched rows, each by the gradients of several."""
    checks.require_below("unique", unique, len(rows))
    scalar = merged.dtype.type
    row_UD, before = read_rows(rows, unique), states["accumulator"][unique]
    of_rows = rule == "rowwise_adagrad"
    rate = mean_rate(scalar(numbers.rate), scalar(numbers.eps), before, squares, ticks if of_rows else ticks[:, None])
    row_UD -= (rate[:, None] if of_rows else rate) * merged
    states["accumulator"][unique] = before + squares
    bound = scalar(numbers.bound)
    write_rows(rows, unique, np.clip(row_UD, -bound, bound), numbers.step)


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
    """Merge, then update; the same of what is beside."""
    merged = np.empty((grouping.unique.size, rows.shape[1]), gradients.dtype)
    merge(grouping, gradients, source_start, rows.shape[1], weights, merged)
    update(rule, numbers, rows, states, grouping.unique, merged, None, rows.shape[1])
    if beside is not None:
        narrow, its = beside
        merge_update(rule, its, narrow.rows, narrow.states, grouping, gradients, narrow.source_start, weights, None)
