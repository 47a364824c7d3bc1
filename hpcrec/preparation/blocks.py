"""Opens spans of a table as blocks of rows: text by its delimiter, others by Arrow; each knows where its rows stand.

What the columns mean is not known here.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hpcrec.errors import ConfigError, DataError
from hpcrec.kernels import text
from hpcrec.kernels.text import Places
from hpcrec.preparation import lines
from hpcrec.preparation.cells import ArrowCells, Cells, TextCells
from hpcrec.preparation.lines import Digest, Lines
from hpcrec.preparation.pieces import TYPED, Kind, Span, kind_of, open_arrow, open_parquet
from hpcrec.preparation.tablemap import TableMap, places
from hpcrec.types import Ints

DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars", "\x01": "bytes 1", " ": "spaces"}
TYPED_ROWS = 1 << 14  # of a block of Parquet or Arrow, at most


@dataclass(frozen=True)
class Block:
    """Rows of a span that follow each other.

    Attributes
    ----------
    span : Span
    n : int
    first : int
        Number of row 0 in the span (of text: of its line in the span, a header counts).
    offset_R : int64 [n] or None
        Byte of the file that each row begins at; None for Parquet and Arrow.
    cells : dict of str to Cells
        By column.
    wrong : dict of int to str
        Rows that are no row of the table, and what was found.
    """

    span: Span
    n: int
    first: int
    cells: dict[str, Cells]
    offset_R: Ints | None = None
    wrong: dict[int, str] = field(default_factory=dict)
    lines: Lines | None = None

    def raw(self, row: int) -> str:
        """The row as it stands in the file; of Parquet and Arrow, the columns in use."""
        if self.lines is None or self.offset_R is None:
            return ", ".join(f"{name}={cells.shown(row)}" for name, cells in self.cells.items())
        begin = int(self.offset_R[row] - self.offset_R[0])
        line = self.lines.text[begin:].tobytes().split(b"\n", 1)[0]
        return line.rstrip(b"\r").decode(errors="replace")


class Reader:
    """Reads the spans of sources that have the same columns.

    Parameters
    ----------
    table : TableMap
    sources : sequence of Path
        All of them: their columns are looked at here.

    Raises
    ------
    ConfigError
        A column that the map names is not there.
    DataError
        Headers that differ, or a file that cannot be read.
    """

    def __init__(self, table: TableMap, sources: list[Path]) -> None:
        self.table = table
        self._names: tuple[str, ...] = table.columns
        self._header_of: Path | None = None
        has_text = False
        for path in sources:
            kind = kind_of(path)
            if kind in TYPED:
                schema = schema_of(path, kind)
                places(schema.names, table, str(path))
                self._check_lists(path, schema)
                continue
            has_text = True
            if table.header:
                self._take_header(path, kind)
        if has_text:
            self._open_text()

    def _open_text(self) -> None:
        if not self._names:
            raise ConfigError("columns: needed for text without a header line; name them, or set header = true.")
        if lists := [name for name, column in self.table.sparse.items() if column.list]:
            raise ConfigError(f"sparse.{lists[0]}: list is for Parquet; of text files give the separator.")
        where = "the table" if self._header_of is None else str(self._header_of)
        at = places(self._names, self.table, where)
        order = np.argsort(at)
        self._used = [self.table.used[i] for i in order]
        self._at: Places = np.array(at, np.int32)[order]

    def columns_of(self, path: Path) -> tuple[str, ...]:
        """Names of all columns of a source."""
        kind = kind_of(path)
        return tuple(schema_of(path, kind).names) if kind in TYPED else self._names

    def blocks(self, span: Span, digest: Digest) -> Iterator[Block]:
        """The rows of a span."""
        if span.kind in TYPED:
            yield from self._typed(
                span, self._parquet(span, digest) if span.kind == "parquet" else self._arrow(span, digest)
            )
            return
        for block in lines.read(span, digest, skip_header=self.table.header):
            yield self._text(block)

    def count(self, span: Span, digest: Digest) -> int:
        """Rows of a span, bad ones included, without a look at what they hold."""
        if span.kind == "parquet":
            with open_parquet(span.path) as file:
                return sum(file.metadata.row_group(group).num_rows for group in range(span.start, span.stop))
        if span.kind == "arrow":
            return sum(block.n for block in self.blocks(span, digest))
        return lines.count(span, digest, skip_header=self.table.header)

    def _text(self, block: Lines) -> Block:
        begin, end, line_begin, columns = text.cut_lines(
            block.text,
            delimiter=self.table.delimiter,
            quote='"' if self.table.quotes else None,
            wanted=self._at,
            n_lines=block.n,
        )
        wrong = {}
        for row in np.flatnonzero(columns != len(self._names)).tolist():
            shown = block.text[line_begin[row] : line_begin[row + 1] - 1].tobytes().decode(errors="replace")
            found = f"{columns[row]} columns" if columns[row] >= 0 else "a quote that is not closed"
            wrong[row] = f"found {found} in {shown[:80]!r}; allowed is {len(self._names)}"
            if self._has_them_in_quotes(block.text[line_begin[row] : line_begin[row + 1]]):
                wrong[row] += ", which it has with quotes = true in the map"
        cells = {name: self._filled(TextCells(block.text, begin[i], end[i])) for i, name in enumerate(self._used)}
        return Block(
            block.span, block.n, block.first, cells, block.offset + line_begin[:-1].astype(np.int64), wrong, block
        )

    def _has_them_in_quotes(self, line: text.Bytes) -> bool:
        """Whether a line that has not the columns would have them if quotes enclosed values."""
        if self.table.quotes or not (line == ord('"')).any():
            return False
        cut = text.cut_lines(line, delimiter=self.table.delimiter, quote='"', wanted=self._at, n_lines=1)
        return int(cut[-1][0]) == len(self._names)

    def _typed(self, span: Span, batches: Iterator[Any]) -> Iterator[Block]:
        """Blocks of record batches."""
        first = 0
        try:
            for batch in batches:
                cells = {name: self._filled(ArrowCells(batch.column(name))) for name in self.table.used}
                yield Block(span, batch.num_rows, first, cells)
                first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{span.path}: not readable after row {first} ({error}); copy it again.") from error

    def _parquet(self, span: Span, digest: Digest) -> Iterator[Any]:
        with open_parquet(span.path) as file:
            # The bytes of a span of row groups do not lie together: its checksum is of what says where they lie.
            for group in range(span.start, span.stop):
                digest.update(_places(file.metadata.row_group(group)))
            groups = range(span.start, span.stop)
            yield from file.iter_batches(
                TYPED_ROWS, row_groups=groups, columns=list(self.table.used), use_threads=False
            )

    def _arrow(self, span: Span, digest: Digest) -> Iterator[Any]:
        names = schema_of(span.path, "arrow").names
        with open_arrow(span.path, sorted(places(names, self.table, str(span.path)))) as file:
            for group in range(span.start, span.stop):
                batch = file.get_batch(group)
                batch.validate(full=True)  # offsets that lie outside would be followed
                for column in batch.columns:
                    for buffer in column.buffers():
                        digest.update(b"" if buffer is None else buffer.to_pybytes())
                for start in range(0, batch.num_rows, TYPED_ROWS):
                    yield batch.slice(start, TYPED_ROWS)

    def _filled(self, cells: Cells) -> Cells:
        """Cells whose marks of what is missing are empty."""
        return cells.without(self.table.empty) if self.table.empty else cells

    def _take_header(self, path: Path, kind: str) -> None:
        line = lines.first_line(path, kind)
        names = tuple(line.split(self.table.delimiter))
        quoted = tuple(next(csv.reader([line], delimiter=self.table.delimiter), ()))
        if self.table.quotes:
            names = quoted
        elif not set(self.table.used) <= set(names) and set(self.table.used) <= set(quoted):
            raise ConfigError(f"{path}, line 1: names are in quotes in {line[:80]!r}. Set quotes = true in the map.")
        if not set(self.table.used) & set(names):
            self._refuse_header(path, line, names)
        if self._header_of is None:
            self._names, self._header_of = names, path
            if len(set(names)) != len(names):
                raise DataError(f"{path}, line 1: a name occurs twice in the header {line[:80]!r}; name each once.")
        elif names != self._names:
            raise DataError(
                f"{path}, line 1: found the header {line[:80]!r}; {self._header_of} has "
                f"{self.table.delimiter.join(self._names)[:80]!r}. Convert files with other columns apart."
            )

    def _refuse_header(self, path: Path, line: str, names: Sequence[str]) -> None:
        """Refuses a first line that has none of the columns where it is cut otherwise, or is no header."""
        for delimiter in DELIMITERS:
            if set(self.table.used) & set(line.split(delimiter)):
                raise ConfigError(
                    f"{path}, line 1: delimiter is {json.dumps(self.table.delimiter)}, which does not cut the header "
                    f"{line[:80]!r} into the columns of the map. Set delimiter = {json.dumps(delimiter)} in the map."
                )
        if any(_is_number(name) for name in names):
            absent = ", ".join(map(repr, self.table.used))
            raise ConfigError(
                f"{path}, line 1: found {line[:80]!r}, which is no header: it names none of {absent}. Set "
                f"header = false and columns = [...] in the map, with a name for each of its {len(names)} columns."
            )

    def _check_lists(self, path: Path, schema: Any) -> None:
        for name, column in self.table.sparse.items():
            kind = schema.field(column.column or name).type
            is_list = ArrowCells(pa.array([], kind)).is_list
            if column.list != is_list:
                change = "set list = true" if is_list else "leave list out"
                raise ConfigError(f"{path}: column {column.column or name!r} is {kind}; {change} in sparse.{name}.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def schema_of(path: Path, kind: Kind) -> Any:
    """Names and types of the columns of a Parquet or Arrow file."""
    with open_parquet(path) if kind == "parquet" else open_arrow(path) as file:
        return file.schema_arrow if kind == "parquet" else file.schema


def _places(group: Any) -> bytes:
    """Where the columns of a row group lie in a Parquet file, and how much there is of each: statistics left out.

    Of those Python cannot read all, times finer than its own for one.
    """
    columns = (group.column(i) for i in range(group.num_columns))
    whole = [
        (c.path_in_schema, c.physical_type, c.num_values, c.data_page_offset, c.total_compressed_size) for c in columns
    ]
    return repr((group.num_rows, group.total_byte_size, whole)).encode()
