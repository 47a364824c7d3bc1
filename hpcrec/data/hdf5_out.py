"""HDF5 files that are written: a full disk is an error that names the file, not a crash.

HDF5 cannot close a file that it could not write: it fails again when the objects are freed, and may end the process by
a segmentation fault. So here it writes to an object that takes everything, remembers the first error of the disk and
drops what comes after; the error is raised between calls of HDF5. Knows nothing of what is in the files.
"""

import contextlib
import io
from pathlib import Path
from typing import Any

import h5py

from hpcrec.data.files import WholeOrAbsent, writing


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

    Attributes
    ----------
    file : h5py.File

    Raises
    ------
    OutputError
        From the constructor, `check` and `close`, where the disk cannot be written.
    """

    def __init__(self, path: Path, name: Path | None = None, file_format: tuple[str, str] | None = None) -> None:
        self._name = name or path
        with writing(self._name):
            self._disk = _Disk(path)
        self.file = h5py.File(self._disk, "w", libver=file_format)

    def check(self) -> None:
        """Raises what the disk has refused so far."""
        with writing(self._name):
            if self._disk.error is not None:
                raise self._disk.error

    def close(self) -> None:
        """Finish the file; again does nothing."""
        self.file.close()
        self._disk.close()
        self.check()

    def abort(self) -> None:
        """Close what is not to be kept."""
        self._disk.drop()
        with contextlib.suppress(OSError, RuntimeError):
            self.file.close()
        self._disk.close()


class _Disk(io.RawIOBase):
    """The file that HDF5 writes to: what h5py asks of a file object, without errors."""

    def __init__(self, path: Path) -> None:
        self._raw = path.open("w+b", buffering=0)
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
            while left and not self._dropped:
                left = left[self._raw.write(left) :]
        except OSError as error:
            self.error, self._dropped = error, True
        return n_bytes

    def truncate(self, size: int | None = None) -> int:
        """Set the file's length."""
        size = self.tell() if size is None else size
        try:
            if not self._dropped:
                self._raw.truncate(size)
        except OSError as error:
            self.error, self._dropped = error, True
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

    def close(self) -> None:
        """Close the file; HDF5 has closed its own before."""
        super().close()
        with contextlib.suppress(OSError):
            self._raw.close()
