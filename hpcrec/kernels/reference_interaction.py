"""The definition of the ``interaction`` kernels, in NumPy; native ones agree within rounding, not bit for bit.

Shapes: B samples, N vectors a sample, D width, P = N (N - 1) / 2 pairs.
"""

import numpy as np

from hpcrec.types import Floats


def _vectors(first: Floats | None, block: Floats) -> Floats:
    """[B, N, D]: the first vector, where there is one, and those of the block."""
    return block if first is None else np.concatenate([first[:, None], block], 1)


def dot_interaction(first: Floats | None, block: Floats, out: Floats) -> None:
    """The first vector, then the products below the diagonal of ``V V^T``, row by row."""
    v_BND = _vectors(first, block)
    row_P, column_P = np.tril_indices(v_BND.shape[1], -1)
    prefix = 0 if first is None else first.shape[1]
    if first is not None:
        out[:, :prefix] = first
    out[:, prefix:] = (v_BND @ v_BND.transpose(0, 2, 1))[:, row_P, column_P]


def dot_interaction_backward(
    first: Floats | None,
    block: Floats,
    gradient: Floats,
    first_gradient: Floats | None,
    block_gradient: Floats,
) -> None:
    """``(G + G^T) V``, G the products' gradient below the diagonal; the first vector's direct gradient on top."""
    v_BND = _vectors(first, block)
    n_samples, n, width = v_BND.shape
    row_P, column_P = np.tril_indices(n, -1)
    products_BP = gradient if first is None else gradient[:, width:]
    g_BNN = np.zeros((n_samples, n, n), block.dtype)
    g_BNN[:, row_P, column_P] = g_BNN[:, column_P, row_P] = products_BP
    sums_BND = g_BNN @ v_BND
    if first_gradient is not None:
        first_gradient[:] = gradient[:, :width] + sums_BND[:, 0]
        sums_BND = sums_BND[:, 1:]
    block_gradient[:] = sums_BND
