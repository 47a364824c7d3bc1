"""All kernel backends on the same input, compared bit for bit; and inputs for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcrec import kernels
from hpcrec.kernels.backend import BACKENDS

# The emulator everywhere, so that the kernels' source is held; the GPU where there is one.
DEVICES: tuple[Any, ...] = tuple(name for name in ("emulated", "cuda") if BACKENDS[name].available())
WIDTHS = (1, 2, 3, 4, 7, 8, 16, 32, 64, 100, 128)
DTYPES = (np.float32, np.float64)


def rows_of(widths: tuple[int, ...]) -> list[Any]:
    """Widths and types of rows: all in float32; in float64, which has one path for every width, some, the rest slow.

    Of those some are odd, some fill 16 bytes, and some need several packs of a device.
    """
    fast = (1, 2, 3, 100)
    wide = [pytest.param(w, np.float64, marks=[] if w in fast else [pytest.mark.slow]) for w in widths]
    return [*((w, np.float32) for w in widths), *wide]


ROWS = rows_of(WIDTHS)


def assert_same_bits(found: Any, wanted: Any) -> None:
    """Arrays (or tuples, or dicts of them) of equal type, shape and bits."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_same_bits(found[key], wanted[key])
    elif isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert_same_bits(a, b)
    else:
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes()


def same_from_all(run: Callable[[], Any], threads: tuple[int, ...] = (1, 2, 3)) -> Any:
    """Result of the reference; native kernels, on each number of threads, and the device's must give its bits."""
    kernels.use("reference")
    wanted = run()
    kernels.use("native")
    for n in threads:
        kernels.set_threads(n)
        assert_same_bits(run(), wanted)
    for device in DEVICES:
        kernels.use(device)
        assert_same_bits(run(), wanted)
    kernels.use("native")
    return wanted


def bags(rng: np.random.Generator, n_vectors: int, n_rows: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Index and offsets of bags of 0 to ``longest`` ids, at least one of them empty."""
    lengths = rng.integers(0, longest + 1, n_vectors)
    lengths[n_vectors // 2] = 0
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int64)
    return rng.integers(0, n_rows, offsets[-1]), offsets


def scattered_starts(rng: np.random.Generator, n: int, width: int) -> tuple[np.ndarray, int]:
    """Starts of n disjoint vectors in shuffled order with gaps, no multiples of the width; and the size they need."""
    starts = (np.cumsum(width + rng.integers(0, 3, n)) - width).astype(np.int64)
    size = int(starts[-1]) + width + 5 if n else 5
    return rng.permutation(starts), size
