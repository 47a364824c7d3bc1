"""Writes the samples of a split to one file a part, in whole chunks. Knows files and the split, not their source."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from hpcrec.data.files import writing
from hpcrec.data.gather import join, take
from hpcrec.data.layout import CHUNK_SAMPLES, Columns
from hpcrec.errors import DataError
from hpcrec.preparation.split import NAMES, Cut, Split, Summary
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature, Ints

_WAITING_SAMPLES = 4 * CHUNK_SAMPLES
_WAITING_BYTES = 32 << 20


class Parts:
    """Writes samples to one file a part; a file is begun with its first sample, and appears when `close` is called.

    Parameters
    ----------
    paths : dict of str to Path
        File of each part.
    features, n_dense, n_labels, jagged, optional, compression
        See `Writer`.
    attributes : dict
        Root attributes of every file, besides ``split``.
    split : Cut

    Attributes
    ----------
    samples : dict of str to int
    label_sums : dict of str to list of float
        Sum of each label.
    """

    def __init__(
        self,
        paths: dict[str, Path],
        features: Sequence[Feature],
        *,
        split: Cut,
        n_dense: int,
        n_labels: int = 1,
        jagged: Collection[str] = (),
        optional: Collection[str] = (),
        compression: str = "none",
        attributes: dict[str, Any],
    ) -> None:
        self._paths, self._split, self._attributes = paths, split, attributes
        self._make = partial(
            Writer,
            features=features,
            n_dense=n_dense,
            n_labels=n_labels,
            jagged=jagged,
            optional=optional,
            compression=compression,
        )
        self._waiting: dict[str, list[Columns]] = {name: [] for name in paths}
        self._writers: dict[str, Writer] = {}
        self.samples = dict.fromkeys(paths, 0)
        self.label_sums = {name: [0.0] * n_labels for name in paths}

    def append(self, block: Columns, part_S: Ints) -> None:
        """Add samples; each goes to its part (0 train, 1 validation, 2 test; others to none)."""
        for name, waiting in self._waiting.items():
            rows = np.flatnonzero(part_S == NAMES.index(name))
            if not len(rows):
                continue
            chosen = block if len(rows) == block.samples else take(block, rows)
            self.samples[name] += len(rows)
            sums = np.atleast_1d(chosen.label.sum(axis=0, dtype=np.float64)).tolist()
            self.label_sums[name] = [so_far + more for so_far, more in zip(self.label_sums[name], sums, strict=True)]
            waiting.append(chosen)
            n_bytes = sum(part.n_bytes for part in waiting)
            if sum(part.samples for part in waiting) >= _WAITING_SAMPLES or n_bytes >= _WAITING_BYTES:
                self._write(name)

    def writer(self, name: str) -> Writer:
        """The writer of a part, begun if it is not yet."""
        if name not in self._writers:
            folder = self._paths[name].parent
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            split = {"split": f"{name} of {self._split.describe()}"}
            self._writers[name] = self._make(self._paths[name], attributes={**split, **self._attributes})
        return self._writers[name]

    def close(self, attributes: dict[str, Any] | None = None) -> dict[str, Path]:
        """Add root attributes to each file and give them their names; the files that there are."""
        for name in self._waiting:
            self._write(name, everything=True)
        for writer in self._writers.values():
            writer.set_attributes(attributes or {})
        for writer in self._writers.values():
            writer.close()
        return {name: self._paths[name] for name in self._writers}

    def abort(self) -> None:
        """Give up; nothing is left of what was not closed."""
        for writer in self._writers.values():
            writer.abort()

    def _write(self, name: str, everything: bool = False) -> None:
        """Hand on what waits, in whole chunks of the file where there are any: none is then compressed twice."""
        if not self._waiting[name]:
            return
        block = _joined(self._waiting[name])
        whole = block.samples // CHUNK_SAMPLES * CHUNK_SAMPLES
        if everything or not whole:
            whole = block.samples
        self.writer(name).append(take(block, np.arange(whole)) if whole < block.samples else block)
        rest = np.arange(whole, block.samples)
        self._waiting[name] = [take(block, rest)] if len(rest) else []


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
        self.features = tuple(features)
        self.paths = {name: Path(out_dir) / f"{name}.h5" for name in split.names}
        self._parts = Parts(
            self.paths,
            features,
            split=split,
            n_dense=n_dense,
            jagged=jagged,
            optional=optional,
            attributes=attributes,
        )
        self._attributes: dict[str, Any] = {}

    def append(self, block: Columns) -> None:
        """Add the next samples of the source; each goes to its part."""
        self._parts.append(block, self.split.assign(self.seen, block.samples, self.total))
        self.seen += block.samples

    def set_attributes(self, attributes: dict[str, Any], part: str | None = None) -> None:
        """Add root attributes to each file, or to that of a part."""
        if part is None:
            self._attributes |= attributes
        else:
            self._parts.writer(part).set_attributes(attributes)

    def summary(self) -> Summary:
        """What was written so far."""
        samples, sums = self._parts.samples, self._parts.label_sums
        return Summary(
            files={name: str(path) for name, path in self.paths.items()},
            samples=dict(samples),
            label_rate={name: sums[name][0] / max(samples[name], 1) for name in samples},
            cardinalities={feature.name: feature.cardinality for feature in self.features},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for name, n in self._parts.samples.items():
                    if not n:
                        raise no_sample(str(self.paths[name]), name, self.split, self.seen)
                self._parts.close(self._attributes)
        finally:
            self._parts.abort()


def no_sample(path: str, name: str, split: Cut, seen: int) -> DataError:
    """The error of a part that is empty."""
    return DataError(
        f"{path}: no sample fell into {name} ({split.describe()} of {seen} samples); give it a fraction of 0, or more "
        "data."
    )


def _joined(parts: Sequence[Columns]) -> Columns:
    """Samples of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]

    def optional(name: str) -> Any:
        return None if getattr(parts[0], name) is None else np.concatenate([getattr(part, name) for part in parts])

    return replace(join(parts), group=optional("group"), time=optional("time"))
