"""Data that the system does not let be read just now are read again, the file opened anew; damage is told at once."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import make_columns, write

from hpcrec.data import again, direct, hdf5
from hpcrec.data.reader import DataSet
from hpcrec.errors import DataError, UnreadableError

N = 500


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(again.time, "sleep", made.append)
    return made


class Failing:
    """Reads and opens that fail, the first so many times; how HDF5 says it: an error of its own, with the number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: float, number: int = errno.EIO) -> None:
        self.left, self.handles, self._number = times, set[int](), number
        monkeypatch.setattr(direct.Chunks, "read", self._failing(direct.Chunks.read))
        monkeypatch.setattr(h5py.Dataset, "read_direct", self._failing(h5py.Dataset.read_direct))
        monkeypatch.setattr(h5py.Dataset, "__getitem__", self._failing(h5py.Dataset.__getitem__))
        opened = hdf5.open_hdf5

        def opening(path: Path) -> h5py.File:
            handle = opened(path)
            self.handles.add(id(handle))
            self.opened = len(self.handles)
            return handle

        monkeypatch.setattr(hdf5, "open_hdf5", opening)

    def _failing(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*args: Any, **kwargs: Any) -> Any:
            if self.left > 0:
                if read is not direct_read:
                    self.left -= 1
                raise KeyError(f"file read failed: filename = 'x', errno = {self._number}, error message = '...'")
            return read(*args, **kwargs)

        return reading


direct_read = direct.Chunks.read


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float], times: int, number: int
) -> None:
    path = write(tmp_path / "a.h5", make_columns(N))
    with DataSet(path) as data:
        wanted = data.read(0, N)
        with monkeypatch.context() as patched:
            failing = Failing(patched, times, number)
            found = data.read(0, N)
        assert failing.left == 0 and pauses == list(again.PAUSES_S[:times])
    assert np.array_equal(found.label, wanted.label) and np.array_equal(found.dense, wanted.dense)
    for name, column in wanted.sparse.items():
        assert np.array_equal(found.sparse[name].ids, column.ids)


def test_what_stays_unreadable_says_so_and_not_that_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.h5", make_columns(N))
    with DataSet(path) as data:
        Failing(monkeypatch, float("inf"), errno.ESTALE)
        with pytest.raises(UnreadableError, match=rf"{path}: cannot be read just now \({os.strerror(errno.ESTALE)}, 5"):
            data.read(0, N)


def test_opened_again_at_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.h5", make_columns(N))
    real, refused = h5py.File, [1, 1]

    def opening(*args: Any, **kwargs: Any) -> h5py.File:
        if refused:
            refused.pop()
            raise OSError(errno.EMFILE, "Unable to open file")
        return real(*args, **kwargs)

    monkeypatch.setattr(h5py, "File", opening)
    with DataSet(path) as data:
        assert data.samples == N
    assert not refused


def test_damage_is_told_at_once(tmp_path: Path, pauses: list[float]) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"none of HDF5's")
    with pytest.raises(DataError, match="not a readable HDF5 file"):
        DataSet(path)
    with pytest.raises(DataError, match="no such file"):
        DataSet(tmp_path / "b.h5")
    assert pauses == []
