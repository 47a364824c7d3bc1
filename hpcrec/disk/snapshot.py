"""Rows of one block of a generation, read in the order in which they lie in its segments, without a tier.

For whoever has links to segments and wants all rows once. A row may have several versions; which records are the newest
is found from the footers alone, some millions of rows at a time, and is a bit a record afterwards, and a bit a row.
Knows files that nobody writes; knows no ids.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.disk import pages
from hpcrec.disk.layout import Bytes, Layout, Outcome, Wrong
from hpcrec.disk.lists import list_name, open_segments, read_list
from hpcrec.disk.segment import AGAIN, Footer, Segment, unreadable
from hpcrec.errors import TierError
from hpcrec.types import Ints

_ROWS_AT_ONCE = 1 << 23  # of which the newest versions are sought: 8 bytes for each
_PIECE_BYTES = 1 << 22  # that are read at once where all is


class Snapshot:
    """See the module.

    Parameters
    ----------
    folder : Path
        With the segments, or links to them, and the list of the generation.
    generation, block : int

    Attributes
    ----------
    rows : int
        Of the block.
    layout : Layout
    pages : list of int
        Of each segment.

    Raises
    ------
    TierError
        A segment is not there, or not the one that is listed; of each method: what was read is not what was written.
    """

    def __init__(self, folder: Path, generation: int, block: int) -> None:
        said = read_list(folder / list_name(generation))
        if block >= len(said["blocks"]):
            raise TierError(f"{folder / list_name(generation)}: has {len(said['blocks'])} blocks, no block {block}.")
        self.rows, *sizes, _ = said["blocks"][block]
        self.layout = Layout(*sizes)
        self._segments = open_segments(folder, said, block, self.layout, direct=False)
        for segment in self._segments:  # each is opened when it is read
            segment.close()
        self.pages = [segment.pages for segment in self._segments]
        self._newest: list[Any] | None = None  # by segment: bits, of places in it
        self._written = np.zeros(0, np.uint8)  # bits, of rows
        self._footer: tuple[int, Footer] | None = None

    # What there is.

    def unwritten(self, start: int, stop: int) -> Ints:
        """Which of rows [start, stop) no segment has."""
        self._find_newest()
        return start + np.flatnonzero(~_bits(self._written, start, stop))

    def rows_in(self, segment: int, first: int, stop: int, span: tuple[int, int]) -> Ints:
        """Rows within ``span`` whose newest version is in pages [first, stop) of a segment."""
        return self._rows_in(segment, first, stop, span)[0]

    def read(self, segment: int, first: int, stop: int, span: tuple[int, int]) -> tuple[Ints, np.ndarray]:
        """These rows [U], and their records, bytes [U, bytes of one]."""
        rows, number = self._rows_in(segment, first, stop, span)
        of = self.layout
        records = np.empty((len(rows), of.record_bytes), np.uint8)
        if not len(rows):
            return rows, records
        skipped, last = (int(n) // of.per_page for n in number[[0, -1]])
        first, n = first + skipped, last + 1 - skipped
        memory = self._pages(segment, first, n)
        number = number - skipped * of.per_page
        bad = pages.unpack_rows(of, memory, number, rows, np.arange(len(rows)), [records])
        if bad >= 0:
            raise unreadable(
                self._segments[segment].path, first + int(number[bad]) // of.per_page, Outcome(Wrong.ANOTHER_ROW), ""
            )
        return rows, records

    def wrong(self) -> list[str]:
        """All that is wrong: each page, footer and seal is read. Of a segment, the first page that is."""
        found = []
        for segment in self._segments:
            try:
                with segment.opened():
                    segment.read_footer()
                    check_segment(segment)
            except TierError as error:
                found.append(str(error).removesuffix(AGAIN).rstrip())
        return found

    # The newest version of each row.

    def _find_newest(self) -> list[Any]:
        if self._newest is not None:
            return self._newest
        of = self.layout
        newest = [np.packbits(np.zeros(n * of.per_page, bool)) for n in self.pages]
        assert _ROWS_AT_ONCE % 8 == 0, "so that bits of rows can be put one behind the other"
        written = [np.zeros(0, np.uint8)]
        for start in range(0, self.rows, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, self.rows)
            best = np.zeros(stop - start, np.uint64)  # of each row the highest stamp, and the record in that page
            for segment in range(len(self.pages)):
                rows, keys, _ = self._versions(segment, start, stop)
                newer = keys > best[rows]
                best[rows[newer]] = keys[newer]  # rising: of a row that comes twice, the later one
            for segment, n in enumerate(self.pages):
                rows, keys, places = self._versions(segment, start, stop)
                bits = np.zeros(n * of.per_page, bool)
                bits[places[best[rows] == keys]] = True
                newest[segment] |= np.packbits(bits)
            written.append(np.packbits(best != 0))
        self._newest, self._written = newest, np.concatenate(written)
        return newest

    def _versions(self, segment: int, start: int, stop: int) -> tuple[Ints, Any, Ints]:
        """Records of a segment that are of rows [start, stop): row less start, a key that rises by version, place."""
        of, footer = self.layout, self._footer_of(segment)
        record = np.arange(of.per_page)
        here = (record < footer.records[:, None]) & (footer.rows >= start) & (footer.rows < stop)
        keys = (footer.stamps[:, None] << np.uint64(16)) | record.astype(np.uint64)
        return footer.rows[here].astype(np.int64) - start, keys[here], np.flatnonzero(here)

    def _rows_in(self, segment: int, first: int, stop: int, span: tuple[int, int]) -> tuple[Ints, Ints]:
        """Rows, and the places of their records behind page ``first``."""
        newest, per_page = self._find_newest()[segment], self.layout.per_page
        alive = np.flatnonzero(_bits(newest, first * per_page, stop * per_page))
        rows = self._footer_of(segment).rows[first:stop].reshape(-1)[alive].astype(np.int64)
        mine = (rows >= span[0]) & (rows < span[1])
        return rows[mine], alive[mine]

    # Files.

    def _footer_of(self, segment: int) -> Footer:
        if self._footer is None or self._footer[0] != segment:
            with self._segments[segment].opened() as file:
                footer = file.read_footer()
            if footer.rows.size and int(footer.rows.max()) >= self.rows:
                path = self._segments[segment].path
                raise TierError(f"{path}: has row {footer.rows.max()} of {self.rows}.", segment=path)
            self._footer = segment, footer
        return self._footer[1]

    def _pages(self, segment: int, first: int, n: int) -> Bytes:
        with self._segments[segment].opened() as file:
            return _checked(file, first, n)


def check_segment(segment: Segment, each: Callable[[], None] = lambda: None) -> None:
    """Reads all pages of an open segment; ``each`` is called after some of them.

    Raises
    ------
    TierError
        One cannot be read, or is not what was written.
    """
    of, contents = segment.layout, 0
    step = max(1, _PIECE_BYTES // of.page_bytes)
    for first in range(0, segment.pages, step):
        n = min(step, segment.pages - first)
        sums = _checked(segment, first, n).reshape(n, of.page_bytes)[:, :4]
        contents = pages.crc32c(np.ascontiguousarray(sums).reshape(-1), contents)
        each()
    if contents != segment.contents:
        raise TierError(f"{segment.path}: has pages of another segment of this number.", segment=segment.path)


def _checked(segment: Segment, first: int, n: int) -> Bytes:
    """Pages [first, first + n) of an open segment, each checked."""
    memory = segment.read_pages(first, n)
    wrong, page = pages.check_pages(segment.layout, memory, n, segment.number, first)
    if wrong:
        raise unreadable(segment.path, first + page, Outcome(Wrong(wrong)), "")
    return memory


def _bits(packed: Any, start: int, stop: int) -> Any:
    """Bits [start, stop), bool."""
    first = start // 8
    return np.unpackbits(packed[first : -(-stop // 8)])[start - 8 * first : stop - 8 * first].astype(bool)
