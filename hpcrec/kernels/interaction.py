"""Dot products of all pairs of a sample's vectors, and their gradient.

The only kernels whose backends agree within rounding and not bit for bit: a matrix product is summed in whatever order
is fast. Each backend gives the same bits for any number of threads. Does not know what the vectors are.
Shapes: B samples, F vectors in the block, N = F + 1 with a first vector, else F; D width, P = N (N - 1) / 2 pairs.
"""

from hpcrec.kernels import checks
from hpcrec.kernels.backend import backend
from hpcrec.types import Floats


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
    n_samples, n_vectors, width = block.shape
    checks.positive("width of block", width)
    n_out = 0
    if first is not None:
        checks.floats("first", first, (n_samples, width), dtype)
        n_vectors, n_out = n_vectors + 1, width
    if n_vectors < 2:
        raise ValueError(f"dot_interaction: {n_vectors} vectors a sample; pairs need at least 2")
    checks.floats(name, out, (n_samples, n_out + n_vectors * (n_vectors - 1) // 2), dtype, write=write)
