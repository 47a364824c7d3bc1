"""The file of predictions, with what is asked for of the data beside them: HDF5, Parquet or CSV, whole or absent.

Samples come in their order, and are written in pieces, so that no more than a piece is in memory; columns of the data
are read as a piece is written. Knows no model, and no ranks.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcrec.data import layout
from hpcrec.data.files import publish, temporary_beside, writing
from hpcrec.data.prediction_files import SINKS, Contents, Field, Sink, Values
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError
from hpcrec.types import Floats

PIECE = 1 << 16  # samples
ENDINGS = {".h5": "hdf5", ".hdf5": "hdf5", ".parquet": "parquet", ".csv": "csv"}


def format_of(out: Path, given: str | None = None) -> str:
    """``hdf5``, ``parquet`` or ``csv``: as given, else by the end of the file's name.

    Raises
    ------
    ConfigError
        The name ends otherwise.
    """
    found = given or ENDINGS.get(out.suffix.lower())
    if found in SINKS:
        return found
    if given is not None:
        raise ConfigError(f"predict: --format is {given!r}. Allowed: {', '.join(SINKS)}.")
    ends = f"ends with {out.suffix!r}" if out.suffix else "has no ending"
    raise ConfigError(
        f"predict: --out {out} {ends}. Allowed: {', '.join(ENDINGS)}. Give it one of these, or say what it is by "
        "--format."
    )


@dataclass(frozen=True)
class Column:
    """A column of the data: what is written, of which feature it takes the ids, and how it is had.

    ``of`` takes what was read of samples, and which these are: the first one, and the one after the last.
    """

    field: Field
    feature: str | None
    of: Callable[[layout.Columns, int, int], Values]


@dataclass(frozen=True)
class Beside:
    """Of a data set that was made of a table: the table, and columns of it that are written."""

    path: Path
    columns: tuple[Column, ...]


def asked_columns(dataset: DataSet, names: Sequence[str]) -> tuple[Column, ...]:
    """Columns of a data set by name: features (ids as stored, and their weights), labels, ``weight`` and its like.

    ``label`` is all labels, which can also be asked for by their own names. Where a feature has a name that something
    else has too, it is the feature.

    Raises
    ------
    ConfigError
        The data set has no such column, or it would be written twice.
    """
    offered = _offered(dataset)
    found: list[Column] = []
    for name in names:
        if name not in offered:
            raise ConfigError(
                f"predict: --columns has {name!r}; {dataset.path} has {', '.join(offered)}. Name some of these, or "
                "leave --columns out."
            )
        found += offered[name]
    taken = [*(field.name for field in prediction_fields(dataset)), *(column.field.name for column in found)]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise ConfigError(
            f"predict: --columns would write {', '.join(twice)} more than once; each column of the file has a name "
            "of its own. Leave it out of --columns."
        )
    return tuple(found)


def prediction_fields(dataset: DataSet) -> tuple[Field, ...]:
    """The columns of probabilities, one a label: ``prediction``, and the label's name where the data set says it."""
    names = dataset.label_names
    if layout.LABELS_ATTRIBUTE not in dataset.attributes:
        names = ("",) if dataset.n_labels == 1 else tuple(map(str, range(dataset.n_labels)))
    return tuple(Field(f"prediction_{name}" if name else "prediction", np.dtype(np.float32)) for name in names)


def _offered(dataset: DataSet) -> dict[str, list[Column]]:
    offered: dict[str, list[Column]] = {}
    for feature in dataset.features:
        jagged = dataset.jagged(feature.name)
        offered[feature.name] = [
            Column(Field(feature.name, np.dtype(np.int64), jagged), feature.name, _ids(feature.name))
        ]
        if feature.weighted:
            field = Field(f"{feature.name}.weights", np.dtype(np.float32), jagged)
            offered[feature.name].append(Column(field, feature.name, _weights(feature.name)))
    labels = [
        Column(Field(name, np.dtype(np.float32)), None, _label(i, dataset.n_labels))
        for i, name in enumerate(_label_columns(dataset))
    ]
    offered.setdefault("label", labels)
    for column in labels:
        offered.setdefault(column.field.name, [column])
    for name in dataset.optional:
        column = Column(Field(name, np.dtype(layout.OPTIONAL_COLUMNS[name])), None, _single(name))
        offered.setdefault(name, [column])
    return offered


def _label_columns(dataset: DataSet) -> tuple[str, ...]:
    if dataset.n_labels == 1 and layout.LABELS_ATTRIBUTE not in dataset.attributes:
        return ("label",)
    return dataset.label_names


def _ids(name: str) -> Callable[[layout.Columns, int, int], Values]:
    return lambda read, *_: (read.sparse[name].ids, read.sparse[name].offsets)


def _weights(name: str) -> Callable[[layout.Columns, int, int], Values]:
    return lambda read, *_: (read.sparse[name].weights, read.sparse[name].offsets)


def _label(number: int, of: int) -> Callable[[layout.Columns, int, int], Values]:
    return lambda read, *_: (read.label if of == 1 else read.label[:, number], None)


def _single(name: str) -> Callable[[layout.Columns, int, int], Values]:
    return lambda read, *_: (getattr(read, name), None)


class Predictions:
    """Takes probabilities in the order of samples, and writes them with the columns that are asked for.

    Parameters
    ----------
    sink : Sink
    dataset : DataSet
        What was predicted.
    columns : sequence of Column
    """

    def __init__(self, sink: Sink, dataset: DataSet, columns: Sequence[Column]) -> None:
        self._sink, self._dataset, self._columns = sink, dataset, columns
        self._fields = prediction_fields(dataset)
        self._features = tuple(dict.fromkeys(column.feature for column in columns if column.feature is not None))
        self._waiting: list[Floats] = []
        self._taken = self._written = 0  # samples

    def write(self, first: int, found: Floats) -> None:
        """Probabilities float32 [B], or [B, L] of several labels, of the samples from ``first`` on, the next ones."""
        assert first == self._taken, f"samples from {self._taken} on are next, not from {first} on"
        self._waiting.append(found)
        self._taken += len(found)
        if self._taken - self._written >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Writes what has been taken, piece by piece."""
        if not self._waiting:
            return
        found, self._waiting = np.concatenate(self._waiting), []
        for at in range(0, len(found), PIECE):
            self._piece(found[at : at + PIECE].reshape(-1, len(self._fields)))

    def _piece(self, found_BL: Floats) -> None:
        start, stop = self._written, self._written + len(found_BL)
        rows: list[Values] = [(np.ascontiguousarray(found_BL[:, i]), None) for i in range(found_BL.shape[1])]
        if self._columns:
            read = self._dataset.read_ranges([(start, stop)], self._features)
            rows += [column.of(read, start, stop) for column in self._columns]
        self._sink.put(rows)
        self._written = stop


@contextlib.contextmanager
def predictions(
    out: Path, kind: str, dataset: DataSet, columns: Sequence[Column] = (), *, step: int, beside: Beside | None = None
) -> Iterator[Predictions]:
    """The file for predictions of a data set's samples, to be filled; nothing is at ``out`` until all of it is there.

    ``kind`` is as of ``format_of``, ``step`` that of the weights; columns ``beside`` come after the others.

    Raises
    ------
    OutputError
        The disk cannot be written.
    """
    hidden = temporary_beside(out)
    columns = [*columns, *(() if beside is None else beside.columns)]
    fields = [*prediction_fields(dataset), *(column.field for column in columns)]
    facts = {"data": str(dataset.path if beside is None else beside.path), "step": step}
    try:
        with SINKS[kind](hidden, out, Contents(fields, dataset.samples, facts)) as sink:
            made = Predictions(sink, dataset, columns)
            yield made
            made.flush()
        with writing(out):
            publish(hidden, out)
    finally:
        hidden.unlink(missing_ok=True)
