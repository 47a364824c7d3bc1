"""Writes a column map: for each column the keys that its kind asks for, every line with its reason.

Knows no files; what columns are is for `kinds`, which of them tell the label for `leaks`. A section here is a list of
lines of TOML.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcrec.drafts.kinds import Guess, Values
from hpcrec.drafts.leaks import Leak
from hpcrec.toml.write import dump_value, spelled
from hpcrec.types import Floats

_MANY_MISSING = 0.01  # share from which on it may mean something that a value is missing
_SMALL = 10.0  # numbers up to this can be inputs as they are
_SKEWED = 20.0  # times the median that the 99th percentile is above where logarithms are taken
_MOST_ROWS = 5_000_000  # of a vocabulary
_HASHED = 20_000_000  # distinct values from which on a vocabulary takes longer than it is worth
_MOST_ITEMS = 50
_TAIL = 0.2  # share of values that were seen once from which on rare ones share a row


@dataclass
class Draft:
    """What the columns of a table become.

    Attributes
    ----------
    dense, sparse, out : dict of str to list of str
        Lines of the map, by column; of what is left out, comments.
    pooled : list of str
        Features with several ids.
    """

    dense: dict[str, list[str]] = field(default_factory=dict)
    sparse: dict[str, list[str]] = field(default_factory=dict)
    out: dict[str, list[str]] = field(default_factory=dict)
    pooled: list[str] = field(default_factory=list)


def line(key: str, value: Any, reason: str) -> str:
    """``key = value  # reason``."""
    return f"{spelled(key)} = {dump_value(value)}  # {_plain(reason)}"


def columns(guesses: Mapping[str, Guess], values: Mapping[str, Values], leaks: Mapping[str, Leak], total: int) -> Draft:
    """What each column becomes.

    Parameters
    ----------
    guesses, values : dict
        By column, label and time left out.
    leaks : dict
        Columns that give the label away.
    total : int
        Rows of the table, about.
    """
    draft = Draft()
    for name, guess in guesses.items():
        lines = _section(name, guess, values[name], total)
        if name in leaks:
            told = f"# {_plain(spelled(name))}: left out: it gives the label away: {_plain(leaks[name].sentence)}."
            draft.out[name] = [told, *(f"# {text}" for text in lines)]
        elif not lines:
            draft.out[name] = [f"# {_plain(spelled(name))}: left out: {_plain(guess.reason)}"]
        elif lines[0].startswith("[dense"):
            draft.dense[name] = lines
        else:
            draft.sparse[name] = lines
            if guess.kind == "list":
                draft.pooled.append(feature_name(name))
    return draft


def feature_name(column: str) -> str:
    """The feature of a column; a feature's name has no '/'."""
    return column.replace("/", "_") if column != "." else "_"


def _section(name: str, guess: Guess, values: Values, total: int) -> list[str]:
    """Lines of a column; none where it is left out."""
    if guess.kind in ("number", "count"):
        share = values.missing / max(len(values.column.codes_N), 1)
        if guess.kind == "count" and share >= _MANY_MISSING:
            return _sparse(name, f"{guess.reason}; binned, so that a missing one has a row of its own", [
                line("ids", "bins", "by the squared logarithm; 0 is missing")
            ])  # fmt: skip
        return _dense(name, guess, values)
    if guess.kind == "list":
        return _list(name, guess, values)
    if guess.kind == "category":
        return _sparse(name, guess.reason, [*_value(values), *_ids(values, total)])
    return []


def _dense(name: str, guess: Guess, values: Values) -> list[str]:
    low, median, high = values.quantile(0.01, 0.5, 0.99)
    lines = [f"[dense.{spelled(name)}]  # {_plain(guess.reason)}"]
    if guess.kind == "count" or (values.numbers_D.min() >= 0 and high > max(_SKEWED * median, _SMALL)):
        lines.append(line("transform", "log1p", f"median {median:g}, 99 % up to {high:g}: a few are much larger"))
    elif (low < -_SMALL or high > _SMALL) and low < high:
        lines.append(
            line("transform", "scale", "to [0, 1], for inputs of a network should be about as large as others")
        )
        lines.append(line("low", low, "1 % are below"))
        lines.append(line("high", high, "1 % are above"))
    else:
        lines.append(line("transform", "none", f"98 % are from {low:g} to {high:g}: small enough as they are"))
    none = " (none is missing in the sample)" if not values.missing else ""
    lines.append(line("missing", median, f"the median stands for a missing one{none}"))
    return lines


def _list(name: str, guess: Guess, values: Values) -> list[str]:
    if values.column.lengths_N is not None:
        longest = int(values.column.lengths_N.max(initial=0))
        lines = [line("list", True, "the column holds lists")]
        if values.column.item_kind == "integer":
            lines.append(line("value", "integer", "its items are integers by their type"))
    else:
        longest = int(guess.keys["longest"])
        lines = [line("separator", guess.keys["separator"], "between ids")]
    lines.append(line("ids", "vocabulary", "ids of the training rows by falling count; others share id 1"))
    if longest > _MOST_ITEMS:
        lines.append(line("max_length", _MOST_ITEMS, f"the longest in the sample has {longest}"))
    return _sparse(name, guess.reason, lines)


def _sparse(name: str, reason: str, lines: Sequence[str]) -> list[str]:
    feature = feature_name(name)
    out = [f"[sparse.{spelled(feature)}]  # {_plain(reason)}"]
    if feature != name:
        out.append(line("column", name, "a feature's name has no '/'"))
    return [*out, *lines]


def _value(values: Values) -> list[str]:
    if values.column.kind in ("integer", "float"):
        return [line("value", "integer", "by the column's type")]
    return []  # of text files the bytes: an id that is no number beyond the sample is then no bad line


def _ids(values: Values, total: int) -> list[str]:
    once = int((values.column.counts_D == 1).sum())
    expected = _expected(values, total)
    if expected >= _HASHED:
        return [
            line("ids", "hash", f"up to {expected:,} values are to be expected: too many to count"),
            line("rows", _MOST_ROWS, "values share rows; more take memory, fewer more of them together"),
        ]
    lines = [line("ids", "vocabulary", "values of the training rows by falling count; 0 is missing, 1 is rare or new")]
    if once > _TAIL * values.distinct:
        fewest = 2 if total < 1_000_000 else 5
        share = f"{once / max(values.distinct, 1):.0%} of the values were seen once"
        lines.append(line("min_count", fewest, f"{share}; rarer ones share id 1, which new ones have too"))
    if expected > _MOST_ROWS:
        lines.append(line("rows", _MOST_ROWS, f"up to {expected:,} values are to be expected; the most frequent stay"))
    return lines


def _expected(values: Values, total: int) -> int:
    """At most so many distinct values in the whole table: rows beyond the sample are new at the rate of its last ones.

    That rate is the share of rows whose value was seen once (Good and Turing's estimate).
    """
    n = len(values.column.codes_N)
    once = int((values.column.counts_D == 1).sum())
    return values.distinct + max(total - n, 0) * once // max(n, 1)


def borders(seconds_D: Floats, counts_D: Any) -> list[int]:
    """Times that 80 % and 90 % of the rows are before; one where just two differ, none where all are the same."""
    times, place = np.unique(seconds_D, return_inverse=True)
    if len(times) < 3:
        return [int(time) for time in times[1:]]
    before = np.cumsum(np.bincount(place, weights=counts_D))
    first = int(np.clip(np.searchsorted(before, 0.8 * before[-1]) + 1, 1, len(times) - 2))
    second = int(np.clip(np.searchsorted(before, 0.9 * before[-1]) + 1, first + 1, len(times) - 1))
    return [int(times[first]), int(times[second])]


def _plain(text: str) -> str:
    """On one line, without what TOML allows in no comment."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
