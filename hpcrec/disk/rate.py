"""How many pages a second a disk gives, read at random past the page cache in the way that a tier reads them.

A file of random bytes is written, and goes at once; what a disk's controller, or a virtual disk's host, keeps in its
own memory cannot be told from the disk. Knows a folder and a clock; judges nothing.
"""

import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from hpcrec.disk.layout import Wrong, aligned, rounded
from hpcrec.disk.pages import Way, page_io
from hpcrec.disk.segment import not_written
from hpcrec.errors import TierError
from hpcrec.units import MiB

FILE_BYTES = 128 * MiB
_PIECE_BYTES = MiB
_BATCH = 512  # pages; two batches are under way
# What a limit of reads a second has saved up, as of a slice of the kernel's or a bucket of a virtual disk's, comes at
# once, and no run would see it again: 15 % too many in half a second.
_SAVED_S = 0.15


class Rate(NamedTuple):
    """Pages that came, in how many seconds, and what they took of the process's CPU."""

    pages: int
    seconds: float
    cpu_s: float


class RandomReads:
    """A file to read pages of; a context manager.

    Parameters
    ----------
    folder : Path
        Which is there.
    page_bytes : int
    way : str
        See ``page_io``.
    n_bytes : int
        Of the file.
    seed : int
        Of its contents, and of which pages are read.

    Raises
    ------
    OutputError
        The file cannot be written, or not past the page cache.
    """

    def __init__(
        self, folder: Path, page_bytes: int, *, way: Way = "auto", n_bytes: int = FILE_BYTES, seed: int = 0
    ) -> None:
        self._page_bytes, self._pages = rounded(page_bytes), n_bytes // rounded(page_bytes)
        self._random, self._path = np.random.default_rng(seed), folder
        self._file = -1
        try:
            made, name = tempfile.mkstemp(prefix=".hpcrec-reads-", dir=folder)
            os.close(made)
            try:
                self._file = os.open(name, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
            finally:
                Path(name).unlink()
            self._write(n_bytes)
        except OSError as error:
            self._close_file()
            raise not_written(folder, error.errno, "a file to be read at random") from error
        self._io, self.way = page_io(way, max(self._page_bytes, _PIECE_BYTES))

    def _write(self, n_bytes: int) -> None:
        memory = aligned(_PIECE_BYTES)
        for offset in range(0, n_bytes, _PIECE_BYTES):
            memory[:] = np.frombuffer(self._random.bytes(_PIECE_BYTES), np.uint8)
            done = 0
            while done < _PIECE_BYTES:
                done += os.pwrite(self._file, memory[done:].data, offset + done)
        os.fsync(self._file)

    def run(self, seconds: float) -> Rate:
        """Reads for a moment, and then for about so long, which is what counts.

        Raises
        ------
        TierError
            A page cannot be read.
        """
        size = np.full(_BATCH, self._page_bytes, np.int64)
        start, file = np.arange(_BATCH, dtype=np.int64) * self._page_bytes, np.full(_BATCH, self._file, np.int64)
        memories = [aligned(_BATCH * self._page_bytes) for _ in range(2)]

        def begin(turn: int) -> int:
            offset = self._random.integers(0, self._pages, _BATCH) * self._page_bytes
            return int(self._io.transfer(False, file, offset, start, size, memories[turn % 2]))

        begun_s, counted_from_s, cpu_s = time.perf_counter(), None, 0.0
        turn = counted = 0
        tickets = [begin(0)]
        while True:
            last = counted_from_s is not None and time.perf_counter() - counted_from_s >= seconds
            if not last:
                turn += 1
                tickets.append(begin(turn))
            outcome = self._io.wait(tickets.pop(0))
            if outcome.wrong != Wrong.NOTHING:
                said = os.strerror(outcome.error) if outcome.error else "the file is shorter than it was written"
                raise TierError(f"{self._path}: a page cannot be read back ({said}). Give store.path on another disk.")
            now_s = time.perf_counter()
            if counted_from_s is not None:
                counted += _BATCH
            elif now_s - begun_s >= _SAVED_S:
                counted_from_s, cpu_s = now_s, time.process_time()
            if last and counted_from_s is not None:
                return Rate(counted, now_s - counted_from_s, time.process_time() - cpu_s)

    def close(self) -> None:
        """Lets the file go."""
        self._io.close()
        self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
