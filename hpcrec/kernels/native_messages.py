"""The native module's kernels of halves, thresholds and positions, under their references' names and signatures."""

from typing import Any

import numpy as np

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
    return _picked(module().select_above(values, float(tau)))


def select_with_feedback(gradient: Floats, residual: Floats, tau: np.float32) -> tuple[Ints, Floats]:
    """See the reference."""
    return _picked(module().select_with_feedback(gradient, residual, float(tau)))


def _picked(found: Any) -> tuple[Ints, Floats]:
    positions, chosen = np.empty(found.size, np.int64), np.empty(found.size, np.float32)
    found.write(positions, chosen)
    return positions, chosen


def require_rising(positions: Ints, n: int) -> None:
    """See the reference."""
    module().require_rising(positions, n)


def scatter(out: Floats, positions: Ints, values: Floats) -> None:
    """See the reference."""
    module().scatter(out, positions, values, False)


def scatter_add(out: Floats, positions: Ints, values: Floats) -> None:
    """See the reference."""
    module().scatter(out, positions, values, True)


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
