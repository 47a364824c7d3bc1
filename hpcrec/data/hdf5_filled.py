"""HDF5 files whose data sets are declared first and then filled in order, by plain writes at the place HDF5 gave them.

HDF5 copies what it writes, and h5py holds Python's lock meanwhile; plain writes do neither, so a file can be filled at
the disk's speed beside other threads. Knows nothing of what is in the files.
"""

import contextlib
import ctypes
import functools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcrec.data.files import WholeOrAbsent
from hpcrec.data.hdf5_out import Output

Shape = tuple[tuple[int, ...], npt.DTypeLike]
_SYNC_FILE_RANGE_WRITE = 2  # begin to write, and wait for nothing


class Filled(WholeOrAbsent):
    """An HDF5 file in the making; a context manager.

    Parameters
    ----------
    path : Path
    shapes : mapping of str to (shape, dtype)
        The data sets that will be filled: contiguous, not compressed.
    describe : callable
        Given the h5py.File once, to write attributes and small data sets.

    Raises
    ------
    OSError
        The disk cannot be written; of every call.
    """

    def __init__(self, path: Path, shapes: Mapping[str, Shape], describe: Callable[[h5py.File], None]) -> None:
        self._places: dict[str, list[int]] = {}  # where the next values go, and where the data set ends
        with Output(path) as output:
            describe(output.file)
            for name, (shape, dtype) in shapes.items():
                at, n_bytes = _declare(output.file, name, shape, np.dtype(dtype)), math.prod(shape)
                self._places[name] = [at, at + n_bytes * np.dtype(dtype).itemsize]
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def append(self, name: str, values: npt.NDArray[Any]) -> None:
        """Puts values behind those of a data set that are there; type and shape are what was declared."""
        data = np.ascontiguousarray(values).data.cast("B") if values.size else memoryview(b"")
        first, end = self._places[name]
        assert first + len(data) <= end, f"{name} is full"
        self._places[name][0] = first + len(data)
        at = first
        while data:
            n_bytes = os.pwrite(self._file, data, at)
            at, data = at + n_bytes, data[n_bytes:]
        _begin_to_write(self._file, first, at - first)

    def close(self) -> None:
        """Finishes the file: everything is on the disk."""
        short = [name for name, (at, end) in self._places.items() if at != end]
        assert not short, f"{short} are not full"
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def abort(self) -> None:
        """Closes what is not to be kept."""
        os.close(self._file)


def _declare(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """A data set whose place in the file is known at once; returns it."""
    *groups, last = name.split("/")
    group = file.require_group("/".join(groups)) if groups else file
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_layout(h5py.h5d.CONTIGUOUS)
    created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    made = h5py.h5d.create(
        group.id, last.encode(), h5py.h5t.py_create(dtype), h5py.h5s.create_simple(shape), dcpl=created
    )
    return made.get_offset() or 0  # None where it has no values


def _begin_to_write(file: int, first: int, n_bytes: int) -> None:
    """Asks the system not to gather these bytes in memory first: then the end would wait for all of them."""
    with contextlib.suppress(AttributeError, OSError):  # a system without it; it is only faster
        _libc().sync_file_range(
            ctypes.c_int(file), ctypes.c_int64(first), ctypes.c_int64(n_bytes), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
        )


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
