"""Kernels for bags pooled by max: the largest of each column of a bag's rows, and which row it was.

The largest is the first in the order of the bag that no other exceeds; so equal rows cannot be told apart by chance. A
NaN exceeds every number, so that it shows. After an error the contents of outputs are undefined.
Shapes: N rows, D width, K ids, V vectors (bags).
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks, native
from hpcrec.kernels.backend import backend, native_fits
from hpcrec.kernels.device_array import DeviceArray
from hpcrec.kernels.half_rows import Rows, memory
from hpcrec.types import Floats, Ints

_max_fits = native_fits(
    "rows: float[N, D]", "index: int64[K]", "offsets: int64[V + 1]", "written out: float[any]", "out_start?: int64[V]",
    "written winners?: int32[V, D]",
)  # fmt: skip
_backward_fits = native_fits(
    "winners: int32[V, D]", "offsets: int64[V + 1]", "gradients: float[any]", "written out: float[any, D]",
    "source_start?: int64[V]",
)  # fmt: skip


def pooled_max(
    rows: Rows,
    index: Ints,
    offsets: Ints,
    out: Floats,
    *,
    out_start: Ints | None = None,
    winners: NDArray[np.int32] | None = None,
) -> None:
    """``out[out_start[v]:][:D] = max(rows[index[k]])``, column by column, over k of bag v.

    Parameters
    ----------
    rows : float32, float64 or HalfRows [N, D]
        ``like rows`` is float32 for those of halves.
    index : int64 [K]
        In ``[0, N)``; K below 2^31.
    offsets : int64 [V + 1]
        Bag v holds the ids ``[offsets[v], offsets[v + 1])``; an empty bag gives zeros.
    out : like rows, flat
        Written only where vectors lie.
    out_start : int64 [V], optional
        Element where vector v begins; left out: ``v * D``. Vectors must not overlap.
    winners : int32 [V, D], optional
        Where to write the place in its bag of the row that gave each column; 0 for empty bags.

    Raises
    ------
    ValueError
        A type or shape is wrong, an index, offset or start points outside its array, or an output shares memory with
        another argument.
    """
    if _max_fits(rows, index, offsets, out, out_start, winners):
        native.pooled_max(rows, index, offsets, out, out_start, winners)
        return
    dtype = checks.rows("rows", rows)
    n_vectors = _n_bags(offsets)
    if checks.ints("index", index).size > checks.WIDEST:
        raise ValueError(f"index has {index.size} ids; places in bags are int32, so at most {checks.WIDEST} fit")
    checks.floats("out", out, (None,), dtype, write=True)
    if out_start is not None:
        checks.ints("out_start", out_start, n_vectors)
    read = {"rows": memory(rows), "index": index, "offsets": offsets, "out_start": out_start}
    if winners is not None:
        checks.writable("winners", _winners(winners, n_vectors, rows.shape[1]))
        checks.apart("winners", winners, out=out, **read)
    checks.apart("out", out, **read)
    run = backend(memory(rows), index, offsets, out, out_start, winners).pooled_max
    run(rows, index, offsets, out, out_start, winners)


def pooled_max_backward(
    winners: NDArray[np.int32],
    offsets: Ints,
    gradients: Floats,
    out: Floats,
    *,
    source_start: Ints | None = None,
) -> None:
    """Gradients of the ids: that of a bag's vector goes, column by column, to the id that won, 0 to the others.

    Parameters
    ----------
    winners : int32 [V, D]
        As ``pooled_max`` wrote it.
    offsets : int64 [V + 1]
    gradients : float32 or float64, flat
    out : like gradients [K, D]
        Written as a whole.
    source_start : int64 [V], optional
        Element where the gradient of vector v begins; left out: ``v * D``.

    Raises
    ------
    ValueError
        A type or shape is wrong, an offset or start points outside its array, a winner outside its bag, or ``out``
        shares memory with another argument.
    """
    if _backward_fits(winners, offsets, gradients, out, source_start):
        native.pooled_max_backward(winners, offsets, gradients, out, source_start)
        return
    dtype = checks.floats("gradients", gradients, (None,)).dtype
    checks.floats("out", out, (None, None), dtype, write=True)
    checks.width_of("width of out", out.shape[1])
    n_vectors = _n_bags(offsets)
    _winners(winners, n_vectors, out.shape[1])
    if source_start is not None:
        checks.ints("source_start", source_start, n_vectors)
    checks.apart("out", out, winners=winners, offsets=offsets, gradients=gradients, source_start=source_start)
    run = backend(winners, offsets, gradients, out, source_start).pooled_max_backward
    run(winners, offsets, gradients, out, source_start)


def _n_bags(offsets: Ints) -> int:
    if checks.ints("offsets", offsets).size == 0:
        raise checks.fail("offsets", offsets, "int64[V + 1]")
    return offsets.size - 1


def _winners(winners: NDArray[np.int32], n_vectors: int, width: int) -> NDArray[np.int32]:
    shaped = isinstance(winners, np.ndarray | DeviceArray) and winners.shape == (n_vectors, width)
    if not shaped or winners.dtype != checks.INT32 or not checks.plain(winners):
        raise checks.fail("winners", winners, f"int32[{n_vectors}, {width}]")
    return winners
