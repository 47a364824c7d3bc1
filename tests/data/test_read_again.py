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

from hpcrec import again
from hpcrec.data import direct, hdf5
from hpcrec.data.index import write_index
from hpcrec.data.inspect import inspect
from hpcrec.data.reader import DataSet
from hpcrec.data.verify import verify
from hpcrec.errors import DataError, UnreadableError
from tests.lookups import Lookups

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


def said(data: DataSet) -> dict[str, Any]:
    """All that opening a data set finds."""
    found = {name: getattr(data, name) for name in ("samples", "n_dense", "n_labels", "features", "optional")}
    columns = [file.columns for file in data._files]
    jagged = {feature.name: data.jagged(feature.name) for feature in data.features}
    return {**found, "jagged": jagged, "attributes": data.attributes, "print": data.fingerprint, "columns": columns}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A data set of two files, with all optional columns."""
    paths = [write(tmp_path / f"{i}.h5", make_columns(N, seed=i)) for i in range(2)]
    write_index(tmp_path / "two.index.json", paths)
    return tmp_path / "two.index.json"


def test_any_look_that_fails_once_at_opening_costs_a_pause_and_nothing_else(
    two: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    with monkeypatch.context() as patched, DataSet(two) as data:
        wanted, before = said(data), Lookups(patched, n=0, times=0)
        DataSet(two).close()
    assert wanted["optional"] == ("weight", "group", "time") and before.count > 50
    for n in range(1, before.count + 1):
        with monkeypatch.context() as patched:
            Lookups(patched, n, times=1)
            with DataSet(two) as data:
                assert said(data) == wanted, f"look {n}"
    of_direct = 2  # a look for each file's chunks: HDF5 reads what `direct` does not
    assert pauses == [again.PAUSES_S[0]] * (before.count - of_direct)


def test_looks_that_fail_on_at_opening_end_it_as_unreadable(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        before = Lookups(patched, n=0, times=0)
        DataSet(two).close()
    named = rf"^{two.parent}/[01]\.h5: cannot be read just now \({os.strerror(errno.EIO)}, 5 tries\)\. Nothing says"
    for n in range(1, before.count + 1):
        with monkeypatch.context() as patched:
            Lookups(patched, n, times=float("inf"))
            with pytest.raises(UnreadableError, match=named):
                DataSet(two)


@pytest.mark.parametrize("look", [inspect, lambda path: list(verify([path]))], ids=["inspect", "verify"])
def test_commands_on_data_look_again(two: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[Path], Any]) -> None:
    with monkeypatch.context() as patched:
        wanted, before = look(two), Lookups(patched, n=0, times=0)
        look(two)
    for n in range(1, before.count + 1, 7):
        with monkeypatch.context() as patched:
            Lookups(patched, n, times=1)
            assert look(two) == wanted, f"look {n}"


def test_what_is_not_there_is_told_at_once(tmp_path: Path, pauses: list[float]) -> None:
    path = write(tmp_path / "a.h5", make_columns(N))
    with h5py.File(path, "r+") as file:
        del file["weight"], file["label"]
        file["label"] = h5py.SoftLink("/nowhere")
    with pytest.raises(DataError, match=rf"{path}: /label: no such dataset; the schema wants float32"):
        DataSet(path)
    with h5py.File(path, "r+") as file:
        del file["label"]
        file["label"] = h5py.ExternalLink("none.h5", "/label")
    with pytest.raises(DataError, match=rf"{path}: /label: "):
        DataSet(path)
    assert pauses == []


@pytest.mark.parametrize("times", [1, 4, float("inf")])
def test_an_index_that_cannot_be_read_just_now_is_read_again(
    two: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float], times: float
) -> None:
    read, left = Path.read_bytes, [times]

    def failing(path: Path) -> bytes:
        if path == two and left[0] > 0:
            left[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    if times < 5:
        assert DataSet(two).samples == 2 * N and pauses == list(again.PAUSES_S[: int(times)])
    else:
        with pytest.raises(UnreadableError, match=rf"^{two}: cannot be read just now .*5 tries\). Nothing says"):
            DataSet(two)


@pytest.mark.parametrize("ask", [again.is_there, again.is_folder, again.names_in])
def test_what_cannot_be_reached_just_now_is_not_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float], ask: Callable[[Path], Any]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    right = {again.is_there: True, again.is_folder: True, again.names_in: ["b"]}[ask]
    assert ask(tmp_path / "a") == right
    assert not ask(tmp_path / "none") and not ask(tmp_path / "a" / "b" / "c")
    assert not again.is_folder(tmp_path / "a" / "b") and again.is_there(tmp_path / "a" / "b")
    stat, iterdir, left = Path.stat, Path.iterdir, [2.0]

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Path, **named: Any) -> Any:
            if path == tmp_path / "a" and left[0] > 0:
                left[0] -= 1
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return call(path, **named)

        return called

    monkeypatch.setattr(Path, "stat", failing(stat))
    monkeypatch.setattr(Path, "iterdir", failing(iterdir))
    assert ask(tmp_path / "a") == right and pauses == list(again.PAUSES_S[:2])
    left[0] = float("inf")
    with pytest.raises(UnreadableError, match="cannot be read just now"):
        ask(tmp_path / "a")
