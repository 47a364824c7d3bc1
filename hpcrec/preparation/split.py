"""Cuts samples into train, validation and test; says what a conversion wrote.

A split is a pure function of the sample's number, its group, its time or its file (and, for hash and group, a seed), so
that any pass over the source cuts alike. Shapes: S samples.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from hpcrec.data import hashing
from hpcrec.data.layout import Columns
from hpcrec.errors import ConfigError
from hpcrec.types import Ints

NAMES = ("train", "validation", "test")


@dataclass(frozen=True)
class Samples:
    """Samples that follow each other in a source.

    Attributes
    ----------
    columns : Columns
    source : Path
    start, total : int
        Number of the first of them, and how many there are in all sources; see `Split.assign`.
    """

    columns: Columns
    source: Path
    start: int
    total: int


class Cut(Protocol):
    """How samples are divided."""

    @property
    def kind(self) -> str:
        """Its name on the command line."""

    @property
    def names(self) -> tuple[str, ...]:
        """Parts that get a file."""

    def part(self, samples: Samples) -> Ints:
        """Part (0 train, 1 validation, 2 test) of each sample; int64 [S]."""

    def describe(self) -> str:
        """As an attribute of the files."""


@dataclass(frozen=True)
class Split:
    """Samples are divided by fractions; a `Cut`.

    Attributes
    ----------
    kind : str
        ``order``: by position in the source; ``hash``: at random, by a hash of (seed, number of the sample);
        ``group``: the same of (seed, group), so that a group stays together.
    fractions : tuple of float
        Of train, validation and test; they add up to 1.
    seed : int
        Of ``hash`` and ``group``.
    """

    kind: str = "order"
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    seed: int = 0

    def __post_init__(self) -> None:
        fractions = self.fractions
        if self.kind not in ("order", "hash", "group"):
            raise ConfigError(f"split: kind {self.kind!r}; 'order', 'hash' and 'group' are allowed, of tables 'time'.")
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
            example = "'hash:0.8,0,0.2' (train,validation,test)"
            if not numbers and kind.count(",") == 2:
                example = f"'hash:{kind}', at random, or 'order:{kind}', in the order of the source"
            raise ConfigError(f"split {text!r}: not understood; write for example {example}.")
        return cls(kind, fractions, seed)

    @property
    def names(self) -> tuple[str, ...]:
        """Parts that get a file."""
        return tuple(name for name, fraction in zip(NAMES, self.fractions, strict=True) if fraction)

    def assign(self, start: int, n: int, total: int) -> Ints:
        """Part (0 train, 1 validation, 2 test) of samples ``start .. start + n`` of `total`; int64 [n].

        `total` is not looked at by ``hash``. ConfigError for ``group``, which takes more than a number.
        """
        if self.kind == "group":
            raise ConfigError("split 'group': is for tables whose map names a group; take 'order' or 'hash' here.")
        borders = np.cumsum(self.fractions)[:2]
        if self.kind == "hash":
            u = hashing.uniforms(hashing.stream(self.seed, _SPLIT), start, n)
            return np.searchsorted(borders, u, side="right").astype(np.int64)
        ends = np.round(borders * total).astype(np.int64)
        return np.searchsorted(ends, np.arange(start, start + n), side="right").astype(np.int64)

    def part(self, samples: Samples) -> Ints:
        """See `Cut`."""
        if self.kind != "group":
            return self.assign(samples.start, samples.columns.samples, samples.total)
        group = samples.columns.group
        assert group is not None
        mixed = hashing.mix_array(group.view(np.uint64) ^ np.uint64(hashing.stream(self.seed, _GROUP)))
        u = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.searchsorted(np.cumsum(self.fractions)[:2], u, side="right").astype(np.int64)

    def describe(self) -> str:
        """As an attribute of the files."""
        seed = f", seed {self.seed}" if self.kind != "order" else ""
        return f"{self.kind}:{','.join(map(str, self.fractions))}{seed}"


@dataclass(frozen=True)
class TimeSplit:
    """Samples are divided by their time; a `Cut`.

    Attributes
    ----------
    borders : tuple of int
        Seconds since 1970. Before the first are train samples; from the last on test samples; between two, those of
        validation.
    """

    borders: tuple[int, ...]
    kind: str = "time"

    @classmethod
    def parse(cls, text: str) -> Self:
        """``2024-05-30T00:00:00,2024-06-02T12:00:00`` (UTC) or one time, which leaves validation out."""
        try:
            times = [datetime.fromisoformat(part) for part in text.split(",")]
        except ValueError:
            times = []
        borders = [int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()) for time in times]
        if len(borders) not in (1, 2) or borders != sorted(set(borders)):
            raise ConfigError(
                f"split 'time:{text}': one or two times that rise are needed, of the first sample of validation and of "
                "test; write for example 'time:2024-05-30,2024-06-02T12:00:00' (UTC)."
            )
        return cls(tuple(borders))

    @property
    def names(self) -> tuple[str, ...]:
        """See `Cut`."""
        return NAMES if len(self.borders) == 2 else (NAMES[0], NAMES[2])

    def part(self, samples: Samples) -> Ints:
        """See `Cut`."""
        assert samples.columns.time is not None
        place = np.searchsorted(self.borders, samples.columns.time, side="right").astype(np.int64)
        return place if len(self.borders) == 2 else 2 * place

    def describe(self) -> str:
        """See `Cut`."""
        return "time:" + ",".join(datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S") for at in self.borders)


@dataclass(frozen=True)
class FileSplit:
    """Each part has files of its own; a `Cut`.

    Attributes
    ----------
    files : tuple of tuple of Path
        Of train, validation and test; validation or test may have none.
    """

    files: tuple[tuple[Path, ...], tuple[Path, ...], tuple[Path, ...]]
    kind: str = "files"

    def __post_init__(self) -> None:
        where: dict[Path, str] = {}
        for name, paths in zip(NAMES, self.files, strict=True):
            for path in paths:
                other = where.setdefault(path.resolve(), name)
                if other != name:
                    raise ConfigError(f"{path}: is given for {other} and for {name}; leave it out of one of them.")

    @property
    def names(self) -> tuple[str, ...]:
        """See `Cut`."""
        return tuple(name for name, paths in zip(NAMES, self.files, strict=True) if paths)

    def part(self, samples: Samples) -> Ints:
        """See `Cut`."""
        number = next(number for number, paths in enumerate(self.files) if samples.source in paths)
        return np.full(samples.columns.samples, number, np.int64)

    def describe(self) -> str:
        """See `Cut`."""
        return "files:" + ",".join(str(len(paths)) for paths in self.files)


def parse_cut(text: str, seed: int = 0) -> Cut:
    """A split of a table, by fractions or by time: see `Split.parse` and `TimeSplit.parse`."""
    kind, _, rest = text.partition(":")
    return TimeSplit.parse(rest) if kind == "time" else Split.parse(text, seed)


def by_files(train: Sequence[Path | str], validation: Sequence[Path | str], test: Sequence[Path | str]) -> FileSplit:
    """Parts that have files of their own."""
    return FileSplit((tuple(map(Path, train)), tuple(map(Path, validation)), tuple(map(Path, test))))


_SPLIT, _GROUP = 0x5B117, 0x6B117


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
