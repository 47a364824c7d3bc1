"""What of a column is label 1: read from its two values, or as the user says. Knows no files."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrec.drafts.kinds import Values
from hpcrec.errors import ConfigError
from hpcrec.preparation.numbering import Mask

_YES = ("yes", "true", "t", "y", "click", "clicked", "pos", "positive", "buy", "bought", "purchase", "converted", "on")


@dataclass(frozen=True)
class Label:
    """The label of a sample.

    Attributes
    ----------
    labels_N : bool
    keys : dict
        Of the map, besides the column's name.
    reason : str
    """

    labels_N: Mask
    keys: dict[str, Any]
    reason: str


def read(values: Values, where: str, *, label_from: float | None = None, positive: str | None = None) -> Label:
    """The label in this column.

    Parameters
    ----------
    values : Values
    where : str
        What messages call the column.
    label_from : float, optional
        Numbers from here on are label 1.
    positive : str, optional
        The value that is label 1.

    Raises
    ------
    ConfigError
        A value is missing, there are not two, or it is not known which is label 1.
    """
    texts = sorted(values.column.texts, key=float) if values.numeric else values.column.texts
    told = ", ".join(texts[:8]) + (", ..." if len(texts) > 8 else "")
    if values.missing:
        raise ConfigError(
            f"{where}: {values.missing:,} of {len(values.column.codes_N):,} rows of the sample have no label; a row "
            "without one cannot be learned from. Take these rows out of the table."
        )
    if label_from is not None and positive is not None:
        raise ConfigError(
            f"{where}: --label-from {label_from:g} and --positive {positive} both say what is label 1; give one."
        )
    if label_from is not None:
        return _from(values, where, label_from, f"its values are {told}: from {label_from:g} on as asked")
    if len(texts) > 2:
        out = "a column with two words is needed; add one to the table."
        if values.numeric:
            at = values.quantile(0.5)[0]
            out = f"if it is a rating or a count, --label-from {at:g} makes label 1 of numbers from {at:g} on."
        raise ConfigError(f"{where}: has {len(texts):,} values ({told}), and a label has two; {out}")
    if len(texts) < 2:
        raise ConfigError(
            f"{where}: all {values.n:,} rows of the sample have the value {told!r}; nothing can be learned. Is it "
            "another column?"
        )
    if values.column.kind == "bool" and positive is None:
        return Label(_of(values, [value == "true" for value in texts]), {}, "true or false by its type")
    if positive is None and values.numeric and sorted(values.numbers_D) == [0, 1]:
        return Label(_of(values, (values.numbers_D == 1).tolist()), {}, "0 or 1")
    if positive is None and values.numeric:
        at = float(values.numbers_D.max())
        return _from(values, where, at, f"two values, {told}: the larger is label 1")
    return _words(values, where, positive, told)


def _words(values: Values, where: str, positive: str | None, told: str) -> Label:
    texts = values.column.texts
    known = [value for value in texts if value.lower() in _YES]
    if positive is None and len(known) == 1:
        positive = known[0]
    if positive is None:
        raise ConfigError(
            f"{where}: its values are {told}; --positive {texts[0]} or --positive {texts[1]} says which is 1."
        )
    if positive not in texts:
        raise ConfigError(f"{where}: --positive {positive} is none of its values, {told}; give one of them.")
    other = next(value for value in texts if value != positive)
    keys = {"label_words": [other, positive]}
    return Label(_of(values, [value == positive for value in texts]), keys, f"two words: {positive!r} is label 1")


def _from(values: Values, where: str, at: float, reason: str) -> Label:
    if not values.numeric:
        raise ConfigError(f"{where}: --label-from {at:g} is for numbers, but it has {values.column.texts[0]!r}.")
    labels = _of(values, (values.numbers_D >= at).tolist())
    if labels.all() or not labels.any():
        low, high = values.numbers_D.min(), values.numbers_D.max()
        raise ConfigError(
            f"{where}: with --label-from {at:g} all rows of the sample have one label; give a number above {low:g}, up "
            f"to {high:g}."
        )
    return Label(labels, {"label_from": at}, reason)


def _of(values: Values, is_one: list[bool]) -> Mask:
    return np.array(is_one, np.bool_)[values.column.codes_N]
