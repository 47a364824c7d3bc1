"""From values (64-bit words) to ids: hashed, as they are, or in bins. Vocabularies are in ``vocabulary``.

Knows no columns and no text.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import text
from hpcrec.kernels.text import Words
from hpcrec.types import Ints

Mask = NDArray[np.bool_]
BINS = 512
BINS_CONVENTION = "0 missing, 1 negative, 2 + x to 2, then 2 + floor(log(x)^2)"


class Numbering(Protocol):
    """How the words of a feature become ids."""

    @property
    def cardinality(self) -> int:
        """Ids are below it; 0: they may be any."""

    def ids(self, words: Words, missing: Mask) -> tuple[Ints, Mask | None]:
        """Ids, int64, same length; and which words have none (None: all have one)."""


@dataclass(frozen=True)
class Hashed:
    """``1 + mix(word ^ salt) % (cardinality - 1)``; 0 is missing."""

    salt: int
    cardinality: int

    def ids(self, words: Words, missing: Mask) -> tuple[Ints, Mask | None]:
        """See `Numbering`."""
        out = text.salted_rows(words, self.salt, self.cardinality)
        out[missing] = 0
        return out, None


@dataclass(frozen=True)
class Direct:
    """The integer itself; `missing` is the id of none, if there is one."""

    cardinality: int
    missing: int | None = None

    def ids(self, words: Words, missing: Mask) -> tuple[Ints, Mask | None]:
        """See `Numbering`."""
        values = words.view(np.int64)
        wrong = words >= np.uint64(self.cardinality)  # negative ones too
        out = np.where(wrong, 0, values)
        if self.missing is None:
            return out, wrong | missing
        out[missing] = self.missing
        return out, wrong & ~missing


@dataclass(frozen=True)
class Raw:
    """The word itself, as int64: ids that nobody has declared. `missing` is the id of none, if there is one."""

    missing: int | None = None
    cardinality: int = 0

    def ids(self, words: Words, missing: Mask) -> tuple[Ints, Mask | None]:
        """See `Numbering`."""
        out = words.view(np.int64).copy()
        if self.missing is None:
            return out, missing
        out[missing] = self.missing
        return out, None


@dataclass(frozen=True)
class Bins:
    """Integers by their squared logarithm, as `BINS_CONVENTION` says."""

    cardinality: int = BINS

    def ids(self, words: Words, missing: Mask) -> tuple[Ints, Mask | None]:
        """See `Numbering`."""
        values = words.view(np.int64)
        squares = np.square(np.log(np.maximum(values, 3))).astype(np.int64)
        out = np.minimum(2 + np.where(values <= 2, values, np.maximum(squares, 3)), self.cardinality - 1)
        return np.where(missing, 0, np.where(values < 0, 1, out)), None


class Uncounted:
    """Stands in for a vocabulary in the pass that counts: keeps the words of the last block, and has no ids.

    Attributes
    ----------
    words : uint64 [K]
    missing : bool [K]
    """

    cardinality = 1

    def __init__(self) -> None:
        self.words: Words = np.empty(0, np.uint64)
        self.missing: Mask = np.empty(0, np.bool_)

    def ids(self, words: Words, missing: Mask) -> tuple[Ints, Mask | None]:
        """See `Numbering`; 0 for each."""
        self.words, self.missing = words, missing
        return np.zeros(len(words), np.int64), None
