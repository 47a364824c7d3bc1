"""Small data sets made by hand for the tests of hpcrec.data."""

from pathlib import Path

import numpy as np
import pytest

from hpcrec.preparation.schema import Column, Columns, Writer
from hpcrec.types import Feature

FEATURES = (
    Feature(name="user", cardinality=1000),
    Feature(name="tags", cardinality=50),
    Feature(name="terms", cardinality=70, weighted=True),
)


def make_columns(n: int, seed: int = 0, n_labels: int = 1) -> Columns:
    """n samples: one one-hot, one jagged (with empty bags), one jagged weighted feature; all optional columns."""
    rng = np.random.default_rng(seed)

    def jagged(cardinality: int, weighted: bool) -> Column:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 5, n))]).astype(np.int64)
        ids = rng.integers(0, cardinality, offsets[-1])
        return Column(ids, offsets, rng.random(len(ids), dtype=np.float32) if weighted else None)

    return Columns(
        label=rng.integers(0, 2, n if n_labels == 1 else (n, n_labels)).astype(np.float32),
        dense=np.arange(3 * n, dtype=np.float32).reshape(n, 3),  # dense[:, 0] / 3 is the sample's number
        sparse={
            "user": Column(rng.integers(0, 1000, n)),
            "tags": jagged(50, weighted=False),
            "terms": jagged(70, weighted=True),
        },
        weight=rng.random(n, dtype=np.float32),
        group=rng.integers(0, 9, n),
        time=np.arange(n, dtype=np.int64) * 7,
    )


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """Samples [start, stop), by plain slicing."""

    def bag(column: Column) -> Column:
        if column.offsets is None:
            return Column(column.ids[start:stop])
        low, high = column.offsets[start], column.offsets[stop]
        weights = None if column.weights is None else column.weights[low:high]
        return Column(column.ids[low:high], column.offsets[start : stop + 1] - low, weights)

    return Columns(
        label=columns.label[start:stop],
        dense=columns.dense[start:stop],
        sparse={name: bag(column) for name, column in columns.sparse.items()},
        weight=columns.weight[start:stop],
        group=columns.group[start:stop],
        time=columns.time[start:stop],
    )


def write(path: Path, columns: Columns, block: int = 1000, compression: str = "none", **attributes: object) -> Path:
    n_labels = 1 if columns.label.ndim == 1 else columns.label.shape[1]
    with Writer(
        path,
        FEATURES,
        n_dense=3,
        n_labels=n_labels,
        jagged=("tags", "terms"),
        optional=("weight", "group", "time"),
        attributes=attributes,
        compression=compression,
    ) as writer:
        for start in range(0, columns.samples, block):
            writer.append(cut(columns, start, min(start + block, columns.samples)))
    return path


@pytest.fixture(scope="session")
def samples() -> Columns:
    return make_columns(2357)


@pytest.fixture(scope="session")
def data_file(samples: Columns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "train.h5", samples, block=500, origin="made by hand")
