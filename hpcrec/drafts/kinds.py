"""Guesses what a column is from its values: an id, several ids, a number, a time, a constant, a key, or free text.

Knows no files and no labels. A guess comes with its reason, in words. Shapes: N rows, D distinct values.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from hpcrec.drafts.sample import Column
from hpcrec.preparation.numbering import Mask
from hpcrec.types import Floats

MARKS = ("NULL", "null", "\\N", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "None", "none", "?", "-")
_SURE_MARKS = ("NULL", "null", "\\N", "<NA>", "#N/A", "NaN", "nan")  # marks in columns of words too
SEPARATORS = ("|", ";", ",", "^", "&", " ")
FORMATS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "%Y-%m-%d %H:%M:%S"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "%Y-%m-%dT%H:%M:%S"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "%Y-%m-%dT%H:%M:%SZ"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,6}", "%Y-%m-%d %H:%M:%S.%f"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}", "%Y-%m-%dT%H:%M:%S.%f"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}Z", "%Y-%m-%dT%H:%M:%S.%fZ"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d", "%Y-%m-%d %H:%M"),
    (r"\d{4}-\d\d-\d\d", "%Y-%m-%d"),
    (r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d", "%Y/%m/%d %H:%M:%S"),
    (r"\d{4}/\d\d/\d\d", "%Y/%m/%d"),
    (r"\d\d\.\d\d\.\d{4}", "%d.%m.%Y"),
    (r"\d\d?/\d\d?/\d{4}", "%m/%d/%Y"),
    (r"\d\d?/\d\d?/\d{4}", "%d/%m/%Y"),
)
_NAMED_FORMATS = ((r"\d{8}", "%Y%m%d"), (r"\d{10}", "%Y%m%d%H"), (r"\d{8}", "%y%m%d%H"))  # numbers, by their name only
_TIME_NAMES = r"time|date|stamp|hour|day|(^|_)(ts|at)$"
_QUANTITY_NAMES = (
    r"price|amount|cost|count|cnt|(^|_)(num|n|qty|nb)(_|$)|quantity|length|duration|size|width|height|score"
)
_QUANTITY_NAMES += r"|weight|total|sum|ratio|rate$|distance|balance|views|clicks|age$"
_ID_NAMES = (
    r"ids?$|code|zip|ip$|category|categories|class|type|user|item|product|app$|site|device|channel|campaign|brand"
)
_ID_NAMES += r"|(^|_)os$"
_UNITS = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
_SINCE, _UNTIL = 631152000, 4102444800  # 1990 and 2100, in seconds: times are between them
_KEY_ROWS = 100  # rows from which on values that all differ are a key
_SPREAD = 50.0  # times the first tenth that the last tenth is above of amounts; of numbered ids it is about 9
_OFTEN = 5  # rows of each of the four smallest values, without which their frequencies say nothing
_EXCEPTIONS = 0.1  # share of pairs of a count's values of which the larger may be the more frequent
_SMALLEST = 20  # of a count's values that are looked at
_TEXT_WORDS = 3.0  # words of a value above which text is free
_MANY = 10_000  # distinct values that are looked at one by one


@dataclass(frozen=True)
class Guess:
    """What a column is.

    Attributes
    ----------
    kind : str
        empty, constant, key, time, list, number, count, text, category or other.
    reason : str
    keys : dict
        What a map has to know of it besides: format or unit of a time, separator of a list.
    """

    kind: str
    reason: str
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Values:
    """A column with what its values are as numbers."""

    column: Column

    @cached_property
    def numbers_D(self) -> Floats:
        """The values as numbers; NaN where they are none."""
        return np.array([_number(value) for value in self.column.texts], np.float64)

    @cached_property
    def whole_D(self) -> Mask:
        """Which values are integers of up to 18 digits."""
        return np.array([re.fullmatch(r"[+-]?\d{1,18}", value) is not None for value in self.column.texts], np.bool_)

    @property
    def n(self) -> int:
        """Rows with a value."""
        return int(self.column.counts_D.sum())

    @property
    def missing(self) -> int:
        """Rows without."""
        return len(self.column.codes_N) - self.n

    @property
    def distinct(self) -> int:
        """Values that differ."""
        return len(self.column.texts)

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers."""
        return self.distinct > 0 and bool(np.isfinite(self.numbers_D).all())

    @property
    def integer(self) -> bool:
        """Whether all values are integers; of floats, whether they are whole."""
        if self.column.kind == "float":
            return self.numeric and bool((self.numbers_D == np.floor(self.numbers_D)).all())
        return self.distinct > 0 and bool(self.whole_D.all())

    def quantile(self, *shares: float) -> list[float]:
        """Of the rows' numbers."""
        order = np.argsort(self.numbers_D)
        reached = np.cumsum(self.column.counts_D[order])
        at = [min(int(np.searchsorted(reached, share * reached[-1])), len(order) - 1) for share in shares]
        return [float(self.numbers_D[order[i]]) for i in at]

    def told(self) -> str:
        """How many values differ, and how many are missing."""
        share = self.missing / max(len(self.column.codes_N), 1)
        missing = (
            f"{share:.1%} missing" if share >= 0.0005 else f"{self.missing} missing" if self.missing else "none missing"
        )
        return f"{self.distinct:,} distinct {'value' if self.distinct == 1 else 'values'}, {missing}"


def marks(columns: Sequence[Column]) -> tuple[str, ...]:
    """Values that stand for missing ones: of columns that are numbers but for them, or known in columns of words."""
    found: list[str] = []
    for column in columns:
        if column.kind == "float" and "nan" in column.texts:
            found.append("NaN")
        if column.kind != "text":
            continue
        there = [mark for mark in MARKS if mark in column.texts]
        rest = column.emptied(there)
        numeric = len(rest.texts) > 1 and all(np.isfinite(_number(value)) for value in rest.texts[:_MANY])
        found += there if numeric else [mark for mark in there if mark in _SURE_MARKS]
    return tuple(mark for mark in MARKS if mark in found)


def guess(values: Values) -> Guess:
    """What a column is; the first of the guesses that fits."""
    column = values.column
    if column.kind == "other":
        return Guess("other", "its type is none that a map can read")
    if column.lengths_N is not None:
        return _typed_list(column)
    if not values.distinct:
        return Guess("empty", "it has no value in the sample")
    if values.distinct == 1 and not values.missing:
        return Guess("constant", f"its only value is {column.texts[0][:40]!r}")
    if column.kind == "bool":
        return Guess("category", f"true or false: {values.told()}")
    return _time(values) or _key(values) or _number_kind(values) or _words(values)


def seconds(values: Values, keys: Mapping[str, str]) -> Floats:
    """Distinct values of a time column as seconds since 1970; NaN where one is no time."""
    if "format" in keys:
        return np.array([_seconds(value, keys["format"]) for value in values.column.texts], np.float64)
    return np.floor(values.numbers_D / _UNITS[keys.get("unit", "s")])


def _typed_list(column: Column) -> Guess:
    assert column.lengths_N is not None
    if column.item_kind not in ("text", "integer"):
        return Guess("other", f"it holds lists of {column.item_kind}, which no feature is made of")
    if "None" in column.items or "" in column.items:
        return Guess("other", "some of its lists have empty items, which a map refuses")
    different = len(set(column.items))
    longest = int(column.lengths_N.max(initial=0))
    return Guess("list", f"lists of up to {longest} ids, {different:,} different ones seen")


def _time(values: Values) -> Guess | None:
    column, named = values.column, re.search(_TIME_NAMES, values.column.name.lower()) is not None
    if column.kind == "time":
        return Guess("time", f"a time by its type: {values.told()}")
    if values.numeric and not named:
        return None
    looked = column.texts[:_MANY]
    for pattern, form in (*FORMATS, *(_NAMED_FORMATS if named else ())):
        if all(re.fullmatch(pattern, value) for value in looked):
            found = np.array([_seconds(value, form) for value in looked])
            if np.isfinite(found).all() and (not form[0].isdigit() and _plausible(found)):
                return Guess("time", f"each value is a time as {form}: {values.told()}", {"format": form})
    if values.integer and column.kind != "float":
        for unit, size in _UNITS.items():
            if _plausible(values.numbers_D / size):
                return Guess(
                    "time", f"numbers of {unit} since 1970, by name and range: {values.told()}", {"unit": unit}
                )
    return None


def _plausible(found: Floats) -> bool:
    return bool(((found >= _SINCE) & (found < _UNTIL)).all())


def _key(values: Values) -> Guess | None:
    if values.distinct < values.n or values.n < _KEY_ROWS:
        return None
    if values.integer:
        low, high = values.numbers_D.min(), values.numbers_D.max()
        steps = np.diff(values.numbers_D[values.column.codes_N[values.column.codes_N >= 0]])
        if high - low + 1 <= 1.5 * values.n or (np.abs(steps) == 1).mean() > 0.9:
            return Guess("key", "a row number: integers that all differ, without gaps")
    if values.numeric and not (values.integer and not _quantity(values)):
        return None
    if not values.numeric and np.mean([value.count(" ") for value in values.column.texts[:_MANY]]) >= 1:
        return None
    return Guess("key", f"a unique key: none of {values.n:,} values occurs twice, so nothing can be learned of one")


def _quantity(values: Values) -> bool:
    return re.search(_QUANTITY_NAMES, values.column.name.lower()) is not None


def _number_kind(values: Values) -> Guess | None:
    if not values.numeric or values.distinct <= 2:
        return None
    if not values.integer:
        return Guess("number", f"numbers with decimals: {values.told()}")
    if any(re.fullmatch(r"[+-]?0\d+", value) for value in values.column.texts[:_MANY]):
        return Guess("category", f"codes with leading zeros: {values.told()}")
    if re.search(_ID_NAMES, values.column.name.lower()):
        return Guess("category", f"integers that its name calls ids: {values.told()}")
    if _counted(values):
        return Guess("count", f"small integers without gaps, the larger the rarer, as counts are: {values.told()}")
    low, high = values.quantile(0.1, 0.9)
    if values.distinct > 200 and values.numbers_D.min() >= 0 and high >= _SPREAD * max(low, 1):
        return Guess("count", f"integers that range over orders of magnitude, as amounts do: {values.told()}")
    if _quantity(values) and values.distinct > _SMALLEST:
        return Guess("number", f"integers that its name calls a quantity: {values.told()}")
    return Guess("category", f"integers that look like ids, not counts: {values.told()}")


def _counted(values: Values) -> bool:
    """Whether the smallest values have no gaps, and are the rarer the larger they are."""
    order = np.argsort(values.numbers_D)
    # Up to the 95 %: the largest of a count are rare, so that some are not in the sample.
    inside = (values.numbers_D[order] >= 0) & (values.numbers_D[order] <= values.quantile(0.95)[0])
    order = order[inside][:_SMALLEST]
    numbers, counts = values.numbers_D[order], values.column.counts_D[order].astype(np.float64)
    if len(order) < 4 or numbers[0] > 1 or len(order) < 0.9 * (numbers[-1] - numbers[0] + 1):
        return False
    if counts[:4].min() < _OFTEN or counts[0] < 2 * counts[-1]:
        return False
    # Pairs of a larger value that is more frequent, by more than chance has it (two standard deviations).
    more = counts[None, :] - counts[:, None] > 2 * np.sqrt(counts[None, :] + counts[:, None])
    return bool(np.triu(more, 1).sum() <= _EXCEPTIONS * len(order) * (len(order) - 1) / 2)


def _words(values: Values) -> Guess:
    if found := _separated(values):
        return found
    column = values.column
    looked = column.texts[:_MANY]
    words = float(np.mean([len(value.split()) for value in looked]))
    if words > _TEXT_WORDS or (words > 1.5 and values.distinct > values.n / 2 and values.n >= _KEY_ROWS):
        return Guess("text", f"free text: {words:.1f} words a value, {values.told()}")
    return Guess("category", f"words or codes: {values.told()}")


def _separated(values: Values) -> Guess | None:
    """Several ids in a value: those that are separated come again in other values, and none twice in one."""
    column = values.column
    looked, counts = column.texts[:_MANY], column.counts_D[:_MANY]
    for separator in SEPARATORS:
        lists = [value.split(separator) for value in looked]
        several = np.array([len(items) > 1 for items in lists])
        if counts[several].sum() < 0.05 * counts.sum() or several.sum() < 3:
            continue
        items = [item for found in lists for item in found]
        different = len(set(items))
        clean = all(item and (separator == " " or item == item.strip()) for item in items)
        repeated = sum(len(found) != len(set(found)) for found in lists) > 0.02 * len(lists)
        # Words of a text come again too, but there are far more of them than of the ids of a list.
        most = 0.1 * len(items) if separator == " " else 0.5 * len(items)
        if clean and not repeated and different < most:
            longest = max(map(len, lists))
            reason = f"up to {longest} ids, {different:,} different ones, with {separator!r} between: {values.told()}"
            return Guess("list", reason, {"separator": separator, "longest": str(longest)})
    return None


def _number(value: str) -> float:
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value) is None:
        return float("nan")
    return float(value)


def _seconds(value: str, form: str) -> float:
    try:
        return datetime.strptime(value, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return float("nan")
