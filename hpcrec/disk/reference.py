"""The definition, in NumPy and plain Python, of rows in pages and of a batch of reads. Knows no segments.

Shapes: U records, P pages. Columns are arrays of bytes [N, bytes a row]; a record is its columns, one behind the other.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcrec.disk.layout import HEADER_BYTES, Bytes, Layout, Outcome, Wrong, aligned
from hpcrec.types import Ints

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed
_HEADER = np.dtype([("checksum", "<u4"), ("segment", "<u4"), ("page", "<u4"), ("records", "<u4"), ("stamp", "<u8")])


def _table() -> Any:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_TABLE = _table()


def crc32c(data: Bytes, before: int = 0) -> int:
    """Of bytes that follow others with the checksum ``before``."""
    return int(_checksums(data[None], before)[0])


def _checksums(data: Bytes, before: int = 0) -> Any:
    """Of each row of bytes [P, n]."""
    crc = np.full(len(data), ~before & 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(data.T):
        crc = crc >> 8 ^ _TABLE[(crc ^ column) & 255]
    return ~crc


def _tags(rows: Ints) -> Ints:
    return (rows.astype(np.uint32) * np.uint32(0x9E3779B1) >> np.uint32(24)).astype(np.uint8)


def _cut(of: Layout, pages: Bytes) -> tuple[Bytes, Bytes]:
    """Tags [P, per_page] and records [P, per_page, record_bytes] of whole pages, as views."""
    by_page = pages[: len(pages) // of.page_bytes * of.page_bytes].reshape(-1, of.page_bytes)
    tags = by_page[:, HEADER_BYTES : of.records_from]
    end = of.records_from + of.per_page * of.record_bytes
    return tags, by_page[:, of.records_from : end].reshape(len(by_page), of.per_page, of.record_bytes)


def pack_rows(of: Layout, columns: Sequence[Bytes], at: Ints | None, rows: Ints, pages: Bytes, first: int) -> None:
    """Records of rows [U], from row ``at[i]`` of the columns (None: i), to places ``first`` + i of the pages."""
    page, number = np.divmod(first + np.arange(len(rows)), of.per_page)
    tags, records = _cut(of, pages)
    tags[page, number] = _tags(rows)
    records[page, number] = np.concatenate([c[: len(rows)] if at is None else c[at] for c in columns], axis=1)


def seal_pages(of: Layout, pages: Bytes, records: int, segment: int, first_page: int, stamp: int) -> None:
    """Headers of the pages that so many records fill, the last perhaps in part: its rest is zeroed."""
    n = -(-records // of.per_page)
    by_page = pages[: n * of.page_bytes].reshape(n, of.page_bytes)
    here = np.minimum(of.per_page, records - of.per_page * np.arange(n))
    if n and here[-1] < of.per_page:
        by_page[-1, HEADER_BYTES + int(here[-1]) : of.records_from] = 0
    for page, count in zip(by_page, here.tolist(), strict=True):
        page[of.records_from + count * of.record_bytes :] = 0
    header = by_page[:, :HEADER_BYTES].view(_HEADER)[:, 0]
    header["segment"], header["page"] = segment, first_page + np.arange(n)
    header["records"], header["stamp"] = here, stamp + np.arange(n)
    header["checksum"] = _checksums(by_page[:, 4:])


def check_pages(of: Layout, pages: Bytes, n: int, segment: int, first: int) -> tuple[int, int]:
    """The first of n pages that is not page ``first`` + i of the segment: (wrong, i); (0, -1) where all are."""
    by_page = pages[: n * of.page_bytes].reshape(n, of.page_bytes)
    wrong = _wrong(by_page, np.full(n, segment), first + np.arange(n))
    bad = np.flatnonzero(wrong)
    return (int(wrong[bad[0]]), int(bad[0])) if len(bad) else (0, -1)


def _wrong(by_page: Bytes, segment: Ints, page: Ints) -> Any:
    """What is wrong with each of these pages [P]."""
    header = by_page[:, :HEADER_BYTES].view(_HEADER)[:, 0]
    wrong = np.where((header["segment"] != segment) | (header["page"] != page), Wrong.ANOTHER_PAGE, Wrong.NOTHING)
    return np.where(header["checksum"] != _checksums(by_page[:, 4:]), Wrong.CHECKSUM, wrong)


def unpack_rows(of: Layout, pages: Bytes, number: Ints, row: Ints, at: Ints, into: Sequence[Bytes]) -> int:
    """Records at places ``number`` of the pages, of these rows, to rows ``at`` of the columns.

    Returns the first i whose record is another row's, where it stops; -1 where there is none.
    """
    tags, records = _cut(of, pages)
    page, place = np.divmod(number, of.per_page)
    bad = np.flatnonzero(tags[page, place] != _tags(row))
    n = int(bad[0]) if len(bad) else len(number)
    found, start = records[page[:n], place[:n]], 0
    for column in into:
        column[at[:n]] = found[:, start : start + column.shape[1]]
        start += column.shape[1]
    return n if len(bad) else -1


def take_newest(index: Ints, rows: Ints, records: Ints, stamps: Ints, known: Ints, slot: int) -> None:
    """Takes the footer of a segment in a slot into the index, where its records are the newest versions so far.

    Parameters
    ----------
    index : uint32 [rows of the block]
        Changed in place.
    rows : uint32 [P, per_page]
        Of the records of its pages, all of the block; behind a page's records anything.
    records : uint32 [P]
    stamps : uint64 [P]
    known : uint64 [slots, pages of a segment]
        Stamps of all pages, these included.
    slot : int
    """
    per_page, pages = rows.shape[1], known.shape[1]
    here = np.flatnonzero(np.arange(per_page) < records[:, None])
    numbers, place = rows.reshape(-1)[here].astype(np.int64), (slot * pages * per_page + here).astype(np.uint32)
    before = index[numbers]
    old = np.flatnonzero(before)
    is_older = np.zeros(len(numbers), bool)
    is_older[old] = stamps[here[old] // per_page] < known.reshape(-1)[before[old] // np.uint32(per_page)]
    index[numbers[~is_older]] = place[~is_older]  # of a row that comes twice the later one, which is the newer


class PageIo:
    """Reads and writes as they are asked for, one after the other. Descriptors may be of any kind.

    Parameters
    ----------
    way : str
        ``threads`` or ``mapped``, which are alike here: there is no ring.
    depth, page_bytes : int
        As of the native one, which has so much memory for reads; not used.
    """

    n_bytes = 0

    def __init__(self, way: str, depth: int, page_bytes: int) -> None:  # noqa: ARG002
        if way == "io_uring":
            raise OSError(38, "io_uring is for the native module")
        self._done: dict[int, Outcome] = {}
        self._tickets = 0
        self._fault = {False: (-1, 0), True: (-1, 0)}

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
        """Pages [P]; of page p the records ``start[p]`` to ``start[p + 1]``: place there, row, and where it goes."""
        outcome, data = Outcome(), aligned(len(file) * of.page_bytes)
        came = []
        for p, descriptor in enumerate(file.tolist()):
            at_p = data[p * of.page_bytes :][: of.page_bytes]
            came.append(self._moved(False, descriptor, at_p, int(page[p]) * of.page_bytes, p))
        wrong = _wrong(data.reshape(len(file), of.page_bytes), segment, page)
        for p, found in enumerate(came):
            some = slice(int(start[p]), int(start[p + 1]))
            if found.wrong == Wrong.NOTHING and wrong[p]:
                found = Outcome(Wrong(int(wrong[p])), 0, p)
            elif found.wrong == Wrong.NOTHING:
                here = p * of.per_page + number[some]
                if unpack_rows(of, data, here, row[some], at[some], into) >= 0:
                    found = Outcome(Wrong.ANOTHER_ROW, 0, p)
            outcome = found if outcome.wrong == Wrong.NOTHING else outcome
        return self._ticket(outcome)

    def transfer(self, write: bool, file: Ints, offset: Ints, start: Ints, size: Ints, memory: Bytes) -> int:
        """Bytes of files, to memory from ``start`` on, or from there."""
        outcome = Outcome()
        for i in range(len(file)):
            data = memory[int(start[i]) : int(start[i] + size[i])]
            found = self._moved(write, int(file[i]), data, int(offset[i]), i)
            outcome = found if outcome.wrong == Wrong.NOTHING else outcome
        return self._ticket(outcome)

    def _moved(self, write: bool, file: int, data: Bytes, offset: int, place: int) -> Outcome:
        left, error = self._fault[write]
        self._fault[write] = left - 1 if left >= 0 else -1, error
        if left == 0:
            return Outcome(Wrong.SYSTEM, error, place)
        moved = 0
        try:
            while moved < len(data):
                rest = data[moved:].data
                n = os.pwrite(file, rest, offset + moved) if write else os.preadv(file, [rest], offset + moved)
                if n == 0:
                    return Outcome(Wrong.SHORT_FILE, 0, place)
                moved += n
        except OSError as refused:
            return Outcome(Wrong.SYSTEM, refused.errno or 0, place)
        return Outcome()

    def _ticket(self, outcome: Outcome) -> int:
        self._tickets += 1
        self._done[self._tickets] = outcome
        return self._tickets

    def wait(self, ticket: int) -> Outcome:
        """Of a batch, once."""
        return self._done.pop(ticket)

    def fail(self, writes: bool, after: int, error: int) -> None:
        """For tests: of the reads, or writes, that are made from now on, the one with so many before it fails so."""
        self._fault[writes] = after, error

    def close(self) -> None:
        """Nothing is under way here."""
