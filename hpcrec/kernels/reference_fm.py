"""The definition, in NumPy, of the sums that a factorisation machine is made of. See ``reference``.

Shapes: B samples, F features, D width.
"""

import numpy as np

from hpcrec.types import Floats

SQUARE_LANES = 128


def fm_sums(vectors: Floats, sums: Floats, squares: Floats) -> None:
    """Features are added in order, from +0, column by column: vectors, and their squares.

    Of the squares' sums, columns ``SQUARE_LANES`` apart are added in order, from +0; then the upper half of the lanes
    is added on, until there is one.
    """
    n_samples, n_features, width = vectors.shape
    sums[:] = 0
    squares_BD = np.zeros_like(sums)
    for f in range(n_features):
        sums += vectors[:, f]
        squares_BD += vectors[:, f] * vectors[:, f]
    lanes = np.zeros((n_samples, SQUARE_LANES), vectors.dtype)
    for first in range(0, width, SQUARE_LANES):
        part = squares_BD[:, first : first + SQUARE_LANES]
        lanes[:, : part.shape[1]] += part
    half = SQUARE_LANES // 2
    while half:
        lanes[:, :half] += lanes[:, half : 2 * half]
        half //= 2
    squares[:] = lanes[:, 0]


def fm_sums_backward(vectors: Floats, sums_gradient: Floats, squares_gradient: Floats, gradient: Floats) -> None:
    """``g_S + (2 g_Q) v``."""
    gradient[:] = sums_gradient[:, None] + (2 * squares_gradient)[:, None, None] * vectors
