"""Files that are declared and then filled: they are what HDF5 reads, and the checksum is of all of their bytes."""

import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcrec.data import checksum
from hpcrec.data.hdf5_filled import Filled


def fill(path: Path, arrays: dict[str, np.ndarray], piece: int) -> int:
    """Writes the arrays in turn, so many rows at a time; returns the checksum."""
    shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    with Filled(path, shapes, lambda file: file.attrs.update({"said": "before"})) as filled:
        for start in range(0, max(len(array) for array in arrays.values()), piece):
            for name, array in arrays.items():
                filled.append(name, array[start : start + piece])
    return filled.crc32


@pytest.mark.parametrize("rows", [0, 1, 5, 3000])
@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_what_is_read_and_its_checksum(tmp_path: Path, rows: int, piece: int) -> None:
    rng, path = np.random.default_rng(rows), tmp_path / "a.h5"
    arrays = {
        "ids": rng.integers(0, 99, rows),
        "rows": rng.random((rows, 3), np.float32),
        "state/a": rng.random(rows),
        "none": np.zeros((0, 4), np.float32),
    }
    found = fill(path, arrays, piece)
    assert found == zlib.crc32(path.read_bytes()) == checksum.of_file(path)
    with h5py.File(path) as file:
        assert file.attrs["said"] == "before"
        for name, array in arrays.items():
            np.testing.assert_array_equal(file[name][:], array)


def test_what_is_not_full_is_refused(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "a.h5", {"ids": ((3,), np.int64)}, lambda file: None)
    filled.append("ids", np.arange(2))
    with pytest.raises(AssertionError, match=r"\['ids'\] are not full"):
        filled.close()
    with pytest.raises(AssertionError, match="ids is full"):
        filled.append("ids", np.arange(2))
    filled.abort()


@pytest.mark.parametrize("n_bytes", [0, 1, (1 << 20) - 1, 1 << 20, (9 << 20) + 5])
def test_a_checksum_of_a_file(tmp_path: Path, n_bytes: int) -> None:
    content = np.random.default_rng(n_bytes).bytes(n_bytes)
    (tmp_path / "a").write_bytes(content)
    assert checksum.of_file(tmp_path / "a") == zlib.crc32(content)
