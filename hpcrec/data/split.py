"""Cuts samples into train, validation and test, and writes the three files of a conversion.

A split is a pure function of the sample's number (and, for hash, a seed), so that any pass over the source cuts alike.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from hpcrec.data import hashing
from hpcrec.data.files import writing
from hpcrec.data.gather import take
from hpcrec.data.layout import Columns
from hpcrec.data.writer import Writer
from hpcrec.errors import ConfigError, DataError
from hpcrec.types import Feature, Ints

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
        By part.
    cardinalities : dict of str to int
        By feature.
    attainable_auc : dict of str to float
        By part, where it is known.
    """

    files: dict[str, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    label_rate: dict[str, float] = field(default_factory=dict)
    cardinalities: dict[str, int] = field(default_factory=dict)
    attainable_auc: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, ready for JSON."""
        return asdict(self)


class SplitWriter:
    """Writes blocks of samples to ``<out_dir>/<part>.h5``; a context manager.

    The files appear together when it closes; an error leaves none of them.
    """

    def __init__(
        self,
        out_dir: Path | str,
        split: Split,
        features: Sequence[Feature],
        *,
        n_dense: int,
        jagged: Collection[str] = (),
        optional: Collection[str] = (),
        total: int = 0,
        attributes: dict[str, Any],
    ) -> None:
        self.split, self.total, self.seen = split, total, 0
        self.features, self._positives = tuple(features), dict.fromkeys(split.names, 0.0)
        folder = Path(out_dir)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.writers: dict[str, Writer] = {}
        try:
            for name in split.names:
                self.writers[name] = Writer(
                    folder / f"{name}.h5",
                    features,
                    n_dense=n_dense,
                    jagged=jagged,
                    optional=optional,
                    attributes={"split": f"{name} of {split.describe()}", **attributes},
                )
        except BaseException:
            self._abort()
            raise

    def append(self, block: Columns) -> None:
        """Add the next samples of the source; each goes to its part."""
        part_S = self.split.assign(self.seen, block.samples, self.total)
        self.seen += block.samples
        for name, writer in self.writers.items():
            rows = np.flatnonzero(part_S == NAMES.index(name))
            if len(rows):
                chosen = take(block, rows)
                writer.append(chosen)
                self._positives[name] += float(chosen.label.sum())

    def set_attributes(self, attributes: dict[str, Any]) -> None:
        """Add root attributes to each file."""
        for writer in self.writers.values():
            writer.set_attributes(attributes)

    def summary(self) -> Summary:
        """What was written so far."""
        return Summary(
            files={name: str(writer.path) for name, writer in self.writers.items()},
            samples={name: writer.samples for name, writer in self.writers.items()},
            label_rate={n: self._positives[n] / max(w.samples, 1) for n, w in self.writers.items()},
            cardinalities={feature.name: feature.cardinality for feature in self.features},
        )

    def _abort(self) -> None:
        for writer in self.writers.values():
            writer.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for name, writer in self.writers.items():
                    if not writer.samples:
                        raise DataError(
                            f"{writer.path}: no sample fell into {name} ({self.split.describe()} of {self.seen} "
                            "samples); give it a fraction of 0, or more data."
                        )
                for writer in self.writers.values():
                    writer.close()
        finally:
            self._abort()
