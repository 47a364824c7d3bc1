"""HDF5 files that are written: a full disk is an error that names the file, not a crash.

HDF5 cannot close a file that it could not write: it fails again when the objects are freed, and may end the process by
a segmentation fault. So here it writes to an object that takes everything, remembers the first error of the disk and
drops what comes after; the error is raised between calls of HDF5. What was given is on disk once a file is closed, and
its checksum is of what was given, not of what the disk made of it. Knows nothing of what is in the files.
"""

import bisect
import contextlib
import io
import os
from pathlib import Path
from typing import Any

import h5py

from hpcrec.data import checksum
from hpcrec.data.files import WholeOrAbsent, writing

_KEPT_BYTES = 1 << 16  # writes up to this are kept as they are
_PIECE_BYTES = 1 << 20
_ZEROS = bytes(_PIECE_BYTES)


class Output(WholeOrAbsent):
    """An HDF5 file in the making; a context manager.

    Parameters
    ----------
    path : Path
        Where it is written.
    name : Path, optional
        What errors call it; `path` by default.
    file_format : (str, str), optional
        h5py's ``libver``.
    remembered : bool
        Keep what the checksum of what was given takes: memory for every short write.

    Attributes
    ----------
    file : h5py.File
    given : Given
        What was written so far, where that is ``remembered``.

    Raises
    ------
    OutputError
        From the constructor, `check` and `close`, where the disk cannot be written.
    """

    given: "Given"

    def __init__(
        self,
        path: Path,
        name: Path | None = None,
        file_format: tuple[str, str] | None = None,
        *,
        remembered: bool = False,
    ) -> None:
        self._name = name or path
        with writing(self._name):
            self._disk = _Disk(path, remembered=remembered)
        if self._disk.given is not None:
            self.given = self._disk.given
        self.file = h5py.File(self._disk, "w", libver=file_format)

    def check(self) -> None:
        """Raises what the disk has refused so far."""
        with writing(self._name):
            if self._disk.error is not None:
                raise self._disk.error

    def close(self) -> None:
        """Finish the file: it is on disk, or an error says that it is not. Again does nothing."""
        self.file.close()
        self._disk.finish()
        self.check()

    def abort(self) -> None:
        """Close what is not to be kept."""
        self._disk.drop()
        with contextlib.suppress(OSError, RuntimeError):
            self.file.close()
        self._disk.finish()


class Given:
    """What a file was given, by place: its size, and the checksum of any part of it.

    HDF5 writes its own few bytes again and again, and values once. So short writes are kept as they are, of long ones
    the checksum of each piece; a piece that is written again in part is read back for the rest.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._starts: list[int] = []  # rising; no two pieces share a byte
        self._pieces: list[bytes | tuple[int, int]] = []  # the bytes, or how many and their CRC-32
        self.n_bytes = 0

    def put(self, at: int, data: memoryview) -> None:
        """These bytes were written at that place."""
        self._take_out(at, at + len(data))
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._insert(at + start, bytes(piece) if len(data) <= _KEPT_BYTES else (len(piece), checksum.crc32(piece)))
        self.n_bytes = max(self.n_bytes, at + len(data))

    def truncate(self, size: int) -> None:
        """The file has that many bytes."""
        if size < self.n_bytes:
            self._take_out(size, self.n_bytes)
        self.n_bytes = size

    def crc32(self, start: int, stop: int, crc: int = 0) -> int:
        """CRC-32 of what ``crc`` is of, followed by the bytes [start, stop); what was never written is zeros."""
        at = start
        first = max(bisect.bisect_right(self._starts, start) - 1, 0)
        for i in range(first, bisect.bisect_left(self._starts, stop)):
            piece, where = self._pieces[i], self._starts[i]
            end = where + _length(piece)
            left, right = max(where, at), min(end, stop)
            if left >= right:
                continue
            crc = _of_zeros(left - at, crc)
            if isinstance(piece, tuple) and (left, right) == (where, end):
                crc = checksum.join(crc, piece[1], piece[0])
            else:
                crc = checksum.crc32(self._part(piece, left - where, right - where, left), crc)
            at = right
        return _of_zeros(stop - at, crc)

    def forget_file(self) -> None:
        """The file is closed: nothing can be read back from it."""
        self._descriptor = -1

    def _take_out(self, start: int, stop: int) -> None:
        first = max(bisect.bisect_right(self._starts, start) - 1, 0)
        last = bisect.bisect_left(self._starts, stop)
        pieces = list(zip(self._starts[first:last], self._pieces[first:last], strict=True))
        del self._starts[first:last], self._pieces[first:last]
        for where, piece in pieces:
            end = where + _length(piece)
            for left, right in ((where, min(end, start)), (max(where, stop), end)):
                if left < right:
                    whole = (left, right) == (where, end)
                    self._insert(left, piece if whole else self._part(piece, left - where, right - where, left))

    def _part(self, piece: bytes | tuple[int, int], start: int, stop: int, at: int) -> bytes:
        return piece[start:stop] if isinstance(piece, bytes) else os.pread(self._descriptor, stop - start, at)

    def _insert(self, at: int, piece: bytes | tuple[int, int]) -> None:
        i = bisect.bisect_left(self._starts, at)
        self._starts.insert(i, at)
        self._pieces.insert(i, piece)


def _length(piece: bytes | tuple[int, int]) -> int:
    return len(piece) if isinstance(piece, bytes) else piece[0]


def _of_zeros(n_bytes: int, crc: int) -> int:
    while n_bytes > 0:
        crc = checksum.crc32(_ZEROS[:n_bytes], crc)
        n_bytes -= len(_ZEROS)
    return crc


class _Disk(io.RawIOBase):
    """The file that HDF5 writes to: what h5py asks of a file object, without errors."""

    def __init__(self, path: Path, *, remembered: bool = False) -> None:
        self._raw = path.open("w+b", buffering=0)
        self.given = Given(self._raw.fileno()) if remembered else None
        self._dropped = False
        self.error: OSError | None = None

    def drop(self) -> None:
        """Write nothing any more."""
        self._dropped = True

    def write(self, data: Any) -> int:
        """All of `data`, or nothing more after an error."""
        left = memoryview(data).cast("B")
        n_bytes = len(left)
        try:
            if self.given is not None and not self._dropped:
                self.given.put(self.tell(), left)
            while left and not self._dropped:
                left = left[self._raw.write(left) :]
        except OSError as error:
            self._fail(error)
        return n_bytes

    def truncate(self, size: int | None = None) -> int:
        """Set the file's length."""
        size = self.tell() if size is None else size
        try:
            if not self._dropped:
                self._raw.truncate(size)
                if self.given is not None:
                    self.given.truncate(size)
        except OSError as error:
            self._fail(error)
        return size

    def readinto(self, buffer: Any) -> int:
        """What was written; zeros where it was not, which nobody gets to see."""
        target = memoryview(buffer).cast("B")
        read = self._raw.readinto(target) or 0
        target[read:] = bytes(len(target) - read)
        return len(target)

    def seek(self, offset: int, whence: int = 0) -> int:
        """As files do."""
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """As files do."""
        return self._raw.tell()

    def finish(self) -> None:
        """Bring the file to disk by the descriptor that wrote it, and close it; HDF5 has closed its own before.

        What either reports is an error as one of a write is: some file servers say only then what they refused.
        """
        if self.closed:
            return
        if self.given is not None:
            self.given.forget_file()
        for last in (self._flush_to_disk, self._raw.close):
            try:
                last()
            except OSError as error:
                self._fail(error)
        super().close()

    def _flush_to_disk(self) -> None:
        if not self._dropped:
            os.fsync(self._raw.fileno())

    def _fail(self, error: OSError) -> None:
        """The first error is what is told."""
        self.error, self._dropped = self.error or error, True

    def close(self) -> None:
        """Close the file where nobody finished it."""
        self.drop()
        self.finish()
