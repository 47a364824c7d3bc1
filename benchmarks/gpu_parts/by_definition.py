"""The same call by NumPy's definition and by the device, compared bit for bit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gpu_parts.bench import Machine

from hpcrec import kernels


@contextmanager
def by_numpy() -> Iterator[None]:
    """Kernels on arrays of the host are NumPy's definitions within."""
    before = kernels.active()
    kernels.use("reference")
    try:
        yield
    finally:
        kernels.use(before)  # type: ignore[arg-type]


def agrees(machine: Machine, call: Callable[..., tuple[Any, ...]], *arrays: np.ndarray) -> bool:
    """Whether ``call`` returns the same bits of copies of these arrays on the host and on the device."""
    there = call(*(machine.device.array(a) for a in arrays))
    with by_numpy():
        here = call(*(a.copy() for a in arrays))
    return all(same_bits(np.asarray(a), b) for a, b in zip(there, here, strict=True))


def same_bits(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Of equal type, shape and bits."""
    return (found.dtype, found.shape) == (wanted.dtype, wanted.shape) and found.tobytes() == wanted.tobytes()
