"""Chunks packed outside HDF5: HDF5 reads what was appended, whatever the filters, types and cuts."""

import itertools
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcrec import kernels
from hpcrec.preparation import chunks

FILTERS = [
    dict(zip(("compression", "shuffle", "fletcher32"), chosen, strict=True))
    for chosen in itertools.product((None, "gzip"), (False, True), (False, True))
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_hdf5_reads_what_was_appended(tmp_path: Path, filters: dict, dtype: type, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.random((n, *shape)) ** 3 * 1000).astype(np.float32 if dtype is np.float32 else np.int64)
             for n in (0, 100, 28, 1, 300, 0, 63, 64)]  # fmt: skip
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("a", (0, *shape), dtype, maxshape=(None, *shape), chunks=(64, *shape), **filters)
        for part in parts:
            chunks.append(data, part)
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["a"][:], np.concatenate(parts))


def test_other_filters_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("a", (0,), np.int32, maxshape=(None,), chunks=(4,), compression="lzf")
        with pytest.raises(ValueError, match=r"filters .* are not known"):
            chunks.append(data, np.arange(8))


@pytest.mark.parametrize("data", [b"", b"\0" * 10, b"\xff" * 7, b"\xff\xff", bytes(range(256)) * 300 + b"x"])
def test_fletcher32_by_its_definition(data: bytes) -> None:
    low = high = 0
    for i in range(0, len(data), 2):
        low += int.from_bytes(data[i : i + 2].ljust(2, b"\0"), "big")
        low = (low & 0xFFFF) + (low >> 16)
        high += low
        high = (high & 0xFFFF) + (high >> 16)
    assert kernels.fletcher32(np.frombuffer(data, np.uint8)) == high << 16 | low
