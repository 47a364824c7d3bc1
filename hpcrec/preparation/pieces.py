"""Cuts the sources of a conversion into pieces, and knows a source again.

A piece is what one rank converts at a time and what a conversion that was cut short keeps. Pieces depend on the sources
and their sizes alone: not on the number of ranks, so neither does what is written. Reads no lines.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.ipc
import pyarrow.parquet

from hpcrec.data.files import named
from hpcrec.errors import ConfigError, DataError
from hpcrec.units import MiB

Kind = Literal["text", "gzip", "parquet", "arrow"]

TYPED: tuple[Kind, ...] = ("parquet", "arrow")  # bring names and types of their columns

PIECE_BYTES = 256 * MiB
_GZIP_WEIGHT = 3  # bytes of text that a byte of gzip stands for where small files are joined
_ENDS_BYTES = 1 << 20
_MAGIC: dict[bytes, Kind] = {b"\x1f\x8b": "gzip", b"PAR1": "parquet", b"ARROW1": "arrow"}
_STREAM = b"\xff\xff\xff\xff"  # begins Arrow's format of streams, which has no list of its batches


@dataclass(frozen=True)
class Span:
    """A part of a source: the lines whose first byte is in ``[start, stop)``.

    Of Parquet it is these row groups, of Arrow these record batches.
    A gzip file cannot be entered in the middle: its span is the whole file.
    """

    path: Path
    kind: Kind
    start: int
    stop: int


@dataclass(frozen=True)
class Piece:
    """Spans that follow each other in the order of the sources; several where files are small."""

    number: int
    spans: tuple[Span, ...]
    n_bytes: int


def kind_of(path: Path) -> Kind:
    """Told by the first bytes."""
    try:
        with path.open("rb") as file:
            head = file.read(6)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; change the path.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give the path of a readable file.") from error
    if not head:
        raise DataError(f"{path}: is empty; leave it out, or copy it again.")
    if head.startswith(_STREAM):
        raise DataError(f"{path}: is a stream of Arrow's; write it as an Arrow file (Feather) or as Parquet.")
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "text")


def cut(sources: Sequence[Path], piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Pieces of the sources, in order.

    A text file longer than `piece_bytes` is cut at multiples of it, Parquet and Arrow between row groups. What is
    shorter is joined with its neighbours up to that size.

    Raises
    ------
    DataError
        A source that is absent, unreadable or empty.
    """
    if piece_bytes < 1:
        raise ConfigError(f"prepare: pieces of {piece_bytes} bytes; 1 or more are needed.")
    pieces: list[Piece] = []
    spans: list[Span] = []
    weight = 0

    def close() -> None:
        nonlocal spans, weight
        if spans:
            pieces.append(Piece(len(pieces), tuple(spans), weight))
        spans, weight = [], 0

    for path in sources:
        for span, n_bytes in _spans(path, piece_bytes):
            if weight + n_bytes > piece_bytes:
                close()
            spans.append(span)
            weight += n_bytes
    close()
    return pieces


def _spans(path: Path, piece_bytes: int) -> list[tuple[Span, int]]:
    kind, size = kind_of(path), path.stat().st_size
    if kind == "gzip":
        return [(Span(path, kind, 0, size), _GZIP_WEIGHT * size)]
    if kind == "text":
        starts = range(0, size, piece_bytes)
        return [(Span(path, kind, at, min(at + piece_bytes, size)), min(piece_bytes, size - at)) for at in starts]
    found: list[tuple[Span, int]] = []
    first, n_bytes = 0, 0
    if kind == "arrow":  # which does not say how long a batch is without reading it
        with open_arrow(path) as batches:
            groups = batches.num_record_batches
        sizes = [size // max(groups, 1)] * groups
    else:
        with open_parquet(path) as file:
            groups = file.metadata.num_row_groups
            sizes = [file.metadata.row_group(group).total_byte_size for group in range(groups)]
    for group in range(groups):
        n_bytes += sizes[group]
        if n_bytes >= piece_bytes or group == groups - 1:
            found.append((Span(path, kind, first, group + 1), n_bytes))
            first, n_bytes = group + 1, 0
    return found


def open_parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    """Open a Parquet file; DataError where it is none, or cut short."""
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error}); copy it again.") from error


def open_arrow(path: Path, columns: Sequence[int] | None = None) -> Any:
    """Open an Arrow file, of which these columns are read, or all; DataError where it is none, or cut short."""
    options = pyarrow.ipc.IpcReadOptions(included_fields=columns)
    try:
        return pyarrow.ipc.open_file(pyarrow.OSFile(str(path)), options=options)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Arrow file ({error}); copy it again.") from error


def identity(path: Path) -> dict[str, Any]:
    """What a source is known again by: path, size, time of change, and a checksum of its first and last MiB."""
    facts = path.stat()
    digest = hashlib.sha256()
    with named(path), path.open("rb") as file:
        digest.update(file.read(_ENDS_BYTES))
        file.seek(max(facts.st_size - _ENDS_BYTES, 0))
        digest.update(file.read(_ENDS_BYTES))
    return {
        "path": str(path.resolve()),
        "bytes": facts.st_size,
        "modified_ns": facts.st_mtime_ns,
        "sha256_of_ends": digest.hexdigest(),
    }
