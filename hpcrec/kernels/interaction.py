"""Dot products of all pairs of a sample's vectors, and their gradient.

The only kernels whose backends agree within rounding and not bit for bit: a matrix product is summed in whatever order
is fast. Each backend gives the same bits for any number of threads. Does not know what the vectors are.
Shapes: B samples, F vectors in the block, N = F + 1 with a first vector, else F; D width, P = N (N - 1) / 2 pairs.
"""

from hpcrec.kernels import checks, native
from hpcrec.kernels.backend import backend, native_fits
from hpcrec.types import Floats

_fits = native_fits("first?: float[B, D]", "block: float[B, F, D]", "written out: float[B, any]")
_backward_fits = native_fits(
    "first?: float[B, D]", "block: float[B, F, D]", "gradient: float[B, any]", "written first_gradient?: float[B, D]",
    "written block_gradient: float[B, F, D]",
)  # fmt: skip


def dot_interaction(first: Floats | None, block: Floats, out: Floats) -> None:
    """``out[b] = [first[b], <v_1, v_0>, <v_2, v_0>, <v_2, v_1>, <v_3, v_0>, ...]`` over ``v = [first[b], *block[b]]``.

    Parameters
    ----------
    first : float32 or float64 [B, D], optional
        One more vector, before those of the block; it is also copied to the output.
    block : like first [B, F, D]
    out : like first [B, D + P], or [B, P] without ``first``

    Raises
    ------
    ValueError
        A type or shape is wrong.
    """
    if _fits(first, block, out) and out.shape[1] == _columns(first, block):
        native.dot_interaction(first, block, out)
        return
    _check(first, block, "out", out, write=True)
    backend(first, block, out).dot_interaction(first, block, out)


def dot_interaction_backward(
    first: Floats | None,
    block: Floats,
    gradient: Floats,
    first_gradient: Floats | None,
    block_gradient: Floats,
) -> None:
    """Gradients of ``first`` and ``block``, written; ``gradient`` is that of ``dot_interaction``'s ``out``.

    Raises
    ------
    ValueError
        A type or shape is wrong, or only one of ``first`` and ``first_gradient`` is given.
    """
    if (
        (first is None) == (first_gradient is None)
        and _backward_fits(first, block, gradient, first_gradient, block_gradient)
        and gradient.shape[1] == _columns(first, block)
    ):
        native.dot_interaction_backward(first, block, gradient, first_gradient, block_gradient)
        return
    _check(first, block, "gradient", gradient, write=False)
    checks.floats("block_gradient", block_gradient, block.shape, block.dtype, write=True)
    if (first is None) != (first_gradient is None):
        raise ValueError("first and first_gradient belong together: give both or neither")
    if first_gradient is not None:
        checks.floats("first_gradient", first_gradient, (block.shape[0], block.shape[2]), block.dtype, write=True)
    run = backend(first, block, gradient, first_gradient, block_gradient).dot_interaction_backward
    run(first, block, gradient, first_gradient, block_gradient)


def _check(first: Floats | None, block: Floats, name: str, out: Floats, *, write: bool) -> None:
    dtype = checks.floats("block", block, (None, None, None)).dtype
    n_samples, _, width = block.shape
    checks.positive("width of block", width)
    if first is not None:
        checks.floats("first", first, (n_samples, width), dtype)
    checks.floats(name, out, (n_samples, _columns(first, block)), dtype, write=write)


def _columns(first: Floats | None, block: Floats) -> int:
    """Of the output: those of ``first``, and all pairs."""
    _, n_vectors, width = block.shape
    n_out = 0
    if first is not None:
        n_vectors, n_out = n_vectors + 1, width
    if n_vectors < 2:
        raise ValueError(f"dot_interaction: {n_vectors} vectors a sample; pairs need at least 2")
    return n_out + n_vectors * (n_vectors - 1) // 2
