"""Rows of a checkpoint that are links to a store's files: read block by block as they lie there, in bounded memory.

A part whose rows are linked says where they are: which folder, generation and block, and what its records mean
(``embedding.linked``). Its pieces are pages of one segment, or rows that were never written, which start from
(seed, table, id). Knows parts and links; how segments are laid out is for ``disk.snapshot``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from hpcrec.again import read_again
from hpcrec.checkpoint import files
from hpcrec.checkpoint.parts import TableBlock, found_facts, read_hdf5
from hpcrec.disk.segment import AGAIN
from hpcrec.disk.snapshot import Snapshot
from hpcrec.embedding.linked import RecordPart
from hpcrec.errors import CheckpointError, TierError
from hpcrec.types import Ints

T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """Pages [start, stop) of a segment, by its place among those of the block; or rows that were never written.

    Attributes
    ----------
    path : Path
        Of the part.
    segment : int or None
        None: rows [start, stop) of the part, those of them that no segment has.
    """

    path: Path
    start: int
    stop: int
    segment: int | None


@dataclass(frozen=True)
class Linked:
    """A part whose rows are linked.

    Attributes
    ----------
    folder : Path
        With the links.
    generation, block : int
    part : RecordPart
    """

    folder: Path
    generation: int
    block: int
    part: RecordPart

    @staticmethod
    def of(path: Path) -> "Linked":
        """By the file of a part.

        Raises
        ------
        CheckpointError
            It is not as it should be.
        """

        def read(file: h5py.File) -> Linked:
            said = found_facts(file)
            if said is None:
                raise CheckpointError(f"{path}: has no rows that are linked.")
            name = str(said["folder"])
            if not files.is_folder_of_links(name):
                raise ValueError(f"folder {name!r} is none of links")
            columns = int(file.attrs["column_start"]), int(file.attrs["column_stop"])
            part = RecordPart(str(file.attrs["table"]), int(file.attrs["rows"]), columns, said)
            return Linked(path.parent.parent / name, int(said["generation"]), int(said["block"]), part)

        return read_hdf5(path, read)


class Reader:
    """Reads pieces; it remembers what it knows of the last block and of the last part."""

    def __init__(self) -> None:
        self._of: tuple[Path, int, int] | None = None
        self._snapshot: Snapshot | None = None
        self._ids_of: Path | None = None
        self._id_of_row: Ints = np.zeros(0, np.int64)
        self._has_id = np.zeros(0, bool)
        self._parts: dict[Path, Linked] = {}

    def pieces(self, path: Path, rows: int) -> list[Piece]:
        """Of a part: all that is to be read of it, about so many rows at a time."""
        linked = self._linked(path)

        def read() -> list[Piece]:
            snapshot = self._opened(linked)
            step = max(1, rows // snapshot.layout.per_page)
            found = [
                Piece(path, at, min(at + step, n), segment)
                for segment, n in enumerate(snapshot.pages)
                for at in range(0, n, step)
            ]
            if linked.part.facts["ids"] is None:
                return found  # a row is written when it is given to an id
            n_rows = linked.part.facts["rows"]
            return found + [Piece(path, at, min(at + rows, n_rows), None) for at in range(0, n_rows, rows)]

        return self._said(linked.folder, read)

    def block(self, piece: Piece) -> TableBlock:
        """What a piece holds of the part: ids, rows and states.

        Raises
        ------
        CheckpointError
            A segment is not as it should be.
        UnreadableError
            It cannot be read just now.
        """
        linked = self._linked(piece.path)
        part = linked.part

        def read() -> TableBlock:
            snapshot = self._opened(linked)
            if piece.segment is None:
                ids = part.ids(self._new(snapshot, part, piece))
                rows, states = part.first(ids)
            else:
                numbers, records = snapshot.read(piece.segment, piece.start, piece.stop, part.span)
                here, ids = self._ids(piece.path, part, numbers)
                rows, states = part.values(records if here is None else records[here])
            return TableBlock(ids=ids, rows=rows, states=states, columns=part.columns)

        return self._said(linked.folder, read)

    def ids(self, piece: Piece) -> Ints:
        """The ids of ``block``; no page is read."""
        linked = self._linked(piece.path)

        def read() -> Ints:
            snapshot = self._opened(linked)
            if piece.segment is None:
                return linked.part.ids(self._new(snapshot, linked.part, piece))
            numbers = snapshot.rows_in(piece.segment, piece.start, piece.stop, linked.part.span)
            return self._ids(piece.path, linked.part, numbers)[1]

        return self._said(linked.folder, read)

    def _new(self, snapshot: Snapshot, part: RecordPart, piece: Piece) -> Ints:
        return snapshot.unwritten(part.span[0] + piece.start, part.span[0] + piece.stop)

    def verify(self, path: Path) -> Iterator[str]:
        """All that is wrong with the segments of a part's block: every page, footer and seal is read."""
        linked = self._linked(path)
        try:
            yield from self._said(linked.folder, lambda: self._opened(linked).wrong())
        except CheckpointError as error:
            yield str(error)

    def _linked(self, path: Path) -> Linked:
        if path not in self._parts:
            self._parts[path] = Linked.of(path)
        return self._parts[path]

    def _opened(self, linked: Linked) -> Snapshot:
        key = linked.folder, linked.generation, linked.block
        if self._of != key or self._snapshot is None:
            self._snapshot, self._of = None, None  # its memory is needed
            self._snapshot, self._of = Snapshot(*key), key
        return self._snapshot

    def _ids(self, path: Path, part: RecordPart, rows: Ints) -> tuple[np.ndarray | None, Ints]:
        """Which of these rows have an id (None: all), and the ids."""
        if part.facts["ids"] is not None:
            return None, part.ids(rows)
        if self._ids_of != path:
            numbers, ids = linked_ids(path)
            self._has_id = np.zeros(part.facts["rows"], bool)
            self._id_of_row = np.zeros(part.facts["rows"], np.int64)
            self._has_id[numbers], self._id_of_row[numbers], self._ids_of = True, ids, path
        local = rows - part.facts["base"]
        here = self._has_id[local]
        return here, self._id_of_row[local[here]]

    def _said(self, folder: Path, read: Callable[[], T]) -> T:
        try:
            return read_again(folder, lambda: self._anew(read))
        except TierError as error:
            said = str(error).removesuffix(AGAIN).rstrip()
            raise CheckpointError(f"{said} 'hpcrec checkpoint verify' lists all that is wrong.") from error

    def _anew(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except OSError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise CheckpointError(f"{error}".removesuffix(AGAIN).rstrip()) from None
            raise


def linked_row_bytes(facts: Mapping[str, Any]) -> int:
    """Of a row with its states, by what its part says."""
    item = np.dtype(facts["dtype"]).itemsize
    return item * sum(int(np.prod(shape, dtype=np.int64)) for _, shape in facts["record"])


def linked_ids(path: Path) -> tuple[Ints, Ints]:
    """Of a part of a dynamic table whose rows are linked: row numbers in the part, and the ids that have them.

    Raises
    ------
    CheckpointError
        The file is not as it should be.
    """

    def read(file: h5py.File) -> tuple[Ints, Ints]:
        ids, rows = (np.asarray(file[name][()], np.int64) for name in ("ids", "linked_rows"))
        said = found_facts(file) or {}
        if len(ids) != len(rows) or len(np.unique(rows)) != len(rows) or rows.max(initial=-1) >= said["rows"]:
            raise ValueError(f"linked_rows are {len(rows)} rows for {len(ids)} ids, up to {rows.max(initial=-1)}")
        return rows, ids

    return read_hdf5(path, read)
