"""HDF5 files whose data sets are declared first and then filled in order, by plain writes at the place HDF5 gave them.

HDF5 copies what it writes, and h5py holds Python's lock meanwhile; plain writes do neither, so a file can be filled at
the disk's speed beside other threads. Their checksum is taken of what passes, not read again. Knows nothing of what is
in the files.
"""

import contextlib
import ctypes
import errno
import functools
import math
import mmap
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcrec.data import checksum
from hpcrec.data.files import WholeOrAbsent
from hpcrec.data.hdf5_out import Output

Shape = tuple[tuple[int, ...], npt.DTypeLike]
PAGE_BYTES = 4096  # what writes past the cache begin and end at, in memory and in the file
GATHERED_BYTES = 32 << 20  # of memory for a file's values, shared by its data sets as their sizes are
_SYNC_FILE_RANGE_WRITE = 2  # begin to write, and wait for nothing


class Filled(WholeOrAbsent):
    """An HDF5 file in the making; a context manager.

    Values are gathered to pieces of many MB, which pass the system's page cache by where the file system lets them:
    their copying there, and the system's own thread that writes them from there, would take a core from whoever works
    beside this; and so would small pieces, each of which asks for Python's lock.

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
            sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, (shape, dtype) in shapes.items()}
            for name, (shape, dtype) in shapes.items():
                at = _declare(output.file, name, shape, np.dtype(dtype))
                share = GATHERED_BYTES * sizes[name] // max(1, sum(sizes.values()))
                self._places[name] = _Place(at, at + sizes[name], max(PAGE_BYTES, _down(share)))
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._past = _past_the_cache(path)

    def append(self, name: str, values: npt.NDArray[Any]) -> None:
        """Puts values behind those of a data set that are there; type and shape are what was declared."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        place = self._places[name]
        assert place.at + len(data) <= place.stop, f"{name} is full"
        place.crc32 = zlib.crc32(data.data, place.crc32)
        while len(data):
            piece = place.room(len(data))
            piece[:] = data[: len(piece)]  # by NumPy, which leaves Python's lock to others meanwhile
            place.at, data = place.at + len(piece), data[len(piece) :]
            if place.at == place.stop or place.full:
                self._write(place)

    def _write(self, place: "_Place") -> None:
        """Takes a piece to the disk: whole pages past the cache, what is cut off at its ends through it."""
        first, last = _up(place.written), _down(place.at)
        if self._past is None or first >= last:
            first = last = place.at
        self._put(self._file, place, place.written, first)
        self._put(self._past, place, first, last)
        self._put(self._file, place, last, place.at)
        place.written = place.at

    def _put(self, file: int | None, place: "_Place", start: int, stop: int) -> None:
        at, data = start, place.bytes(start, stop)
        while file is not None and at < stop:
            try:
                at += os.pwrite(file, data[at - start :].data, at)
            except OSError as error:
                if file != self._past or error.errno != errno.EINVAL:
                    raise
                file = self._file  # its pages are larger than ours, or it was not meant for a part of one
            if file == self._past and at % PAGE_BYTES:
                file = self._file  # cut short within a page
        if file == self._file:
            _begin_to_write(self._file, start, stop - start)

    def close(self) -> None:
        """Finishes the file: everything is on the disk."""
        short = [name for name, place in self._places.items() if place.at != place.stop]
        assert not short, f"{short} are not full"
        try:
            self.crc32 = self._checksum()
            os.fsync(self._file)
        finally:
            self.abort()

    def abort(self) -> None:
        """Closes what is not to be kept."""
        for file in (self._file, self._past):
            if file is not None:
                os.close(file)

    def _checksum(self) -> int:
        """Of what HDF5 wrote, which is read, and of the values, which is known."""
        crc, at = 0, 0
        for place in sorted(self._places.values(), key=lambda place: place.start):
            if place.stop > place.start:
                crc = zlib.crc32(os.pread(self._file, place.start - at, at), crc)
                crc, at = checksum.join(crc, place.crc32, place.stop - place.start), place.stop
        return zlib.crc32(os.pread(self._file, os.fstat(self._file).st_size - at, at), crc)


class _Place:
    """Of a data set in the file: from ``start`` to ``stop``, taken over to ``at``, of which it is ``written`` so far.

    What lies between is in a piece of memory that begins at a page, as does ``base``, its place in the file.
    """

    def __init__(self, start: int, stop: int, piece_bytes: int) -> None:
        self.start = self.at = self.written = start
        self.stop = stop
        self.base = _down(start)
        self.crc32 = 0
        self._piece_bytes = min(piece_bytes, _up(stop) - self.base)  # whole pages
        self._piece: npt.NDArray[np.uint8] | None = None

    def room(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Where the next so many bytes go, or as many as fit."""
        if self._piece is None:
            self._piece = np.frombuffer(mmap.mmap(-1, self._piece_bytes), np.uint8)  # which begins at a page
        if self.written == self.at:
            self.base = _down(self.at)
        return self._piece[self.at - self.base :][:n_bytes]

    @property
    def full(self) -> bool:
        """Whether there is no more room."""
        return self.at - self.base == self._piece_bytes

    def bytes(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Those of the file's bytes that are in memory."""
        assert self._piece is not None
        return self._piece[start - self.base : stop - self.base]


def _up(at: int) -> int:
    return -(-at // PAGE_BYTES) * PAGE_BYTES


def _down(at: int) -> int:
    return at // PAGE_BYTES * PAGE_BYTES


def _past_the_cache(path: Path) -> int | None:
    """A descriptor of the file whose writes the system does not keep a copy of; None where there is none."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT)
    except (AttributeError, OSError):  # a system, or a file system, without it
        return None


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
