"""The rows of one block as a log: what is written goes to its end, and an index says where each row is.

A row that is written anew is dead where it was. *Cleaning* takes a segment of which much is dead, writes what is alive
in it to another end of the log, and removes it. Rows are small and change once for each read, so they are not written
in place: that would be a whole page for each, and a file that a checkpoint holds would change under it.

Places: record r of page p of the segment in slot s has place (s x pages a segment + p) x records a page + r. The index
has the place of each row in 4 bytes, and 0 for one that was never written: slot 0 stays empty. A slot is used again,
the number of a segment never.

**Which version is the newest**, after the index is lost: a page has a stamp, which rises from page to page as they are
sealed. The log has several ends, each with a page that is being filled. A row whose last version is in such a page gets
its next one behind it there; all others are in sealed pages, and the next one's page is sealed later. A segment is
cleaned as a whole between two calls, to pages that have nothing else; what is alive in it is the newest version. So of
two pages with one row the one with the higher stamp has the newest version, or the same bits.

**Which segment is cleaned**: the one with the best ratio of benefit to cost, (1 - u) x age / u, where u is the share of
its records that are alive and age the pages written since its last one. 1 - u is what is won, u what is written for it.
The age is a guess at how long what is won stays: in a segment that was just written more will die soon by itself, in an
old one what is alive is seldom written. **Which end a row goes to**: rows of like life lie together, so that segments
die as a whole. A row that is handed over will live about as long as its last version did; that is compared with the
life of segments of rows that die soon, when they were cleaned. What is cleaned goes by whether it was thought to die
soon. Simulated with room for 1.36 times the rows, 188 segments, rows drawn by a power law of
1.05 (1.2): to take the segment with the least alive, with one end for all, writes 2.45 (2.35) records for each that is
handed over; by benefit and cost 1.98 (1.78); with the ends as here 1.8 (1.7). Where all rows are alike it is 2.1
whatever is done. Sources: M. Rosenblum and J. Ousterhout, The design and implementation of a log-structured file system
(1992); Q. Wang et al., Separating data via block invalidation time inference (FAST 2022).

Knows rows by number and their bytes. One call at a time: the tier sees to it.
"""

import errno
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.disk import pages
from hpcrec.disk.common import Common
from hpcrec.disk.layout import Bytes, Layout, Outcome, Wrong, aligned
from hpcrec.disk.lists import read_footers
from hpcrec.disk.segment import AGAIN, Footer, Segment, not_written, unreadable
from hpcrec.errors import TierError
from hpcrec.types import Ints
from hpcrec.units import MiB

MOST_ROWS = 1 << 31
_LEAST_SEGMENT_BYTES, _MOST_SEGMENT_BYTES = MiB // 2, 64 * MiB
_SEGMENTS = 256  # of all rows of a block, about
_MORE_SEGMENTS = 12  # on disk than what is alive takes: below, cleaning would win little and never end
_LIVES = 16  # segments of which the mean life is taken
_MOST_MOVED = 4  # segments' worth of rows, for each one that is begun: the limit of space gives way, time does not
_COUNTED = 1 << 20  # rows at once: bounds the memory
_FULL = 0.85  # alive, of a segment that is not worth cleaning


@dataclass(eq=False)
class _Piece:
    """Pages in memory that are being filled, or written: places [first, first + records) of the index."""

    memory: Bytes
    first: int
    page: int  # of the segment
    capacity: int
    records: int = 0
    ticket: int = -1
    segment: Segment | None = None


@dataclass(eq=False)
class Ticket:
    """Rows that are being read."""

    number: int | None
    segments: Sequence[Segment]
    paths: Sequence[tuple[Path, int]]  # of each page: file and page
    row_of: Sequence[int] | Ints


class _Life:
    """How long segments of rows that die soon were there when they were cleaned, in pages: of some, the mean."""

    def __init__(self) -> None:
        self.mean = float("inf")
        self._lives: list[int] = []

    def add(self, life: int) -> None:
        """Of one more."""
        self._lives.append(life)
        if len(self._lives) >= _LIVES:
            self.mean = sum(self._lives) / len(self._lives)
            self._lives.clear()


class _End:
    """An end of the log: a segment that is not sealed, and the piece of it that is being filled."""

    def __init__(self) -> None:
        self.segment: Segment | None = None
        self.slot = 0
        self.piece: _Piece | None = None


class RowLog:
    """Rows [rows] of ``record_bytes`` each.

    Parameters
    ----------
    common : Common
    block : int
        Which one of the folder.
    rows, record_bytes : int

    Raises
    ------
    ValueError
        More rows than ``MOST_ROWS``, or a record that no page holds.
    """

    def __init__(self, common: Common, block: int, rows: int, record_bytes: int) -> None:
        if not 0 < rows <= MOST_ROWS:
            raise ValueError(f"block {block} has {rows} rows; allowed are 1 to {MOST_ROWS} on one rank")
        self.common, self.block, self.rows = common, block, rows
        self.layout = Layout.of(record_bytes)
        wanted = common.settings.segment_bytes or rows * record_bytes // _SEGMENTS
        wanted = min(max(wanted, _LEAST_SEGMENT_BYTES), _MOST_SEGMENT_BYTES) if rows else 0
        page_bytes = self.layout.page_bytes
        self.segment_pages = max((common.settings.segment_bytes or wanted) // page_bytes, 1)
        self._piece_pages = min(max(common.settings.piece_bytes // page_bytes, 1), self.segment_pages)
        self.segment_records = self.segment_pages * self.layout.per_page
        self._index = np.zeros(rows, np.uint32)
        self._segments: list[Segment | None] = [None]  # by slot
        self._alive = np.zeros(1, np.int64)  # records, by slot
        self._begun = np.zeros(1, np.int64)  # the stamp when it was, by slot
        self._written = np.zeros(1, np.int64)  # the stamp behind the last page
        self._is_soon = np.zeros(1, bool)
        self._soon, self._later = _End(), _End()  # of rows that are handed over, by how long they may live
        self._cleaned = tuple(_End() for _ in range(2))  # likewise
        self._ends = (self._soon, self._later, *self._cleaned)
        self._life = _Life()
        self._writing: deque[_Piece] = deque()
        self._free: list[Bytes] = []
        self.n_alive = 0

    # What there is.

    @property
    def disk_bytes(self) -> int:
        """Of files, space that is taken for what will be written included."""
        return sum(segment.n_bytes for segment in self._segments if segment is not None)

    @property
    def n_bytes(self) -> int:
        """Of memory: the index, pieces, and what will be footers."""
        ends = [end for end in self._ends if end.piece is not None]
        pieces = len(ends) + len(self._writing) + len(self._free)
        footers = sum(s.footer.n_bytes for s in self._segments if s is not None and s.footer is not None)
        return self._index.nbytes + pieces * self._piece_pages * self.layout.page_bytes + footers

    def has(self, rows: Ints) -> np.ndarray:
        """Whether these were ever written, bool [U]."""
        found: np.ndarray = self._index[rows] != 0
        return found

    # Reading.

    def read(self, rows: Ints, at: Ints, into: Sequence[Bytes]) -> Ticket:
        """Begins to read rows [U], all of them written before, to rows ``at`` of the columns."""
        where = self._index[rows].astype(np.int64)
        self.common.counts.read_rows += len(rows)
        on_disk = np.ones(len(rows), bool)
        for piece in self._in_memory():
            here = (where >= piece.first) & (where < piece.first + piece.records)
            if here.any():
                wrong = pages.unpack_rows(
                    self.layout, piece.memory, where[here] - piece.first, rows[here], at[here], into
                )
                assert wrong < 0, "rows in memory are not those of the index"
                on_disk &= ~here
        if not on_disk.all():
            rows, at, where = rows[on_disk], at[on_disk], where[on_disk]
        if not len(rows):
            return Ticket(None, (), (), ())
        order = np.argsort(where)
        page, number = np.divmod(where[order], self.layout.per_page)
        start = np.flatnonzero(np.diff(page, prepend=-1))
        slot, of_segment = np.divmod(page[start], self.segment_pages)
        slots, which = np.unique(slot, return_inverse=True)
        segments = [self._at(s) for s in slots.tolist()]
        files = np.array([s.file for s in segments], np.int64)[which]
        numbers = np.array([s.number for s in segments], np.int64)[which]
        self.common.counts.read_pages += len(start)
        ticket = self.common.io.read_rows(
            self.layout, files, of_segment, numbers, np.append(start, len(page)), number, rows[order], at[order], into
        )
        for segment in segments:
            segment.readers += 1
        return Ticket(ticket, segments, _Paths(segments, which, of_segment), rows[order][start])

    def _at(self, slot: int) -> Segment:
        segment = self._segments[slot] if slot < len(self._segments) else None
        if segment is None:
            raise TierError(f"{self.common.folder}: the index of block {self.block} names no segment. {AGAIN}")
        return segment

    def over(self, ticket: Ticket, outcome: Outcome) -> None:
        """A read is over.

        Raises
        ------
        TierError
            A page cannot be read, or is not what was written.
        """
        for segment in ticket.segments:
            segment.readers -= 1
            segment.let_go()
        if outcome.wrong != Wrong.NOTHING:
            path, page = ticket.paths[outcome.place]
            raise unreadable(path, page, outcome, f" It has row {ticket.row_of[outcome.place]} of block {self.block}.")

    def _in_memory(self) -> list[_Piece]:
        ends = (end.piece for end in self._ends)
        return [*(piece for piece in ends if piece is not None and piece.records), *self._writing]

    # Writing.

    def write(self, rows: Ints, at: Ints | None, columns: Sequence[Bytes]) -> None:
        """Takes distinct rows [U], rising, from rows ``at`` of the columns (None: i)."""
        self.common.counts.handed_bytes += len(rows) * self.layout.record_bytes
        soon = self._dies_soon(rows)
        if soon.all() or not soon.any():
            self._put(self._soon if soon.all() else self._later, rows, at, columns)
            return
        at = np.arange(len(rows)) if at is None else at
        for end, some in ((self._soon, soon), (self._later, ~soon)):
            self._put(end, rows[some], at[some], columns)

    def _dies_soon(self, rows: Ints) -> np.ndarray:
        """Of rows that are handed over, which will be again before a segment of such rows is cleaned: a guess."""
        place = self._index[rows].astype(np.int64)
        lived = self.common.stamp - self._written[place // self.segment_records]
        soon: np.ndarray = (place > 0) & (lived < self._life.mean)
        # Where the version before is in memory, the new one goes behind it: its page must not be sealed before.
        for end, is_soon in ((self._soon, True), (self._later, False)):
            if end.piece is not None:
                soon[(place >= end.piece.first) & (place < end.piece.first + end.piece.records)] = is_soon
        return soon

    def _put(self, end: _End, rows: Ints, at: Ints | None, columns: Sequence[Bytes]) -> None:
        done = 0
        while done < len(rows):
            piece = self._piece(end)
            n = min(len(rows) - done, piece.capacity - piece.records)
            some, from_ = slice(done, done + n), columns
            if at is None:
                from_ = [column[some] for column in columns]
            pages.pack_rows(
                self.layout, from_, None if at is None else at[some], rows[some], piece.memory, piece.records
            )
            self._point(rows[some], piece.first + piece.records, piece, end.slot)
            piece.records += n
            done += n
            if piece.records == piece.capacity:
                self._write_piece(end)

    def _point(self, rows: Ints, first: int, piece: _Piece, slot: int) -> None:
        """The index points at these places now, and at none before."""
        before = self._index[rows]
        self._index[rows] = np.arange(first, first + len(rows), dtype=np.uint32)
        old = before[before != 0] // np.uint32(self.segment_records)
        died = np.bincount(old, minlength=len(self._alive))
        self._alive -= died
        self._alive[slot] += len(rows)
        self.n_alive += len(rows) - len(old)
        assert piece.segment is not None and piece.segment.footer is not None
        footer = piece.segment.footer.rows.reshape(-1)
        start = piece.page * self.layout.per_page + piece.records
        footer[start : start + len(rows)] = rows

    def _piece(self, end: _End) -> _Piece:
        """The piece that is being filled, of a segment that has room."""
        if end.piece is None:
            if end.segment is None:
                if self.common.cleans and end not in self._cleaned:
                    self._clean()
                self._begin_segment(end)
            assert end.segment is not None
            page = end.segment.pages
            n_pages = min(self._piece_pages, self.segment_pages - page)
            first = (end.slot * self.segment_pages + page) * self.layout.per_page
            capacity = n_pages * self.layout.per_page
            end.piece = _Piece(self._memory(), first, page, capacity, segment=end.segment)
        return end.piece

    def _memory(self) -> Bytes:
        """Of a piece: one that was written, or a new one where few are on their way."""
        self._settle(most=2)
        return self._free.pop() if self._free else aligned(self._piece_pages * self.layout.page_bytes)

    def _begin_segment(self, end: _End) -> None:
        number = next(self.common.numbers)
        segment = Segment.create(self.common.path(number), number, self.block, self.layout, self.segment_pages)
        end.segment, end.slot = segment, self._slot(segment)
        self._is_soon[end.slot] = end is self._soon

    def _slot(self, segment: Segment) -> int:
        slot = next((s for s in range(1, len(self._segments)) if self._segments[s] is None), len(self._segments))
        if (slot + 1) * self.segment_records > 1 << 32:
            segment.remove()
            raise not_written(
                segment.path, errno.EFBIG, f"block {self.block} has no places left in an index of 4 bytes: a segment"
            )
        if slot == len(self._segments):
            self._segments.append(None)
            for name in ("_alive", "_begun", "_written", "_is_soon"):
                array = getattr(self, name)
                setattr(self, name, np.append(array, array.dtype.type(0)))
        self._segments[slot], self._alive[slot], self._is_soon[slot] = segment, 0, False
        self._begun[slot] = self._written[slot] = self.common.stamp
        return slot

    def _write_piece(self, end: _End) -> None:
        """Hands what is in the piece to the disk; its last page may be filled in part, and stays so."""
        piece, segment, of = end.piece, end.segment, self.layout
        if piece is None or segment is None or segment.footer is None:
            return
        end.piece = None
        n = -(-piece.records // of.per_page)
        pages.seal_pages(of, piece.memory, piece.records, segment.number, piece.page, self.common.stamp)
        span = slice(piece.page, piece.page + n)
        segment.footer.stamps[span] = self.common.stamp + np.arange(n)
        segment.footer.records[span] = np.minimum(of.per_page, piece.records - of.per_page * np.arange(n))
        sums = piece.memory[: n * of.page_bytes].reshape(n, of.page_bytes)[:, :4]
        segment.contents = pages.crc32c(np.ascontiguousarray(sums).reshape(-1), segment.contents)
        self.common.stamp += n
        self._written[end.slot] = self.common.stamp
        segment.pages += n
        n_bytes = n * of.page_bytes
        self.common.counts.written_bytes += n_bytes
        one = (np.array([value], np.int64) for value in (segment.file, piece.page * of.page_bytes, 0, n_bytes))
        piece.ticket = self.common.io.transfer(True, *one, piece.memory)
        self._writing.append(piece)
        if segment.pages == self.segment_pages:
            self._seal(end)

    def _settle(self, most: int = 0) -> None:
        """Waits until at most so many pieces are on their way."""
        while len(self._writing) > most:
            piece = self._writing[0]
            outcome = self.common.io.wait(piece.ticket)
            self._writing.popleft()
            assert piece.segment is not None
            if outcome.wrong != Wrong.NOTHING:
                error = outcome.error if outcome.wrong == Wrong.SYSTEM else errno.EIO
                raise not_written(piece.segment.path, error, f"pages from {piece.page} on")
            self._free.append(piece.memory)

    def _seal(self, end: _End) -> None:
        segment = end.segment
        if segment is None:
            return
        end.segment, end.piece = None, None
        self._settle()
        before = segment.pages * self.layout.page_bytes
        segment.seal(self.rows)
        self.common.counts.written_bytes += segment.n_bytes - before

    def flush(self) -> None:
        """All that was handed over is on the disk."""
        for end in self._ends:
            self._write_piece(end)
        self._settle()

    def seal(self) -> list[Segment]:
        """Seals what is not. Segments that have something alive, by number; they never change any more."""
        for end in self._ends:
            self._write_piece(end)
            if end.segment is not None and not end.segment.pages:
                self._remove(end.slot)
                end.segment = None
            self._seal(end)
        self._settle()
        for slot, segment in enumerate(self._segments):  # what is dead as a whole is nobody's
            if segment is not None and not segment.pins and not self._alive[slot]:
                self._remove(slot)
        return sorted((s for s in self._segments if s is not None), key=lambda s: s.number)

    # Cleaning.

    def _clean(self) -> None:
        """Takes back space until there is some for one more segment."""
        of, spare = self.layout, self.common.settings.spare
        one = self.segment_pages * of.page_bytes + Footer.bytes_of(self.segment_pages, of.per_page)
        alive = self.n_alive * one // self.segment_records
        allowed = max(int(spare * self.n_alive * of.record_bytes), alive + _MORE_SEGMENTS * one)
        # What is dead in segments of a generation cannot be won, nor is it to be won from the others instead.
        most = self.common.counts.cleaned_bytes + _MOST_MOVED * self.segment_records * of.record_bytes
        while self.disk_bytes - self._dead_bytes_held() + 2 * one > allowed:
            slot = self._worst()
            if slot is None or self.common.counts.cleaned_bytes >= most:
                return
            self._clean_segment(slot)

    def _dead_bytes_held(self) -> int:
        held = ((slot, s) for slot, s in enumerate(self._segments) if s is not None and s.pins)
        of = self.layout
        return sum(s.n_bytes - int(self._alive[slot]) * of.page_bytes // of.per_page for slot, s in held)

    def _worst(self) -> int | None:
        """The slot of the segment to be cleaned, if any is worth it."""
        slots, sizes = list[int](), list[int]()
        for slot, segment in enumerate(self._segments):
            if segment is not None and segment.footer is None and not segment.pins:
                slots.append(slot)
                sizes.append(segment.pages * self.layout.per_page)
        if not slots:
            return None
        alive = self._alive[slots] / np.array(sizes)
        age = self._age(slots)
        score = np.where(alive < _FULL, (1 - alive) * age / np.maximum(alive, 1e-6), 0.0)
        best = int(np.argmax(score))
        return slots[best] if score[best] > 0 else None

    def _age(self, slots: Any) -> Any:
        """Pages written since the last one of a segment."""
        return self.common.stamp - self._written[slots] + 1

    def _clean_segment(self, slot: int) -> None:
        segment, of = self._at(slot), self.layout
        if self._is_soon[slot]:
            self._life.add(self.common.stamp - int(self._begun[slot]))
        if self._alive[slot]:
            end = self._cleaned[0 if self._is_soon[slot] else 1]
            footer = segment.read_footer()
            rows = footer.rows.astype(np.int64)
            place = slot * self.segment_records + np.arange(rows.size).reshape(rows.shape)
            here = np.arange(of.per_page) < footer.records[:, None]
            alive = here & (self._index[rows] == place)
            for first in range(0, segment.pages, self._piece_pages):
                n = min(self._piece_pages, segment.pages - first)
                if alive[first : first + n].any():
                    self._move(segment, rows[first : first + n], alive[first : first + n], first, end)
            # Of no page are there records of before and after: see above. The rest of its last one stays empty.
            self._write_piece(end)
        assert self._alive[slot] == 0, f"{segment.path}: {self._alive[slot]} rows are alive behind the index"
        self._remove(slot)
        self.common.counts.cleaned_segments += 1

    def _move(self, segment: Segment, rows: Ints, alive: np.ndarray, first: int, end: _End) -> None:
        """What is alive in n pages to an end of the log."""
        of = self.layout
        memory = self._read_pages(segment, first, len(rows))
        number = np.flatnonzero(alive)
        records = np.empty((len(number), of.record_bytes), np.uint8)
        moved = rows.reshape(-1)[number]
        order = np.argsort(moved)
        number, moved = number[order], moved[order]
        bad = pages.unpack_rows(of, memory, number, moved, np.arange(len(number)), [records])
        if bad >= 0:
            page = first + int(number[bad]) // of.per_page
            raise unreadable(segment.path, page, Outcome(Wrong.ANOTHER_ROW), "")
        self._free.append(memory)
        self.common.counts.cleaned_bytes += records.nbytes
        self._put(end, moved, None, [records])

    def _read_pages(self, segment: Segment, first: int, n: int) -> Bytes:
        """Pages of a sealed segment at once, each checked, to the memory of a piece."""
        of, memory = self.layout, self._memory()
        one = (np.array([value], np.int64) for value in (segment.file, first * of.page_bytes, 0, n * of.page_bytes))
        outcome = self.common.io.wait(self.common.io.transfer(False, *one, memory))
        if outcome.wrong != Wrong.NOTHING:
            raise unreadable(segment.path, first, outcome, f" It is one of {n} that were read at once.")
        wrong, page = pages.check_pages(of, memory, n, segment.number, first)
        if wrong:
            raise unreadable(segment.path, first + page, Outcome(Wrong(wrong)), "")
        return memory

    def _remove(self, slot: int) -> None:
        segment = self._at(slot)
        self._segments[slot] = None
        segment.remove()

    def sealed(self) -> list[Segment]:
        """Segments that never change any more."""
        return [segment for segment in self._segments if segment is not None and segment.footer is None]

    def verify(self) -> int:
        """Reads all pages of sealed segments and their footers; returns how many pages.

        Raises
        ------
        TierError
            One cannot be read, or is not what was written.
        """
        total = 0
        for segment in self.sealed():
            segment.read_footer()
            for first in range(0, segment.pages, self._piece_pages):
                n = min(self._piece_pages, segment.pages - first)
                self._free.append(self._read_pages(segment, first, n))
            total += segment.pages
        return total

    # Opening again.

    def take(self, segments: Sequence[Segment]) -> None:
        """Takes sealed segments of a log like this one as its own: the newest version of each row is its row.

        Raises
        ------
        TierError
            A footer is damaged, or has what cannot be.
        """
        stamps = np.zeros((len(segments) + 1, self.segment_pages), np.uint64)  # by slot, of each page
        for segment, footer in read_footers(segments):
            slot = self._slot(segment)
            rows = footer.rows
            if segment.pages > self.segment_pages or (rows.size and rows.max() >= self.rows):
                raise TierError(
                    f"{segment.path}: its footer has {segment.pages} pages and rows up to {rows.max(initial=-1)}; "
                    f"block {self.block} has {self.segment_pages} pages a segment and {self.rows} rows. {AGAIN}",
                    segment=segment.path,
                )
            stamps[slot, : segment.pages] = footer.stamps
            pages.take_newest(self._index, rows, footer.records, footer.stamps, stamps, slot)
            self._written[slot] = int(footer.stamps.max(initial=0)) + 1
        self._alive = np.zeros(len(self._segments), np.int64)
        for start in range(0, self.rows, _COUNTED):
            slots = self._index[start : start + _COUNTED] // np.uint32(self.segment_records)
            self._alive += np.bincount(slots, minlength=len(self._segments))
        self._alive[0] = 0  # rows that were never written
        self.n_alive = int(self._alive.sum())

    def rest(self) -> None:
        """What is on its way has come, or failed, which nobody wants to know."""
        while self._writing:
            self.common.io.wait(self._writing.popleft().ticket)

    def close(self) -> None:
        """Closes files; nothing is written."""
        for segment in self._segments:
            if segment is not None:
                segment.close()


class _Paths(Sequence[tuple[Path, int]]):
    """File and page of each page of a batch, told only of one that is wrong."""

    def __init__(self, segments: Sequence[Segment], which: Ints, page: Ints) -> None:
        self._segments, self._which, self._page = segments, which, page

    def __len__(self) -> int:
        return len(self._page)

    def __getitem__(self, place: Any) -> Any:
        return self._segments[int(self._which[place])].path, int(self._page[place])
