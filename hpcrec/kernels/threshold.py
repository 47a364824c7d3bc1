"""Kernels that pick the largest of many values by a threshold, and keep what is left over for the next time [DCT].

What is done with the picked ones is known above; how their positions are written is in ``positions``. Shapes: K of n
values are picked.
"""

from numbers import Integral, Real
from typing import Any

import numpy as np

from hpcrec.kernels import checks, native_messages, reference_threshold
from hpcrec.kernels.backend import messages_backend, native_fits
from hpcrec.types import Floats, Ints

_FLOAT32 = np.dtype(np.float32)
_values_fit = native_fits("values: float32[any]")
_threshold_fits = native_fits("values: float32[any]", "keep: 1+")
_largest_fits = native_fits("values: float32[V, D]", "keep: 1+")
_feedback_fits = native_fits("gradient: float32[N]", "written residual: float32[N]")
_LARGEST = float(np.finfo(np.float32).max)


def _backend(*arrays: Any) -> Any:
    return messages_backend(reference_threshold, *arrays)


def threshold_of(values: Floats, keep: int) -> float:
    """The largest threshold that at least ``keep`` magnitudes reach: exactly the keep-th largest of them.

    Parameters
    ----------
    values : float32 [n]
        The magnitude of a NaN counts as infinite.
    keep : int
        From 1 to n.

    Returns
    -------
    float
        A magnitude of float32, or infinity.

    Raises
    ------
    ValueError
        A type or shape is wrong, or there are not so many values.
    """
    if _threshold_fits(values, keep) and keep <= values.size:
        return native_messages.threshold_of(values, keep)
    n = checks.floats("values", values, (None,), _FLOAT32).size
    if n == 0:
        raise ValueError("values is empty; a threshold needs at least one value")
    return _backend(values).threshold_of(values, checks.whole("keep", keep, 1, n))


def select_above(values: Floats, tau: float) -> tuple[Ints, Floats]:
    """The values whose magnitude is at least ``tau``, and every NaN.

    Parameters
    ----------
    values : float32 [n]
    tau : float
        Not negative; 0 picks all. Compared as it is, not rounded to float32.

    Returns
    -------
    positions : int64 [K]
        Rising.
    chosen : float32 [K]

    Raises
    ------
    ValueError
        A type or shape is wrong, or ``tau`` is negative or NaN.
    """
    if _values_fit(values):
        return native_messages.select_above(values, _least(tau))
    return _backend(values).select_above(checks.floats("values", values, (None,), _FLOAT32), _least(tau))


def select_largest(values: Floats, keep: int) -> tuple[Ints, Floats]:
    """Of each vector the ``keep`` values of largest magnitude; of equal ones those that come first.

    Parameters
    ----------
    values : float32 [V, D]
        The magnitude of a NaN counts as infinite.
    keep : int
        From 1 to D.

    Returns
    -------
    positions : int64 [V * keep]
        In ``values`` flattened; rising.
    chosen : float32 [V * keep]

    Raises
    ------
    ValueError
        A type or shape is wrong, or vectors have not so many values.
    """
    if _largest_fits(values, keep) and keep <= values.shape[1]:
        return native_messages.select_largest(values, keep)
    width = checks.floats("values", values, (None, None), _FLOAT32).shape[1]
    if width == 0:
        raise ValueError("values has vectors of no values; they need at least one")
    return _backend(values).select_largest(values, checks.whole("keep", keep, 1, width))


def select_with_feedback(gradient: Floats, residual: Floats, tau: float) -> tuple[Ints, Floats]:
    """Picks from the sum of a gradient and what earlier ones left over, and leaves over the rest.

    Parameters
    ----------
    gradient : float32 [n]
    residual : float32 [n]
        Becomes ``gradient + residual``, and 0 where that was picked.
    tau : float
        As in `select_above`.

    Returns
    -------
    positions : int64 [K]
        Rising.
    chosen : float32 [K]
        Of the sum.

    Raises
    ------
    ValueError
        A type or shape is wrong, the arrays share memory, or ``tau`` is negative or NaN.
    """
    if _feedback_fits(gradient, residual):
        return native_messages.select_with_feedback(gradient, residual, _least(tau))
    checks.floats("gradient", gradient, (None,), _FLOAT32)
    checks.floats("residual", residual, (gradient.size,), _FLOAT32, write=True)
    checks.apart("residual", residual, gradient=gradient)
    return _backend(gradient, residual).select_with_feedback(gradient, residual, _least(tau))


def _least(tau: float) -> np.float32:
    """The least float32 that is not below ``tau``: the magnitudes of float32 that reach one reach the other."""
    if not isinstance(tau, Real):
        raise TypeError(f"tau is {tau!r}; it must be a number")
    exact = int(tau) if isinstance(tau, Integral) else float(tau)
    if not exact >= 0:
        raise ValueError(f"tau is {exact}; allowed are 0 and more")
    if exact > _LARGEST:
        return np.float32(np.inf)
    nearest = np.float32(exact)
    return nearest if float(nearest) >= exact else np.nextafter(nearest, np.float32(np.inf))
