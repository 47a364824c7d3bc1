"""A model that was exported: ids and dense inputs in, probabilities out. Knows its folder, torch and NumPy.

Rows are looked up in files that are mapped into memory: what a batch asks for is read, and no more.

Legend: ``B`` samples, ``K`` ids, ``U`` distinct ids, ``D`` row width, ``N`` dense inputs, ``L`` labels.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hpcrec import kernels
from hpcrec.data.layout import Column
from hpcrec.errors import CheckpointError, DataError
from hpcrec.serving.arrays import read_arrays
from hpcrec.serving.folder import EXPORT, MODEL, WEIGHTS, read_facts
from hpcrec.serving.graph import Graph
from hpcrec.types import Floats, Ints

Sparse = Mapping[str, Any]


class Exported:
    """An export, ready to predict; opening it reads the dense part, not the tables.

    Parameters
    ----------
    folder : Path or str
        What ``hpcrec checkpoint export`` wrote.

    Attributes
    ----------
    facts : dict
        What ``export.json`` says.
    features : tuple of str
        What ``predict`` needs ids of.
    dense_inputs, labels : int

    Raises
    ------
    CheckpointError
        It is no export, files of it are missing or cut short, or hold what is not allowed. Of tables,
        ``hpcrec checkpoint verify`` alone reads checksums.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.facts = read_facts(self.folder)
        self.features = tuple(f["name"] for f in self.facts["features"])
        self.dense_inputs, self.labels = int(self.facts["dense_inputs"]), int(self.facts["labels"])
        self._feature = {f["name"]: f for f in self.facts["features"]}
        self._tables = {name: _Table(self.folder, name, said) for name, said in self.facts["tables"].items()}
        self._dtype = torch.float64 if self.facts["dtype"] == "float64" else torch.float32
        widths = [self.dense_inputs, *(int(self.facts["tables"][k["table"]]["width"]) for k in self.facts["inputs"])]
        self._model = Graph(self.folder / MODEL, self.folder / WEIGHTS, widths, self.labels, self._dtype)

    def predict(self, sparse: Sparse, dense: Floats | None = None) -> Floats:
        """Probabilities.

        Parameters
        ----------
        sparse : mapping of str to array or tuple
            Of each feature: ids [B], one a sample; or (ids [K], offsets [B + 1]), bag i being
            ``ids[offsets[i]:offsets[i + 1]]``; or (ids, offsets, weights [K]), as a weighted feature needs them.
        dense : float [B, N], optional
            May be left out where there are none.

        Returns
        -------
        float32 [B], or [B, L] of several labels

        Raises
        ------
        DataError
            A feature is missing, unknown or of another length, or an id is outside its table.
        """
        return torch.sigmoid(self.logits(sparse, dense)).to(torch.float32).numpy()

    def logits(self, sparse: Sparse, dense: Floats | None = None) -> Tensor:
        """The same before the sigmoid, in the type that the model was trained in."""
        columns = self._columns(sparse)
        n_samples = {name: _samples(column) for name, column in columns.items()}
        if dense is not None:
            n_samples["dense"] = len(dense)
        if len(set(n_samples.values())) > 1:
            raise DataError(f"{self.folder}: inputs have different numbers of samples: {n_samples}.")
        n = next(iter(n_samples.values()))
        given = np.zeros((n, 0)) if dense is None else np.asarray(dense)
        if given.shape != (n, self.dense_inputs):
            raise DataError(
                f"{self.folder}: dense has shape {list(given.shape)}, needed is [{n}, {self.dense_inputs}]."
            )
        if not n:
            return torch.zeros((0,) if self.labels == 1 else (0, self.labels), dtype=self._dtype)
        pooled = [self._pooled(columns[k["feature"]], k) for k in self.facts["inputs"]]
        with torch.no_grad():
            return self._model(torch.from_numpy(given).to(self._dtype), *pooled)

    def _columns(self, sparse: Sparse) -> dict[str, Column]:
        for name in sparse:
            if name not in self._feature:
                raise DataError(f"{self.folder}: has no feature {name!r}. It has: {', '.join(self.features)}.")
        columns = {}
        for name in self.features:
            if name not in sparse:
                raise DataError(f"{self.folder}: feature {name!r} is missing. Needed are: {', '.join(self.features)}.")
            columns[name] = self._checked(name, sparse[name])
        return columns

    def _checked(self, name: str, given: Any) -> Column:
        if isinstance(given, Column):
            column = given
        elif isinstance(given, tuple):
            ids, offsets, weights = (None if x is None else np.asarray(x) for x in (*given, None, None)[:3])
            column = Column(np.zeros(0, np.int64) if ids is None else ids, offsets, weights)
        else:
            column = Column(np.asarray(given))
        ids, offsets, feature = np.asarray(column.ids), column.offsets, self._feature[name]
        where = f"{self.folder}: feature {name!r}"
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise DataError(f"{where} has ids {ids.dtype} {list(ids.shape)}; needed are whole numbers [K].")
        if offsets is not None and (
            not len(offsets) or offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 0).any()
        ):
            raise DataError(f"{where} has offsets that do not rise from 0 to its {len(ids)} ids.")
        if feature["weighted"] != (column.weights is not None):
            raise DataError(f"{where} {'needs' if feature['weighted'] else 'has no'} weights of its ids.")
        if column.weights is not None and len(column.weights) != len(ids):
            raise DataError(f"{where} has {len(column.weights)} weights for {len(ids)} ids.")
        limit = feature["cardinality"]
        if limit and len(ids) and (ids.min() < 0 or ids.max() >= limit):
            raise DataError(f"{where} has ids from {ids.min()} to {ids.max()}. Allowed: 0 to {limit - 1}.")
        return Column(ids.astype(np.int64, copy=False), offsets, column.weights)

    def _pooled(self, column: Column, lookup: Mapping[str, Any]) -> Tensor:
        """A vector for each sample: [B, D]."""
        offsets = np.arange(len(column.ids) + 1) if column.offsets is None else np.asarray(column.offsets, np.int64)
        bounds = torch.from_numpy(offsets)
        pooled_BD = _crossed(self._summed(column, lookup, bounds), lookup)
        if lookup["pooling"] == "mean":  # sums cross, and whoever has them divides
            pooled_BD = pooled_BD / bounds.diff().clamp(min=1)[:, None]
        return pooled_BD

    def _summed(self, column: Column, lookup: Mapping[str, Any], bounds: Tensor) -> Tensor:
        """The sum of each bag, or its largest elements: [B, D]."""
        unique, place = np.unique(column.ids, return_inverse=True)
        rows_UD = torch.from_numpy(self._tables[lookup["table"]].read(unique)).to(self._dtype)
        if not len(unique):
            return rows_UD.new_zeros(len(bounds) - 1, rows_UD.shape[1])
        weights = None if column.weights is None else torch.from_numpy(np.asarray(column.weights)).to(self._dtype)
        return functional.embedding_bag(
            torch.from_numpy(place.reshape(-1)),
            _rounded(rows_UD, lookup.get("rows")),
            bounds,
            mode="max" if lookup["pooling"] == "max" else "sum",
            per_sample_weights=weights,
            include_last_offset=True,
        )


def _crossed(x_BD: Tensor, lookup: Mapping[str, Any]) -> Tensor:
    """What is read of vectors that crossed as the run's do (``export.json``)."""
    if "keep" in lookup or "tau" in lookup:
        values = x_BD.numpy()
        if "keep" in lookup:
            positions, chosen = kernels.select_largest(values, int(lookup["keep"]))
        else:
            positions, chosen = kernels.select_above(values.reshape(-1), lookup["tau"])
        x_BD = torch.zeros_like(x_BD)
        x_BD.view(-1)[torch.from_numpy(positions)] = torch.from_numpy(chosen)
    return _rounded(x_BD, lookup.get("vectors"))


def _rounded(x: Tensor, written: str | None) -> Tensor:
    """What is read of ``x`` where it was written so."""
    return x if written is None else x.to(torch.bfloat16).to(x.dtype)


def _samples(column: Column) -> int:
    return len(column.ids) if column.offsets is None else len(column.offsets) - 1


class _Table:
    """Rows of one table, by id."""

    def __init__(self, folder: Path, name: str, said: Mapping[str, Any]) -> None:
        path = folder / said["file"]
        arrays, rows = read_arrays(path), said["rows"]
        needed: dict[str, tuple[int, ...]] = {"rows": (rows, said["width"])}
        if said["kind"] == "dynamic":
            needed["ids"] = (rows,)
        found = {name: array.shape for name, array in arrays.items()}
        types = {name: array.dtype.kind for name, array in arrays.items()}
        if found != needed or any(kind != ("i" if name == "ids" else "f") for name, kind in types.items()):
            has = ", ".join(f"{name!r} {array.dtype} {list(array.shape)}" for name, array in sorted(arrays.items()))
            says = ", ".join(f"{name} {list(shape)}" for name, shape in sorted(needed.items()))
            raise CheckpointError(
                f"{path}: has {has or 'no arrays'}. Allowed by {EXPORT}: {says}, rows as float32 or float64, ids as "
                "int64. Export the run again."
            )
        self._rows, self._ids = arrays["rows"], arrays.get("ids")
        self._kind, self._seed, self._where = said["kind"], said.get("hash_seed", 0), f"{folder}: table {name!r}"

    def read(self, ids: Ints) -> Floats:
        """Rows of rising ids [U]: [U, D]; zeros of those that have none in a dynamic table."""
        if self._kind == "hashed":
            ids = kernels.hash_ids(ids, len(self._rows), int(self._seed))
        if self._ids is None:
            if len(ids) and (ids.min() < 0 or ids.max() >= len(self._rows)):
                raise DataError(
                    f"{self._where} is asked for ids from {ids.min()} to {ids.max()}; it has rows 0 to "
                    f"{len(self._rows) - 1}."
                )
            return np.array(self._rows[ids])
        at = np.searchsorted(self._ids, ids)
        known = at < len(self._ids)
        known[known] = self._ids[at[known]] == ids[known]
        rows = np.zeros((len(ids), self._rows.shape[1]), self._rows.dtype)
        rows[known] = self._rows[at[known]]
        return rows
