"""Columns read past HDF5 are what HDF5 reads; what only HDF5 can read is left to it; and its errors stay its own."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import cut, make_columns, write

from hpcrec.data import direct, layout
from hpcrec.data.loader import Loader
from hpcrec.data.order import GlobalOrder
from hpcrec.data.reader import DataSet
from hpcrec.errors import DataError
from hpcrec.preparation.schema import Columns, write_index

N = 2357
NAMES = ("user", "tags", "terms")


@pytest.fixture(params=[1, 2], ids=["one label", "two labels"])
def parts(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Columns]:
    """Two files in chunks of 256 rows, the last ones partial, as one data set."""
    monkeypatch.setattr(layout, "CHUNK_SAMPLES", 256)
    samples = make_columns(N, n_labels=request.param)
    paths = [write(tmp_path / f"{i}.h5", cut(samples, *ends)) for i, ends in enumerate([(0, 1100), (1100, N)])]
    write_index(tmp_path / "all.index.json", paths)
    return tmp_path / "all.index.json", samples


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], bool]]:
    """What has been asked of `direct`, and whether it was read."""
    found: list[tuple[tuple[str, ...], bool]] = []
    real = direct.Chunks.read

    def noted(self: direct.Chunks, names: list[str], *rest: object) -> bool:
        found.append((tuple(names), real(self, names, *rest)))
        return found[-1][1]

    monkeypatch.setattr(direct.Chunks, "read", noted)
    return found


def assert_same(found: Columns, wanted: Columns) -> None:
    for name in ("label", "dense", "weight", "group", "time"):
        a, b = getattr(found, name), getattr(wanted, name)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name
    for feature in NAMES:
        for name in ("ids", "offsets", "weights"):
            np.testing.assert_array_equal(
                getattr(found.sparse[feature], name), getattr(wanted.sparse[feature], name), f"{feature} {name}"
            )


@pytest.mark.parametrize("past_hdf5", [True, False])
def test_any_range_of_files(
    parts: tuple[Path, Columns], past_hdf5: bool, monkeypatch: pytest.MonkeyPatch, reads: list
) -> None:
    if not past_hdf5:
        monkeypatch.setattr(direct, "stored_plainly", lambda data: False)
    path, samples = parts
    rng = np.random.default_rng(1)
    edges = [(0, N), (255, 257), (256, 512), (1099, 1101), (1100, 1101), (2304, N), (5, 5)]
    with DataSet(path) as data:
        for start, stop in edges + [tuple(sorted(pair)) for pair in rng.integers(0, N + 1, (30, 2)).tolist()]:
            assert_same(data.read(start, stop), cut(samples, start, stop))
    assert bool(reads) == past_hdf5 and all(read for _, read in reads)


@pytest.mark.parametrize("parts_of_batch", [1, 3])
def test_file_order_reads_its_own_share_alone(
    parts: tuple[Path, Columns], parts_of_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, samples = parts
    with DataSet(path) as data:
        order, ranges, real = GlobalOrder(N, 100, shuffle=False, chunk=64, window=4), [], data.read_ranges

        def noted(wanted: list[tuple[int, int]], *rest: Any, **more: Any) -> Columns:
            ranges.extend(wanted)
            return real(wanted, *rest, **more)

        monkeypatch.setattr(data, "read_ranges", noted)
        for part in range(parts_of_batch):
            feed = Loader(data, order, part=part, parts=parts_of_batch)
            assert feed.exact
            ranges.clear()
            for batch in feed.batches(n=order.n_batches):
                first = batch.index * 100 + batch.start
                want = cut(samples, first, first + len(batch.label))
                np.testing.assert_array_equal(batch.label, want.label)
                np.testing.assert_array_equal(batch.dense, want.dense)
                np.testing.assert_array_equal(batch.bags.ids, np.concatenate([want.sparse[f].ids for f in NAMES]))
            read = sum(end - first for first, end in ranges)
            assert read == sum(len(b.label) for b in feed.batches(n=order.n_batches)) <= -(-N // parts_of_batch) + 24


def test_gzip_is_left_to_hdf5_in_windows(tmp_path: Path, reads: list) -> None:
    samples = make_columns(N)
    path = write(tmp_path / "a.h5", samples, compression="gzip")
    with DataSet(path) as data:
        order = GlobalOrder(N, 100, shuffle=False, chunk=64, window=4)
        feed = Loader(data, order, part=1, parts=2)
        assert not feed.exact
        for batch in feed.batches(n=order.n_batches):
            first = batch.index * 100 + batch.start
            want = cut(samples, first, first + len(batch.label))
            np.testing.assert_array_equal(batch.label, want.label)
            np.testing.assert_array_equal(batch.bags.ids, np.concatenate([want.sparse[f].ids for f in NAMES]))
    assert not reads


def missing_chunks(group: h5py.Group, values: np.ndarray) -> None:
    data = group.create_dataset("time", (N,), values.dtype, chunks=(256,), fletcher32=True, fillvalue=3)
    data[:256] = values[:256]


STORED: dict[str, Callable[[h5py.Group, np.ndarray], object]] = {
    "chunked": lambda group, values: group.create_dataset("time", data=values, chunks=(100,)),
    "checksums": lambda group, values: group.create_dataset("time", data=values, chunks=(100,), fletcher32=True),
    "int32": lambda group, values: group.create_dataset("time", data=values.astype("i4"), chunks=(100,)),
    "contiguous": lambda group, values: group.create_dataset("time", data=values),
    "big-endian": lambda group, values: group.create_dataset("time", data=values.astype(">i8"), chunks=(100,)),
    "int16": lambda group, values: group.create_dataset("time", data=values.astype("i2"), chunks=(100,)),
    "shuffle": lambda group, values: group.create_dataset("time", data=values, chunks=(100,), shuffle=True),
    "gzip": lambda group, values: group.create_dataset("time", data=values, chunks=(100,), compression="gzip"),
    "missing chunks": missing_chunks,
}
PLAIN = ("chunked", "checksums", "int32")


@pytest.mark.parametrize("stored", STORED)
def test_every_way_to_store_a_column(tmp_path: Path, stored: str, reads: list) -> None:
    path = write(tmp_path / "a.h5", make_columns(N))
    with h5py.File(path, "r+") as file:
        del file["time"]
        STORED[stored](file, np.arange(N, dtype=np.int64) * 7)
        wanted = file["time"][:].astype(np.int64)
    with DataSet(path) as data:
        for start, stop in ((0, N), (99, 101), (200, 300), (2300, N), (255, 257)):
            np.testing.assert_array_equal(data.read(start, stop).time, wanted[start:stop])
    assert {read for names, read in reads if names == ("/time",)} in ({stored in PLAIN}, set())
    assert any(names == ("/time",) and read for names, read in reads) == (stored in PLAIN)


def test_other_files_and_other_shapes_are_left_to_hdf5(tmp_path: Path, reads: list) -> None:
    samples = make_columns(N)
    path = write(tmp_path / "a.h5", samples)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("time", data=samples.time, chunks=(100,))
    with h5py.File(path, "r+") as file:
        del file["time"], file["dense"]
        file["time"] = h5py.ExternalLink("other.h5", "time")
        file.create_dataset("dense", data=samples.dense, chunks=(100, 2))
    with h5py.File(tmp_path / "block.h5", "w", userblock_size=512) as shifted, h5py.File(path) as file:
        for name in file:
            if name != "time":
                file.copy(name, shifted)
        shifted.create_dataset("time", data=samples.time, chunks=(100,))
        shifted.attrs.update(file.attrs)
    for name in ("a.h5", "block.h5"):
        reads.clear()
        with DataSet(tmp_path / name) as data:
            assert_same(data.read(3, 2000), cut(samples, 3, 2000))
        done = {path for names, read in reads for path in names if read}
        assert not done & {"/time", "/dense"} and (name == "a.h5" or not done)


def flip(path: Path, name: str, number: int) -> None:
    with h5py.File(path) as file:
        info = file[name].id.get_chunk_info(number)
    content = bytearray(path.read_bytes())
    content[info.byte_offset + info.size // 2] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["dense", "sparse/user/ids", "sparse/tags/offsets", "sparse/terms/ids", "sparse/terms/weights"]
)
def test_a_damaged_chunk_is_hdf5s_error(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK_SAMPLES", 256)
    path = write(tmp_path / "a.h5", make_columns(N))
    flip(path, name, 2)
    said = []
    for plainly in (direct.stored_plainly, lambda data: False):
        monkeypatch.setattr(direct, "stored_plainly", plainly)
        with DataSet(path) as data:
            data.read(0, 50)
            with pytest.raises(DataError, match=f"a.h5: /{name}: rows .* cannot be read .*filter returned") as caught:
                data.read(0, 2000)
            said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_damaged_index_of_chunks_is_hdf5s_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK_SAMPLES", 64)
    path = write(tmp_path / "a.h5", make_columns(N))
    whole = path.read_bytes()
    blocks = [found.start() for word in (b"EAIB", b"EADB") for found in re.finditer(word, whole)]
    assert len(blocks) > 4
    n_refused = 0
    for block in blocks:
        path.write_bytes(whole[: block + 20] + bytes([whole[block + 20] ^ 255]) + whole[block + 21 :])
        said = []
        for plainly in (direct.stored_plainly, lambda data: False):
            with monkeypatch.context() as patch:
                patch.setattr(direct, "stored_plainly", plainly)
                try:
                    with DataSet(path) as data:
                        data.read(0, N)
                    said.append("")
                except DataError as error:
                    said.append(str(error))
        assert said[0] == said[1]
        n_refused += "rows [0, " in said[0]
    assert n_refused > 2


def test_a_chunk_is_compared_when_it_is_first_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", make_columns(N))
    with DataSet(path) as data:
        data.read(0, 50)
        flip_in_place(path, "dense")
        data.read(0, 50)
        data.close()  # what is opened again is compared again
        with pytest.raises(DataError, match=r"/dense: rows .* cannot be read"):
            data.read(0, 50)


def flip_in_place(path: Path, name: str) -> None:
    with h5py.File(path) as file:
        info = file[name].id.get_chunk_info(0)
    with path.open("r+b") as raw:
        raw.seek(info.byte_offset + info.size // 2)
        raw.write(b"?")


def test_a_file_that_is_cut_short_while_it_is_open(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", make_columns(N))
    with DataSet(path) as data:
        data.read(0, N)
        with h5py.File(path) as file:
            first = min(file[name].id.get_chunk_info(0).byte_offset for name in ("label", "dense", "sparse/user/ids"))
        with path.open("r+b") as raw:
            raw.truncate(first + 10)
        with pytest.raises(DataError, match=r"cannot be read"):
            data.read(0, N)


def test_a_wrong_value_is_named_as_ever(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", make_columns(N))
    with h5py.File(path, "r+") as file:
        offsets = file["sparse/tags/offsets"][:]
        row = int(offsets[1000])
        file["sparse/tags/ids"][row] = 50
        file["sparse/terms/offsets"][701] = 0
    sample = int(np.searchsorted(offsets, row, side="right")) - 1
    with DataSet(path) as data:
        with pytest.raises(
            DataError, match=rf"/sparse/tags/ids: sample {sample} \(from 0\) has 50; ids must be in \[0, 50\)"
        ):
            data.read(900, 1100, ["user", "tags"])
        with pytest.raises(DataError, match="/sparse/terms/offsets: sample 700 has offsets"):
            data.read(600, 800)
