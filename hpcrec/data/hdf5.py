"""One HDF5 file of a data set: opened, checked against the schema, and read by contiguous slices.

Columns that `direct` can read are read past HDF5. `reader.DataSet` joins files; this module knows of one. See
``docs/data.md`` for the schema.
"""

import contextlib
import errno
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from hpcrec.again import read_again
from hpcrec.data import direct, layout
from hpcrec.data.hdf5_lookup import found_in
from hpcrec.errors import DataError, UnreadableError
from hpcrec.types import Feature, Ints

T = TypeVar("T")

_OWN_ATTRIBUTES = (layout.VERSION_ATTRIBUTE, layout.NAMES_ATTRIBUTE, layout.CARDINALITIES_ATTRIBUTE)

_AGAIN = "it is damaged: copy or convert it again"


class File:
    """A data set file, checked when it is made, open only while it is read.

    Attributes
    ----------
    samples, n_dense, n_labels : int
    features : tuple of Feature
        With `mean_ids` 1; the number of ids is in `n_ids`.
    jagged : frozenset of str
        Features with offsets.
    optional : tuple of str
        Which of ``weight``, ``group`` and ``time`` are there.
    n_ids : dict of str to int
    columns : dict of str to int or None
        Path of each dataset, and the checksum that the file has for it.
    plain : frozenset of str
        Paths of the datasets of which any rows can be had for the cost of reading them; of others, HDF5 may have to
        unpack whole chunks.
    attributes : dict

    Raises
    ------
    DataError
        When it is made and when it is read: what cannot be read, or departs from the schema.
    UnreadableError
        The same where the system does not let it be read just now, at several tries that each open it anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: dict[str, int | None] = {}
        self._bytes: dict[str, int] = {}
        self.plain: frozenset[str] = frozenset()
        self._chunks: direct.Chunks | None = None  # while it is open
        self._handle: h5py.File | None = None
        try:
            self._tried(self._check)
        except (DataError, UnreadableError):
            raise
        except Exception as error:  # HDF5 and h5py raise all sorts of things for a file that is damaged
            raise self._error("the file", f"cannot be understood ({_said(error)})", _AGAIN) from error
        finally:
            self.close()

    def _tried(self, read: Callable[[], T]) -> T:
        """What ``read`` gives; tried again with the file opened anew where the system refuses it."""

        def once() -> T:
            try:
                return read()
            except Exception:
                self.close()
                raise

        return read_again(self.path, once)

    def close(self) -> None:
        """Close the handle; the next read opens it again."""
        self._chunks = None
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def read_into(self, name: str, start: int, stop: int, out: Any) -> None:
        """Rows ``[start, stop)`` of dataset `name` into the array `out` of that length, converted to its type."""

        def read() -> None:
            if self.read_together([name], [start], [stop - start], [0], out):
                return
            data = self._file()[name]
            if data.dtype == out.dtype:
                data.read_direct(out, np.s_[start:stop])
            else:
                out[:] = data[start:stop]  # NumPy converts several times as fast as HDF5

        with self._reading(name, start, stop):
            self._tried(read)

    def read_together(
        self, names: Sequence[str], starts: Sequence[int], rows: Sequence[int], limits: Sequence[int], out: Any
    ) -> bool:
        """Rows of several datasets at once; see `direct.Chunks.read`. False where each is to be read by itself."""
        if not self.plain.issuperset(names):
            return False
        try:
            if self._chunks is None:
                self._chunks = direct.Chunks(self._file())
            return self._chunks.read(names, starts, rows, limits, out)
        except DataError:
            raise
        except Exception:  # as of a damaged index of chunks: read one by one, HDF5 says which column it is
            return False

    def read(self, name: str, start: int, stop: int) -> Any:
        """Rows ``[start, stop)`` of dataset `name`, or as many as there are, in the type that they have on disk."""
        with self._reading(name, start, stop):
            return self._tried(lambda: self._file()[name][start:stop])

    @contextlib.contextmanager
    def _reading(self, name: str, start: int, stop: int) -> Iterator[None]:
        try:
            yield
        except (DataError, UnreadableError):
            raise
        except Exception as error:  # see __init__
            raise self._error(name, f"rows [{start}, {stop}) cannot be read ({_said(error)})", _AGAIN) from error

    def bytes_of(self, name: str) -> int:
        """Bytes that a dataset's checksum is of."""
        return self._bytes[name]

    def read_offsets(self, feature: str, start: int, stop: int) -> Ints:
        """Offsets of samples ``[start, stop)`` into the file's ids; int64 [stop - start + 1], checked to rise."""
        if feature not in self.jagged:
            return np.arange(start, stop + 1, dtype=np.int64)
        name = layout.sparse_path(feature, "offsets")
        offsets = np.empty(stop - start + 1, dtype=np.int64)
        self.read_into(name, start, stop + 1, offsets)
        falls = np.flatnonzero(np.diff(offsets) < 0)
        if len(falls) or offsets[0] < 0 or offsets[-1] > self.n_ids[feature]:
            sample = start + int(falls[0]) if len(falls) else start
            found = f"sample {sample} has offsets {offsets[sample - start : sample - start + 2].tolist()}"
            raise self._error(name, found, f"they must rise from 0 to the number of ids, {self.n_ids[feature]}")
        return offsets

    def _file(self) -> h5py.File:
        if self._handle is None:
            self._handle = open_hdf5(self.path)
        return self._handle

    def _error(self, where: str, found: str, change: str) -> DataError:
        return DataError(f"{self.path}: {where}: {found}; {change}.")

    def _check(self) -> None:
        attributes = self._file().attrs
        version = found_in(attributes, layout.VERSION_ATTRIBUTE)
        if version != layout.SCHEMA_VERSION:
            found = "no such attribute" if version is None else f"version {version}"
            change = f"version {layout.SCHEMA_VERSION} is read here: convert the data with this release"
            raise self._error(layout.VERSION_ATTRIBUTE, found, change)
        self.attributes = {k: _decode(attributes[k]) for k in attributes if k not in _OWN_ATTRIBUTES}
        label = self._dataset("/label", "f", (1, 2))
        self.samples = len(label)
        self.n_labels = 1 if label.ndim == 1 else label.shape[1]
        if self.n_labels < 1:
            raise self._error("/label", f"shape {label.shape}", "at least one label is needed")
        self.n_dense = self._dataset("/dense", "f", (2,), self.samples).shape[1] if self._has("/dense") else 0
        self.optional = tuple(name for name in layout.OPTIONAL_COLUMNS if self._has(f"/{name}"))
        for name in self.optional:
            self._dataset(f"/{name}", np.dtype(layout.OPTIONAL_COLUMNS[name]).kind, (1,), self.samples)
        self._check_features(attributes)

    def _check_features(self, attributes: Any) -> None:
        names = [str(_decode(name)) for name in found_in(attributes, layout.NAMES_ATTRIBUTE, ())]
        listed = np.atleast_1d(found_in(attributes, layout.CARDINALITIES_ATTRIBUTE, np.empty(0, np.int64)))
        if listed.dtype.kind not in "iu" or listed.ndim != 1:
            found = f"{listed.dtype} with {listed.ndim} dimensions"
            raise self._error(layout.CARDINALITIES_ATTRIBUTE, found, "int64 with 1 dimension is needed")
        cardinalities = listed.tolist()
        if len(names) != len(cardinalities) or len(set(names)) != len(names):
            found = f"{len(names)} names ({len(set(names))} distinct), {len(cardinalities)} cardinalities"
            change = "both attributes must list every feature once"
            raise self._error(f"{layout.NAMES_ATTRIBUTE}, {layout.CARDINALITIES_ATTRIBUTE}", found, change)
        for name in names:
            if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:  # names files too, later on
                change = "a name is text, without parts that are empty, '.' or '..'; convert the data with another one"
                raise self._error(layout.NAMES_ATTRIBUTE, repr(name[:60]), change)
        self.n_ids: dict[str, int] = {}
        jagged: set[str] = set()
        features = []
        for name, cardinality in zip(names, cardinalities, strict=True):
            if cardinality < 0:
                change = "1 or more is allowed, or 0 where it is not declared"
                raise self._error(layout.CARDINALITIES_ATTRIBUTE, f"{name} has {cardinality}", change)
            is_jagged = self._has(layout.sparse_path(name, "offsets"))
            ids = self._dataset(layout.sparse_path(name, "ids"), "i", (1,), None if is_jagged else self.samples)
            weighted = self._has(layout.sparse_path(name, "weights"))
            if is_jagged:
                jagged.add(name)
                self._check_offsets(name, len(ids))
            if weighted:
                self._dataset(layout.sparse_path(name, "weights"), "f", (1,), len(ids))
            self.n_ids[name] = len(ids)
            features.append(Feature(name=name, cardinality=int(cardinality), weighted=weighted))
        self.features, self.jagged = tuple(features), frozenset(jagged)

    def _check_offsets(self, name: str, n_ids: int) -> None:
        path = layout.sparse_path(name, "offsets")
        offsets = self._dataset(path, "i", (1,), self.samples + 1)
        if offsets[0] != 0 or offsets[-1] != n_ids:
            change = f"they must go from 0 to the number of ids, {n_ids}"
            raise self._error(path, f"they go from {offsets[0]} to {offsets[-1]}", change)

    def _has(self, name: str) -> bool:
        if found_in(self._file(), name) is not None:
            return True
        parent, _, last = name.rpartition("/")
        group = found_in(self._file(), parent or "/")
        if isinstance(group, h5py.Group) and last in list(group):  # names are sorted in the file, which a byte undoes
            raise self._error(name, "it is listed and cannot be found", "the file is damaged: copy or convert it again")
        return False

    def _dataset(self, name: str, kind: str, ndim: tuple[int, ...], length: int | None = None) -> h5py.Dataset:
        """The dataset, after a look at its type ('f' or 'i'), dimensions and length."""
        data = found_in(self._file(), name)
        word = {"f": "float32", "i": "int64"}[kind]
        if not isinstance(data, h5py.Dataset):
            raise self._error(name, "no such dataset", f"the schema wants {word}")
        if data.dtype.kind != kind or data.ndim not in ndim:
            allowed = f"{word} with {' or '.join(map(str, ndim))} dimensions is allowed"
            raise self._error(name, f"{data.dtype} with {data.ndim} dimensions", allowed)
        if length is not None and len(data) != length:
            raise self._error(
                name, f"length {len(data)}", f"{length} is needed, since /label has {len(self._file()['/label'])}"
            )
        crc = found_in(data.attrs, layout.CHECKSUM_ATTRIBUTE)
        self.columns[name] = None if crc is None else int(crc)
        if direct.stored_plainly(data) and direct.readable(self._file()):
            self.plain |= {name}
        differences = name.startswith("/sparse/") and name.endswith("/offsets")  # of n numbers there are n - 1
        self._bytes[name] = (data.size - differences) * data.dtype.itemsize
        return data


def open_hdf5(path: Path) -> h5py.File:
    """Open for reading; without file locks where the file system refuses them (some parallel file systems do).

    Raises
    ------
    DataError
        When the file is absent, is no HDF5 file, or is being written by another program.
    """
    for locking in ("best-effort", False):
        try:
            return h5py.File(path, "r", locking=locking)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; write it by `hpcrec prepare`, or change the path.") from None
        except Exception as error:
            refused = isinstance(error, OSError) and locking and "unable to lock" in str(error)
            if refused and f"errno = {errno.EAGAIN}" in str(error):
                raise DataError(f"{path}: another program is writing this file; wait until it is finished.") from error
            if not refused:
                raise DataError(f"{path}: not a readable HDF5 file ({_said(error)}); {_change(path, error)}") from error
    raise AssertionError("without locks none is refused")


def _change(path: Path, error: Exception) -> str:
    """What to do about a file that HDF5 does not open."""
    if path.is_dir():
        return f"it is a folder. Give a data set in it, as {path / 'train.h5'}."
    if "file signature not found" in str(error):
        return "a table becomes a data set by `hpcrec prepare table`; copy or convert it again where it was one."
    return "copy or convert it again."


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"  # HDF5's have several lines


def _decode(value: Any) -> Any:
    """Attribute as JSON has it: text, number, list or null; text that is a JSON object or list is parsed."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        value = value.encode(errors="replace").decode()  # half a pair of surrogates is no text
        if value[:1] in ("{", "["):
            with contextlib.suppress(ValueError, RecursionError):
                return _decode_all(json.loads(value))
    return _decode_all(value)


def _decode_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(_decode_all(key)): _decode_all(one) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_decode(one) if isinstance(one, bytes | np.ndarray | np.generic) else _decode_all(one) for one in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float) else None  # of HDF5: empty, references
