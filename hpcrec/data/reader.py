"""Opens and reads a data set: one HDF5 file, or several through an index file.

Opening checks the layout; reading checks the ids that it returns. Knows nothing of order, batches or ranks. HDF5 calls
are serialised by h5py; reads are serialised by the data set, so that any thread may call them.
"""

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from hpcrec.data import checks, checksum, layout, together
from hpcrec.data.hdf5 import File
from hpcrec.data.index import open_files
from hpcrec.data.layout import Column, Columns
from hpcrec.errors import DataError
from hpcrec.types import Feature, Floats, Ints

_OPEN_FILES = 32  # handles kept open at a time, whatever the number of files of the data set
_PEEK = 4096  # labels at either end that the fingerprint covers

# A contiguous piece of a read: samples [start, stop) of a file become samples [at, at + stop - start) of the result.
_Piece = tuple[File, int, int, int]


class DataSet:
    """A data set on disk; a context manager.

    Parameters
    ----------
    path : Path
        An HDF5 file (``docs/data.md``), or an index ``<name>.index.json`` of several, whose samples follow each other.

    Attributes
    ----------
    features : tuple of Feature
    samples, n_dense, n_labels : int
    label_names : tuple of str or None
        Where the data set says them: one a label, no two alike.
    attributes : dict
        Root attributes that all files share, JSON decoded; an index file may add its own.
    fingerprint : str
        Of layout, sizes, attributes, the outermost labels, and the checksums of all columns where the files have them:
        equal for equal data however it is cut into files, cheap to compute. Says whether a resumed run reads the data
        that it began with.

    Raises
    ------
    DataError
        When a file is absent, is no HDF5, or departs from the schema: file, dataset, what was found, what is allowed.
    UnreadableError
        When the system does not let a file be read just now, though it may be whole.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._files, extra = open_files(self.path)
        self._open: list[File] = []
        self._lock = threading.Lock()  # a loader's thread and its owner may read at the same time
        self._starts = np.concatenate([[0], np.cumsum([file.samples for file in self._files])]).astype(np.int64)
        self.samples = int(self._starts[-1])
        self.features = _merge_features(self._files)
        self._by_name = {feature.name: feature for feature in self.features}
        self._jagged = frozenset[str]().union(*(file.jagged for file in self._files))
        first = self._files[0]
        self.n_dense, self.n_labels, self.optional = first.n_dense, first.n_labels, first.optional
        shared = {k: v for k, v in first.attributes.items() if all(f.attributes.get(k) == v for f in self._files)}
        self.attributes: dict[str, Any] = {**shared, **extra}
        self.label_names = _label_names(self.attributes.get(layout.LABEL_NAMES_ATTRIBUTE), self.n_labels)
        self.fingerprint = self._fingerprint()

    def feature(self, name: str) -> Feature:
        """The feature of that name."""
        if (found := self._by_name.get(name)) is not None:
            return found
        raise DataError(
            f"{self.path}: no feature {name!r}; it has {', '.join(f.name for f in self.features) or 'none'}. "
            "Change the name, or convert the data again with this feature."
        )

    def jagged(self, name: str) -> bool:
        """Whether samples may have any number of ids of this feature; False: exactly one each."""
        return name in self._jagged

    def plain(self, features: Sequence[str], optional: Sequence[str], *, ids_only: bool = False) -> bool:
        """Whether any samples of these columns can be had for the cost of reading them, in all files."""
        single = set() if ids_only else {"/label", "/dense", *(f"/{name}" for name in optional)}
        parts = {layout.sparse_path(name, part) for name in features for part in ("ids", "offsets", "weights")}
        return all((single | parts) & file.columns.keys() <= file.plain for file in self._files)

    def read(self, start: int, stop: int, features: Sequence[str] | None = None) -> Columns:
        """Samples ``[start, stop)``; see `read_ranges`."""
        return self.read_ranges([(start, stop)], features)

    def read_ranges(
        self,
        ranges: Sequence[tuple[int, int]],
        features: Sequence[str] | None = None,
        optional: Sequence[str] | None = None,
        *,
        ids_only: bool = False,
    ) -> Columns:
        """Samples of several ranges ``[first, end)``, one after the other, in fresh arrays.

        Parameters
        ----------
        ranges : sequence of (int, int)
        features : sequence of str, optional
            Only these, in this order; all by default.
        optional : sequence of str, optional
            Which of ``weight``, ``group`` and ``time`` to read where the data set has them; all by default.
        ids_only : bool
            Read features alone: ``label`` and ``dense`` have no columns, [S, 0], nothing is optional.

        Raises
        ------
        DataError
            When a range is outside the data set, a file cannot be read, or it holds a value that is not allowed
            (`checks`): file, dataset, sample and value.
        """
        with self._lock:
            pieces = self._pieces(ranges)
            total = sum(stop - start for _, start, stop, _ in pieces)
            names = [feature.name for feature in self.features] if features is None else features
            sparse, joined = self._read_features(names, pieces, total)
            if ids_only:
                nothing = np.empty((total, 0), np.float32)
                return Columns(nothing, nothing, sparse, joined=joined)
            label = _read("/label", pieces, np.empty((total, self.n_labels)[: 1 + (self.n_labels > 1)], np.float32))
            dense = _read("/dense", pieces if self.n_dense else [], np.empty((total, self.n_dense), np.float32))
            single = {
                name: _read(f"/{name}", pieces, np.empty(total, dtype=layout.OPTIONAL_COLUMNS[name]))
                for name in self.optional
                if optional is None or name in optional
            }
            return Columns(label, dense, sparse, joined=joined, **single)

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        with self._lock:  # a file's descriptor is another file's once it is closed
            for file in self._open:
                file.close()
            self._open = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pieces(self, ranges: Sequence[tuple[int, int]]) -> list[_Piece]:
        pieces: list[_Piece] = []
        at = 0
        for first, end in ranges:
            if not 0 <= first <= end <= self.samples:
                raise DataError(f"{self.path}: samples [{first}, {end}) were asked for; it has {self.samples}.")
            while first < end:
                number = int(np.searchsorted(self._starts, first, side="right")) - 1
                base = int(self._starts[number])
                stop = min(end, int(self._starts[number + 1]))
                pieces.append((self._ready(self._files[number]), first - base, stop - base, at))
                at += stop - first
                first = stop
        return pieces

    def _ready(self, file: File) -> File:
        """Mark `file` as used last and close the one unused for longest; `File` itself opens when it is read."""
        if file in self._open:
            self._open.remove(file)
        self._open.append(file)
        if len(self._open) > _OPEN_FILES:
            self._open.pop(0).close()
        return file

    def _read_features(self, names: Sequence[str], pieces: list[_Piece], total: int) -> tuple[dict[str, Column], Ints]:
        """Columns of features, and their ids as one array: a batch then has its ids without a copy."""
        features = [self.feature(name) for name in dict.fromkeys(names)]
        sparse: dict[str, Column] = {}
        at = 0
        if len(pieces) == 1 and (found := together.read_bags(*pieces[0][:3], features, self._jagged)) is not None:
            bounds, joined = found
            for feature in features:
                offsets, first, n_ids = bounds[feature.name]
                weights = self._read_weights(feature, pieces, [(pieces[0][0], first, first + n_ids, 0)], offsets, n_ids)
                sparse[feature.name] = Column(joined[at : at + n_ids], offsets, weights)
                at += n_ids
            return sparse, joined
        spans = [self._read_offsets(feature.name, pieces, total) for feature in features]
        joined = np.empty(sum(n_ids for *_, n_ids in spans), dtype=np.int64)
        for feature, (offsets, where, n_ids) in zip(features, spans, strict=True):
            sparse[feature.name] = self._read_feature(feature, pieces, offsets, where, joined[at : at + n_ids])
            at += n_ids
        return sparse, joined

    def _read_feature(
        self, feature: Feature, pieces: list[_Piece], offsets: Ints | None, spans: list[_Piece], ids: Ints
    ) -> Column:
        bags = None if offsets is None else (offsets, pieces)
        _read(layout.sparse_path(feature.name, "ids"), spans, ids, feature.cardinality, bags)
        return Column(ids, offsets, self._read_weights(feature, pieces, spans, offsets, len(ids)))

    def _read_weights(
        self, feature: Feature, pieces: list[_Piece], spans: list[_Piece], offsets: Ints | None, n_ids: int
    ) -> Floats | None:
        if not feature.weighted:
            return None
        bags = None if offsets is None else (offsets, pieces)
        path = layout.sparse_path(feature.name, "weights")
        return _read(path, spans, np.empty(n_ids, dtype=np.float32), bags=bags)

    def _read_offsets(self, name: str, pieces: list[_Piece], total: int) -> tuple[Ints | None, list[_Piece], int]:
        """Offsets of the result (None where each sample has one id), its ids in the files, and how many they are."""
        if not self.jagged(name):
            return None, pieces, total
        offsets = np.zeros(total + 1, dtype=np.int64)
        spans: list[_Piece] = []
        n_ids = 0
        for file, start, stop, at in pieces:
            raw = file.read_offsets(name, start, stop)
            offsets[at + 1 : at + 1 + stop - start] = raw[1:] - raw[0] + n_ids
            spans.append((file, int(raw[0]), int(raw[-1]), n_ids))
            n_ids += int(raw[-1] - raw[0])
        return offsets, spans, n_ids

    def _fingerprint(self) -> str:
        shape = () if self.n_labels == 1 else (self.n_labels,)
        ends = []
        for start, stop in ((0, min(_PEEK, self.samples)), (max(self.samples - _PEEK, 0), self.samples)):
            out = np.empty((stop - start, *shape), dtype=np.float32)
            ends.append(_fill("/label", self._pieces([(start, stop)]), out))  # checked when they are trained on
        facts = {
            "samples": self.samples,
            "dense": self.n_dense,
            "labels": self.n_labels,
            "optional": self.optional,
            "features": [[f.name, f.cardinality, f.weighted, self.jagged(f.name)] for f in self.features],
            "ids": [sum(file.n_ids[f.name] for file in self._files) for f in self.features],
            "attributes": self.attributes,
            "checksums": {name: self._checksum(name) for name in self._files[0].columns},
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
        digest.update(b"".join(labels.tobytes() for labels in ends))
        return digest.hexdigest()[:32]

    def _checksum(self, name: str) -> int | None:
        """CRC-32 of a column over all files; None where one of them has none."""
        joined = 0
        for file in self._files:
            crc = file.columns.get(name)
            if crc is None:
                return None
            joined = checksum.join(joined, crc, file.bytes_of(name))
        return joined


def _label_names(found: Any, n_labels: int) -> tuple[str, ...] | None:
    """The attribute is the data set's own and may be anything: what is no name for each label says nothing."""
    is_list = isinstance(found, list) and len(found) == n_labels == len({str(name) for name in found})
    return tuple(found) if is_list and all(isinstance(name, str) and name for name in found) else None


def _fill(name: str, pieces: Sequence[_Piece], out: Any) -> Any:
    """Pieces of a column into `out`, as they are."""
    for file, start, stop, at in pieces:
        if stop > start:
            file.read_into(name, start, stop, out[at : at + stop - start])
    return out


def _read(
    name: str,
    pieces: Sequence[_Piece],
    out: Any,
    cardinality: int | None = None,
    bags: tuple[Ints, Sequence[_Piece]] | None = None,
) -> Any:
    """Pieces of a column into `out`, checked. `bags`: offsets of the samples whose ids these are, and their pieces."""
    wrong = checks.first_wrong(name, _fill(name, pieces, out), cardinality)
    if wrong is None:
        return out
    sample = wrong.row
    if bags is not None:
        offsets, pieces = bags
        sample = int(np.searchsorted(offsets, wrong.row, side="right")) - 1
    file, number = next((file, start + sample - at) for file, start, stop, at in pieces if at + stop - start > sample)
    raise DataError(
        f"{file.path}: {name}: sample {number} (from 0) {wrong.found}; {wrong.allowed}. Correct what it was made from "
        "and convert it again; `hpcrec data verify` lists all such columns."
    )


def _merge_features(files: Sequence[File]) -> tuple[Feature, ...]:
    """Features of all files, which must agree; `mean_ids` is over all their samples."""
    first = files[0]
    for file in files[1:]:
        for what in ("features", "n_dense", "n_labels", "optional"):
            if getattr(file, what) != getattr(first, what):
                raise DataError(
                    f"{file.path}: {what} {getattr(file, what)}, but {first.path} has {getattr(first, what)}; files of "
                    "one index must agree."
                )
    samples = max(sum(file.samples for file in files), 1)
    return tuple(replace(f, mean_ids=sum(file.n_ids[f.name] for file in files) / samples) for f in first.features)
