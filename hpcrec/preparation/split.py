"""Cuts samples into train, validation and test; says what a conversion wrote.

A split is a pure function of the sample's number (and, for hash, a seed), so that any pass over the source cuts alike.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from hpcrec.data import hashing
from hpcrec.errors import ConfigError
from hpcrec.types import Ints

NAMES = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """How samples are divided.

    Attributes
    ----------
    kind : str
        ``order``: by position in the source; ``hash``: at random, by a hash of (seed, number of the sample).
    fractions : tuple of float
        Of train, validation and test; they add up to 1.
    seed : int
        Of ``hash``.
    """

    kind: str = "order"
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    seed: int = 0

    def __post_init__(self) -> None:
        fractions = self.fractions
        if self.kind not in ("order", "hash"):
            raise ConfigError(f"split: kind {self.kind!r}; 'order' and 'hash' are allowed.")
        if len(fractions) != 3 or min(fractions) < 0 or fractions[0] == 0 or abs(sum(fractions) - 1) > 1e-9:
            raise ConfigError(
                f"split: fractions {fractions}; three numbers of at least 0 that add up to 1 are needed (train, "
                "validation, test), the first above 0."
            )

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Self:
        """``hash:0.8,0,0.2`` or ``order:0.8,0.1,0.1``."""
        kind, _, numbers = text.partition(":")
        try:
            fractions = tuple(float(number) for number in numbers.split(","))
        except ValueError:
            fractions = ()
        if len(fractions) != 3:
            raise ConfigError(
                f"split {text!r}: not understood; write for example 'hash:0.8,0,0.2' (train,validation,test)."
            )
        return cls(kind, fractions, seed)

    @property
    def names(self) -> tuple[str, ...]:
        """Parts that get a file."""
        return tuple(name for name, fraction in zip(NAMES, self.fractions, strict=True) if fraction)

    def assign(self, start: int, n: int, total: int) -> Ints:
        """Part (0 train, 1 validation, 2 test) of samples ``start .. start + n`` of `total`; int64 [n].

        `total` is not looked at by ``hash``.
        """
        borders = np.cumsum(self.fractions)[:2]
        if self.kind == "hash":
            u = hashing.uniforms(hashing.stream(self.seed, _SPLIT), start, n)
            return np.searchsorted(borders, u, side="right").astype(np.int64)
        ends = np.round(borders * total).astype(np.int64)
        return np.searchsorted(ends, np.arange(start, start + n), side="right").astype(np.int64)

    def describe(self) -> str:
        """As an attribute of the files."""
        seed = f", seed {self.seed}" if self.kind == "hash" else ""
        return f"{self.kind}:{','.join(map(str, self.fractions))}{seed}"


_SPLIT = 0x5B117


@dataclass
class Summary:
    """What a conversion wrote.

    Attributes
    ----------
    files, samples, label_rate : dict
        By part; the rate is the mean of those of several labels.
    label_rates : dict of str to dict of str to float
        Of several labels the rate of each, by part and name; empty where there is one.
    cardinalities : dict of str to int
        By feature.
    attainable_auc : dict of str to float
        By part, where it is known.
    rejected : int
        Bad lines that were left out.
    """

    files: dict[str, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    label_rate: dict[str, float] = field(default_factory=dict)
    label_rates: dict[str, dict[str, float]] = field(default_factory=dict)
    cardinalities: dict[str, int] = field(default_factory=dict)
    attainable_auc: dict[str, float] = field(default_factory=dict)
    rejected: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, ready for JSON."""
        return asdict(self)
