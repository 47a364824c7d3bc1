"""Frames in memory: anything that hands over Arrow's stream of columns, as pandas, polars and pyarrow do.

Knows Arrow and Parquet; what columns mean is for a column map.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from hpcrec.data.files import named
from hpcrec.errors import DataError
from hpcrec.preparation.blocks import Block
from hpcrec.preparation.cells import ArrowCells, Cells
from hpcrec.preparation.journal import Record
from hpcrec.preparation.pieces import Span
from hpcrec.preparation.tablemap import TableMap, places

_BLOCK_ROWS = 1 << 14
_GROUP_ROWS = 1 << 20
_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def is_frame(thing: Any) -> bool:
    """Whether it hands over Arrow's stream of columns."""
    return hasattr(thing, "__arrow_c_stream__")


def table_of(frame: Any) -> pa.Table:
    """A frame as a table of Arrow's; text that Arrow keeps as views is text.

    Raises
    ------
    DataError
        It is no frame, or Arrow cannot take it.
    """
    try:
        table = pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the frame: Arrow cannot take it ({error}). Give columns one type each.") from error
    for place, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if kind in _PLAIN:
            parts = [_plain(part, _PLAIN[kind]) for part in table.column(place).chunks]
            column = pa.chunked_array(parts, None if parts else _PLAIN[kind])
            table = table.set_column(place, field.name, column)
    return table


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of a column, or of its dictionary: polars has categories in one of views."""
    if not pa.types.is_dictionary(array.type):
        return array.cast(kind)
    return pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(kind))


def write(frame: Any, path: Path, wanted: TableMap) -> Record:
    """Writes the columns of a frame that a map names to a Parquet file; returns what the frame is known again by.

    Raises
    ------
    ConfigError
        A column that the map names is not there.
    DataError
        See ``table_of``.
    """
    table = table_of(frame)
    places(table.column_names, wanted, "the frame")
    with named(path):
        pyarrow.parquet.write_table(table.select(list(wanted.used)), path, row_group_size=_GROUP_ROWS)
    with path.open("rb") as file:
        return {"frame": hashlib.file_digest(file, "sha256").hexdigest(), "rows": table.num_rows}


def blocks(frame: Any, wanted: TableMap) -> Iterator[Block]:
    """The rows of a frame, with the columns that a map names; its marks of what is missing are empty, as in files.

    Raises
    ------
    ConfigError
        A column that the map names is not there.
    DataError
        See ``table_of``.
    """
    table, first = table_of(frame), 0
    places(table.column_names, wanted, "the frame")
    chosen = table.select(list(wanted.used))
    for batch in chosen.to_batches(_BLOCK_ROWS) or [pa.RecordBatch.from_pylist([], chosen.schema)]:
        cells: dict[str, Cells] = {name: _cells(batch.column(name), wanted) for name in wanted.used}
        yield Block(Span(Path("the frame"), "parquet", 0, 1), batch.num_rows, first, cells)
        first += batch.num_rows


def _cells(column: pa.Array, wanted: TableMap) -> Cells:
    cells = ArrowCells(column)
    return cells.without(wanted.empty) if wanted.empty else cells
