"""Columns of samples as a file, piece by piece: HDF5, Parquet or CSV. Knows names and types, not what they mean.

A sample has one number in a column, or a bag of any number: of HDF5 an array of its own in a variable-length dataset,
of Parquet a list, in CSV the numbers with spaces between.
"""

import contextlib
import csv
import io
import itertools
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcrec.data.files import WholeOrAbsent, writing
from hpcrec.data.hdf5_out import Output
from hpcrec.types import Ints

Values = tuple[Any, Ints | None]  # numbers or texts [B], None; or those of all bags [K], and their offsets [B + 1]
TEXT = np.dtype(object)  # of a column of texts


@dataclass(frozen=True)
class Field:
    """A column that is written; ``jagged``: a sample has any number of values."""

    name: str
    dtype: np.dtype[Any]
    jagged: bool = False


@dataclass(frozen=True)
class Contents:
    """What a file will have: columns, how many samples, and what it says of itself where its format has room for it."""

    fields: Sequence[Field]
    samples: int
    facts: Mapping[str, Any]


class Sink(WholeOrAbsent):
    """A file of columns in the making.

    Parameters
    ----------
    path : Path
        Where it is written.
    name : Path
        What errors call it.
    contents : Contents

    Raises
    ------
    OutputError
        From each method, where the disk cannot be written.
    """

    @abstractmethod
    def __init__(self, path: Path, name: Path, contents: Contents) -> None: ...

    @abstractmethod
    def put(self, rows: Sequence[Values]) -> None:
        """The next samples: values by column."""


class Hdf5(Sink):
    """A dataset for each column, in the root."""

    def __init__(self, path: Path, name: Path, contents: Contents) -> None:
        self._fields, self._output, self._at = contents.fields, Output(path, name), 0
        for field in self._fields:
            own = h5py.string_dtype() if field.dtype == TEXT else field.dtype
            dtype = h5py.vlen_dtype(field.dtype) if field.jagged else own
            self._output.file.create_dataset(field.name, (contents.samples,), dtype)
        self._output.file.attrs.update(contents.facts)

    def put(self, rows: Sequence[Values]) -> None:
        """See ``Sink``."""
        bags = [values if offsets is None else _bags(values, offsets) for values, offsets in rows]
        stop = self._at + len(bags[0])
        for field, values in zip(self._fields, bags, strict=True):
            self._output.file[field.name][self._at : stop] = values
        self._at = stop
        self._output.check()

    def close(self) -> None:
        """See ``WholeOrAbsent``, as ``abort``."""
        self._output.close()

    def abort(self) -> None:
        """Close what is not to be kept."""
        self._output.abort()


class _Plain(Sink):
    """One that is written to a file of the system's, front to back."""

    def __init__(self, path: Path, name: Path, contents: Contents) -> None:
        self._contents, self._name = contents, name
        with writing(name):
            self._file = path.open("wb")
            self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """What stands before the first sample."""

    @abstractmethod
    def _add(self, rows: Sequence[Values]) -> None: ...

    @abstractmethod
    def _end(self) -> None:
        """What stands after the last sample."""

    def put(self, rows: Sequence[Values]) -> None:
        with writing(self._name):
            self._add(rows)

    def close(self) -> None:
        with writing(self._name):
            try:
                self._end()
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # the first error is what is told
            self._file.close()


class Csv(_Plain):
    """A line of names, then one a sample; numbers as short as they can be read back from."""

    def _begin(self) -> None:
        self._lines([[field.name for field in self._contents.fields]])

    def _add(self, rows: Sequence[Values]) -> None:
        cells = [values.astype(str) if offsets is None else _joined(values, offsets) for values, offsets in rows]
        self._lines(zip(*cells, strict=True))

    def _end(self) -> None:
        pass

    def _lines(self, lines: Any) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        self._file.write(text.getvalue().encode())


class Parquet(_Plain):
    """A row group a piece."""

    def _begin(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        columns = []
        for field in self._contents.fields:
            of = pa.string() if field.dtype == TEXT else pa.from_numpy_dtype(field.dtype)
            columns.append(pa.field(field.name, pa.list_(of) if field.jagged else of))
        facts = {name: str(value) for name, value in self._contents.facts.items()}
        self._arrow, self._schema = pa, pa.schema(columns, metadata=facts)
        self._writer = parquet.ParquetWriter(self._file, self._schema)

    def _add(self, rows: Sequence[Values]) -> None:
        pa = self._arrow
        arrays = [
            pa.array(values)
            if offsets is None
            else pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
            for values, offsets in rows
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def _end(self) -> None:
        try:
            self._writer.close()
        finally:
            self._writer.is_open = False  # else pyarrow closes it again as it is freed

    def abort(self) -> None:
        """Close what is not to be kept."""
        self._writer.is_open = False
        super().abort()


SINKS: dict[str, type[Sink]] = {"hdf5": Hdf5, "parquet": Parquet, "csv": Csv}


def _bags(values: Any, offsets: Ints) -> Any:
    """An array of arrays, one a sample."""
    bags = np.empty(len(offsets) - 1, dtype=object)
    for i in range(len(bags)):
        bags[i] = values[offsets[i] : offsets[i + 1]]
    return bags


def _joined(values: Any, offsets: Ints) -> list[str]:
    words = values.astype(str).tolist()
    return [" ".join(words[start:stop]) for start, stop in itertools.pairwise(offsets)]
