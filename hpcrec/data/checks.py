"""What the values of a column may be: one rule for the writer, the reader and `hpcrec data verify`. Touches no file."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class Wrong:
    """The first value of a column that is not allowed.

    Attributes
    ----------
    row : int
        Its row in the values that were looked at.
    found, allowed : str
        What a message says: ``has nan in column 3`` and ``dense inputs must be finite``.
    count : int
        How many values are not allowed.
    """

    row: int
    found: str
    allowed: str
    count: int


def first_wrong(name: str, values: Floats | Ints, cardinality: int | None = None) -> Wrong | None:
    """The first value that is not allowed in the column; None where all are.

    Parameters
    ----------
    name : str
        Path of the column in the file.
    values : array [rows] or [rows, columns]
    cardinality : int, optional
        For ids; 0 where they may be any.
    """
    what = name.rpartition("/")[2]
    if what == "ids":
        assert cardinality is not None
        if (
            not cardinality or not len(values) or 0 <= values.min() <= values.max() < cardinality
        ):  # no array beside them
            return None
        return _wrong((values >= 0) & (values < cardinality), values, f"ids must be in [0, {cardinality})")
    if what == "label":
        return _wrong((values >= 0) & (values <= 1), values, "labels must be 0 or 1, or any number from 0 to 1")
    if what == "dense":
        return _wrong(np.isfinite(values), values, "dense inputs must be finite")
    if what in ("weight", "weights"):
        return _wrong((values >= 0) & (values < np.inf), values, "weights must be finite and not negative")
    return None


def _wrong(right: NDArray[np.bool_], values: Floats | Ints, allowed: str) -> Wrong | None:
    if right.all():
        return None
    place = tuple(int(i) for i in np.unravel_index(int(np.argmin(right)), right.shape))
    column = f" in column {place[1]}" if len(place) > 1 else ""
    return Wrong(place[0], f"has {values[place]}{column}", allowed, int(right.size - np.count_nonzero(right)))
