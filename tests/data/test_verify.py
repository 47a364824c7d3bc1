"""`hpcrec data verify`: names the file and the dataset of whatever is wrong, and only then fails."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import cut, write

from hpcrec.cli.data import data as command
from hpcrec.data.reader import DataSet
from hpcrec.data.verify import verify
from hpcrec.errors import DataError
from hpcrec.preparation.schema import Columns, write_index


def run(*paths: Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(command, ["verify", *map(str, paths)], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, done.stdout, done.stderr


@pytest.fixture
def file(data_file: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(data_file, tmp_path / "train.h5"))


def flip_in_chunk(path: Path, name: str) -> None:
    """Flips a byte in the middle of a dataset's first chunk, past HDF5's sight."""
    with h5py.File(path) as opened:
        chunk = opened[name].id.get_chunk_info(0)
        at = chunk.byte_offset + chunk.size // 2
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def test_whole_files_are_well(file: Path) -> None:
    assert run(file) == (0, f"{file}: ok, 2,357 samples, 11 datasets\n", "")


@pytest.mark.parametrize("name", ["/label", "/dense", "/time", "/sparse/user/ids", "/sparse/terms/weights"])
def test_a_flipped_byte_in_a_chunk(file: Path, name: str) -> None:
    flip_in_chunk(file, name)
    code, out, err = run(file)
    assert (code, out) == (1, "")
    assert f"{file}: {name}: rows [0, " in err and "cannot be read" in err and err.count("hpcrec: error:") == 1


def set_value(name: str, row: int, value: float) -> Callable[[h5py.File], None]:
    def change(opened: h5py.File) -> None:
        opened[name][row] = value

    return change


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (set_value("label", 7, 2), ["/label: sample 7 (from 0) has 2.0; labels must be 0 or 1"]),
        (set_value("label", 8, np.nan), ["/label: sample 8 (from 0) has nan; labels must be 0 or 1"]),
        (set_value("dense", 9, np.inf), ["/dense: sample 9 (from 0) has inf in column 0", "(3 such values)"]),
        (set_value("weight", 11, -1), ["/weight: sample 11 (from 0) has -1.0; weights must be finite"]),
        (set_value("sparse/user/ids", 2356, -5), ["/sparse/user/ids: sample 2356 (from 0) has -5", "[0, 1000)"]),
        (set_value("sparse/tags/offsets", 50, 10**6), ["/sparse/tags/offsets: sample", "must rise"]),
        (set_value("sparse/terms/weights", 3, np.nan), ["/sparse/terms/weights: sample", "has nan"]),
        # allowed values, but not those that were written
        (set_value("label", 7, 0.5), ["/label: checksum", "recorded as", "has changed since it was written"]),
        (set_value("time", 0, 99), ["/time: checksum"]),
        (set_value("sparse/user/ids", 0, 999), ["/sparse/user/ids: checksum"]),
    ],
)
def test_wrong_values(file: Path, change: Callable[[h5py.File], None], wanted: list[str]) -> None:
    with h5py.File(file, "r+") as opened:
        change(opened)
    code, out, err = run(file)
    assert (code, out) == (1, "")
    assert all(text in err for text in wanted) and str(file) in err


def test_the_sample_of_a_jagged_id(file: Path, samples: Columns) -> None:
    offsets = samples.sparse["tags"].offsets
    assert offsets is not None
    sample = int(np.flatnonzero(np.diff(offsets) > 1)[-1])
    with h5py.File(file, "r+") as opened:
        opened["sparse/tags/ids"][offsets[sample + 1] - 1] = 50
    assert f"/sparse/tags/ids: sample {sample} (from 0) has 50; ids must be in [0, 50)" in run(file)[2]


def test_all_problems_of_all_files_are_listed(file: Path, tmp_path: Path) -> None:
    for name in ("/label", "/dense"):
        flip_in_chunk(file, name)
    (tmp_path / "text.h5").write_text("no data")
    whole = shutil.copy(file.parent / "train.h5", tmp_path / "also.h5")
    code, out, err = run(tmp_path)
    assert (code, out) == (1, "") and err.count("hpcrec: error:") == 5
    assert str(whole) in err and "text.h5: not a readable HDF5 file" in err


def test_folders_and_index_files(samples: Columns, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    parts = [write(tmp_path / "parts" / f"{i}.h5", cut(samples, 1000 * i, 1000 * i + 500)) for i in range(2)]
    index = tmp_path / "train.index.json"
    write_index(index, parts)
    code, out, _ = run(tmp_path, tmp_path / "parts")  # each file once
    assert (code, out.splitlines()) == (
        0,
        [f"{index}: ok", *(f"{part}: ok, 500 samples, 11 datasets" for part in parts)],
    )
    content = json.loads(index.read_text())
    content["files"][1]["samples"] = 501
    index.write_text(json.dumps(content))
    code, _, err = run(index)
    assert code == 1 and f"{index}: says 501 samples for {parts[1]}, which has 500" in err
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: holds no data set"):
        run(tmp_path / "empty")


def test_files_without_checksums_are_read_and_said_so(file: Path) -> None:
    with h5py.File(file, "r+") as opened:
        for name in ("label", "dense"):
            del opened[name].attrs["crc32"]
    assert run(file)[:2] == (0, f"{file}: ok, 2,357 samples, 11 datasets, 2 of them without checksum\n")
    foreign = file.with_name("foreign.h5")
    with h5py.File(foreign, "w") as opened:
        opened["label"] = np.array([0, 1, 1], np.float64)
        opened["sparse/a/ids"] = np.array([3, 1, 2], np.int32)
        opened.attrs.update({"schema_version": 1, "feature_names": ["a"], "cardinalities": [4]})
    (verdict,) = verify([foreign])
    assert (verdict.samples, verdict.columns, verdict.unchecked, verdict.problems) == (3, 2, 2, ())
    assert "no checksums recorded" in run(foreign)[1]


@pytest.mark.parametrize("name", ["", ".", "..", "a//b", "../x", "/x", "x/"])
def test_a_feature_whose_name_would_lead_elsewhere_is_refused(file: Path, name: str) -> None:
    with h5py.File(file, "r+") as opened:
        names = np.array([name, *opened.attrs["feature_names"][1:]], object)
        opened.attrs.create("feature_names", names, dtype=h5py.string_dtype())
    with pytest.raises(DataError, match=r"feature_names.*convert the data with another one"):
        DataSet(file)


def test_attributes_of_any_type_are_as_json_has_them(file: Path) -> None:
    odd = {
        "bytes": np.array([b"ab", b"c"]),
        "empty": h5py.Empty("f"),
        "nan": '{"a": NaN, "b": [Infinity, 1]}',
        "half": '{"a": "\\ud800"}',
        "number": np.float64(np.nan),
        "latin": np.bytes_(b"x\xe9"),
        "list": np.arange(3),
    }
    with h5py.File(file, "r+") as opened:
        opened.attrs.update(odd)
        opened.attrs.create("ragged", np.array([np.arange(2), np.arange(3)], object), dtype=h5py.vlen_dtype(np.int64))
    with DataSet(file) as data:
        found = {name: data.attributes[name] for name in [*odd, "ragged"]}
    assert json.loads(json.dumps(found, allow_nan=False).encode()) == found
    assert found["bytes"] == ["ab", "c"] and found["list"] == [0, 1, 2] and found["ragged"] == [[0, 1], [0, 1, 2]]
    assert found["nan"] == {"a": None, "b": [None, 1]} and found["empty"] is found["number"] is None
    assert found["half"] == {"a": "?"} and found["latin"] == "x\N{REPLACEMENT CHARACTER}"
