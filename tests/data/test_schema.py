"""The HDF5 schema: exact round trips, several files as one, and errors that say what is wrong."""

import dataclasses
import json
import shutil
import zlib
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import FEATURES, cut, make_columns, write

from hpcrec.data import checksum, layout
from hpcrec.data.inspect import inspect
from hpcrec.data.verify import verify
from hpcrec.errors import DataError
from hpcrec.preparation.schema import Column, Columns, DataSet, Writer, write_index
from hpcrec.types import Feature


def assert_equal(found: Columns, wanted: Columns) -> None:
    for name in ("label", "dense", "weight", "group", "time"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
        assert getattr(found, name).dtype == getattr(wanted, name).dtype
    assert set(found.sparse) == set(wanted.sparse)
    for name, column in wanted.sparse.items():
        for what in ("ids", "offsets", "weights"):
            have, want = getattr(found.sparse[name], what), getattr(column, what)
            assert (have is None) == (want is None), (name, what)
            if want is not None:
                np.testing.assert_array_equal(have, want, err_msg=f"{name} {what}")


def test_round_trip_is_exact_for_any_slice(samples: Columns, data_file: Path) -> None:
    with DataSet(data_file) as data:
        assert (data.samples, data.n_dense, data.n_labels) == (2357, 3, 1)
        assert data.attributes == {"origin": "made by hand"}
        for start, stop in ((0, 2357), (0, 0), (2356, 2357), (499, 1501), (17, 18)):
            assert_equal(data.read(start, stop), cut(samples, start, stop))
        mean = {feature.name: feature.mean_ids for feature in data.features}
        assert mean == {"user": 1.0} | {n: len(samples.sparse[n].ids) / 2357 for n in ("tags", "terms")}
        assert [feature.weighted for feature in data.features] == [False, False, True]
        ranges = data.read_ranges([(900, 1000), (0, 3), (2000, 2000), (1000, 1002)])
        np.testing.assert_array_equal(ranges.dense[:, 0] / 3, [*range(900, 1000), 0, 1, 2, 1000, 1001])
        assert list(data.read(0, 5, features=("terms",)).sparse) == ["terms"]


def test_several_labels_no_dense_no_features(tmp_path: Path) -> None:
    columns = make_columns(40, n_labels=3)
    with DataSet(write(tmp_path / "labels.h5", columns)) as data:
        assert data.n_labels == 3
        np.testing.assert_array_equal(data.read(3, 9).label, columns.label[3:9])
    with Writer(tmp_path / "bare.h5", (), n_dense=0) as writer:
        writer.append(Columns(columns.label[:, 0].copy(), np.empty((40, 0), np.float32)))
    with DataSet(tmp_path / "bare.h5") as data:
        assert (data.n_dense, data.features, data.read(0, 7).dense.shape) == (0, (), (7, 0))


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_files_have_chunks_with_checksums(
    samples: Columns, data_file: Path, tmp_path: Path, compression: str | None
) -> None:
    path = tmp_path / "packed.h5" if compression else data_file
    if compression:
        write(path, samples, compression=compression)
    with h5py.File(path) as file:
        ids = file["/sparse/user/ids"]
        assert ids.chunks == (layout.CHUNK_SAMPLES,) and ids.compression == compression and ids.fletcher32
        assert ids.dtype == np.int32 and ids.shuffle == bool(compression)
        assert "offsets" not in file["/sparse/user"]
    with DataSet(path) as found:
        assert_equal(found.read(0, found.samples), samples)


@pytest.mark.parametrize("borders", [(0, 1000, 2357), (0, 1, 1, 800, 2357)])
def test_index_file_joins_files(samples: Columns, data_file: Path, tmp_path: Path, borders: tuple[int, ...]) -> None:
    (tmp_path / "parts").mkdir()
    paths = [
        write(tmp_path / "parts" / f"{i}.h5", cut(samples, a, b), origin="made by hand")
        for i, (a, b) in enumerate(pairwise(borders))
    ]
    index = tmp_path / "train.index.json"
    write_index(index, paths)
    with DataSet(index) as joined, DataSet(data_file) as whole:
        assert joined.features == whole.features
        assert_equal(joined.read(0, 2357), samples)
        assert_equal(joined.read(700, 1200), cut(samples, 700, 1200))
        assert joined.fingerprint == whole.fingerprint
    content = json.loads(index.read_text())
    content["files"][0]["samples"] += 1
    index.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"says \d+ samples for"):
        DataSet(index)


def test_fingerprint_tells_data_apart(samples: Columns, data_file: Path, tmp_path: Path) -> None:
    changed = make_columns(2357, seed=1)
    one = DataSet(data_file).fingerprint
    assert DataSet(write(tmp_path / "same.h5", samples, block=77, origin="made by hand")).fingerprint == one
    assert DataSet(write(tmp_path / "other.h5", changed, origin="made by hand")).fingerprint != one
    other_last = dataclasses.replace(samples, dense=samples.dense + np.float32(1))  # labels and sizes are the same
    assert DataSet(write(tmp_path / "dense.h5", other_last, origin="made by hand")).fingerprint != one
    assert DataSet(write(tmp_path / "attribute.h5", samples, origin="elsewhere")).fingerprint != one


def test_columns_have_checksums(samples: Columns, data_file: Path) -> None:
    with h5py.File(data_file) as file:
        found = {name: int(file[name].attrs["crc32"]) for name in ("dense", "sparse/tags/ids", "sparse/tags/offsets")}
    tags = samples.sparse["tags"]
    values = (samples.dense, tags.ids.astype(np.int32), np.diff(tags.offsets))
    assert list(found.values()) == [zlib.crc32(np.ascontiguousarray(v)) for v in values]


@pytest.mark.parametrize("cut_at", [0, 1, 7, 500, 10_001])
def test_checksums_join(cut_at: int) -> None:
    whole = np.random.default_rng(3).integers(0, 256, 10_001).astype(np.uint8)
    first, second = (checksum.update(0, part, np.uint8) for part in (whole[:cut_at], whole[cut_at:]))
    assert checksum.join(first, second, 10_001 - cut_at) == zlib.crc32(whole)


def test_writer_leaves_no_file_after_an_error(samples: Columns, tmp_path: Path) -> None:
    path = write(tmp_path / "train.h5", samples)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="stop"), Writer(path, FEATURES, n_dense=3) as writer:
        assert len(list(tmp_path.iterdir())) == 2
        raise RuntimeError("stop")
    assert [p.name for p in tmp_path.iterdir()] == ["train.h5"]
    assert path.read_bytes() == before
    assert writer.samples == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense": np.zeros((4, 2), np.float32)}, r"/dense: the block brings shape \(4, 2\); it must be \(4, 1\)"),
        ({"label": np.zeros(4, np.int64)}, r"/label: the block brings int64; it must be float32"),
        (
            {"dense": np.array([[0], [1], [np.nan], [2]], np.float32)},
            "/dense: sample 2 of the block has nan in column 0",
        ),
        ({"dense": np.full((4, 1), 1e300)}, "/dense: sample 0 of the block has inf in column 0; dense inputs must be"),
        ({"label": np.full(4, 2, np.float32)}, "/label: sample 0 of the block has 2.0; labels must be 0 or 1, or any "),
        ({"sparse": {}}, r"/sparse/a: the block has no such feature"),
        ({"sparse": {"a": Column(np.array([0, 1, 2, 10]))}}, r"id 3 of the block has 10; ids must be in \[0, 10\)"),
        ({"sparse": {"a": Column(np.arange(4), np.array([0, 2, 2, 3, 4]))}}, r"name the feature in `jagged`"),
    ],
)
def test_writer_refuses(tmp_path: Path, change: dict[str, object], message: str) -> None:
    good = {
        "label": np.zeros(4, np.float32),
        "dense": np.zeros((4, 1), np.float32),
        "sparse": {"a": Column(np.arange(4))},
    }
    with (
        pytest.raises(DataError, match=message),
        Writer(tmp_path / "x.h5", [Feature(name="a", cardinality=10)], n_dense=1) as writer,
    ):
        writer.append(Columns(**{**good, **change}))
    assert not list(tmp_path.iterdir())


def test_ids_of_undeclared_cardinality_are_any_64_bits(tmp_path: Path) -> None:
    features = [
        Feature(name="any", cardinality=0),
        Feature(name="bag", cardinality=0),
        Feature(name="few", cardinality=9),
    ]
    ids = np.array([-(2**63), 2**63 - 1, -1, 0], np.int64)
    sparse = {
        "any": Column(ids),
        "bag": Column(ids[::-1].copy(), np.array([0, 3, 3, 4, 4])),
        "few": Column(np.arange(4)),
    }
    for compression in ("none", "gzip"):  # read past HDF5, and by it
        path = tmp_path / f"{compression}.h5"
        with Writer(path, features, n_dense=0, jagged=("bag",), compression=compression) as writer:
            writer.append(Columns(label=np.zeros(4, np.float32), dense=np.zeros((4, 0), np.float32), sparse=sparse))
        with DataSet(path) as data:
            assert [f.cardinality for f in data.features] == [0, 0, 9]
            found = data.read(0, 4).sparse
        for name, column in sparse.items():
            np.testing.assert_array_equal(found[name].ids, column.ids)
        assert [verdict.problems for verdict in verify([path])] == [()]
        assert [f["outside"] for f in inspect(path)["features"]] == [0, 0, 0]
    with pytest.raises(DataError, match="cardinality -1; use 1 or more, or 0 where it is not declared"):
        Writer(tmp_path / "x.h5", [Feature(name="a", cardinality=-1)], n_dense=0)


def spoil(file: h5py.File, what: str) -> None:
    if what == "version":
        file.attrs["schema_version"] = 9
    elif what == "label":
        del file["label"]
    elif what == "dense":
        del file["dense"]
        file["dense"] = np.zeros((5, 3), np.float32)
    elif what == "type":
        del file["sparse/user/ids"]
        file["sparse/user/ids"] = np.zeros(2357, np.float32)
    elif what == "offsets":
        file["sparse/tags/offsets"][0] = 1
    elif what == "cardinalities":
        file.attrs["cardinalities"] = np.array([1000, 50])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("version", "schema_version: version 9; version 1 is read here"),
        ("label", "/label: no such dataset; the schema wants float32"),
        ("dense", "/dense: length 5; 2357 is needed"),
        ("type", "/sparse/user/ids: float32 with 1 dimensions; int64"),
        ("offsets", "/sparse/tags/offsets: they go from 1 to"),
        ("cardinalities", "3 names .*, 2 cardinalities"),
    ],
)
def test_reader_refuses(data_file: Path, tmp_path: Path, what: str, message: str) -> None:
    path = tmp_path / "bad.h5"
    shutil.copy(data_file, path)
    with h5py.File(path, "r+") as file:
        spoil(file, what)
    with pytest.raises(DataError, match=f"bad.h5: .*{message}"):
        DataSet(path)


def test_reading_checks_ids_and_offsets(data_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.h5"
    shutil.copy(data_file, path)
    with h5py.File(path, "r+") as file:
        file["sparse/user/ids"][1234] = 1000
        file["sparse/tags/offsets"][2001] = 0
    data = DataSet(path)
    assert data.read(0, 1234).samples == 1234
    with pytest.raises(
        DataError, match=r"/sparse/user/ids: sample 1234 \(from 0\) has 1000; ids must be in \[0, 1000\)"
    ):
        data.read(1234, 1235)
    with pytest.raises(DataError, match="/sparse/tags/offsets: sample 2000 has offsets"):
        data.read(1990, 2010, features=("tags",))
    with pytest.raises(DataError, match=r"no feature 'x'; it has user, tags, terms"):
        data.read(0, 1, features=("x",))
    with pytest.raises(DataError, match="were asked for; it has 2357"):
        data.read(0, 2358)
    data.close()


def test_absent_broken_and_locked_files(tmp_path: Path, data_file: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        DataSet(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(DataError, match="not a readable HDF5 file"):
        DataSet(tmp_path / "text.h5")
    (tmp_path / "x.index.json").write_text("{}")
    with pytest.raises(DataError, match="not an index file"):
        DataSet(tmp_path / "x.index.json")


def test_reads_where_the_file_system_refuses_locks(data_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = h5py.File, []

    def refuse_locks(path: Path, mode: str, *, locking: object) -> h5py.File:
        asked.append(locking)
        if locking is not False:
            raise OSError("unable to lock file, errno = 37, error message = 'No locks available'")
        return real(path, mode, locking=locking)

    monkeypatch.setattr("hpcrec.data.hdf5.h5py.File", refuse_locks)
    with DataSet(data_file) as data:
        assert data.samples == 2357
    assert asked[:2] == ["best-effort", False]
