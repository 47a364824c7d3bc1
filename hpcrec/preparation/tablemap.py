"""The column map: which columns of a table become labels, dense inputs, features and the rest, and how.

A map is a TOML file (``hpcrec prepare table --map``), or is made by a converter that knows its format. Knows no files
but its own.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from hpcrec import toml
from hpcrec.errors import ConfigError
from hpcrec.preparation.cells import Value

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_Text = Annotated[str, Field(strict=True, min_length=1)]
_Flag = Annotated[bool, Field(strict=True)]
_Positive = Annotated[int, Field(strict=True, ge=1)]
_Number = Annotated[float, Field(strict=True)]

HASH_ROWS = 100_000  # rows of a hashed feature that does not say


@dataclass(frozen=True, kw_only=True)
class DenseColumn:
    """A dense input."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    column: _Text | None = None
    """Column of the table; the input's own name by default."""
    integer: _Flag = False
    """Whether only integers are allowed."""
    transform: Literal["none", "log1p", "clip", "scale"] = "none"
    """log1p: log(x + 1) of what is at least 0, negative values clipped to 0. clip: into [low, high]. scale: clipped,
    then (x - low) / (high - low)."""
    low: _Number | None = None
    """For transforms clip and scale."""
    high: _Number | None = None
    """For transforms clip and scale."""
    missing: _Number | None = None
    """Taken for an empty value, before the transform; without it an empty value is a bad line."""


@dataclass(frozen=True, kw_only=True)
class SparseColumn:
    """A feature."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    column: _Text | None = None
    """Column of the table; the feature's own name by default."""
    value: Value = "text"
    """What is hashed or counted: the bytes of the value, an integer, or hexadecimal digits."""
    digits: Annotated[int, Field(strict=True, ge=0, le=16)] = 0
    """For value hex: how many; 0 is from 1 to 16."""
    ids: Literal["hash", "vocabulary", "integer", "bins", "raw"] = "hash"
    """hash: into 1 to rows - 1. vocabulary: values of the train samples by falling count, from 2 on; 1 is rare.
    integer: the value itself, below rows. bins: of integers, by their squared logarithm. raw: the value itself, or
    the hash of a text, as any 64 bits: for dynamic tables. 0 is missing in all but integer and raw."""
    rows: _Positive | None = None
    """Rows of the feature: 100,000 for hash, no limit for vocabulary; required for integer."""
    min_count: _Positive = 1
    """For ids vocabulary: values seen less often are rare."""
    missing: Annotated[int, Field(strict=True, ge=0, lt=2**63)] | None = None
    """For ids integer and raw: the id of an empty value; without it an empty value is a bad line."""
    separator: Annotated[str, Field(strict=True, min_length=1, max_length=1)] | None = None
    """Splits the value into any number of ids; an empty value has none."""
    list: _Flag = False
    """For Parquet: the column holds lists."""
    max_length: _Positive | None = None
    """For separator and list: ids after so many are left out."""

    @property
    def jagged(self) -> bool:
        """Whether a sample may have any number of ids."""
        return self.list or self.separator is not None


@dataclass(frozen=True, kw_only=True)
class TableMap:
    """Columns of a table, and how its lines are cut. Parquet files bring names and types; of text, these say them."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    labels: tuple[_Text, ...]
    """Columns of the labels, 0 or 1 each."""
    soft_labels: _Flag = False
    """Whether labels may be any number from 0 to 1."""
    label_from: _Number | None = None
    """Labels are numbers, say ratings: from here on they are label 1, below it label 0."""
    label_words: tuple[_Text, ...] = ()
    """Labels are one of two words: first that of label 0, then that of label 1."""
    delimiter: Annotated[str, Field(strict=True, min_length=1, max_length=1)] = ","
    """What is between values."""
    quotes: _Flag = False
    """Whether double quotes may enclose a value; it ends on its line all the same."""
    header: _Flag = True
    """Whether the first line of each text file has the names of the columns."""
    columns: tuple[_Text, ...] = ()
    """Names of the columns of text files without header."""
    empty: tuple[_Text, ...] = ()
    """Values that stand for an empty one, in every column, say NULL; NaN also those of Parquet's and Arrow's floats."""
    weight: _Text | None = None
    """Column of the weight of the sample."""
    group: _Text | None = None
    """Column of the group, say the user."""
    group_value: Value = "integer"
    """What a group is; text is hashed."""
    time: _Text | None = None
    """Column of the time."""
    time_format: _Text | None = None
    """How times are written, as Python's strptime has it, in UTC; without it they are numbers since 1970."""
    time_unit: Literal["s", "ms", "us", "ns"] = "s"
    """Of times that are numbers."""
    split: _Text | None = None
    """How samples are cut into train, validation and test where the command does not say, as its --split."""
    dense: dict[str, DenseColumn] = field(default_factory=dict)
    """Dense inputs, in order."""
    sparse: dict[str, SparseColumn] = field(default_factory=dict)
    """Features, in order."""

    def check(self) -> None:
        """Raise a ConfigError for keys that do not go together."""
        for name, dense in self.dense.items():
            if wrong := _wrong_dense(dense):
                raise ConfigError(f"dense.{name}: {wrong}.")
        for name, sparse in self.sparse.items():
            if wrong := _wrong(sparse):
                raise ConfigError(f"sparse.{name}: {wrong}.")
            if "/" in name or name == ".":
                raise ConfigError(f"sparse.{name}: a feature's name has no '/'; rename it, and give the column.")
        for section, columns in (("dense", self.dense), ("sparse", self.sparse)):
            for name, spec in columns.items():
                if (spec.column or name) in self.labels:
                    raise ConfigError(
                        f"{section}.{name}: is of column {spec.column or name!r}, which is a label: a model would read "
                        "what it is to tell. Remove it."
                    )
        if not self.labels or not (self.dense or self.sparse):
            raise ConfigError("labels, and dense or sparse: at least one column each is needed; name them.")
        if self.soft_labels + (self.label_from is not None) + bool(self.label_words) > 1:
            raise ConfigError("soft_labels, label_from, label_words: one of them at most; leave the others out.")
        if self.label_words and (len(self.label_words) != 2 or len(set(self.label_words)) != 2):
            raise ConfigError(
                f"label_words: {list(self.label_words)}; two that differ are needed, of label 0 and of label 1."
            )
        if self.time is None and (self.time_format is not None or self.time_unit != "s"):
            raise ConfigError("time_format, time_unit: go with time; name the column.")
        if self.time_format is not None and self.time_unit != "s":
            raise ConfigError("time_unit: is for times that are numbers; leave it or time_format out.")
        if self.header and self.columns:
            raise ConfigError("columns: are for files without header; set header = false, or leave them out.")
        if not self.delimiter.isascii() or self.delimiter in '\r\n"':
            raise ConfigError(f"delimiter: {self.delimiter!r}; one ASCII character is allowed, no quote or newline.")

    @property
    def used(self) -> tuple[str, ...]:
        """Columns of the table that are read, each once."""
        names = [*self.labels, *(d.column or n for n, d in self.dense.items())]
        names += [s.column or n for n, s in self.sparse.items()]
        names += [name for name in (self.weight, self.group, self.time) if name is not None]
        return tuple(dict.fromkeys(names))

    def key_of(self, column: str) -> str:
        """The key that names a column of the table."""
        for section, columns in (("dense", self.dense), ("sparse", self.sparse)):
            for name, spec in columns.items():
                if (spec.column or name) == column:
                    return f"{section}.{name}"
        return next((key for key in ("weight", "group", "time") if getattr(self, key) == column), "labels")

    @property
    def optional(self) -> tuple[str, ...]:
        """Which of weight, group and time there are."""
        return tuple(name for name in ("weight", "group", "time") if getattr(self, name) is not None)

    @property
    def jagged(self) -> tuple[str, ...]:
        """Features with any number of ids a sample."""
        return tuple(name for name, column in self.sparse.items() if column.jagged)

    @property
    def counted(self) -> tuple[str, ...]:
        """Features that need a vocabulary."""
        return tuple(name for name, column in self.sparse.items() if column.ids == "vocabulary")


def load_map(path: Path) -> TableMap:
    """Read a map.

    Raises
    ------
    ConfigError
        What is wrong with it, and what is allowed.
    """
    return checked_map(toml.read(path), str(path))


def checked_map(mapping: Mapping[str, Any], source: str) -> TableMap:
    """A mapping, as a file has it, as a map; ``source`` is what messages call it.

    Raises
    ------
    ConfigError
        What is wrong with it, and what is allowed.
    """
    found = toml.check(TableMap, mapping, source, {})
    try:
        found.check()
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return found


def places(names: Sequence[str], table: TableMap, where: str) -> list[int]:
    """Numbers of the columns that a map names; ConfigError says which are not there, and what may have been meant."""
    if absent := [name for name in table.used if name not in names]:
        told = ", ".join(f"{name!r} ({table.key_of(name)} of the map)" for name in absent)
        near = difflib.get_close_matches(absent[0], names, n=1)
        meant = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"{where}: no column {told}; it has {', '.join(names)}. {meant}Change the map, or name the column so."
        )
    return [names.index(name) for name in table.used]


def _wrong_dense(column: DenseColumn) -> str | None:
    limits = (column.low, column.high)
    if column.transform in ("none", "log1p") and limits != (None, None):
        return "low and high go with transforms 'clip' and 'scale'; leave them out"
    if column.transform == "clip" and limits == (None, None):
        return "transform 'clip' takes low, high or both; give at least one of them"
    if column.transform == "scale" and None in limits:
        return "transform 'scale' takes low and high; give both"
    if column.low is not None and column.high is not None and column.low > column.high:
        return f"low is {column.low}, above high, {column.high}; exchange them"
    if column.transform == "scale" and column.low == column.high:
        return f"low and high are both {column.low}; transform 'scale' needs two that differ"
    return None


def _wrong(column: SparseColumn) -> str | None:
    if column.ids == "integer" and column.rows is None:
        return "ids 'integer' takes rows; give them"
    if column.ids in ("integer", "bins") and column.value == "hex":
        return f"ids {column.ids!r} takes integers; leave value out"
    if column.min_count != 1 and column.ids != "vocabulary":
        return f"min_count goes with ids 'vocabulary', not {column.ids!r}; leave it out"
    if column.missing is not None and (column.ids not in ("integer", "raw") or column.jagged):
        return "missing goes with ids 'integer' or 'raw' and one id a sample; leave it out"
    if column.ids == "raw" and column.rows is not None:
        return "ids 'raw' are any 64 bits; leave rows out"
    if column.missing is not None and column.ids == "integer" and column.missing >= (column.rows or 0):
        return f"missing is {column.missing}; it must be below rows, {column.rows}"
    if column.ids == "bins" and column.rows is not None:
        return "ids 'bins' has its own number of rows; leave rows out"
    if column.ids in ("hash", "vocabulary") and column.rows is not None and column.rows < 3:
        return f"rows is {column.rows}; at least 3 are needed"
    if column.digits and column.value != "hex":
        return "digits goes with value 'hex'; leave it out"
    if column.separator is not None and column.list:
        return "separator is for text, list for Parquet; leave one out"
    if column.max_length is not None and not column.jagged:
        return "max_length goes with separator or list; leave it out"
    return None
