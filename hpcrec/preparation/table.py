"""Makes samples from blocks of a table, as a column map says, and finds the rows that give none.

Knows no files: what becomes of a bad row is decided above.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import numpy as np

from hpcrec.data import hashing
from hpcrec.data.gather import ends
from hpcrec.data.layout import Column, Columns
from hpcrec.kernels import text
from hpcrec.kernels.text import BAD, EMPTY, GOOD, Words
from hpcrec.preparation.blocks import Block
from hpcrec.preparation.cells import Cells
from hpcrec.preparation.numbering import BINS_CONVENTION, Bins, Direct, Hashed, Mask, Numbering, Raw
from hpcrec.preparation.tablemap import HASH_ROWS, DenseColumn, SparseColumn, TableMap
from hpcrec.types import Feature, Floats, Ints

SALT = 0xC417E0  # of hashed ids: feature number j is salted by stream(SALT, j)
_LARGEST = float(np.finfo(np.float32).max)
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_VALUES = {"text": "text", "integer": "an integer", "hex": "hexadecimal digits"}


@dataclass
class Problems:
    """Rows of a block that give no sample: the first thing that is wrong with each.

    Attributes
    ----------
    found : dict of int to (str, str)
        Row -> column ('' where the row as a whole is wrong), and what was found and is allowed.
    hints : dict of int to str
        Row -> what to write in the map, where that may be what is wrong.
    """

    found: dict[int, tuple[str, str]] = field(default_factory=dict)
    hints: dict[int, str] = field(default_factory=dict)

    def add(
        self, wrong: Mask, column: str, cells: Cells, allowed: str, hint: Callable[[str], str] | None = None
    ) -> None:
        """Note the rows where `wrong`, with what `hint` says of the value that is."""
        for row in np.flatnonzero(wrong).tolist() if wrong.any() else ():
            if row not in self.found:
                value = cells.shown(row)
                self.found[row] = column, f"found {value!r}; allowed is {allowed}"
                self.hints[row] = "" if hint is None else hint(value)


def numberings(table: TableMap, counted: Mapping[str, Numbering]) -> dict[str, Numbering]:
    """How each feature's ids are made; `counted` has those of the vocabularies."""
    out: dict[str, Numbering] = {}
    for number, (name, column) in enumerate(table.sparse.items()):
        if column.ids == "hash":
            out[name] = Hashed(hashing.stream(SALT, number), column.rows or HASH_ROWS)
        elif column.ids == "integer":
            out[name] = Direct(column.rows or 0, column.missing)
        elif column.ids == "raw":
            out[name] = Raw(column.missing)
        else:
            out[name] = Bins() if column.ids == "bins" else counted[name]
    return out


class Maker:
    """Turns blocks into samples.

    Attributes
    ----------
    features : tuple of Feature
    """

    def __init__(self, table: TableMap, numbers: Mapping[str, Numbering]) -> None:
        self.table, self._numbers = table, numbers
        self.features = tuple(Feature(name=name, cardinality=numbers[name].cardinality) for name in table.sparse)

    def columns(self, block: Block) -> tuple[Columns, Problems]:
        """All rows of a block as samples, and which of them are none: their numbers mean nothing."""
        problems = Problems({row: ("", found) for row, found in block.wrong.items()})
        labels = [self._label(block, name, problems) for name in self.table.labels]
        dense, sparse = self.inputs(block, problems)
        weight = None if self.table.weight is None else _weight(block, self.table.weight, problems)
        group = None if self.table.group is None else self._group(block, self.table.group, problems)
        time = None if self.table.time is None else self._time(block, self.table.time, problems)
        label = labels[0] if len(labels) == 1 else np.stack(labels, axis=1)
        return Columns(label, dense, sparse, weight, group, time), problems

    def inputs(self, block: Block, problems: Problems) -> tuple[Floats, dict[str, Column]]:
        """What a model reads of all rows: dense inputs [n, n_dense], and features by name."""
        dense = np.empty((block.n, len(self.table.dense)), np.float32)
        for place, (name, spec) in enumerate(self.table.dense.items()):
            dense[:, place] = _dense(block, spec.column or name, spec, problems)
        return dense, {name: self._feature(block, name, spec, problems) for name, spec in self.table.sparse.items()}

    def conventions(self) -> dict[str, str]:
        """What was done to the columns, in words, for the files' attributes."""
        out = {f"dense {name}": _dense_words(name, spec) for name, spec in self.table.dense.items()}
        out |= {f"sparse {name}": _sparse_words(name, spec) for name, spec in self.table.sparse.items()}
        if self.table.label_from is not None:
            out["label"] = f"1 from {self.table.label_from:g} on"
        if self.table.label_words:
            out["label"] = "0 {}, 1 {}".format(*self.table.label_words)
        if self.table.group is not None:
            hashed = ", hashed" if self.table.group_value == "text" else ""
            out["group"] = f"column {self.table.group}{hashed}"
        return out

    def _label(self, block: Block, name: str, problems: Problems) -> Floats:
        cells, spec = block.cells[name], self.table
        if spec.label_words:
            words, states = cells.words("text", 0)
            of_0, of_1 = _hashes(spec.label_words)
            problems.add(
                (words != of_0) & (words != of_1) | (states != GOOD), name, cells, " or ".join(spec.label_words)
            )
            return (words == of_1).astype(np.float32)
        values, states = cells.numbers()
        if spec.label_from is not None:
            problems.add(states != GOOD, name, cells, "a number")
            return (values >= spec.label_from).astype(np.float32)
        if spec.soft_labels:
            wrong, allowed = (values < 0) | (values > 1), "a number from 0 to 1"
        else:
            wrong, allowed = (values != 0) & (values != 1), "0 or 1"
        problems.add(wrong | (states != GOOD), name, cells, allowed, partial(_label_hint, name))
        return values.astype(np.float32)

    def _feature(self, block: Block, name: str, spec: SparseColumn, problems: Problems) -> Column:
        column = spec.column or name
        cells, offsets = block.cells[column], None
        integer = spec.ids in ("integer", "bins")
        allowed = f"{spec.digits} hexadecimal digits" if spec.digits else _VALUES["integer" if integer else spec.value]
        if spec.jagged:
            cells, offsets = cells.items(spec.separator)
        words, states = cells.words("integer" if integer else spec.value, spec.digits)
        wrong = states == BAD if offsets is None else states != GOOD
        if offsets is not None and spec.max_length is not None:
            kept, offsets_kept = _first_items(offsets, spec.max_length)
            words, states = words[kept], states[kept]
            problems.add(_rows_of(wrong, offsets), column, block.cells[column], f"a list, each {allowed}")
            wrong, offsets = np.zeros(len(words), np.bool_), offsets_kept
        numbering = self._numbers[name]
        ids, none = numbering.ids(words, states == EMPTY)
        if none is not None:
            wrong = wrong | none
            allowed += f" from 0 to {numbering.cardinality - 1}" if numbering.cardinality else ", not empty"
        if offsets is not None:
            problems.add(_rows_of(wrong, offsets), column, block.cells[column], f"a list, each {allowed}")
        elif wrong.any():
            empty_too = none is None or (isinstance(numbering, Direct) and numbering.missing is not None)
            hint = partial(_id_hint, name) if integer else None
            problems.add(wrong, column, cells, f"{allowed} or nothing" if empty_too else allowed, hint)
        return Column(ids, offsets)

    def _group(self, block: Block, name: str, problems: Problems) -> Ints:
        words, states = block.cells[name].words(self.table.group_value, 0)
        problems.add(states != GOOD, name, block.cells[name], _VALUES[self.table.group_value])
        return words.view(np.int64)

    def _time(self, block: Block, name: str, problems: Problems) -> Ints:
        cells = block.cells[name]
        if self.table.time_format is None:
            units, states = cells.integers()
            problems.add(states != GOOD, name, cells, f"{_UNITS[self.table.time_unit]} since 1970, an integer")
            return units // _PER_SECOND[self.table.time_unit]
        words, states = cells.words("text", 0)
        _, rows, inverse = np.unique(words, return_index=True, return_inverse=True)
        found = [_seconds(cells.shown(row), self.table.time_format) for row in rows.tolist()]
        seconds = np.array([0 if value is None else value for value in found], np.int64)[inverse]
        unread = np.array([value is None for value in found], np.bool_)[inverse]
        problems.add(unread | (states != GOOD), name, cells, f"a time written as {self.table.time_format}")
        return seconds


def _hashes(words: Sequence[str]) -> Words:
    """Of each word, as `Cells.words` has it."""
    parts = [word.encode() for word in words]
    ends_of = np.cumsum([0, *map(len, parts)]).astype(np.int32)
    return text.hash_text(np.frombuffer(b"".join(parts), np.uint8), ends_of[:-1], ends_of[1:])[0]


def _dense(block: Block, name: str, spec: DenseColumn, problems: Problems) -> Floats:
    cells = block.cells[name]
    values, states = cells.integers() if spec.integer else cells.numbers()
    allowed = "an integer" if spec.integer else "a finite number"
    if spec.missing is None:
        wrong = states != GOOD
    else:
        wrong, allowed = states == BAD, f"{allowed} or nothing"
        if spec.missing and (states == EMPTY).any():
            values = np.where(states == EMPTY, spec.missing, values)
    if spec.transform == "log1p":
        values = np.log1p(np.maximum(values, 0))
    elif spec.transform in ("clip", "scale"):
        values = np.clip(values, spec.low, spec.high)
    if spec.low is not None and spec.high is not None and spec.transform == "scale":
        values = (values - spec.low) / (spec.high - spec.low)
    too_large = np.abs(values) > _LARGEST
    if too_large.any():
        wrong, values = wrong | too_large, np.where(too_large, 0.0, values)
        allowed = "a number that float32 can hold"
    problems.add(wrong, name, cells, allowed, partial(_dense_hint, spec))
    return values.astype(np.float32)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _label_hint(name: str, value: str) -> str:
    """What to write where a value is neither label."""
    if value == name:
        return "Set header = true in the map where the line has the names of the columns."
    if _is_number(value):
        return "Of ratings or counts label_from = NUMBER in the map makes labels: 1 from there on."
    return 'Of two words label_words = ["no", "yes"] in the map makes labels.' if value else ""


def _id_hint(name: str, value: str) -> str:
    """What to write where a value is no integer."""
    if not value or _is_number(value):
        return ""
    return f'Of text ids = "vocabulary" or "hash" makes ids: set it under [sparse.{name}] in the map.'


def _dense_hint(spec: DenseColumn, value: str) -> str:
    """What to write where a value is empty, or text that may stand for one."""
    if value:
        mark = f"empty = [{json.dumps(value)}]"
        return "" if _is_number(value) else f"Where it stands for an empty value, set {mark} in the map."
    return "Set missing = NUMBER for empty values in the map." if spec.missing is None else ""


def _weight(block: Block, name: str, problems: Problems) -> Floats:
    values, states = block.cells[name].numbers()
    wrong = (states != GOOD) | (values < 0) | (values > _LARGEST)
    problems.add(wrong, name, block.cells[name], "a number of at least 0")
    return np.where(wrong, 0.0, values).astype(np.float32)


def _first_items(offsets: Ints, most: int) -> tuple[Ints, Ints]:
    """Which items stay where bags keep their first `most`, and their offsets."""
    lengths = np.minimum(np.diff(offsets), most)
    kept = ends(lengths)
    return np.repeat(offsets[:-1] - kept[:-1], lengths) + np.arange(kept[-1]), kept


def _rows_of(wrong: Mask, offsets: Ints) -> Mask:
    """Rows with a wrong item."""
    out = np.zeros(len(offsets) - 1, np.bool_)
    if wrong.any():
        out[np.searchsorted(offsets, np.flatnonzero(wrong), side="right") - 1] = True
    return out


def _seconds(value: str, form: str) -> int | None:
    try:
        return int(datetime.strptime(value, form).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _dense_words(name: str, spec: DenseColumn) -> str:
    missing = "missing refused" if spec.missing is None else f"missing {spec.missing:g}"
    how = {"none": "as it is", "log1p": "negative clipped to 0, log(x + 1)", "clip": f"clip {spec.low} {spec.high}"}
    how["scale"] = f"{how['clip']}, scaled to [0, 1]"
    return f"column {spec.column or name}: {missing}, {how[spec.transform]}"


def _sparse_words(name: str, spec: SparseColumn) -> str:
    how = {
        "hash": "hash of the value (splitmix64, salted by feature) into 1..cardinality-1; 0 missing",
        "vocabulary": f"vocabulary of the train samples, min_count {spec.min_count}; 0 missing, 1 rare, then by "
        "falling count",
        "raw": ("hash of the text" if spec.value == "text" else "the value itself")
        + ", any 64 bits"
        + ("" if spec.missing is None else f"; missing {spec.missing}"),
        "integer": "the value itself" + ("" if spec.missing is None else f"; missing {spec.missing}"),
        "bins": BINS_CONVENTION,
    }[spec.ids]
    cut = "" if spec.max_length is None else f"; the first {spec.max_length}"
    value = "integer" if spec.ids in ("integer", "bins") else spec.value
    return f"column {spec.column or name} as {value}: {how}{cut}"
