"""Reads a bounded sample of tables, from several places of each file, as columns of coded values.

Knows how files are cut and read (`preparation`), not what columns mean. Shapes: N rows, D distinct values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpcrec.data.gather import ends
from hpcrec.kernels.text import EMPTY
from hpcrec.preparation.blocks import TYPED_ROWS, Block, Reader
from hpcrec.preparation.cells import ArrowCells, TextCells
from hpcrec.preparation.pieces import TYPED, Span, kind_of, open_arrow, open_parquet
from hpcrec.types import Ints
from hpcrec.units import MiB

ROWS = 200_000  # of a sample, about
_TEXT_BYTES = 48 * MiB  # of text, at most
_PLACES = 16  # of a file that are looked at
_GZIP_BLOCKS = 64  # of unpacked text (4 MiB each) that are looked at: gzip cannot be entered in the middle
_UNPACKED = 5  # bytes of text that a byte of gzip may stand for


@dataclass(frozen=True)
class Column:
    """Values of a column in the sample.

    Attributes
    ----------
    name : str
    kind : str
        text; of typed files also integer, float, bool, time, list or other.
    codes_N : int64
        Number of each row's value; -1 where it is empty. Of lists: of its length.
    texts : list of str
        The distinct values, as text.
    counts_D : int64
    lengths_N : int64 or None
        Items of each list.
    items : list of str
        Items of the first lists.
    item_kind : str
        Of a list's items, as kind.
    """

    name: str
    kind: str
    codes_N: Ints
    texts: list[str]
    counts_D: Ints
    lengths_N: Ints | None = None
    items: list[str] = field(default_factory=list)
    item_kind: str = ""

    def emptied(self, marks: Sequence[str]) -> "Column":
        """The same, with these values for empty ones."""
        nan = "nan" if self.kind == "float" and "NaN" in marks else None
        gone = [i for i, value in enumerate(self.texts) if value in marks or value == nan]
        if not gone:
            return self
        kept = np.ones(len(self.texts), np.bool_)
        kept[gone] = False
        renumber = np.where(kept, np.cumsum(kept) - 1, -1)
        codes = np.where(self.codes_N < 0, -1, renumber[np.maximum(self.codes_N, 0)])
        texts = [value for value, stays in zip(self.texts, kept.tolist(), strict=True) if stays]
        return Column(self.name, self.kind, codes, texts, self.counts_D[kept])


@dataclass(frozen=True)
class Place:
    """Where a part of the sample is: every so many-th block of a span, and so many rows of each."""

    span: Span
    step: int = 1
    rows: int = ROWS
    blocks: int = 1 << 30


@dataclass
class Sample:
    """A sample of tables.

    Attributes
    ----------
    columns : dict of str to Column
    n : int
        Rows in it.
    total : int
        Rows that the files have; a guess where they are text that was not read whole.
    whole : bool
        Whether it is all rows.
    wrong : int
        Rows that are no row of the table: not in the sample.
    first_wrong : str
    places : list of Place
    """

    columns: dict[str, Column]
    n: int
    total: int
    whole: bool
    wrong: int
    first_wrong: str
    places: list[Place]


class _Count:
    """Counts the bytes that are read."""

    n = 0

    def update(self, data: bytes, /) -> None:
        self.n += len(data)


def blocks(reader: Reader, place: Place, count: _Count | None = None) -> Iterator[tuple[Block, int]]:
    """Blocks of a place, and how many of its first rows are of the sample; 0 for blocks between."""
    for number, block in enumerate(reader.blocks(place.span, count or _Count())):
        if number >= place.blocks:
            return
        yield block, min(block.n, place.rows) if number % place.step == 0 else 0


def take(reader: Reader, sources: Sequence[Path]) -> Sample:
    """A sample of the sources; `reader` knows all their columns.

    Raises
    ------
    DataError
        A source that cannot be read.
    """
    places, whole = _places(sources)
    names = reader.table.used
    parts: dict[str, list[Any]] = {name: [] for name in names}
    n, wrong, first_wrong = 0, 0, ""
    text_rows, text_bytes = 0, 0
    for place in places:
        count = _Count()
        for block, kept in blocks(reader, place, count):
            text_rows += block.n if place.span.kind not in TYPED else 0
            whole = whole and kept == block.n
            if not kept:
                continue
            good = np.array([row for row in range(kept) if row not in block.wrong], np.int64)
            for name in names:
                array = _arrow(block.cells[name]).slice(0, kept)
                parts[name].append(array if len(good) == kept else array.take(pa.array(good)))
            wrong += kept - len(good)
            first_wrong = first_wrong or next(iter(block.wrong.values()), "")
            n += len(good)
            if n >= 2 * ROWS:
                whole = False
                break
        if place.span.kind not in TYPED:
            text_bytes += min(count.n, place.span.stop - place.span.start)
    columns = {name: _column(name, pa.chunked_array(arrays)) for name, arrays in parts.items() if arrays}
    total = n + wrong if whole else _typed_rows(sources) + round(text_rows * _text_bytes(sources) / max(text_bytes, 1))
    return Sample(columns, n, total, whole, wrong, first_wrong, places)


def _text_bytes(sources: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in sources if kind_of(path) not in TYPED)


def _typed_rows(sources: Sequence[Path]) -> int:
    total = 0
    for path in sources:
        kind = kind_of(path)
        if kind == "parquet":
            with open_parquet(path) as file:
                total += file.metadata.num_rows
        elif kind == "arrow":
            with open_arrow(path, [0]) as batches:
                total += sum(batches.get_batch(i).num_rows for i in range(batches.num_record_batches))
    return total


def _groups(path: Path, kind: str) -> int:
    if kind == "parquet":
        with open_parquet(path) as file:
            return int(file.metadata.num_row_groups)
    with open_arrow(path) as batches:
        return int(batches.num_record_batches)


def _places(sources: Sequence[Path]) -> tuple[list[Place], bool]:
    """Where to look, and whether that is everything."""
    paths = list(sources)
    if len(paths) > 4 * _PLACES:
        paths = [paths[i] for i in np.linspace(0, len(paths) - 1, 4 * _PLACES).round().astype(int)]
    whole = len(paths) == len(sources)
    out: list[Place] = []
    for path in paths:
        kind, size = kind_of(path), path.stat().st_size
        if kind == "text":
            most = _TEXT_BYTES // len(paths)
            if size <= most:
                out.append(Place(Span(path, kind, 0, size), rows=2 * ROWS // len(paths)))
                continue
            whole, window = False, most // _PLACES
            starts = np.linspace(0, size - window, _PLACES).astype(np.int64).tolist()
            out += [Place(Span(path, kind, at, at + window), rows=ROWS // len(paths) // _PLACES + 1) for at in starts]
        elif kind == "gzip":
            expected = min(max(_UNPACKED * size // (4 * MiB), 1), _GZIP_BLOCKS)
            rows = ROWS // len(paths) // expected + 1
            out.append(Place(Span(path, kind, 0, size), rows=rows, blocks=_GZIP_BLOCKS))
        else:
            groups = _groups(path, kind)
            picked = np.unique(np.linspace(0, groups - 1, min(groups, _PLACES)).round().astype(int)).tolist()
            whole = whole and len(picked) == groups
            rows = ROWS // len(paths) // max(len(picked), 1) + 1
            # Of many row groups the first rows are enough of each; a few large ones are looked at in several places.
            out += [
                Place(Span(path, kind, at, at + 1), rows=rows, blocks=1)
                if groups >= _PLACES
                else Place(Span(path, kind, at, at + 1), step=_step(path, kind, at), rows=rows)
                for at in picked
            ]
            whole = whole and groups < _PLACES
    return out, whole


def _step(path: Path, kind: str, group: int) -> int:
    """Every how many-th block of a row group is looked at."""
    if kind == "parquet":
        with open_parquet(path) as file:
            n = file.metadata.row_group(group).num_rows
    else:
        with open_arrow(path, [0]) as batches:
            n = batches.get_batch(group).num_rows
    return max(-(-n // (_PLACES * TYPED_ROWS)), 1)


def _arrow(cells: Any) -> Any:
    """Cells as an Arrow array; of text, of its bytes."""
    if isinstance(cells, ArrowCells):
        return cells.array
    assert isinstance(cells, TextCells)
    block, begin, end = cells.places
    offsets = ends((end - begin).astype(np.int64))
    at = np.repeat(begin - offsets[:-1], end - begin) + np.arange(offsets[-1])
    data = pa.py_buffer(np.ascontiguousarray(block[at]))
    return pa.Array.from_buffers(pa.binary(), len(begin), [None, pa.py_buffer(offsets.astype(np.int32)), data])


def _kind(of: Any) -> str:
    for kind, tests in {
        "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
        "integer": (pa.types.is_integer,),
        "float": (pa.types.is_floating, pa.types.is_decimal),
        "bool": (pa.types.is_boolean,),
        "time": (pa.types.is_timestamp, pa.types.is_date),
        "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    }.items():
        if any(test(of) for test in tests):
            return kind
    return "other"


def _column(name: str, values: Any) -> Column:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    values = values.combine_chunks()
    kind = _kind(values.type)
    if kind == "other":
        return Column(name, kind, np.full(len(values), -1, np.int64), [], np.empty(0, np.int64))
    lengths, items, item_kind = None, [], ""
    if kind == "list":
        item_kind = _kind(values.type.value_type)
        items = [str(item) for item in values.flatten()[:10_000].to_pylist()]
        values = pc.fill_null(pc.list_value_length(values), 0)
        lengths = values.to_numpy().astype(np.int64)
    elif kind == "time":
        _, states = ArrowCells(values).integers()
        seconds = pc.cast(pc.cast(values, pa.timestamp("s"), safe=False), pa.int64())
        values = pc.if_else(pa.array(states == EMPTY), pa.scalar(None, pa.int64()), seconds)
    if kind in ("integer", "float", "bool"):
        values = pc.cast(values, pa.string())  # as `cells` reads them, where they are taken for text
    coded = values.dictionary_encode()
    codes = pc.fill_null(coded.indices, -1).to_numpy().astype(np.int64)
    found = [value if isinstance(value, bytes) else str(value) for value in coded.dictionary.to_pylist()]
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in found]
    counts = np.bincount(codes[codes >= 0], minlength=len(texts)).astype(np.int64)
    column = Column(name, kind, codes, texts, counts, lengths, items, item_kind)
    return column.emptied([""]) if kind == "text" else column
