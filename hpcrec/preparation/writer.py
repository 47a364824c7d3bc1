"""Writes a data set file, block by block in bounded memory.

The file appears under its name only when it is complete: it is written to a temporary name beside it, flushed, and
renamed when the writer closes; an error removes it. Knows nothing of where samples come from.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike

from hpcrec.data import checks, checksum, files, layout
from hpcrec.data.hdf5_out import Output
from hpcrec.data.layout import Column, Columns
from hpcrec.errors import DataError
from hpcrec.preparation import chunks
from hpcrec.types import Feature, Floats, Ints


class Writer(files.WholeOrAbsent):
    """One data set file in the making; a context manager.

    Parameters
    ----------
    path : Path
        Appears when the writer closes without an error. An existing file is replaced.
    features : sequence of Feature
        `mean_ids` is not read: the file says it.
    n_dense : int
    n_labels : int
        1 writes label [N], more write [N, L].
    jagged : collection of str
        Features that may have any number of ids a sample; the others have exactly one.
    optional : collection of str
        Which of ``weight``, ``group`` and ``time`` every block brings.
    attributes : mapping
        Root attributes: str, int, float or (as JSON) dict and list. See `set_attributes`.
    compression : str
        One of `layout.COMPRESSIONS`.

    Raises
    ------
    DataError
        From `append` for a block that does not fit this description or holds a value that is not allowed, with what
        was found and what is allowed.
    OutputError
        From any call, where the disk cannot be written.
    """

    def __init__(
        self,
        path: Path | str,
        features: Sequence[Feature],
        *,
        n_dense: int,
        n_labels: int = 1,
        jagged: Collection[str] = (),
        optional: Collection[str] = (),
        attributes: Mapping[str, Any] | None = None,
        compression: str = "none",
    ) -> None:
        self.path = Path(path)
        self._compression = compression
        self.features, self.n_dense, self.n_labels = tuple(features), n_dense, n_labels
        self.samples = 0
        self._jagged, self._optional = frozenset(jagged), frozenset(optional)
        self._check_description()
        self._temporary = files.temporary_beside(self.path)
        self._checksums: dict[str, int] = {}
        self._output: Output | None = Output(self._temporary, self.path, layout.FILE_FORMAT)
        try:
            self._create_columns()
            self.set_attributes(attributes or {})
        except BaseException:
            self.abort()
            raise

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add or replace root attributes; dicts and lists are stored as JSON."""
        for name, value in attributes.items():
            text = json.dumps(value) if isinstance(value, dict | list) else value
            _set_attribute(self._open_file(), name, text)

    def append(self, block: Columns) -> None:
        """Add samples after those already written.

        Blocks may have any size; multiples of `layout.CHUNK_SAMPLES` are fastest, since no chunk is compressed twice.
        """
        try:
            self._append(block)
        finally:
            if self._output is not None:
                self._output.check()

    def _append(self, block: Columns) -> None:
        n = block.samples
        label_shape = (n,) if self.n_labels == 1 else (n, self.n_labels)
        self._extend("/label", block.label, label_shape)
        if self.n_dense:
            self._extend("/dense", block.dense, (n, self.n_dense))
        for name in sorted(self._optional):
            self._extend(f"/{name}", getattr(block, name), (n,))
        for feature in self.features:
            if feature.name not in block.sparse:
                raise self._error(f"/sparse/{feature.name}", "the block has no such feature", "pass its Column")
            self._append_feature(feature, block.sparse[feature.name], n)
        self.samples += n

    def close(self) -> None:
        """Finish the file and give it its name; a second call does nothing."""
        if self._output is None:
            return
        try:
            for name, crc in self._checksums.items():
                self._open_file()[name].attrs[layout.CHECKSUM_ATTRIBUTE] = np.uint32(crc)
            self._output.close()
            with files.writing(self.path):
                files.publish(self._temporary, self.path)
        finally:
            self.abort()

    def abort(self) -> None:
        """Give up: close and remove what was written; nothing is left under the file's name."""
        if self._output is not None:
            self._output.abort()
            self._output = None
        self._temporary.unlink(missing_ok=True)

    def _error(self, where: str, found: str, change: str) -> DataError:
        return DataError(f"{self.path}: {where}: {found}; {change}.")

    def _open_file(self) -> h5py.File:
        if self._output is None:
            raise self._error("writer", "it is closed", "open a new one")
        return self._output.file

    def _check_description(self) -> None:
        names = [feature.name for feature in self.features]
        for feature in self.features:
            if not feature.name or "/" in feature.name or feature.name == ".":
                raise self._error("features", f"name {feature.name!r}", "use a name that is not empty and has no '/'")
            if feature.cardinality < 0:
                found = f"cardinality {feature.cardinality}"
                raise self._error(f"/sparse/{feature.name}", found, "use 1 or more, or 0 where it is not declared")
        if len(set(names)) != len(names):
            raise self._error("features", f"a name occurs twice in {names}", "name each feature once")
        if unknown := self._jagged - set(names):
            raise self._error("jagged", f"unknown features {sorted(unknown)}", f"choose from {names}")
        if unknown := self._optional - set(layout.OPTIONAL_COLUMNS):
            allowed = ", ".join(layout.OPTIONAL_COLUMNS)
            raise self._error("optional", f"unknown columns {sorted(unknown)}", f"choose from {allowed}")
        if self._compression not in layout.COMPRESSIONS:
            raise self._error("compression", f"{self._compression!r}", f"choose from {', '.join(layout.COMPRESSIONS)}")
        if self.n_dense < 0 or self.n_labels < 1:
            found = f"n_dense {self.n_dense}, n_labels {self.n_labels}"
            raise self._error("writer", found, "use at least 0 and 1")

    def _create_columns(self) -> None:
        self._create("/label", np.float32, () if self.n_labels == 1 else (self.n_labels,))
        if self.n_dense:
            self._create("/dense", np.float32, (self.n_dense,))
        for name in self._optional:
            self._create(f"/{name}", layout.OPTIONAL_COLUMNS[name])
        for feature in self.features:
            self._create(layout.sparse_path(feature.name, "ids"), layout.id_type(feature.cardinality))
            if feature.name in self._jagged:
                offsets = self._create(layout.sparse_path(feature.name, "offsets"), np.int64)
                offsets.resize(1, axis=0)  # the leading 0
            if feature.weighted:
                self._create(layout.sparse_path(feature.name, "weights"), np.float32)
        file = self._open_file()
        file.attrs[layout.VERSION_ATTRIBUTE] = layout.SCHEMA_VERSION
        _set_attribute(file, layout.NAMES_ATTRIBUTE, [f.name for f in self.features])
        file.attrs[layout.CARDINALITIES_ATTRIBUTE] = np.array([f.cardinality for f in self.features], dtype=np.int64)

    def _create(self, name: str, dtype: DTypeLike, shape: tuple[int, ...] = ()) -> h5py.Dataset:
        rows = max(layout.CHUNK_SAMPLES // int(np.prod(shape, dtype=np.int64)), 256)
        self._checksums[name] = 0
        return self._open_file().create_dataset(
            name,
            (0, *shape),
            dtype,
            maxshape=(None, *shape),
            chunks=(rows, *shape),
            **layout.COMPRESSIONS[self._compression],
        )

    def _extend(
        self, name: str, values: Floats | Ints | None, shape: tuple[int, ...], cardinality: int | None = None
    ) -> None:
        data = self._open_file()[name]
        if values is None or values.shape != shape:
            found = "nothing" if values is None else f"shape {values.shape}"
            raise self._error(name, f"the block brings {found}", f"it must be {shape}")
        if values.dtype.kind != data.dtype.kind:
            raise self._error(name, f"the block brings {values.dtype}", f"it must be {data.dtype}")
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is found
                values = values.astype(data.dtype, copy=False)
        if (wrong := checks.first_wrong(name, values, cardinality)) is not None:
            of = "id" if name.startswith("/sparse/") else "sample"
            raise self._error(name, f"{of} {wrong.row} of the block {wrong.found}", wrong.allowed)
        values = values.astype(data.dtype, copy=False)  # ids: only now that they are known to fit
        self._put(name, values, values)

    def _put(self, name: str, values: Floats | Ints, checksummed: Floats | Ints) -> None:
        if len(values):
            data = self._open_file()[name]
            self._checksums[name] = checksum.update(self._checksums[name], checksummed, data.dtype)
            chunks.append(data, values)

    def _append_feature(self, feature: Feature, column: Column, n: int) -> None:
        where = layout.sparse_path(feature.name, "ids")
        n_ids = n
        if feature.name in self._jagged:
            n_ids = len(column.ids)
            path = layout.sparse_path(feature.name, "offsets")
            offsets = np.arange(n + 1, dtype=np.int64) if column.offsets is None else column.offsets
            if (
                offsets.shape != (n + 1,)
                or offsets.dtype.kind != "i"
                or offsets[0] != 0
                or offsets[-1] != n_ids
                or (np.diff(offsets) < 0).any()
            ):
                change = f"they must be {n + 1} integers that rise from 0 to the number of ids, {n_ids}"
                raise self._error(path, f"the block brings offsets {offsets.dtype} {offsets.shape}", change)
            self._put(path, offsets[1:] + len(self._open_file()[where]), np.diff(offsets))
        elif column.offsets is not None and not np.array_equal(column.offsets, np.arange(n + 1)):
            raise self._error(where, "a sample has not exactly one id", "name the feature in `jagged`")
        self._extend(where, column.ids, (n_ids,), feature.cardinality)
        if feature.weighted:
            self._extend(layout.sparse_path(feature.name, "weights"), column.weights, (n_ids,))


def _set_attribute(file: h5py.File, name: str, value: Any) -> None:
    """Text goes in as text of fixed length: it is then in the header, which has a checksum."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        encoded = np.char.encode(np.array(value, dtype=np.str_), "utf-8")
        length = max(encoded.dtype.itemsize, 1)
        file.attrs.create(name, encoded.astype(f"S{length}"), dtype=h5py.string_dtype("utf-8", length))
    else:
        file.attrs[name] = value
