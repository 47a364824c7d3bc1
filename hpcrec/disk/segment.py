"""One file of the log: pages in the order in which they were written, and a footer that says whose records they have.

    page 0 | page 1 | ... | footer | trailer
    footer: stamps u64 [P] | records u32 [P] | first rows u32 [P] | narrow u8 [P] | steps u16 or u32 [P, per_page - 1]

A file grows until it is *sealed*; then it gets its footer, and never changes again, so that others may link to it. From
the footers alone it is known which row is where. The trailer, at the very end of the file, says what there is
and has checksums of itself, of the footer and of the pages' own checksums: the first, the segment's *seal*, tells it
from any other one, also of the same number in another run. The footer has a page's rows as
the first one and the steps from row to row: in two bytes where none of the page is longer, as in most, for rows are
written in their order. Knows one file; not what of it is still needed.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcrec.disk.layout import SECTOR_BYTES, Bytes, Layout, Outcome, Wrong, aligned, rounded
from hpcrec.disk.pages import crc32c
from hpcrec.errors import OutputError, TierError
from hpcrec.types import Ints

MAGIC = 0x31474553_43455248  # "HRECSEG1"
_PAGE_BYTES = 8 + 4 + 4 + 1  # of a page in a footer, but for steps
_TRAILER = np.dtype(
    [
        ("magic", "<u8"),
        ("segment", "<u4"),
        ("block", "<u4"),
        ("page_bytes", "<u4"),
        ("record_bytes", "<u4"),
        ("per_page", "<u4"),
        ("pages", "<u4"),
        ("footer_bytes", "<u4"),
        ("footer", "<u4"),
        ("contents", "<u4"),
        ("checksum", "<u4"),
    ]
)


@dataclass(frozen=True)
class Footer:
    """Of P pages.

    Attributes
    ----------
    stamps : uint64 [P]
    records : uint32 [P]
    rows : uint32 [P, per_page]
        Behind a page's records: anything.
    """

    stamps: Ints
    records: Ints
    rows: Ints

    @staticmethod
    def bytes_of(pages: int, per_page: int) -> int:
        """In the file at most, trailer included."""
        return rounded(pages * (_PAGE_BYTES + 4 * (per_page - 1)) + _TRAILER.itemsize)

    @staticmethod
    def empty(pages: int, per_page: int) -> "Footer":
        """To be filled."""
        return Footer(np.zeros(pages, "<u8"), np.zeros(pages, "<u4"), np.zeros((pages, per_page), "<u4"))

    def first(self, pages: int) -> "Footer":
        """Of the first pages."""
        return Footer(self.stamps[:pages], self.records[:pages], self.rows[:pages])

    @property
    def n_bytes(self) -> int:
        """In memory."""
        return self.stamps.nbytes + self.records.nbytes + self.rows.nbytes

    def written(self) -> Bytes:
        """As the file has it."""
        behind = np.arange(1, self.rows.shape[1]) >= self.records[:, None]
        steps = np.where(behind, 0, np.diff(self.rows.astype(np.int64), axis=1)).astype("<u4")  # back is far forward
        narrow = (steps < 1 << 16).all(axis=1)
        parts = (self.stamps, self.records, self.rows[:, 0], narrow, steps[narrow].astype("<u2"), steps[~narrow])
        return np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])

    @staticmethod
    def read(data: Bytes, pages: int, per_page: int) -> "Footer":
        """Back from there."""
        stamps, records, first, narrow, steps = np.split(data, np.cumsum([8, 4, 4, 1]) * pages)
        few = narrow.view(bool)
        two, four = np.split(steps, [2 * int(few.sum()) * (per_page - 1)])
        rows = np.zeros((pages, per_page), "<u4")
        rows[:, 0] = first.view("<u4")
        rows[few, 1:] = two.view("<u2").reshape(-1, per_page - 1)
        rows[~few, 1:] = four.view("<u4").reshape(-1, per_page - 1)
        return Footer(stamps.view("<u8"), records.view("<u4"), np.cumsum(rows, axis=1, dtype="<u4"))


class Segment:
    """One file; opened with ``create`` or ``sealed``.

    Attributes
    ----------
    number : int
        Of all segments that were ever in the folder; also in each page.
    pages : int
        Written, or on their way.
    n_bytes : int
        Of the disk.
    footer : Footer or None
        Until it is sealed.
    contents : int
        CRC32C of the checksums of its pages, so far.
    seal_sum : int
        The checksum of its trailer, once it is sealed.
    is_flushed : bool
        Whether it stays even if power fails, for all that is known here.
    readers, pins : int
        Batches that read it now, and generations that it belongs to: while there are any it is neither closed, nor
        taken to be cleaned.
    """

    def __init__(self, path: Path, number: int, block: int, layout: Layout) -> None:
        self.path, self.number, self.block, self.layout = path, number, block, layout
        self.pages = self.n_bytes = self.readers = self.pins = self._footer_bytes = 0
        self.contents = self.seal_sum = 0
        self.is_flushed = False
        self.footer: Footer | None = None
        self.file = -1
        self._removed = False

    @classmethod
    def create(cls, path: Path, number: int, block: int, layout: Layout, pages: int) -> "Segment":
        """A new file, with its space taken on the disk.

        Raises
        ------
        OutputError
            There is no space for it, or the file system has no transfers past the page cache.
        """
        self = cls(path, number, block, layout)
        n_bytes = pages * layout.page_bytes + Footer.bytes_of(pages, layout.per_page)
        try:
            self.file = _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                os.posix_fallocate(self.file, 0, n_bytes)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
                os.ftruncate(self.file, n_bytes)
        except OSError as error:
            if self.file >= 0:
                self.remove()
            raise not_written(path, error.errno, f"a segment of {n_bytes} bytes") from error
        self.n_bytes = n_bytes
        self.footer = Footer.empty(pages, layout.per_page)
        return self

    def seal(self, block_rows: int) -> None:
        """Writes the footer, and takes what is left of its space away; its pages are on the disk.

        Raises
        ------
        OutputError
        """
        assert self.footer is not None
        footer = self.footer.first(self.pages)
        written = footer.written()
        trailer = self._trailer(len(written), crc32c(written))
        memory = aligned(rounded(len(written) + len(trailer)))
        memory[: len(written)] = written
        memory[-len(trailer) :] = trailer
        at = self.pages * self.layout.page_bytes
        try:
            _write_all(self.file, memory, at)
            os.ftruncate(self.file, at + len(memory))
        except OSError as error:
            raise not_written(self.path, error.errno, "its footer") from error
        self.n_bytes, self.footer, self._footer_bytes = at + len(memory), None, len(written)
        assert not footer.rows.size or int(footer.rows.max()) < block_rows

    def sync(self) -> None:
        """What is written of it stays, even if power fails.

        Raises
        ------
        OutputError
        """
        try:
            os.fsync(self.file)
        except OSError as error:
            raise not_written(self.path, error.errno, "all of it") from error
        self.is_flushed = True

    def _trailer(self, footer_bytes: int, footer: int) -> Bytes:
        of = self.layout
        trailer = np.zeros(1, _TRAILER)
        trailer[0] = (MAGIC, self.number, self.block, *of.sizes, self.pages, footer_bytes, footer, self.contents, 0)
        found = trailer.view(np.uint8)
        trailer["checksum"] = self.seal_sum = crc32c(found[:-4])
        return found

    @classmethod
    def sealed(cls, path: Path, number: int, block: int, layout: Layout, *, direct: bool = True) -> "Segment":
        """One that is there, as its trailer says; ``direct``: to be read past the page cache.

        Raises
        ------
        TierError
            It is not there, was never sealed, or is another one.
        """
        self = cls(path, number, block, layout)
        try:
            self._open_sealed(direct=direct)
        except BaseException:
            self.close()
            raise
        return self

    def _open_sealed(self, *, direct: bool) -> None:
        path, number, block, layout = self.path, self.number, self.block, self.layout
        try:
            self.file = _opened(path, os.O_RDONLY, direct=direct)
            self.n_bytes = os.fstat(self.file).st_size
            last = self._read(self.n_bytes - SECTOR_BYTES, SECTOR_BYTES) if self.n_bytes >= SECTOR_BYTES else None
        except OSError as error:
            refused = f"{path}: cannot be read ({error.strerror}). {AGAIN}"
            raise TierError(refused, segment=_damaged_by(error.errno, path)) from error
        end = None if last is None else last[-_TRAILER.itemsize :].copy()
        said = None if end is None else end.view(_TRAILER)[0]
        if end is None or said is None or said["magic"] != MAGIC:
            missing = "has no trailer at its end: it was never finished, or cut off."
            raise TierError(f"{path}: {missing} {AGAIN}", segment=path)
        self.pages = int(said["pages"])
        self._footer_bytes, self.contents = int(said["footer_bytes"]), int(said["contents"])
        if bytes(self._trailer(self._footer_bytes, int(said["footer"]))) != bytes(end):
            raise TierError(
                f"{path}: its trailer is damaged, or of another segment: it says {said.item()}, and wanted are "
                f"segment {number} of block {block}, {layout}. {AGAIN}",
                segment=path,
            )
        if self.n_bytes != self.pages * layout.page_bytes + rounded(self._footer_bytes + _TRAILER.itemsize):
            size = f"has {self.n_bytes} bytes, which {self.pages} pages and a footer are not."
            raise TierError(f"{path}: {size} {AGAIN}", segment=path)

    def read_footer(self) -> Footer:
        """Of a sealed one.

        Raises
        ------
        TierError
            It cannot be read, or is not what was written.
        """
        n = self._footer_bytes
        at = self.pages * self.layout.page_bytes
        try:
            data = self._read(at, rounded(n + _TRAILER.itemsize))
        except OSError as error:
            wrong = f"its footer cannot be read ({error.strerror})."
            raise TierError(f"{self.path}: {wrong} {AGAIN}", segment=_damaged_by(error.errno, self.path)) from error
        wanted = int(data[-_TRAILER.itemsize :].copy().view(_TRAILER)[0]["footer"])
        if crc32c(data[:n]) != wanted:
            wrong = f"the checksum of its footer at byte {at} is wrong."
            raise TierError(f"{self.path}: {wrong} {AGAIN}", segment=self.path)
        return Footer.read(data[:n], self.pages, self.layout.per_page)

    def read_pages(self, first: int, n: int) -> Bytes:
        """Pages [first, first + n) as they are.

        Raises
        ------
        TierError
            They cannot be read.
        """
        try:
            return self._read(first * self.layout.page_bytes, n * self.layout.page_bytes)
        except OSError as error:
            said = f"{self.path}: pages from {first} on cannot be read ({error.strerror})."
            raise TierError(said, segment=_damaged_by(error.errno, self.path)) from error

    @contextlib.contextmanager
    def opened(self) -> Iterator["Segment"]:
        """One that was closed, open for reading meanwhile, by way of the page cache.

        Raises
        ------
        TierError
            It cannot be opened.
        """
        try:
            self.file = _opened(self.path, os.O_RDONLY, direct=False)
        except OSError as error:
            said = f"{self.path}: cannot be read ({error.strerror}). {AGAIN}"
            raise TierError(said, segment=_damaged_by(error.errno, self.path)) from error
        try:
            yield self
        finally:
            self.close()

    def _read(self, offset: int, n_bytes: int) -> Bytes:
        memory = aligned(n_bytes)
        done = 0
        while done < n_bytes:
            n = os.preadv(self.file, [memory[done:].data], offset + done)
            if n == 0:
                raise OSError(errno.EIO, "the file ends before its size", str(self.path))
            done += n
        return memory

    def remove(self) -> None:
        """Takes its name out of the folder; the file stays as long as somebody reads it, or has a link to it."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self._removed = True
        self.let_go()

    def let_go(self) -> None:
        """Closes it where it was removed, and nobody reads it any more."""
        if self._removed and not self.readers:
            self.close()

    def close(self) -> None:
        """Of its descriptor."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


AGAIN = "Go on from the last checkpoint that does not have the same file, in an empty folder; look after this disk."
# What a disk says of what it has lost, and a file system of what it finds wrong. Anything else (a file server that does
# not answer, too many open files, a file that may not be read) says nothing of what is in the file.
_DAMAGE = (errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EUCLEAN, errno.EREMOTEIO)


def not_written(path: Path, error: int | None, what: str) -> OutputError:
    """The error of a write that failed, by the system's number for why."""
    said = os.strerror(error or 0)
    if error == errno.ENOSPC:
        advice = "Free space there, or give store.path on a larger disk."
    elif error == errno.EINVAL:
        advice = "Files there may not be used past the page cache (O_DIRECT): give store.path on another file system."
    else:
        advice = "Mend that, or give store.path on another disk."
    return OutputError(error or 0, f"{path}: {what} cannot be written ({said}). {advice}")


def unreadable(path: Path, page: int, outcome: Outcome, more: str) -> TierError:
    """The error of a page that cannot be read, or is not what was written."""
    said = {
        Wrong.SYSTEM: f"cannot be read ({errno.errorcode.get(outcome.error, outcome.error)})",
        Wrong.SHORT_FILE: "is behind the end of the file",
        Wrong.CHECKSUM: "has a wrong checksum",
        Wrong.ANOTHER_PAGE: "holds another page",
        Wrong.ANOTHER_ROW: "holds another row where the index points",
        Wrong.GONE: "is gone where the file is mapped (SIGBUS: it was cut off meanwhile, or its memory is damaged)",
    }[outcome.wrong]
    segment = _damaged_by(outcome.error, path) if outcome.wrong == Wrong.SYSTEM else path
    return TierError(f"{path}: page {page} {said}.{more} {AGAIN}", segment=segment)


def _damaged_by(error: int | None, path: Path) -> Path | None:
    """The file, where this number of the system says that it is damaged."""
    return path if error in _DAMAGE else None


def seal_of(path: Path) -> int:
    """What the file at ``path`` says that its seal is; whether that is so is found as it is opened.

    Raises
    ------
    OSError
        It cannot be read, or is shorter than a seal.
    """
    with path.open("rb", buffering=0) as file:
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(4), "little")


def _opened(path: Path, flags: int, *, direct: bool = True) -> int:
    return os.open(path, flags | (os.O_DIRECT if direct else 0) | os.O_CLOEXEC, 0o644)


def _write_all(file: int, memory: Bytes, offset: int) -> None:
    done = 0
    while done < len(memory):
        done += os.pwrite(file, memory[done:].data, offset + done)
