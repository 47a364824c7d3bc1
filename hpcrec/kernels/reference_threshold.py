"""The definition, in NumPy, of how the largest of many values are picked. See ``reference``.

The magnitude of a NaN counts as infinite, and reaches any threshold: so it shows where it is sent.
"""

import numpy as np

from hpcrec.types import Floats, Ints


def threshold_of(values: Floats, keep: int) -> float:
    """The keep-th largest magnitude."""
    magnitudes = np.abs(values)
    magnitudes[np.isnan(magnitudes)] = np.inf
    return float(np.partition(magnitudes, values.size - keep)[values.size - keep])


def select_above(values: Floats, tau: np.float32) -> tuple[Ints, Floats]:
    """Where values reach tau, and what they are."""
    with np.errstate(invalid="ignore"):
        positions = np.flatnonzero(~(np.abs(values) < tau)).astype(np.int64)
    return positions, values[positions]


def select_largest(values: Floats, keep: int) -> tuple[Ints, Floats]:
    """Where the largest of each vector are, and what they are."""
    magnitudes = np.where(np.isnan(values), np.inf, np.abs(values))
    order = np.argsort(-magnitudes, axis=1, kind="stable")[:, :keep]
    first = np.arange(len(values))[:, None] * values.shape[1]
    positions = (first + np.sort(order, axis=1)).reshape(-1).astype(np.int64)
    return positions, values.reshape(-1)[positions]


def select_with_feedback(gradient: Floats, residual: Floats, tau: np.float32) -> tuple[Ints, Floats]:
    """The same of the sum; what is not picked is left in the residual."""
    with np.errstate(over="ignore", invalid="ignore"):
        residual += gradient
    positions, chosen = select_above(residual, tau)
    residual[positions] = 0
    return positions, chosen
