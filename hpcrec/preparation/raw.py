"""A table's rows as a data set file, by the column map that another data set was made with: what a model predicts.

The file lies beside what is written, and goes when it has been read; so does a second one, which has the columns of the
table that are asked for, as text. Knows files; no model and no ranks.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from hpcrec.data import layout
from hpcrec.data.files import temporary_beside
from hpcrec.data.hdf5_out import Output
from hpcrec.data.layout import Columns
from hpcrec.data.prediction_files import TEXT, Field, Values
from hpcrec.data.predictions import Beside, Column
from hpcrec.errors import ConfigError
from hpcrec.preparation.cells import ArrowCells, Cells
from hpcrec.preparation.sourced import Source
from hpcrec.preparation.writer import Writer

_CHUNK = 1 << 12  # texts


@contextmanager
def as_data_set(
    folder: Path, table: Path, out: Path, kind: str, asked: Sequence[str] = ()
) -> Iterator[tuple[Path, Beside]]:
    """The rows of a table, in their order, as a data set whose labels are zero; and columns of the table.

    Parameters
    ----------
    folder : Path
        Has the map, and the vocabularies.
    table : Path
        Text as the map says it is cut, Parquet or Arrow.
    out : Path
        Beside which the data set lies meanwhile.
    kind : str
        Of ``out``: ``hdf5``, ``parquet`` or ``csv``.
    asked : sequence of str
        Columns of the table.

    Raises
    ------
    ConfigError
        The table lacks a column, or one that is asked for cannot be written beside the others.
    DataError
        A row is not as the map says: which, and what is allowed; or the map is not there.
    OutputError
        The disk cannot be written.
    """
    source, names = Source(folder), tuple(dict.fromkeys(asked))
    _refuse(names, source.labels, kind)
    samples, texts = (temporary_beside(out.with_name(f"{out.name}.{what}.h5")) for what in ("samples", "texts"))
    try:
        _write(source, table, names, samples, texts)
        with h5py.File(texts) as file:
            columns = tuple(Column(Field(name, TEXT), None, _read(file[str(i)])) for i, name in enumerate(names))
            yield samples, Beside(table, columns)
    finally:
        samples.unlink(missing_ok=True)
        texts.unlink(missing_ok=True)


def _refuse(names: Sequence[str], labels: Sequence[str], kind: str) -> None:
    for name in names:
        if name in [f"prediction_{label}" for label in labels]:
            raise ConfigError(
                f"predict: --columns has {name!r}, which is the name of a column of probabilities. Leave it out."
            )
        if kind == "hdf5" and "/" in name:
            raise ConfigError(
                f"predict: --columns has {name!r}, and HDF5 takes no '/' in a name. Write Parquet or CSV, or leave it "
                "out."
            )


def _write(source: Source, table: Path, names: Sequence[str], samples: Path, texts: Path) -> None:
    labels = source.labels
    about: dict[str, Any] = {"n_dense": source.n_dense, "n_labels": len(labels), "jagged": source.jagged}
    about["attributes"] = {layout.LABELS_ATTRIBUTE: list(labels)}
    with Writer(samples, source.features, **about) as writer, Output(texts) as output:
        kept = [
            output.file.create_dataset(str(i), (0,), h5py.string_dtype(), maxshape=(None,), chunks=(_CHUNK,))
            for i in range(len(names))
        ]
        for block, dense, sparse in source.rows(table, names, hashlib.sha256()):
            shape = (block.n,) if len(labels) == 1 else (block.n, len(labels))
            for name, column in zip(names, kept, strict=True):
                column.resize((writer.samples + block.n,))
                column[writer.samples :] = _texts(block.cells[name], block.n)
            output.check()
            writer.append(Columns(np.zeros(shape, np.float32), dense, sparse))


def _texts(cells: Cells, n: int) -> list[str]:
    """As they stand in the table; what is missing is empty, and what no text has is a mark that says so."""
    missing = cells.array.is_null().to_pylist() if isinstance(cells, ArrowCells) else [False] * n
    texts = ["" if missing[row] else _text(cells, row) for row in range(n)]
    return [text.replace("\0", "\ufffd") for text in texts]


def _text(cells: Cells, row: int) -> str:
    value = cells.array[row] if isinstance(cells, ArrowCells) else None
    if value is not None and (pa.types.is_binary(value.type) or pa.types.is_large_binary(value.type)):
        return bytes(value.as_py()).decode(errors="replace")
    return cells.shown(row)


def _read(kept: Any) -> Callable[[Any, int, int], Values]:
    return lambda _, start, stop: (kept.asstr()[start:stop], None)
