"""Checks of what a kernel is given, before a backend sees it: types and shapes; for the reference, also contents.

The cost is below a microsecond an array. The native kernels check contents (indices inside arrays) themselves, where it
is nearly free. Knows nothing of what the kernels compute.
"""

import numpy as np

from hpcrec.types import Floats, Ints

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
INT64 = np.dtype(np.int64)


def fail(name: str, array: object, wanted: str) -> ValueError:
    """Error for an array that is not what a kernel needs."""
    found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
    if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
        found += ", not contiguous"
    return ValueError(f"{name} is {found}; needed is a C-contiguous array {wanted}")


def ints(name: str, array: Ints, size: int | None = None) -> Ints:
    """1-D int64, of ``size`` elements where that is given."""
    if not (
        isinstance(array, np.ndarray)
        and array.dtype == INT64
        and array.ndim == 1
        and array.flags.c_contiguous
        and (size is None or array.size == size)
    ):
        raise fail(name, array, f"int64[{'any' if size is None else size}]")
    return array


def floats(
    name: str,
    array: Floats,
    shape: tuple[int | None, ...],
    dtype: np.dtype | None = None,
    *,
    write: bool = False,
) -> Floats:
    """float32 or float64 (or exactly ``dtype``) of a shape, where None stands for any size."""
    if not (
        isinstance(array, np.ndarray)
        and (array.dtype in FLOATS if dtype is None else array.dtype == dtype)
        and array.ndim == len(shape)
        and array.flags.c_contiguous
        and all(size is None or size == found for size, found in zip(shape, array.shape, strict=True))
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise fail(name, array, f"{'float32 or float64' if dtype is None else dtype}[{wanted}]")
    if write and not array.flags.writeable:
        raise ValueError(f"{name} is read-only; the kernel writes into it: give it a writable array")
    return array


def positive(name: str, value: int) -> int:
    """An integer of at least 1."""
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    return int(value)


def require_below(name: str, values: Ints, limit: int) -> None:
    """Every value in ``[0, limit)``."""
    bad = (values < 0) | (values >= limit)
    if bad.any():
        at = int(np.argmax(bad))
        raise ValueError(f"{name}[{at}] is {int(values[at])}; allowed are 0 <= value < {limit}")


def require_offsets(name: str, offsets: Ints, n_ids: int) -> None:
    """Bounds of bags over ``n_ids`` ids: begin at 0, never fall, end at ``n_ids``."""
    falls = bool((np.diff(offsets) < 0).any())
    if offsets[0] != 0 or offsets[-1] != n_ids or falls:
        raise ValueError(
            f"{name} must begin at 0, never fall and end at {n_ids}; it begins at {int(offsets[0])} and ends at "
            f"{int(offsets[-1])}{', and falls' if falls else ''}"
        )


def starts(name: str, given: Ints | None, n: int, width: int, size: int) -> Ints:
    """Where n vectors begin (None: one after the other), all inside an array of ``size`` elements."""
    if given is not None:
        require_below(name, given, max(0, size - width + 1))
        return given
    if n * width > size:
        raise ValueError(f"{name}: {n} vectors of {width} elements do not fit into {size} elements")
    return np.arange(n, dtype=np.int64) * width
