"""Kernels of factorisation machines: sums of pooled vectors and of their squares, in one pass over memory.

Shapes: B samples, F features, D width.
"""

from hpcrec.kernels import checks, native
from hpcrec.kernels.backend import backend, native_fits
from hpcrec.types import Floats

# Views that are not contiguous do not fit, and are looked at in Python.
_sums_fit = native_fits("vectors: float[B, F, D]", "written sums: float[B, D]", "written squares: float[B]")
_backward_fits = native_fits(
    "vectors: float[B, F, D]", "sums_gradient: float[B, D]", "squares_gradient: float[B]",
    "written gradient: float[B, F, D]",
)  # fmt: skip


def fm_sums(vectors: Floats, sums: Floats, squares: Floats) -> None:
    """``sums[b] = sum over f of vectors[b, f]``, ``squares[b] = sum over f and d of vectors[b, f, d] ** 2``.

    Parameters
    ----------
    vectors : float32 or float64 [B, F, D]
        A view will do, of [F, B, D], say, as long as each vector's elements lie one after the other.
    sums : like vectors [B, D]
        Written.
    squares : like vectors [B]
        Written.

    Raises
    ------
    ValueError
        A type or shape is wrong, or an output shares memory with another argument.
    """
    if _sums_fit(vectors, sums, squares):
        native.fm_sums(vectors, sums, squares)
        return
    dtype = checks.vectors("vectors", vectors).dtype
    n_samples, _, width = vectors.shape
    checks.floats("sums", sums, (n_samples, width), dtype, write=True)
    checks.floats("squares", squares, (n_samples,), dtype, write=True)
    checks.apart("sums", sums, vectors=vectors, squares=squares)
    checks.apart("squares", squares, vectors=vectors)
    backend(vectors, sums, squares).fm_sums(vectors, sums, squares)


def fm_sums_backward(vectors: Floats, sums_gradient: Floats, squares_gradient: Floats, gradient: Floats) -> None:
    """``gradient[b, f] = sums_gradient[b] + 2 * squares_gradient[b] * vectors[b, f]``.

    Parameters
    ----------
    vectors : float32 or float64 [B, F, D]
        As ``fm_sums`` took it.
    sums_gradient : like vectors [B, D]
    squares_gradient : like vectors [B]
    gradient : like vectors [B, F, D]
        Written; a view, as ``vectors`` may be one.

    Raises
    ------
    ValueError
        A type or shape is wrong, or ``gradient`` shares memory with another argument, or its vectors with each other.
    """
    if _backward_fits(vectors, sums_gradient, squares_gradient, gradient):
        native.fm_sums_backward(vectors, sums_gradient, squares_gradient, gradient)
        return
    dtype = checks.vectors("vectors", vectors).dtype
    n_samples, _, width = vectors.shape
    checks.floats("sums_gradient", sums_gradient, (n_samples, width), dtype)
    checks.floats("squares_gradient", squares_gradient, (n_samples,), dtype)
    checks.vectors("gradient", gradient, vectors.shape, dtype, write=True)
    checks.apart("gradient", gradient, vectors=vectors, sums_gradient=sums_gradient, squares_gradient=squares_gradient)
    run = backend(vectors, sums_gradient, squares_gradient, gradient).fm_sums_backward
    run(vectors, sums_gradient, squares_gradient, gradient)
