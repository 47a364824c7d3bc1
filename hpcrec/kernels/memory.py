"""Memory for rows: arrays that begin on a cache line, so that a row of 64 bytes is one line and not two.

NumPy aligns to 16 bytes. On random rows of 64 bytes the difference is a quarter of a gather's time. NumPy itself asks
for huge pages where an array is large. Rows that may come later have addresses, and no memory yet.
"""

import contextlib
import math
import mmap
import platform
import sys

import numpy as np

from hpcrec.types import Floats

LINE_BYTES = 64
# The system keeps no memory free for pages that nobody has used; Python before 3.13 has no name for it.
_ON_LINUX = 0x4000 if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else 0
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", _ON_LINUX)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype | type) -> Floats:
    """An array of undefined contents whose first element begins a cache line.

    Parameters
    ----------
    shape : tuple of int
    dtype : any fixed-size type

    Returns
    -------
    dtype [*shape]
        C-contiguous and writable.
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % LINE_BYTES
    return memory[first : first + n_bytes].view(dtype).reshape(shape)


def reserved_zeros(shape: tuple[int, ...], dtype: np.dtype | type) -> Floats:
    """An array of zeros that takes memory, page by page, only where it is first written (or read).

    It may be larger than the machine's memory: nothing is kept free for what is not used, so that a process that uses
    more than there is is ended by the system, as with any other memory.

    Parameters
    ----------
    shape : tuple of int
    dtype : any fixed-size type

    Returns
    -------
    dtype [*shape]
        C-contiguous and writable; begins a page.

    Raises
    ------
    MemoryError
        The system has no addresses for so much (say ``ulimit -v``, or ``vm.overcommit_memory`` = 2).
    """
    n_bytes = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        memory = mmap.mmap(-1, n_bytes, flags=flags)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"no addresses for an array of {n_bytes} bytes ({error})") from None
    with contextlib.suppress(AttributeError, OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)
