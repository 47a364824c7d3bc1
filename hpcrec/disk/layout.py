"""How rows lie in pages, and what can be wrong with one. Knows sizes; touches no file.

A *page* is what a disk is asked for: some kilobytes with a checksum, read and written as one. A *record* is a row with
its optimizer state, and the record's place in a page is its number there.

    checksum u32 | segment u32 | page u32 | records u32 | stamp u64 | tags u8 [per_page] | records [per_page]

The checksum (CRC32C) is of all that follows it. Segment and page find a page that was written to, or read from, another
place. A record's tag is a hash of its row's number: of 256 entries of an index that point at the
record of another row it finds 255, so that an index that is wrong is found as it is used. Of
two pages with the same row, that of the newer version has the higher stamp.
"""

import mmap
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

SECTOR_BYTES = 4096
"""What transfers past the page cache are aligned to, in files and in memory."""
HEADER_BYTES = 24
TAG_BYTES = 1
MOST_RECORD_BYTES = 1 << 20
_WASTE = 0.06  # of a page: a larger one is taken where it wastes less, up to the size below
_LARGE_PAGE_BYTES = 16 * SECTOR_BYTES


class Wrong(IntEnum):
    """What is wrong with a page, or with its transfer; as in ``native/include/hpcrec/pages.h``."""

    NOTHING = 0
    SYSTEM = 1
    SHORT_FILE = 2
    CHECKSUM = 3
    ANOTHER_PAGE = 4
    ANOTHER_ROW = 5
    GONE = 6


@dataclass(frozen=True)
class Outcome:
    """Of a batch: what is wrong with its first request, by place, of which anything is.

    Attributes
    ----------
    wrong : Wrong
    error : int
        The system's number for it, of ``Wrong.SYSTEM``.
    place : int
    """

    wrong: Wrong = Wrong.NOTHING
    error: int = 0
    place: int = 0


@dataclass(frozen=True)
class Layout:
    """Sizes of one kind of page, in bytes, and how many records it has."""

    page_bytes: int
    record_bytes: int
    per_page: int

    @classmethod
    def of(cls, record_bytes: int) -> "Layout":
        """The smallest page that wastes little; where none does, the one that wastes least.

        Raises
        ------
        ValueError
            Records are empty, or larger than ``MOST_RECORD_BYTES``.
        """
        if not 0 < record_bytes <= MOST_RECORD_BYTES:
            raise ValueError(f"a row takes {record_bytes} bytes; allowed are 1 to {MOST_RECORD_BYTES}")
        least = -(-(record_bytes + TAG_BYTES + HEADER_BYTES) // SECTOR_BYTES) * SECTOR_BYTES
        sizes = range(least, max(least, _LARGE_PAGE_BYTES) + 1, SECTOR_BYTES)
        found = [cls(n, record_bytes, (n - HEADER_BYTES) // (record_bytes + TAG_BYTES)) for n in sizes]
        wasted = [1 - page.per_page * (record_bytes + TAG_BYTES) / page.page_bytes for page in found]
        few = [page for page, waste in zip(found, wasted, strict=True) if waste <= _WASTE]
        return few[0] if few else found[int(np.argmin(wasted))]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """As native functions take them."""
        return self.page_bytes, self.record_bytes, self.per_page

    @property
    def records_from(self) -> int:
        """Where in a page its records begin."""
        return HEADER_BYTES + TAG_BYTES * self.per_page


def aligned(n_bytes: int) -> Bytes:
    """Zeros in memory that transfers past the page cache may use."""
    memory = mmap.mmap(-1, max(n_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.uint8)[:n_bytes]


def rounded(n_bytes: int) -> int:
    """Up to whole sectors."""
    return -(-n_bytes // SECTOR_BYTES) * SECTOR_BYTES
