"""Rows in pages, and batches of reads, by the native module, under the reference's names and signatures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcrec.clock import Waits
from hpcrec.disk.layout import Bytes, Layout, Outcome, Wrong
from hpcrec.kernels.native_module import loaded
from hpcrec.types import Ints


def crc32c(data: Bytes, before: int = 0, *, by_table: bool = False) -> int:
    """See the reference; ``by_table`` leaves the processor's instruction for it out."""
    return int(loaded.crc32c(data, before, by_table))


def pack_rows(of: Layout, columns: Sequence[Bytes], at: Ints | None, rows: Ints, pages: Bytes, first: int) -> None:
    """See the reference."""
    loaded.pack_rows(of.sizes, list(columns), at, rows, pages, first)


def seal_pages(of: Layout, pages: Bytes, records: int, segment: int, first_page: int, stamp: int) -> None:
    """See the reference."""
    loaded.seal_pages(of.sizes, pages, records, segment, first_page, stamp)


def check_pages(of: Layout, pages: Bytes, n: int, segment: int, first: int) -> tuple[int, int]:
    """See the reference."""
    wrong, place = loaded.check_pages(of.sizes, pages, n, segment, first)
    return int(wrong), int(place)


def unpack_rows(of: Layout, pages: Bytes, number: Ints, row: Ints, at: Ints, into: Sequence[Bytes]) -> int:
    """See the reference."""
    return int(loaded.unpack_rows(of.sizes, pages, number, row, at, list(into)))


def take_newest(index: Ints, rows: Ints, records: Ints, stamps: Ints, known: Ints, slot: int) -> None:
    """See the reference."""
    loaded.take_newest(index, rows, records, stamps, known, slot)


class PageIo:
    """See the reference: by io_uring, or by as many threads as ``depth``.

    Raises
    ------
    OSError
        The system lets no io_uring be had.
    """

    def __init__(self, way: str, depth: int, page_bytes: int) -> None:
        self._io = loaded.PageIo(way, depth, page_bytes)
        self._kept: dict[int, tuple[Any, ...]] = {}  # memory of batches that nobody has waited for
        self.n_bytes = int(self._io.n_bytes)

    def read_rows(
        self,
        of: Layout,
        file: Ints,
        page: Ints,
        segment: Ints,
        start: Ints,
        number: Ints,
        row: Ints,
        at: Ints,
        into: Sequence[Bytes],
    ) -> int:
        """See the reference."""
        numbers = [np.ascontiguousarray(a, np.int64) for a in (file, page, segment, start, number, row, at)]
        ticket = int(self._io.read_rows(of.sizes, *numbers, list(into)))
        self._kept[ticket] = (numbers, into)
        return ticket

    def transfer(self, write: bool, file: Ints, offset: Ints, start: Ints, size: Ints, memory: Bytes) -> int:
        """See the reference."""
        numbers = [np.ascontiguousarray(a, np.int64) for a in (file, offset, start, size)]
        ticket = int(self._io.transfer(write, *numbers, memory))
        self._kept[ticket] = (numbers, memory)
        return ticket

    def wait(self, ticket: int) -> Outcome:
        """See the reference."""
        with Waits():
            wrong, error, place = self._io.wait(ticket)
        self._kept.pop(ticket, None)
        return Outcome(Wrong(wrong), error, place)

    def fail(self, writes: bool, after: int, error: int) -> None:
        """See the reference."""
        self._io.fail(writes, after, error)

    def close(self) -> None:
        """Ends its threads, once all that was submitted is done, and nobody waits for it any more.

        Memory of batches stays until then, for as long as this is there.
        """
        self._io = None
