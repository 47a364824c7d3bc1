"""The native module's kernels of halves, thresholds and positions, under their references' names and signatures."""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.native_module import loaded
from hpcrec.kernels.reference_halves import HALF_KINDS, Bytes
from hpcrec.types import Floats, Ints

# Those that take just what the references take.
threshold_of = loaded.threshold_of
require_rising = loaded.require_rising
expand = loaded.expand
scatter_add = loaded.scatter_add
write_mask = loaded.write_mask


def write_halves(values: Floats, out: Bytes, kind: str) -> None:
    """See the reference."""
    loaded.write_halves(values, out, HALF_KINDS.index(kind))


def read_halves(data: Bytes, out: Floats, kind: str) -> None:
    """See the reference."""
    loaded.read_halves(data, out, HALF_KINDS.index(kind))


def select_above(values: Floats, tau: np.float32) -> tuple[Ints, Floats]:
    """See the reference."""
    marks = _marks(values)
    picked = _room(loaded.mark_above(values, float(tau), marks))
    loaded.take_marked(values, marks, *picked)
    return picked


def select_largest(values: Floats, keep: int) -> tuple[Ints, Floats]:
    """See the reference."""
    picked = _room(len(values) * keep)
    loaded.take_largest(values.reshape(-1), values.shape[1], keep, *picked)
    return picked


def select_with_feedback(gradient: Floats, residual: Floats, tau: np.float32) -> tuple[Ints, Floats]:
    """See the reference."""
    marks = _marks(gradient)
    picked = _room(loaded.mark_sum(gradient, residual, float(tau), marks))
    loaded.cut_marked(residual, marks, *picked)
    return picked


def _marks(values: Floats) -> NDArray[np.uint64]:
    return np.empty(-(-values.size // 64), np.uint64)


def _room(k: int) -> tuple[Ints, Floats]:
    return np.empty(k, np.int64), np.empty(k, np.float32)


def gather(values: Floats, positions: Ints) -> Floats:
    """See the reference."""
    out = np.empty(positions.size, np.float32)
    loaded.gather(values, positions, out)
    return out


def read_mask(data: Bytes, k: int, n: int) -> Ints:
    """See the reference."""
    out = np.empty(k, np.int64)
    loaded.read_mask(data, n, out)
    return out
