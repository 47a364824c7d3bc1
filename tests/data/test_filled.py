"""Files that are declared and then filled: they are what HDF5 reads, and the checksum is of all of their bytes."""

import errno
import fcntl
import gc
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcrec.data import checksum, hdf5_filled
from hpcrec.data.hdf5_filled import PAGE_BYTES, Filled


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


Pwrite = Callable[[int, memoryview, int], int]


def write_many_pages(path: Path) -> None:
    """More than is gathered at once, of data sets that begin and end anywhere; and reads it back."""
    rng = np.random.default_rng(1)
    arrays = {"ids": rng.integers(0, 99, 9001), "rows": rng.random((9001, 13), np.float32), "a": rng.random(9001)}
    found = fill(path, arrays, 700)
    assert found == zlib.crc32(path.read_bytes())
    with h5py.File(path) as file:
        assert any(file[name].id.get_offset() % PAGE_BYTES for name in arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(file[name][:], array)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pages are gathered at once: pieces of 1, 3 and 1 of them."""
    monkeypatch.setattr(hdf5_filled, "GATHERED_BYTES", 12 * PAGE_BYTES)


@pytest.mark.parametrize("most", [1 << 30, 3 * PAGE_BYTES, 5000])
def test_whole_pages_pass_by_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little: None, most: int
) -> None:
    # Also where the system says that it took less than it was given, be it within a page.
    pwrite: Pwrite = os.pwrite
    taken = {True: 0, False: 0}

    def watched(file: int, data: memoryview, at: int) -> int:
        if past_the_cache(file):
            assert at % PAGE_BYTES == len(data) % PAGE_BYTES == 0
        n_bytes = min(pwrite(file, data, at), most)
        taken[past_the_cache(file)] += n_bytes
        return n_bytes

    monkeypatch.setattr(os, "pwrite", watched)
    write_many_pages(tmp_path / "a.h5")
    if (past := hdf5_filled._past_the_cache(tmp_path / "a.h5")) is None:
        pytest.skip("this file system has no O_DIRECT")
    os.close(past)
    assert taken[True] > (0.9 if most % PAGE_BYTES == 0 else 0.2) * sum(taken.values())


def past_the_cache(file: int) -> bool:
    """Whether this is a descriptor for direct writes."""
    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)


def test_a_file_system_without_direct_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little: None) -> None:
    monkeypatch.setattr(hdf5_filled, "_past_the_cache", lambda path: None)
    write_many_pages(tmp_path / "a.h5")


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("why", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOMEM])
def test_direct_writes_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little: None, after: int, why: int
) -> None:
    # As where pages are larger than was thought. It is not asked for again.
    pwrite: Pwrite = os.pwrite
    refused = []

    def refusing(file: int, data: memoryview, at: int) -> int:
        if past_the_cache(file) and (refused or at > after * PAGE_BYTES):
            refused.append(at)
            raise OSError(why, os.strerror(why))
        return pwrite(file, data, at)

    monkeypatch.setattr(os, "pwrite", refusing)
    write_many_pages(tmp_path / "a.h5")
    if (past := hdf5_filled._past_the_cache(tmp_path / "a.h5")) is None:
        pytest.skip("this file system has no O_DIRECT")
    os.close(past)
    assert len(refused) == 1


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_what_the_disk_refuses_is_raised_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little: None, why: int
) -> None:
    # Whether it comes by the last piece or before, past the cache or not.
    pwrite: Pwrite = os.pwrite
    gc.collect()  # what other tests have left
    before = sorted(Path("/proc/self/fd").iterdir())
    for after in (0, 5, 400_000):

        def full(file: int, data: memoryview, at: int, after: int = after) -> int:
            if at >= after:
                raise OSError(why, os.strerror(why))
            return pwrite(file, data, at)

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match=re.escape(os.strerror(why))):
            write_many_pages(tmp_path / "a.h5")
        monkeypatch.setattr(os, "pwrite", pwrite)
    assert sorted(Path("/proc/self/fd").iterdir()) == before


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
