"""HDF5 files whose data sets are declared first and then filled in order, by plain writes at the place HDF5 gave them.

HDF5 copies what it writes, and h5py holds Python's lock meanwhile; plain writes do neither, so a file can be filled at
the disk's speed beside other threads. Their checksum is taken of what passes, not read again. Knows nothing of what is
in the files.
"""

import contextlib
import ctypes
import functools
import math
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcrec.data import checksum
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

    Attributes
    ----------
    crc32 : int
        Of the whole file; once it is closed.

    Raises
    ------
    OSError
        The disk cannot be written; of every call.
    """

    crc32: int

    def __init__(self, path: Path, shapes: Mapping[str, Shape], describe: Callable[[h5py.File], None]) -> None:
        self._places: dict[str, _Place] = {}
        with Output(path) as output:
            describe(output.file)
            for name, (shape, dtype) in shapes.items():
                at, n_bytes = _declare(output.file, name, shape, np.dtype(dtype)), math.prod(shape)
                self._places[name] = _Place(at, at, at + n_bytes * np.dtype(dtype).itemsize)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def append(self, name: str, values: npt.NDArray[Any]) -> None:
        """Puts values behind those of a data set that are there; type and shape are what was declared."""
        data = np.ascontiguousarray(values).data.cast("B") if values.size else memoryview(b"")
        place = self._places[name]
        assert place.at + len(data) <= place.stop, f"{name} is full"
        first = at = place.at
        place.at, place.crc32 = first + len(data), zlib.crc32(data, place.crc32)
        while data:
            n_bytes = os.pwrite(self._file, data, at)
            at, data = at + n_bytes, data[n_bytes:]
        _begin_to_write(self._file, first, at - first)

    def close(self) -> None:
        """Finishes the file: everything is on the disk."""
        short = [name for name, place in self._places.items() if place.at != place.stop]
        assert not short, f"{short} are not full"
        try:
            self.crc32 = self._checksum()
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def abort(self) -> None:
        """Closes what is not to be kept."""
        os.close(self._file)

    def _checksum(self) -> int:
        """Of what HDF5 wrote, which is read, and of the values, which is known."""
        crc, at = 0, 0
        for place in sorted(self._places.values(), key=lambda place: place.start):
            if place.stop > place.start:
                crc = zlib.crc32(os.pread(self._file, place.start - at, at), crc)
                crc, at = checksum.join(crc, place.crc32, place.stop - place.start), place.stop
        return zlib.crc32(os.pread(self._file, os.fstat(self._file).st_size - at, at), crc)


@dataclass
class _Place:
    """Of a data set in the file, and the checksum of what is there."""

    start: int
    at: int  # where the next values go
    stop: int
    crc32: int = 0


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
