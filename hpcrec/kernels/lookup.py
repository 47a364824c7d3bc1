"""Kernels that move rows: pooled gather, copy of vectors between flat buffers, and rows of halves made and read.

Buffers are flat because that is what travels: vectors of several tables and widths lie in one of them, each beginning
where its ``start`` says. What the vectors mean is known above. After an error the contents of outputs are undefined.
Shapes: N rows, D width, K ids, V vectors.
"""

from typing import Any, Literal

import numpy as np

from hpcrec.kernels import checks, native
from hpcrec.kernels.backend import backend, native_fits
from hpcrec.kernels.beside import Beside
from hpcrec.kernels.device_array import device_of
from hpcrec.kernels.half_rows import HalfBits, HalfRows, Rows, memory
from hpcrec.kernels.memory import aligned_empty
from hpcrec.types import Floats, Ints

_gather_fits = native_fits(
    "rows: float[N, D]", "index: int64[K]", "offsets: int64[V + 1]", "written out: float[any]", "out_start?: int64[V]",
    "weights?: float[K]", "scale?: float[V]", "...", "beside.rows: float[any, 1]", "beside.start: int64[V]",
)  # fmt: skip
_copy_fits = native_fits(
    "source: float[any]", "written target: float[any]", "width: D", "source_start?: int64[V]",
    "target_start?: int64[V]", "scale?: float[V]",
)  # fmt: skip


def pooled_gather(
    rows: Rows,
    index: Ints,
    offsets: Ints,
    out: Floats,
    *,
    out_start: Ints | None = None,
    weights: Floats | None = None,
    scale: Floats | None = None,
    beside: Beside | None = None,
) -> None:
    """``out[out_start[v]:][:D] = scale[v] * sum(weights[k] * rows[index[k]])`` over k of bag v, in order, from 0.

    Parameters
    ----------
    rows : float32, float64 or HalfRows [N, D]
        ``like rows`` is float32 for those of halves, which are read exactly.
    index : int64 [K]
        In ``[0, N)``.
    offsets : int64 [V + 1]
        Bag v holds the ids ``[offsets[v], offsets[v + 1])``; an empty bag gives zeros.
    out : like rows, flat
        Written only where vectors lie.
    out_start : int64 [V], optional
        Element where vector v begins; left out: ``v * D``. Vectors must not overlap.
    weights : like rows [K], optional
    scale : like rows [V], optional
        1 / length makes a mean.
    beside : Beside, optional
        A table of width 1 that is read at the same rows: its vectors come into ``out`` too. The same as a second call,
        in one pass over the ids; no vector of one may overlap one of the other.

    Raises
    ------
    ValueError
        A type or shape is wrong, an index, offset or start points outside its array, or ``out`` shares memory with
        another argument.
    """
    if _gather_fits(rows, index, offsets, out, out_start, weights, scale, *(beside or ())):
        native.pooled_gather(rows, index, offsets, out, out_start, weights, scale, beside)
        return
    dtype = checks.rows("rows", rows)
    checks.ints("index", index)
    if checks.ints("offsets", offsets).size == 0:
        raise checks.fail("offsets", offsets, "int64[V + 1]")
    n_vectors = offsets.size - 1
    checks.floats("out", out, (None,), dtype, write=True)
    if out_start is not None:
        checks.ints("out_start", out_start, n_vectors)
    if weights is not None:
        checks.floats("weights", weights, (index.size,), dtype)
    if scale is not None:
        checks.floats("scale", scale, (n_vectors,), dtype)
    read = {"rows": memory(rows), "index": index, "offsets": offsets, "out_start": out_start}
    checks.apart("out", out, **read, weights=weights, scale=scale)
    if beside is not None:
        checks.floats("beside.rows", beside.rows, (None, 1), dtype)
        checks.ints("beside.start", beside.start, n_vectors)
        checks.apart("out", out, **{"beside.rows": beside.rows, "beside.start": beside.start})
    run = backend(memory(rows), index, offsets, out, out_start, weights, scale, beside).pooled_gather
    run(rows, index, offsets, out, out_start, weights, scale, beside)


def copy_vectors(
    source: Floats,
    target: Floats,
    width: int,
    *,
    source_start: Ints | None = None,
    target_start: Ints | None = None,
    accumulate: bool = False,
    scale: Floats | None = None,
) -> None:
    """``target[target_start[v]:][:width] = scale[v] * source[source_start[v]:][:width]``, or ``+=``.

    Parameters
    ----------
    source, target : float32 or float64, flat
        Must not overlap.
    width : int
        Elements a vector.
    source_start, target_start : int64 [V], optional
        Element where vector v begins; left out: ``v * width``. With neither, V is what fits exactly into both.
    accumulate : bool
        Add instead of set. Targets may then repeat and add up in the order of v; otherwise they must be disjoint. A
        device refuses those that are neither equal nor disjoint.
    scale : like source [V], optional

    Raises
    ------
    ValueError
        A type or shape is wrong, a start points outside its array, or ``target`` shares memory with another argument.
    """
    given = source_start if source_start is not None else target_start
    if given is not None and _copy_fits(source, target, width, source_start, target_start, scale):
        native.copy_vectors(source, target, width, given.size, source_start, target_start, bool(accumulate), scale)
        return
    dtype = checks.floats("source", source, (None,)).dtype
    checks.floats("target", target, (None,), dtype, write=True)
    width = checks.width_of("width", width)
    n = checks.ints("start", given).size if given is not None else source.size // width
    if given is None and not source.size == target.size == n * width:
        raise ValueError(
            f"source has {source.size} elements, target {target.size}; without starts both must have the same, "
            f"a multiple of width {width}"
        )
    if source_start is not None:
        checks.ints("source_start", source_start, n)
    if target_start is not None:
        checks.ints("target_start", target_start, n)
    if scale is not None:
        checks.floats("scale", scale, (n,), dtype)
    checks.apart(
        "target", target, source=source, source_start=source_start, target_start=target_start, scale=scale
    )  # fmt: skip
    run = backend(source, target, source_start, target_start, scale).copy_vectors
    run(source, target, width, n, source_start, target_start, bool(accumulate), scale)


def to_half_rows(rows: Floats, kind: Literal["bf16", "fp16"], *, seed: int | None = 0, first_row: int = 0) -> HalfRows:
    """Rows of halves that are these, rounded: stochastically, or to the nearest where ``seed`` is None.

    Parameters
    ----------
    rows : float32 [N, D]
    kind : str
        ``bf16`` or ``fp16``; see ``HalfRows``, which gets the seed too.
    seed : int or None
        The random bits are those of step 0.
    first_row : int
        Row i draws the bits of row ``first_row + i``: of a table that is converted piece by piece.

    Returns
    -------
    HalfRows [N, D]
        New, aligned, and where ``rows`` are.

    Raises
    ------
    ValueError
        A type or shape is wrong, or the kind is not known.
    """
    checks.half_kind("kind", kind)
    checks.floats("rows", rows, (None, None), checks.FLOAT32)
    first_row = checks.whole("first_row", first_row, 0, checks.LARGEST - len(rows))
    out = HalfRows(_like(rows, np.uint16), kind, seed)
    checks.rows("rows", out)
    backend(rows).to_half_rows(rows, first_row, out)
    return out


def from_half_rows(rows: HalfRows) -> Floats:
    """Rows of halves as float32 [N, D], exactly; what ``to_half_rows`` of the same kind makes the same halves of.

    Raises
    ------
    ValueError
        ``rows`` are none of halves, or a type or shape is wrong.
    """
    if not isinstance(rows, HalfRows):
        raise ValueError(f"rows is {type(rows).__name__}; needed are HalfRows")
    checks.rows("rows", rows)
    out = _like(rows.bits, np.float32)
    backend(rows.bits).from_half_rows(rows, out)
    return out


def _like(array: Floats | HalfBits, dtype: type) -> Any:
    """Aligned room of the same shape, where the array is."""
    device = device_of(array)
    return aligned_empty(array.shape, dtype) if device is None else device.empty(array.shape, dtype)
