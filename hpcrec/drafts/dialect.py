"""How a text table is written: its delimiter, quotes and names, guessed from the first lines of its first file.

Knows no kinds of columns; whether the guess holds in the rest of the files is for `sample` to see.
"""

import csv
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcrec.errors import ConfigError, DataError
from hpcrec.kernels import text
from hpcrec.kernels.text import Bytes
from hpcrec.preparation import lines
from hpcrec.preparation.blocks import DELIMITERS, schema_of
from hpcrec.preparation.pieces import TYPED, Kind, Span, kind_of

_LINES = 5000
_BYTES = 1 << 20
_ALIKE = 0.9  # share of lines with as many columns as most: below it there is no telling that it is a table


@dataclass(frozen=True)
class Dialect:
    """How a table is written, and the names of its columns.

    Attributes
    ----------
    names : tuple of str
    delimiter, quotes, header
        See `TableMap`.
    share : float
        Of the lines that were looked at, those with a value for each name; 1 where the files have types.
    is_text : bool
    why_header : str
    """

    names: tuple[str, ...]
    delimiter: str = ","
    quotes: bool = False
    header: bool = True
    share: float = 1.0
    is_text: bool = False
    why_header: str = ""


class _NoDigest:
    def update(self, data: bytes, /) -> None:
        """Nothing is done with it."""


def guess(path: Path, label: str, columns: Sequence[str] = ()) -> Dialect:
    """How this table is written.

    Parameters
    ----------
    path : Path
    label : str
        Name of a column that has to be there: it tells a header.
    columns : sequence of str
        Names of a text without header; none: they are c1, c2, ...

    Raises
    ------
    ConfigError
        No delimiter fits, or the label is no column; names the columns.
    DataError
        A file that cannot be read.
    """
    kind = kind_of(path)
    if kind in TYPED:
        if columns:
            raise ConfigError(f"--columns: {path} brings its names; leave them out.")
        found = Dialect(tuple(schema_of(path, kind).names))
    else:
        found = _of_text(path, kind, label, columns)
    if label not in found.names:
        hint = "" if found.header else "; its first line has no names: give them by --columns, or take one of these"
        near = difflib.get_close_matches(label, found.names, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        known = f"it has {', '.join(found.names)}{hint}.{meant}"
        raise ConfigError(f"{path}: no column {label!r} for the label; {known} Give one by --label.")
    return found


def _of_text(path: Path, kind: Kind, label: str, columns: Sequence[str]) -> Dialect:
    block = next(lines.read(Span(path, kind, 0, min(path.stat().st_size, _BYTES)), _NoDigest()), None)
    if block is None:
        raise DataError(f"{path}: has no line; leave it out, or copy it again.")
    ends = np.flatnonzero(block.text == ord("\n"))[:_LINES]
    head, n = block.text[: ends[-1] + 1], len(ends)
    best: tuple[bool, int, float, str, bool] | None = None
    for delimiter in DELIMITERS:
        quotes = _has_quotes(head, delimiter)
        count, share = _shape(head, n, delimiter, quotes)
        fits = label in _fields(head, delimiter, quotes)
        if count > 1 and share >= _ALIKE and (best is None or (fits, count) > best[:2]):
            best = (fits, count, share, delimiter, quotes)
    if best is None:
        told = ", ".join(DELIMITERS.values())
        first = head[: ends[0]].tobytes().decode(errors="replace")[:80]
        raise ConfigError(
            f"{path}: none of {told} cuts its lines into equally many values (the first: {first!r}). Write it with one "
            "character between values, each row on one line."
        )
    fits, count, share, delimiter, quotes = best
    fields = _fields(head, delimiter, quotes)
    header, why = _header(fields, head, n, label, columns)
    names = tuple(fields) if header else tuple(columns or (f"c{i + 1}" for i in range(count)))
    if len(names) != count:
        raise ConfigError(f"{path}: has {count} columns, but --columns names {len(names)}; name each.")
    if len(set(names)) != len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        if not header:
            raise ConfigError(f"{path}: --columns names {twice!r} twice; name each column once.")
        raise ConfigError(
            f"{path}: the first line has the label, {label!r}, so that it is taken for names, and has {twice!r} twice; "
            "name each column once. If it is a line of values, name columns by --columns, or take --label c1 (c2, ...)."
        )
    return Dialect(names, delimiter, quotes, header, share, True, why)


def _has_quotes(head: Bytes, delimiter: str) -> bool:
    between = re.escape(delimiter.encode())
    return re.search(rb"(?:^|[\n" + between + rb'])"', head.tobytes()) is not None


def _shape(head: Bytes, n: int, delimiter: str, quotes: bool) -> tuple[int, float]:
    """How many columns most lines have, and their share."""
    _, _, _, columns = text.cut_lines(
        head, delimiter=delimiter, quote='"' if quotes else None, wanted=np.zeros(1, np.int32), n_lines=n
    )
    values, counts = np.unique(columns, return_counts=True)
    return int(values[counts.argmax()]), float(counts.max() / n)


def _fields(head: Bytes, delimiter: str, quotes: bool) -> list[str]:
    line = head.tobytes().split(b"\n", 1)[0].rstrip(b"\r").decode(errors="replace")
    return next(csv.reader([line], delimiter=delimiter), [""]) if quotes else line.split(delimiter)


def _header(fields: list[str], head: Bytes, n: int, label: str, columns: Sequence[str]) -> tuple[bool, str]:
    if columns:
        return False, "the names were given"
    if label in fields:
        return True, "the first line names the label"
    if any(not field or re.fullmatch(r"[-+.\d eE]+", field) for field in fields) or len(set(fields)) < len(fields):
        return False, "the first line has numbers, nothing or the same twice where names would be"
    body = head.tobytes().split(b"\n", 1)[1] if n > 1 else b""
    if n > 1 and all(field.encode() in body for field in fields):
        return False, "all that the first line has is in other lines too"
    return True, "the first line has words that are in no other"
