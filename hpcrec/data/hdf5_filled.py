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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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
GATHERED_BYTES = 48 << 20  # of memory for a file's values, shared by its data sets
_SYNC_FILE_RANGE_WRITE = 2  # begin to write, and wait for nothing
_NOT_BY_ANY_WAY = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


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
    n_bytes, crc32 : int
        Of the whole file, by what it was given; once it is closed.

    Raises
    ------
    OSError
        The disk cannot be written; of every call.
    """

    n_bytes: int
    crc32: int

    def __init__(self, path: Path, shapes: Mapping[str, Shape], describe: Callable[[h5py.File], None]) -> None:
        self._places: dict[str, _Place] = {}
        with Output(path, remembered=True) as output:
            self._header = output.given
            describe(output.file)
            sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, (shape, dtype) in shapes.items()}
            for name, (shape, dtype) in shapes.items():
                at = _declare(output.file, name, shape, np.dtype(dtype))
                # by the roots of their sizes: so all data sets together are the fewest pieces
                share = math.sqrt(sizes[name]) / max(1.0, sum(map(math.sqrt, sizes.values())))
                piece_bytes = _down(int(GATHERED_BYTES // 2 * share))
                self._places[name] = _Place(at, at + sizes[name], max(PAGE_BYTES, piece_bytes))
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._opened = contextlib.ExitStack()
        self._opened.callback(os.close, self._file)
        self._past = _past_the_cache(path)
        self._wrote = [self._file] if self._past is None else [self._past, self._file]
        if self._past is not None:
            self._opened.callback(os.close, self._past)
        self._thread = ThreadPoolExecutor(1, "disk")  # writes a piece while the next one is gathered

    def append(self, name: str, values: npt.NDArray[Any]) -> None:
        """Puts values behind those of a data set that are there; type and shape are what was declared."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        place = self._places[name]
        assert place.at + len(data) <= place.stop, f"{name} is full"
        place.crc32 = checksum.crc32(data.data, place.crc32)
        while len(data):
            piece = place.piece
            n_bytes = piece.take(data)
            place.at, data = place.at + n_bytes, data[n_bytes:]
            if place.at == place.stop or piece.room == 0:
                piece.writing = self._thread.submit(self._write, piece)
                place.turn()

    def _write(self, piece: "_Piece") -> None:
        """Takes it to the disk: whole pages past the cache, what is cut off at its ends through it."""
        at, stop = piece.start, piece.at
        first, last = _up(at), _down(stop)
        if first < last:
            self._put(piece, at, first)
            at = self._put_past(piece, first, last)
        self._put(piece, at, stop)

    def _put_past(self, piece: "_Piece", at: int, stop: int) -> int:
        """Writes past the cache while that goes; says up to where it did."""
        while self._past is not None and at < stop and at % PAGE_BYTES == 0:  # it may be cut short within a page
            try:
                at += os.pwrite(self._past, piece.bytes(at, stop).data, at)
            except OSError as error:
                if error.errno in _NOT_BY_ANY_WAY:
                    raise
                self._past = None  # its pages are larger than ours, say, or its server does not like it
        return at

    def _put(self, piece: "_Piece", start: int, stop: int) -> None:
        at = start
        while at < stop:
            at += os.pwrite(self._file, piece.bytes(at, stop).data, at)
        if start < stop:
            _begin_to_write(self._file, start, stop - start)

    def close(self) -> None:
        """Finishes the file: everything is on the disk."""
        try:
            short = [name for name, place in self._places.items() if place.at != place.stop]
            assert not short, f"{short} are not full"
            for place in self._places.values():
                place.wait()
            self.n_bytes, self.crc32 = self._header.n_bytes, self._checksum()
            for descriptor in self._wrote:  # only those that wrote are told of what failed
                os.fsync(descriptor)
        except BaseException:
            self.abort()
            raise
        self._shut()

    def abort(self) -> None:
        """Closes what is not to be kept."""
        with contextlib.suppress(OSError):  # an earlier one is on its way
            self._shut()

    def _shut(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._opened.close()

    def _checksum(self) -> int:
        """Of what was given: of what HDF5 wrote, and of the values between."""
        crc, at = 0, 0
        for place in sorted(self._places.values(), key=lambda place: place.start):
            if place.stop > place.start:
                crc = self._header.crc32(at, place.start, crc)
                crc, at = checksum.join(crc, place.crc32, place.stop - place.start), place.stop
        return self._header.crc32(at, self._header.n_bytes, crc)


class _Place:
    """Of a data set in the file: from ``start`` to ``stop``, of which it was given what is before ``at``.

    One of its two pieces takes values, while the other one is written.
    """

    def __init__(self, start: int, stop: int, piece_bytes: int) -> None:
        self.start = self.at = start
        self.stop = stop
        self.crc32 = 0
        n_bytes = min(piece_bytes, _up(stop) - _down(start))
        self.piece, self._other = _Piece(n_bytes), _Piece(n_bytes)
        self.piece.begin(start)

    def turn(self) -> None:
        """Goes on with the other piece; raises what its writing did."""
        self.piece, self._other = self._other, self.piece
        self.piece.wait()
        self.piece.begin(self.at)

    def wait(self) -> None:
        """Until both are written; raises what that did."""
        self.piece.wait()
        self._other.wait()


class _Piece:
    """Bytes of the file from ``start`` to ``at``, in memory that begins at a page, as does its place in the file."""

    def __init__(self, n_bytes: int) -> None:
        self.start = self.at = 0
        self.writing: Future[None] | None = None
        self._n_bytes = n_bytes  # whole pages
        self._memory: npt.NDArray[np.uint8] | None = None

    def begin(self, start: int) -> None:
        """Is empty, and is to hold what comes at ``start``."""
        self.start = self.at = start

    @property
    def room(self) -> int:
        """Bytes that it can still take."""
        return self._n_bytes - (self.at - _down(self.start))

    def take(self, data: npt.NDArray[np.uint8]) -> int:
        """Copies as many of these bytes as there is room for; says how many."""
        n_bytes = min(self.room, len(data))
        self.at += n_bytes
        self.bytes(self.at - n_bytes, self.at)[:] = data[:n_bytes]  # NumPy leaves Python's lock to others meanwhile
        return n_bytes

    def bytes(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Those from ``start`` to ``stop``, numbers of the file's bytes."""
        if self._memory is None:
            self._memory = np.frombuffer(
                mmap.mmap(-1, self._n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8
            )
        base = _down(self.start)
        return self._memory[start - base : stop - base]

    def wait(self) -> None:
        """Until it is written."""
        if self.writing is not None:
            self.writing.result()
            self.writing = None


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
