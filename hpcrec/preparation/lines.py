"""Reads spans of text files as blocks of whole lines, plain or gzip, and says where each line stands.

Memory: two blocks, whatever the size of the file. Knows nothing of what is in the lines.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from hpcrec.data import files
from hpcrec.errors import DataError
from hpcrec.kernels.text import Bytes
from hpcrec.preparation.pieces import Span
from hpcrec.units import MiB

BLOCK_BYTES = 4 * MiB
_LONGEST_LINE = 64 * MiB
_BOM = b"\xef\xbb\xbf"


class Digest(Protocol):
    """What is fed with the bytes read: a checksum, a progress bar, or both."""

    def update(self, data: bytes, /) -> None:
        """Take further bytes."""


@dataclass(frozen=True)
class Lines:
    """Whole lines that follow each other.

    Attributes
    ----------
    span : Span
        That they are of.
    text : uint8 [n]
        Each line ends in a newline.
    n : int
    first : int
        Number of the first of them among the lines of the span, from 0; a header counts.
    offset : int
        Byte of the file (of a gzip file: of its text) that the first begins at.
    """

    span: Span
    text: Bytes
    n: int
    first: int
    offset: int


def read(span: Span, digest: Digest, *, skip_header: bool = False) -> Iterator[Lines]:
    """Lines of a span, block by block.

    Parameters
    ----------
    span : Span
    digest : Digest
        Fed with the bytes of the span's lines as they lie on disk, the header's included; of gzip with the whole file.
    skip_header : bool
        The first line of the file is not data.

    Raises
    ------
    DataError
        A file that cannot be read or unpacked to its end, or a line without end.
    """
    first, offset, rest = 0, 0, b""
    header = skip_header and span.start == 0
    try:
        with span.path.open("rb") as raw:
            begin, end = (0, None) if span.kind == "gzip" else (_line_at(raw, span.start), _line_at(raw, span.stop))
            raw.seek(begin)
            offset = begin
            fed: Any = _Fed(raw, digest)
            file: Any = gzip.GzipFile(fileobj=fed) if span.kind == "gzip" else raw
            left = end - begin if end is not None else None
            while part := file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left)):
                if left is not None:
                    left -= len(part)
                    digest.update(part)
                last = part.rfind(b"\n") + 1
                if not last:
                    rest += part
                    _check_length(span, rest, first)
                    continue
                block, rest = rest + part[:last], part[last:]
                if header:
                    cut = block.index(b"\n") + 1
                    block, first, offset, header = block[cut:], 1, offset + cut, False
                elif not offset and block.startswith(_BOM):
                    block, offset = block[len(_BOM) :], len(_BOM)
                if block:
                    lines = Lines(span, np.frombuffer(block, np.uint8), block.count(b"\n"), first, offset)
                    yield lines
                    first, offset = first + lines.n, offset + len(block)
            if rest and not header:
                yield Lines(span, np.frombuffer(rest + b"\n", np.uint8), 1, first, offset)
            elif not first and span.kind == "gzip":
                raise DataError(f"{span.path}: has no line; leave it out, or copy it again.")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{span.path}: the gzip data is damaged or cut short after line {first} ({error}); copy it again."
        ) from error
    except OSError as error:
        raise DataError(f"{span.path}: not readable after line {first} ({error}); copy it again.") from error


def count(span: Span, digest: Digest, *, skip_header: bool = False) -> int:
    """How many lines `read` gives."""
    return sum(lines.n for lines in read(span, digest, skip_header=skip_header))


def lines_before(span: Span) -> int:
    """Lines of the file that stand before the span."""
    if span.start == 0 or span.kind == "gzip":
        return 0
    with files.named(span.path), span.path.open("rb") as file:
        left, n = _line_at(file, span.start), 0
        file.seek(0)
        while part := file.read(min(BLOCK_BYTES, left)):
            n += part.count(b"\n")
            left -= len(part)
    return n


def first_line(path: Path, kind: str) -> str:
    """The first line of a file, without what ends it and without a byte order mark."""
    try:
        with gzip.open(path) if kind == "gzip" else path.open("rb") as file:
            line = file.readline(_LONGEST_LINE)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}, line 1: not readable ({error}); copy the file again.") from error
    return line.removeprefix(_BOM).rstrip(b"\r\n").decode(errors="replace")


def _line_at(file: IO[bytes], place: int) -> int:
    """Where the first line begins that begins at `place` or later; the end of the file where there is none."""
    if place == 0:
        return 0
    file.seek(place - 1)
    at = place - 1
    while part := file.read(1 << 16):
        found = part.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(part)
    return at


def _check_length(span: Span, rest: bytes, first: int) -> None:
    if len(rest) > _LONGEST_LINE:
        raise DataError(
            f"{span.path}: the line after {first} lines has no end within {_LONGEST_LINE >> 20} MiB; is it text?"
        )


class _Fed:
    """A file object that feeds a digest with what is read."""

    def __init__(self, file: IO[bytes], digest: Digest) -> None:
        self._file, self._digest = file, digest

    def read(self, n: int = -1) -> bytes:
        part = self._file.read(n)
        self._digest.update(part)
        return part
