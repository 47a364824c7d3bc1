"""A tier on disk: the rows of all blocks of one rank in a folder, read and written in batches over all of them.

What a cache in memory lies over. Rows that were never written take no space, and reading them says so: whoever reads
knows their first values. A *generation* is all rows as they were at one call of ``keep``: its segments never change, so
that a checkpoint may link to them, and from it a tier is opened again. What was written after the last generation is
lost with the process, on purpose: a run goes on from a checkpoint, and rows of some later step would not fit to it.

    folder/lock                   held by the process that has the tier open
    folder/segment-00000007       see ``segment``
    folder/generation-00000002    which segments a generation has, with their blocks; JSON and its checksum

Knows rows by block and number; no tables, no ids, no steps. Source: [MTRAINS], whose tier is a key-value store.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from hpcrec.disk import pages
from hpcrec.disk.beside import Pass
from hpcrec.disk.common import Common, Counts, Settings
from hpcrec.disk.folder import locked
from hpcrec.disk.layout import Bytes, Layout
from hpcrec.disk.links import copied, linked
from hpcrec.disk.lists import NAME, list_name, open_segments, read_list, segment_name, write_list
from hpcrec.disk.log import RowLog, Ticket
from hpcrec.disk.segment import AGAIN, Segment, not_written
from hpcrec.errors import ConfigError, TierError
from hpcrec.types import Ints

__all__ = ["BlockRows", "Counts", "Generation", "Reading", "Settings", "Tier", "Wanted"]

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class BlockRows:
    """Rows that are alike.

    Attributes
    ----------
    rows : int
    columns : dict of str to (type, shape of one row)
        What one row has: a record is these, in this order.
    """

    rows: int
    columns: Mapping[str, tuple[Any, tuple[int, ...]]]

    @property
    def record_bytes(self) -> int:
        """Of one row with its state."""
        return sum(np.dtype(t).itemsize * int(np.prod(shape, dtype=np.int64)) for t, shape in self.columns.values())

    def bytes_of(self, block: int, columns: Columns) -> list[Bytes]:
        """Each column as bytes [N, bytes a row], the same memory.

        Raises
        ------
        ValueError
            Columns are missing, or of other types or shapes, or not contiguous.
        """
        found = []
        for name, (dtype, shape) in self.columns.items():
            array = columns.get(name)
            if array is None or array.dtype != dtype or array.shape[1:] != shape or not array.flags.c_contiguous:
                has = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
                raise ValueError(
                    f"block {block}: column {name!r} is {has}; wanted is {np.dtype(dtype)} [N, "
                    f"{', '.join(map(str, shape))}], contiguous"
                )
            found.append(array.reshape(len(array), -1).view(np.uint8))
        return found


@dataclass(frozen=True)
class Wanted:
    """Rows of one block, and where they go to, or come from.

    Attributes
    ----------
    rows : int64 [U]
    columns : dict of str to array [N, ...]
        As the block's.
    at : int64 [U], optional
        Which row of the columns; default: i. Distinct where rows are read.
    """

    rows: Ints
    columns: Columns
    at: Ints | None = None


@dataclass(frozen=True)
class Generation:
    """Rows as they were at one call of ``Tier.keep``.

    Attributes
    ----------
    number : int
    files : tuple of Path
        The file that names its segments, and these: what a checkpoint links to.
    seals : tuple of int
        Of the segments: what tells each from any other one.
    """

    number: int
    files: tuple[Path, ...]
    seals: tuple[int, ...]


class Reading:
    """A batch that is being read. ``wait`` once; what it reads into is not to be touched until then.

    Attributes
    ----------
    found : dict of int to bool [U]
        By block: whether each row was ever written. Of others nothing is read.
    """

    def __init__(self, tier: "Tier", tickets: Sequence[tuple[RowLog, Ticket]], found: Mapping[int, np.ndarray]) -> None:
        self._tier, self._tickets, self.found = tier, tickets, found

    def wait(self) -> Mapping[int, np.ndarray]:
        """Returns ``found`` once all is read.

        Raises
        ------
        TierError
            A page cannot be read, or is not what was written.
        """
        tickets, self._tickets = self._tickets, ()
        self._tier._over(tickets)
        return self.found


class Tier:
    """Rows of all blocks.

    Parameters
    ----------
    folder : Path
        Of this rank alone, on a disk of this host; made where it is not there. What another tier has left in it, as
        one whose process was killed, is removed.
    blocks : sequence of BlockRows
    settings : Settings
    generation : int, optional
        Opens this one, with its rows; default: no row was ever written.

    Raises
    ------
    ConfigError
        Another process has the folder; a setting that is not allowed.
    TierError
        The generation is not there, not of these blocks, or damaged.
    OutputError
        Files cannot be made in the folder.
    """

    def __init__(
        self,
        folder: Path,
        blocks: Sequence[BlockRows],
        settings: Settings | None = None,
        *,
        generation: int | None = None,
    ) -> None:
        settings = settings or Settings()
        _check(settings)
        self.folder, self.blocks = folder, tuple(blocks)
        self._lock = RLock()
        self._broken: str | None = None
        self._first: BaseException | None = None  # the error since when it is
        self._held: dict[int, list[Segment]] = {}
        self._unsettled: dict[int, dict[str, Any]] = {}  # by generation: what its file will say
        self._last = 0  # generation
        self._lock_file = locked(folder)
        largest = max((Layout.of(of.record_bytes).page_bytes for of in blocks), default=4096)
        self._io: Any = None
        try:
            self._io, self.io_way = pages.page_io(settings.io, largest, settings.depth)
            self._common = Common(folder, self._io, settings)
            self._logs = self._empty()
            said = None if generation is None else self._listed(folder, generation)
            self._begin(said, generation)
        except BaseException:
            self.close()
            raise

    # Steps.

    def read(self, wanted: Mapping[int, Wanted]) -> Reading:
        """Begins to read rows, by block, as they are now: what is written later does not change what is read.

        Raises
        ------
        TierError
            An earlier call has failed.
        ValueError
            Rows that the block does not have, or columns that are not its own.
        """
        with self._lock:
            self._check_whole()
            tickets, found = [], {}
            for block, asked in wanted.items():
                columns, rows, at = self._checked(block, asked)
                log = self._logs[block]
                found[block] = there = log.has(rows)
                at = np.arange(len(rows)) if at is None else at
                if not there.all():
                    rows, at = rows[there], at[there]
                tickets.append((log, log.read(rows, at, columns)))
            return Reading(self, tickets, found)

    def _over(self, tickets: Sequence[tuple[RowLog, Ticket]]) -> None:
        error: TierError | None = None
        for log, ticket in tickets:
            if ticket.number is None:
                continue
            outcome = self._io.wait(ticket.number)
            with self._lock:
                try:
                    log.over(ticket, outcome)
                except TierError as found:
                    error = error or found
        if error is not None:
            raise error

    def write(self, given: Mapping[int, Wanted]) -> None:
        """Takes rows, each block's distinct. They are copied, and written behind; space is taken back meanwhile.

        Raises
        ------
        OutputError, TierError
            They cannot be written, or what had to be moved not be read. Nothing can be read or written from then on.
        ValueError
            As ``read``; or a row comes twice.
        """
        with self._lock:
            self._check_whole()
            checked = [(block, *_rising(block, *self._checked(block, asked))) for block, asked in given.items()]
            with self._whole():
                for block, columns, rows, at in checked:
                    self._logs[block].write(rows, at, columns)

    def flush(self) -> None:
        """All that was written is on the disk.

        Raises
        ------
        OutputError, TierError
            As ``write``.
        """
        with self._lock:
            self._check_whole()
            with self._whole():
                for log in self._logs:
                    log.flush()

    # Generations.

    @contextlib.contextmanager
    def in_haste(self) -> Iterator[None]:
        """What is written meanwhile waits for no space to be taken back: the next write does that.

        Nothing is locked: a thread that brings rows may hold what a caller waits for, and wait for this.
        """
        self._common.cleans = False
        try:
            yield
        finally:
            self._common.cleans = True

    @property
    def is_in_haste(self) -> bool:
        """See ``in_haste``."""
        return not self._common.cleans

    def keep(self, *, flush: bool = True) -> Generation:
        """Makes a generation of the rows as they are; its files and their names are flushed to the disk.

        Its segments are not cleaned until ``drop``: what of them dies meanwhile takes space beyond the limit. So a
        checkpoint makes links to its files and drops it at once; the next one has the same segments, as far as they
        are still there.

        Parameters
        ----------
        flush : bool
            False: all is written, and ``settle`` flushes it, which takes longer, and which another thread may call.

        Raises
        ------
        OutputError, TierError
            As ``write``.
        """
        with self._lock:
            self._check_whole()
            with self._whole():
                number = max(self._held, default=self._last) + 1
                self._last = number
                by_block = [log.seal() for log in self._logs]
                self._unsettled[number] = {
                    "blocks": [_geometry(log) for log in self._logs],
                    "segments": [[s.number for s in segments] for segments in by_block],
                    "seals": [[s.seal_sum for s in segments] for segments in by_block],
                    "stamp": self._common.stamp,
                }
                segments = [s for of in by_block for s in of]
                self._hold(number, segments)
        if flush:
            self.settle(number)
        files = (self.folder / list_name(number), *(s.path for s in segments))
        return Generation(number, files, tuple(s.seal_sum for s in segments))

    def settle(self, number: int) -> None:
        """Flushes the files of a generation and their names to the disk, and has a file that lists them.

        Steps go on meanwhile; the generation is not dropped before it ends.

        Raises
        ------
        OutputError, TierError
            As ``write``.
        """
        with self._lock:
            self._check_whole()
            segments, said = self._held[number], self._unsettled.get(number)
        if said is None:
            return
        with self._whole():
            for segment in segments:
                if not segment.is_flushed:
                    segment.sync()
        write_list(self.folder / list_name(number), said)  # where that fails rows are still known
        self._unsettled.pop(number, None)

    def _hold(self, number: int, segments: list[Segment]) -> None:
        for segment in segments:
            segment.pins += 1
        self._held[number] = segments

    def drop(self, number: int) -> None:
        """This generation is not needed here any more: its file goes, and its segments may be cleaned.

        Raises
        ------
        ValueError
            There is none of this number.
        """
        with self._lock:
            if number not in self._held:
                raise ValueError(f"generation {number} is not kept; those that are: {sorted(self._held)}")
            self._unsettled.pop(number, None)
            for segment in self._held.pop(number):
                segment.pins -= 1
            (self.folder / list_name(number)).unlink(missing_ok=True)

    def verify(self) -> int:
        """Reads every page that is sealed, and its footer; returns how many pages.

        Raises
        ------
        TierError
            One cannot be read, or is not what was written.
        """
        with self._lock:
            self._check_whole()
            return sum(log.verify() for log in self._logs)

    # What there is.

    @property
    def n_bytes(self) -> int:
        """Of memory, all in all."""
        return sum(log.n_bytes for log in self._logs) + int(self._io.n_bytes)

    @property
    def disk_bytes(self) -> int:
        """Of files, space that is taken for what will be written included."""
        return sum(log.disk_bytes for log in self._logs)

    @property
    def page_bytes(self) -> list[int]:
        """Of each block: what one read asks the disk for."""
        return [log.layout.page_bytes for log in self._logs]

    @property
    def alive_bytes(self) -> int:
        """Of rows that were ever written, each once."""
        return sum(log.n_alive * log.layout.record_bytes for log in self._logs)

    @property
    def counts(self) -> Counts:
        """Since it was opened."""
        return self._common.counts

    def figures(self) -> dict[str, float]:
        """What summary.json says of it."""
        counts = self.counts
        return {
            "disk_bytes": self.disk_bytes,
            "disk_alive_bytes": self.alive_bytes,
            "disk_rows_read": counts.read_rows,
            "disk_pages_read": counts.read_pages,
            "disk_bytes_written": counts.written_bytes,
            "disk_written_of_handed": counts.written_bytes / max(counts.handed_bytes, 1),
            "disk_memory_bytes": self.n_bytes,
        }

    def fail(self, *, writes: bool, after: int, error: int) -> None:
        """For tests: of the reads, or writes, that end from now on, the one with so many before it fails so."""
        self._io.fail(writes, after, error)

    def close(self) -> None:
        """Lets the folder go; nothing more is written, and what is no generation is as good as gone."""
        with self._lock:
            self._broken = self._broken or "it is closed"
            if self._io is not None:
                self._io.close()
                self._io = None
            for log in getattr(self, "_logs", ()):
                log.close()
            self._lock_file.close()

    def remove(self) -> None:
        """Closes it; its files go, with all rows and generations here, and the folder if nothing else is in it.

        The lock is let go last: whoever waits for the folder finds it empty, or makes it anew.
        """
        with self._lock, contextlib.suppress(OSError):  # what cannot be removed now is by whoever has the folder next
            for path in self.folder.iterdir():
                if NAME.fullmatch(path.name):
                    path.unlink()
            (self.folder / "lock").unlink()
            self.folder.rmdir()
        self.close()

    def __enter__(self) -> "Tier":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Opening.

    def _empty(self) -> list[RowLog]:
        return [RowLog(self._common, b, of.rows, of.record_bytes) for b, of in enumerate(self.blocks)]

    def _listed(self, folder: Path, generation: int) -> dict[str, Any]:
        path = folder / list_name(generation)
        said, here = read_list(path), [_geometry(log) for log in self._logs]
        if said["blocks"] != here:
            raise TierError(f"{path}: has blocks {said['blocks']}; wanted are {here}. Open it as it was written.")
        return said

    def _begin(self, said: Mapping[str, Any] | None, generation: int | None) -> None:
        """Takes the segments of a generation, and removes what else there is."""
        segments = []
        for block, log in enumerate(self._logs if said is not None else ()):
            mine = open_segments(self.folder, said or {}, block, log.layout)
            segments += mine
            log.take(mine)
        wanted = {segment.path.name for segment in segments} | {list_name(generation or 0) if said else ""}
        last = 0
        for path in sorted(self.folder.iterdir()):
            if (named := NAME.fullmatch(path.name)) is not None:
                last = max(last, int(named[2]) if named[1] == "segment" else 0)
                if path.name not in wanted:
                    path.unlink()
        self._common.numbers = itertools.count(last + 1)
        self._common.stamp = int(said["stamp"]) if said else 1
        self._last = generation or 0
        if said and generation is not None:
            self._hold(generation, segments)

    def fits(self, folder: Path, generation: int) -> bool:
        """Whether a generation in another folder is of blocks like these, so that ``take`` takes it.

        Raises
        ------
        TierError
            Its list cannot be read.
        """
        return bool(read_list(folder / list_name(generation))["blocks"] == [_geometry(log) for log in self._logs])

    def take(self, folder: Path, generation: int) -> int:
        """The rows become those of a generation in another folder; returns bytes that had to be copied.

        Its segments get names here too, or are copied where these are different file systems, and footers are read, no
        page is. Nothing is being read or written, and no generation is kept.

        Raises
        ------
        OutputError, TierError
            As of a tier that is opened; nothing can be read or written from then on.
        ValueError
            A generation is kept.
        """
        with self._lock:
            self._check_whole()
            if self._held:
                raise ValueError(f"generations {sorted(self._held)} are kept; drop them first")
            with self._whole():
                said, n_bytes = self._listed(folder, generation), 0
                for log in self._logs:
                    log.rest()  # what is on its way has a descriptor's number alone, which others are given once closed
                    log.close()
                for path in self.folder.iterdir():
                    if NAME.fullmatch(path.name):
                        path.unlink()
                for name in (segment_name(number) for numbers in said["segments"] for number in numbers):
                    n_bytes += self._put(folder / name, self.folder / name)
                self._logs = self._empty()
                self._begin(said, generation)
                self.drop(generation)
                return n_bytes

    def looked_at(self) -> Pass:
        """Begins to read all pages that are sealed now, beside what is read and written meanwhile."""
        with self._lock:
            self._check_whole()
            return Pass([segment for log in self._logs for segment in log.sealed()])

    @staticmethod
    def _put(source: Path, target: Path) -> int:
        try:
            return 0 if linked(source, target) else copied(source, target)
        except OSError as error:
            raise not_written(target, error.errno, f"a copy of {source}") from error

    def _checked(self, block: int, asked: Wanted) -> tuple[list[Bytes], Ints, Ints | None]:
        if not 0 <= block < len(self.blocks):
            raise ValueError(f"block {block} is not there; there are {len(self.blocks)}")
        of, rows, at = self.blocks[block], np.ascontiguousarray(asked.rows, np.int64), asked.at
        columns = of.bytes_of(block, asked.columns)
        _require_below(f"block {block}: rows", rows, of.rows)
        lengths = {len(column) for column in columns}
        if len(lengths) != 1 or (at is None and lengths != {len(rows)}):
            raise ValueError(f"block {block}: columns have {sorted(lengths)} rows, for {len(rows)} that are asked")
        if at is not None:
            at = np.ascontiguousarray(at, np.int64)
            if len(at) != len(rows):
                raise ValueError(f"block {block}: {len(at)} places for {len(rows)} rows")
            _require_below(f"block {block}: places", at, lengths.pop())
        return columns, rows, at

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise TierError(f"{self.folder}: rows are not known any more: {self._broken}. {AGAIN}") from self._first

    def _whole(self) -> "_Whole":
        return _Whole(self)


class _Whole:
    """What fails in the middle leaves rows of which nobody knows what they are."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if error is not None:
            self._tier._broken, self._tier._first = f"{type(error).__name__}: {error}", error


def _rising(block: int, columns: list[Bytes], rows: Ints, at: Ints | None) -> tuple[list[Bytes], Ints, Ints | None]:
    """The same in the order of rows, which is that of a footer."""
    if (np.diff(rows) <= 0).any():
        order = np.argsort(rows)
        rows, at = rows[order], order if at is None else at[order]
        if (np.diff(rows) == 0).any():
            raise ValueError(f"block {block}: a row is written twice in one call; give each once")
    return columns, rows, at


def _check(settings: Settings) -> None:
    if not 1.1 < settings.spare <= 100:
        raise ConfigError(f"spare is {settings.spare}; allowed are more than 1.1 to 100 times the rows")
    for name in ("segment_bytes", "piece_bytes"):
        value = getattr(settings, name)
        if value is not None and not 4096 <= value <= 1 << 30:
            raise ConfigError(f"{name} is {value}; allowed are 4096 to {1 << 30}")


def _require_below(name: str, values: Ints, limit: int) -> None:
    if len(values) and (values.min() < 0 or values.max() >= limit):
        raise ValueError(f"{name} are {values.min()} to {values.max()}; allowed are 0 to {limit - 1}")


def _geometry(log: RowLog) -> list[int]:
    return [log.rows, *log.layout.sizes, log.segment_pages]
