"""Writes a workload's arrays as the HDF5 data set that hpcrec trains on. Knows the workload and hpcrec's writer."""

from pathlib import Path

import numpy as np
from speed_parts import workload

from hpcrec.data.layout import Column, Columns
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature


def prepare(name: str, folder: Path) -> Path:
    """The data set's file in ``folder``; written, with the arrays that it comes from, unless it is there."""
    path = folder / f"{name}.h5"
    workload.generate(name, folder)
    if path.exists():
        return path
    w = workload.WORKLOADS[name]
    features = [Feature(name=f"f{i}", cardinality=rows) for i, rows in enumerate(w.rows)]
    jagged = [f.name for f in features] if w.ids > 1 else []
    offsets = np.arange(0, w.batch * w.ids + 1, w.ids, dtype=np.int64) if w.ids > 1 else None
    ids, dense, label = workload.load(name, folder)
    with Writer(path, features, n_dense=w.n_dense, jagged=jagged) as writer:
        for ids_TBL, dense_BX, label_B in zip(ids, dense, label, strict=True):
            sparse = {f.name: Column(ids_BL.reshape(-1), offsets) for f, ids_BL in zip(features, ids_TBL, strict=True)}
            writer.append(Columns(label=label_B, dense=dense_BX, sparse=sparse))
    return path
