"""Stretches of a part: what is read past HDF5 is what HDF5 reads, whatever the file's layout."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcrec.checkpoint import stretch as checkpoint_stretch
from hpcrec.checkpoint.stretch import Newer, Stretch
from hpcrec.errors import CheckpointError

IDS = np.random.default_rng(1).permutation(100)
ROWS = np.random.default_rng(2).random((100, 3))
STATE = np.random.default_rng(3).random(100)


def bfloat16() -> h5py.h5t.TypeID:
    """What HDF5 converts to float32, whose kind it has for NumPy."""
    found = h5py.h5t.IEEE_F32LE.copy()
    found.set_fields(15, 7, 8, 0, 7)
    found.set_size(2)
    found.set_ebias(127)
    return found


def write(path: Path, dtype: str = "<f4", file: dict[str, Any] | None = None, **layout: Any) -> Path:
    """A part of a table of 100 rows."""
    with h5py.File(path, "w", **(file or {})) as part:
        part.attrs.update({"table": "a", "rows": 100, "width": 3, "column_start": 0, "column_stop": 3})
        part.create_dataset("ids", data=IDS, **layout)
        part.create_dataset("rows", data=ROWS.astype(dtype), **layout)
        part.create_dataset("state/sum", data=STATE.astype(dtype), **layout)
    return path


@pytest.mark.parametrize(
    ("past", "how"),
    [
        (True, {}),
        (True, {"dtype": ">f8"}),
        (False, {"chunks": True}),
        (False, {"compression": "gzip"}),
        (False, {"file": {"userblock_size": 512}}),
    ],
    ids=["plain", "big-endian", "chunked", "compressed", "userblock"],
)
@pytest.mark.parametrize(("start", "stop"), [(0, 100), (7, 60), (99, 100), (5, 5)])
def test_values_are_those_of_hdf5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, past: bool, how: dict[str, Any], start: int, stop: int
) -> None:
    original, reads = checkpoint_stretch.os.preadv, []

    def few(file: int, into: Any, at: int) -> int:
        reads.append(at)
        return original(file, [into[0][:50]], at)  # the system may read less than it was asked for

    monkeypatch.setattr(checkpoint_stretch.os, "preadv", few)
    block = Newer().block(Stretch(write(tmp_path / "a.h5", **how), start, stop))
    assert bool(reads) == (past and stop > start)
    dtype = how.get("dtype", "<f4")
    np.testing.assert_array_equal(block.ids, IDS[start:stop])
    np.testing.assert_array_equal(block.rows, ROWS[start:stop].astype(dtype))
    np.testing.assert_array_equal(block.states["sum"], STATE[start:stop].astype(dtype))
    assert block.rows.shape == (stop - start, 3) and block.columns == (0, 3)


def test_values_of_types_that_numpy_has_not_are_converted(tmp_path: Path) -> None:
    path, whole = write(tmp_path / "a.h5"), np.arange(300.0).reshape(100, 3) % 256  # which eight bits hold
    with h5py.File(path, "a") as part:
        del part["rows"]
        made = h5py.h5d.create(part.id, b"rows", bfloat16(), h5py.h5s.create_simple((100, 3)))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, whole)
        assert made.get_offset() and made.get_storage_size() == 600
    np.testing.assert_array_equal(Newer().block(Stretch(path, 7, 60)).rows, whole[7:60])


def test_file_that_is_cut_short_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_stretch.os, "preadv", lambda file, into, at: 0)
    path = write(tmp_path / "a.h5")
    with pytest.raises(CheckpointError, match=rf"{path}: is not as .* the file ends within /state/sum"):
        Newer().block(Stretch(path, 0, 100))
