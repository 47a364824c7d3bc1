"""The native module's kernels of halves, thresholds and positions, under their references' names and signatures."""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.native import module
from hpcrec.kernels.reference_halves import HALF_KINDS, Bytes
from hpcrec.types import Floats, Ints


def write_halves(values: Floats, out: Bytes, kind: str) -> None:
    """See the reference."""
    module().write_halves(values, out, HALF_KINDS.index(kind))


def read_halves(data: Bytes, out: Floats, kind: str) -> None:
    """See the reference."""
    module().read_halves(data, out, HALF_KINDS.index(kind))


def threshold_of(values: Floats, keep: int) -> float:
    """See the reference."""
    return module().threshold_of(values, keep)


def select_above(values: Floats, tau: np.float32) -> tuple[Ints, Floats]:
    """See the reference."""
    marks = _marks(values)
    picked = _room(module().mark_above(values, float(tau), marks))
    module().take_marked(values, marks, *picked)
    return picked


def select_largest(values: Floats, keep: int) -> tuple[Ints, Floats]:
    """See the reference."""
    picked = _room(len(values) * keep)
    module().take_largest(values.reshape(-1), values.shape[1], keep, *picked)
    return picked


def select_with_feedback(gradient: Floats, residual: Floats, tau: np.float32) -> tuple[Ints, Floats]:
    """See the reference."""
    marks = _marks(gradient)
    picked = _room(module().mark_sum(gradient, residual, float(tau), marks))
    module().cut_marked(residual, marks, *picked)
    return picked


def _marks(values: Floats) -> NDArray[np.uint64]:
    return np.empty(-(-values.size // 64), np.uint64)


def _room(k: int) -> tuple[Ints, Floats]:
    return np.empty(k, np.int64), np.empty(k, np.float32)


def require_rising(positions: Ints, n: int) -> None:
    """See the reference."""
    module().require_rising(positions, n)


def expand(out: Floats, positions: Ints, values: Floats) -> None:
    """See the reference."""
    module().expand(out, positions, values)


def scatter_add(out: Floats, positions: Ints, values: Floats) -> None:
    """See the reference."""
    module().scatter_add(out, positions, values)


def gather(values: Floats, positions: Ints) -> Floats:
    """See the reference."""
    out = np.empty(positions.size, np.float32)
    module().gather(values, positions, out)
    return out


def write_mask(positions: Ints, n: int, out: Bytes) -> None:
    """See the reference."""
    module().write_mask(positions, n, out)


def read_mask(data: Bytes, k: int, n: int) -> Ints:
    """See the reference."""
    out = np.empty(k, np.int64)
    module().read_mask(data, n, out)
    return out
