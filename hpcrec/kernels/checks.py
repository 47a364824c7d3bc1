"""Checks of what a kernel is given, before a backend sees it: types and shapes; for the reference, also contents.

The cost is about a microsecond an array. So kernels that run natively first ask ``backend.native_fits``, which lets
through at once what would pass here; what it does not is looked at here, and refused in words. The native kernels check
contents (indices inside arrays) themselves, where it is nearly free. Knows nothing of what the kernels compute.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.device_array import DeviceArray
from hpcrec.kernels.half_rows import ROW_KINDS, HalfRows, Rows
from hpcrec.types import Floats, Ints

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)
FLOAT32, UINT16 = np.dtype(np.float32), np.dtype(np.uint16)
LARGEST = 2**63 - 1
WIDEST = 2**31 - 1  # elements a row, and parts: more could overflow sizes in native code


def fail(name: str, array: object, wanted: str) -> ValueError:
    """Error for an array that is not what a kernel needs."""
    found = type(array).__name__
    if isinstance(array, np.ndarray | DeviceArray):
        found = f"{array.dtype}{list(array.shape)}"
    if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
        found += ", not contiguous"
    if isinstance(array, np.ndarray) and not array.flags.aligned:
        found += ", not aligned to its elements"
    return ValueError(f"{name} is {found}; needed is an aligned C-contiguous array {wanted}")


def plain(array: object) -> bool:
    """What native code may read through a pointer: elements in order without gaps, each where its type may lie."""
    if isinstance(array, DeviceArray):
        return not array.bounds[0] % array.dtype.itemsize
    return isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.aligned


def ints(name: str, array: NDArray[Any], size: int | None = None, *, dtype: np.dtype = INT64) -> NDArray[Any]:
    """1-D int64 (or ``dtype``), of ``size`` elements where that is given."""
    if not (plain(array) and array.dtype == dtype and array.ndim == 1 and (size is None or array.size == size)):
        raise fail(name, array, f"{dtype}[{'any' if size is None else size}]")
    return array


def table(name: str, array: Ints, columns: int) -> Ints:
    """int64 of any number of rows."""
    if not (plain(array) and array.dtype == INT64 and array.ndim == 2 and array.shape[1] == columns):
        raise fail(name, array, f"int64[any, {columns}]")
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
        plain(array)
        and (array.dtype in FLOATS if dtype is None else array.dtype == dtype)
        and array.ndim == len(shape)
        and all(size is None or size == found for size, found in zip(shape, array.shape, strict=True))
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise fail(name, array, f"{'float32 or float64' if dtype is None else dtype}[{wanted}]")
    return writable(name, array) if write else array


def vectors(
    name: str,
    array: Floats,
    shape: tuple[int, ...] | None = None,
    dtype: np.dtype | None = None,
    *,
    write: bool = False,
) -> Floats:
    """float32 or float64 (or exactly ``dtype``) [B, F, D], D at least 1, of vectors that lie anywhere in any order.

    A vector's elements lie one after the other. One that is written shares no element with another.
    """
    good = (
        (isinstance(array, DeviceArray) or (isinstance(array, np.ndarray) and array.flags.aligned))
        and (array.dtype in FLOATS if dtype is None else array.dtype == dtype)
        and array.ndim == 3
        and 0 < array.shape[2] <= WIDEST
        and (shape is None or array.shape == shape)
    )
    if good and array.size and isinstance(array, np.ndarray):  # a device's are contiguous
        # Axes of one element may have any stride.
        axes = sorted((stride, n) for stride, n in zip(array.strides, array.shape, strict=True) if n > 1)
        good = (array.shape[2] == 1 or array.strides[2] == array.itemsize) and all(
            stride >= 0 and stride % array.itemsize == 0 for stride, _ in axes
        )
        extent = array.itemsize
        for stride, n in axes if write else ():
            good = good and stride >= extent
            extent += (n - 1) * stride
    if not good:
        wanted = "any, any, any" if shape is None else ", ".join(map(str, shape))
        found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(
            f"{name} is {found}; needed is {'float32 or float64' if dtype is None else dtype}[{wanted}] whose last "
            f"axis is contiguous and not empty{', of vectors that lie apart' if write else ''}"
        )
    return writable(name, array) if write else array


def rows(name: str, array: Rows, *, write: bool = False) -> np.dtype:
    """[N, D] of floats or of halves. Returns the type in which kernels compute with them."""
    if isinstance(array, HalfRows):
        bits, dtype = array.bits, FLOAT32
        if not (plain(bits) and bits.dtype == UINT16 and bits.ndim == 2):
            raise fail(f"{name}.bits", bits, "uint16[any, any]")
        half_kind(f"{name}.kind", array.kind)
        if array.seed is not None:
            whole(f"{name}.seed", array.seed, -LARGEST - 1, 2 * LARGEST + 1)
        if write:
            writable(f"{name}.bits", bits)
    else:
        bits, dtype = array, floats(name, array, (None, None), write=write).dtype
    width_of(f"width of {name}", bits.shape[1])
    return dtype


def half_kind(name: str, kind: str) -> None:
    """A kind of half rows."""
    if kind not in ROW_KINDS:
        raise ValueError(f"{name} is {kind!r}; allowed are {', '.join(ROW_KINDS)}")


def numbers(name: str, array: NDArray[Any], dtypes: Sequence[np.dtype]) -> NDArray[Any]:
    """Of one of these types and any shape, to be written."""
    if not (plain(array) and array.dtype in dtypes):
        raise fail(name, array, f"of {', '.join(map(str, dtypes))}")
    return writable(name, array)


def writable(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """An array that a kernel may write into."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError(f"{name} is read-only; the kernel writes into it: give it a writable array")
    return array


def whole(name: str, value: int, least: int, largest: int = LARGEST) -> int:
    """An integer from ``least`` to ``largest``; of NumPy's types too, but no float."""
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be an integer") from None
    if not least <= found <= largest:
        raise ValueError(f"{name} is {found}; allowed are {least} to {largest}")
    return found


def positive(name: str, value: int) -> int:
    """An integer of at least 1 that int64 holds."""
    return whole(name, value, 1)


def width_of(name: str, value: int) -> int:
    """The width of rows: at least 1, below 2^31."""
    return whole(name, value, 1, WIDEST)


def apart(name: str, written: NDArray[Any], **others: NDArray[Any] | None) -> None:
    """``written`` shares no memory with what a kernel reads meanwhile, or writes too.

    An index that changes after it was checked would send the kernel outside an array.
    """
    bounds = written.bounds if isinstance(written, DeviceArray) else None
    for other, array in others.items():
        if array is not None and _share(written, bounds, array):
            raise ValueError(f"{name} shares memory with {other}; the kernel writes into it: copy one of them first")


def _share(a: Any, bounds: tuple[int, int] | None, b: Any) -> bool:
    """Whether contiguous arrays share memory; one of a device, which has bounds, and one of the host never do."""
    if bounds is not None:
        if not isinstance(b, DeviceArray):
            return False
        first, end = b.bounds
        return bounds[0] < end and first < bounds[1]
    if isinstance(b, DeviceArray):
        return False
    own, other = _owner(a), _owner(b)
    if own is not None and other is not None and own is not other:
        return False
    # exact for contiguous arrays: it compares their bounds; it lets go of Python's lock, which another thread may take
    return np.may_share_memory(a, b)


def _owner(array: Any) -> Any:
    """The array that allocated the memory; None where it was none."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if array.base is None and array.flags.owndata else None


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
