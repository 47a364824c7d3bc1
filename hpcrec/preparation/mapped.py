"""Arrays in files that may be larger than memory. Knows nothing of what they hold."""

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.again import read_numbers
from hpcrec.data.files import named


class Mapped:
    """An array in a file: in memory where it is small, else mapped, its pages let go by `drop`."""

    def __init__(self, path: Path, dtype: Any, hold_bytes: int, *, writable: bool = False) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        if path.stat().st_size <= hold_bytes or not path.stat().st_size:
            self.array: Any = read_numbers(path, dtype)
            return
        with named(path), path.open("r+b" if writable else "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        self.array = np.frombuffer(self._map, dtype)

    @classmethod
    def create(cls, path: Path, n: int) -> "Mapped":
        """A new file of n uint64, to be written to."""
        with named(path), path.open("w+b") as file:  # where a file system allocates nothing, the C library reads
            file.truncate(8 * n)
            if n:
                os.posix_fallocate(file.fileno(), 0, 8 * n)  # a full disk is told now, not by a signal later
        return cls(path, np.uint64, 0, writable=True)

    def drop(self) -> None:
        """Let pages go; the kernel keeps them, and what was written to them, for as long as it likes."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def flush(self) -> None:
        """Write to disk what was changed."""
        if self._map is not None:
            with named(self._path):
                self._map.flush()
