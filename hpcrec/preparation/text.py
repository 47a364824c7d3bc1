"""Streams delimited text, plain or gzip, as Arrow batches of strings, and says exactly which line is bad.

Columns stay text here: the numbers are parsed by `integers`, which knows the line of what it refuses.
Memory: a few blocks of `BLOCK_BYTES`, whatever the size of the file.
"""

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from tqdm import tqdm

from hpcrec.errors import DataError
from hpcrec.types import Ints

BLOCK_BYTES = 4 << 20
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Block:
    """Consecutive lines of a file: columns of text by name, and where they stand.

    Attributes
    ----------
    path : Path
    first_line : int
        Line of row 0, counted from 1.
    columns : dict of str to pyarrow.StringArray
    rows : int
    """

    path: Path
    first_line: int
    columns: dict[str, pa.StringArray]
    rows: int

    def refuse(self, row: int, column: str, allowed: str) -> DataError:
        """The error of a value that cannot be used."""
        found = self.columns[column][row].as_py()
        return DataError(
            f"{self.path}, line {self.first_line + row}, column {column}: found {found!r}; allowed is {allowed}. "
            "Mend or remove the line."
        )


class Source:
    """A text file to stream.

    Parameters
    ----------
    path : Path
        Gzip is told by its first bytes.
    columns : sequence of str
        Names of the columns; those named ``_`` are dropped.
    skip_header : bool
        The first line is not data.
    delimiter : str
    quotes : bool
        Whether double quotes may enclose a value.
    encoding : str
    """

    def __init__(
        self,
        path: Path | str,
        *,
        columns: Sequence[str],
        skip_header: bool = False,
        delimiter: str = ",",
        quotes: bool = False,
        encoding: str = "utf8",
    ) -> None:
        self.path, self.delimiter, self.quotes, self.encoding = Path(path), delimiter, quotes, encoding
        if not self.path.is_file():
            raise DataError(f"{self.path}: no such file; change the path.")
        self._header = skip_header
        # Names must be distinct for Arrow; dropped columns get one by their place.
        self._names = [f"_{place}" if name == "_" else name for place, name in enumerate(columns)]

    def blocks(self, progress: bool = False, digest: "hashlib._Hash | None" = None) -> Generator[Block]:
        """The file's rows, block by block.

        Parameters
        ----------
        progress : bool
            Show a bar of the bytes read.
        digest : hash object, optional
            Fed with the file's bytes as they lie on disk.

        Raises
        ------
        DataError
            At a line with another number of columns, or bytes that are no text; names file and line.
        """
        bad: list[pa.csv.InvalidRow] = []

        def refuse(row: pa.csv.InvalidRow) -> str:
            bad.append(row)
            return "error"

        raw = _Counted(self.path, digest, progress)
        line = 2 if self._header else 1
        try:
            reader = pa.csv.open_csv(
                _text_stream(raw),
                read_options=pa.csv.ReadOptions(
                    column_names=self._names,
                    skip_rows=int(self._header),
                    block_size=BLOCK_BYTES,
                    use_threads=False,  # else rows are not numbered
                    encoding=self.encoding,
                ),
                parse_options=pa.csv.ParseOptions(
                    delimiter=self.delimiter,
                    quote_char='"' if self.quotes else False,
                    ignore_empty_lines=False,
                    invalid_row_handler=refuse,
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(self._names, pa.string()),
                    strings_can_be_null=False,
                ),
            )
            for batch in reader:
                columns = {name: batch.column(name) for name in self._names if name[0] != "_"}
                yield Block(self.path, line, columns, batch.num_rows)
                line += batch.num_rows
        except (pa.ArrowInvalid, OSError, EOFError) as error:
            raise self._explain(error, bad, line) from error
        finally:
            raw.close()

    def rows(self) -> int:
        """Lines with samples, by a pass over the file that parses nothing."""
        raw = _Counted(self.path, None, False)
        lines, last = 0, b"\n"
        try:
            stream = _text_stream(raw)
            while part := stream.read(BLOCK_BYTES):
                lines += part.count(b"\n")
                last = part[-1:]
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{self.path}: not readable after line {lines} ({error}); copy it again.") from error
        finally:
            raw.close()
        return max(lines + (last != b"\n") - self._header, 0)

    def _explain(self, error: Exception, bad: list[pa.csv.InvalidRow], line: int) -> DataError:
        if bad and bad[0].number is not None:
            row = bad[0]
            return DataError(
                f"{self.path}, line {row.number}: found {row.actual_columns} columns in {row.text[:80]!r}; allowed is "
                f"{row.expected_columns}. Mend or remove the line."
            )
        return DataError(f"{self.path}, at or after line {line}: {error}. Mend the file, or check its format.")


class _Counted:
    """A file object for Arrow that feeds a progress bar and a checksum with the bytes read."""

    def __init__(self, path: Path, digest: "hashlib._Hash | None", progress: bool) -> None:
        self._file, self._digest = path.open("rb"), digest
        self.gzipped = self._file.read(2) == _GZIP
        self._file.seek(0)
        self._bar = tqdm(
            total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name, disable=not progress, leave=False
        )

    @property
    def closed(self) -> bool:
        return self._file.closed

    def readable(self) -> bool:
        return True

    def read(self, n: int = -1) -> bytes:
        part = self._file.read(n)
        self._bar.update(len(part))
        if self._digest is not None:
            self._digest.update(part)
        return part

    def close(self) -> None:
        self._file.close()
        self._bar.close()


def _text_stream(raw: _Counted) -> pa.NativeFile:
    stream = pa.PythonFile(raw, mode="r")
    return pa.CompressedInputStream(stream, "gzip") if raw.gzipped else stream


def integers(block: Block, column: str, *, missing: int | None = None) -> Ints:
    """A column as int64; an empty value is `missing`, or refused where that is None.

    Raises
    ------
    DataError
        Naming file, line and column of the first value that is no integer.
    """
    text = block.columns[column]
    empty = pc.equal(text, "")
    filled = text if missing is None else pc.if_else(empty, str(missing), text)
    try:
        return pc.cast(filled, pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        allowed = "an integer" if missing is None else "an integer or nothing"
        good = pc.match_substring_regex(filled, r"^[+-]?[0-9]{1,18}$").to_numpy(zero_copy_only=False)
        raise block.refuse(int(np.argmin(good)), column, allowed) from None
