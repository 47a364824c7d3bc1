"""Chunks read by their addresses, their checksum, and bags picked by number: both backends, and what they refuse."""

from pathlib import Path

import numpy as np
import pytest
from all_backends import assert_same_bits, same_from_all

from hpcrec import kernels

ITEMS = 100
BLOCK = 1 << 15  # numbers of 4 bytes that the native kernel reads at once


@pytest.mark.parametrize("n", [0, 1, 2, 3, 63, 64, 65, 127, 128, 16383, 16384, 16385, 65535, 65536, 200_001])
def test_fletcher32(n: int) -> None:
    for data in (
        np.random.default_rng(n).integers(0, 256, n, np.uint8),
        np.zeros(n, np.uint8),
        np.full(n, 255, np.uint8),
    ):
        same_from_all(lambda data=data: (np.int64(kernels.fletcher32(data)),))


def write_chunks(path: Path, values: np.ndarray, items: int, *, checksums: bool = True) -> np.ndarray:
    """Chunks in an order of their own, with gaps; where each begins."""
    n_chunks = -(-len(values) // items)
    padded = np.r_[values, np.zeros(n_chunks * items - len(values), values.dtype)]
    at = np.zeros(n_chunks, np.int64)
    content = b"head"
    for chunk in np.random.default_rng(0).permutation(n_chunks):
        at[chunk] = len(content)
        raw = padded[chunk * items : (chunk + 1) * items]
        content += raw.tobytes()
        content += kernels.fletcher32(raw.view(np.uint8)).to_bytes(4, "little") if checksums else b""
    path.write_bytes(content + b"tail")
    return at


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize(("stored", "read_as"), [("i4", "i8"), ("i8", "i8"), ("f4", "f4")])
@pytest.mark.parametrize("items", [ITEMS, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_any_rows_of_any_column(tmp_path: Path, stored: str, read_as: str, items: int, checksums: bool) -> None:
    rng = np.random.default_rng(items)
    values = rng.integers(0, 1000, 3 * items + items // 3).astype(stored)
    at = write_chunks(tmp_path / "a", values, items, checksums=checksums)
    limit = 1000 if read_as == "i8" else 0
    with (tmp_path / "a").open("rb") as file:
        for trial in range(8):
            cuts = np.sort(rng.integers(0, len(values) + 1, (3, 2)), axis=1)
            wanted = np.array([[0, 4, items, values.itemsize, low, high - low, limit] for low, high in cuts.tolist()])

            def run(wanted: np.ndarray = wanted, trial: int = trial) -> tuple[np.ndarray, ...]:
                checked = np.full(4, not checksums, np.uint8)
                checked[trial % 4] = 1
                out = np.empty(int(wanted[:, 5].sum()), read_as)
                assert kernels.read_chunks(file.fileno(), at, checked, wanted, out) == 3
                return out, checked

            found, _ = same_from_all(run)
            assert_same_bits(found, np.concatenate([values[low:high] for low, high in cuts.tolist()]).astype(read_as))


def read_one(path: Path, at: np.ndarray, checked: np.ndarray, start: int, n: int, limit: int = 0) -> int:
    out = np.empty(n, np.int64)
    with path.open("rb") as file:
        return kernels.read_chunks(file.fileno(), at, checked, np.array([[0, len(at), ITEMS, 4, start, n, limit]]), out)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_what_cannot_be_read(tmp_path: Path, backend: str) -> None:
    values, path = np.arange(300, dtype=np.int32), tmp_path / "a"
    at = write_chunks(path, values, ITEMS)
    content = bytearray(path.read_bytes())
    content[at[1] + 50] ^= 1
    path.write_bytes(content)
    kernels.use(backend)
    checked = np.zeros(3, np.uint8)
    assert read_one(path, at, checked, 0, 100) == 1
    assert read_one(path, at, checked, 0, 101) == 0  # a checksum of which one number is wanted
    assert checked.tolist() == [1, 0, 0]
    assert read_one(path, at, checked, 200, 100, limit=299) == 0
    assert read_one(path, at, checked, 200, 100, limit=300) == 1
    assert checked.tolist() == [1, 0, 1]
    checked[:] = 1
    assert read_one(path, at, checked, 0, 300) == 1  # compared once
    path.write_bytes(content[: at.max() + 4 * ITEMS - 1])
    assert read_one(path, at, checked, 0, 300) == 0
    assert (
        kernels.read_chunks(2**31 - 1, at, checked, np.array([[0, 3, ITEMS, 4, 0, 1, 0]]), np.empty(1, np.int64)) == 0
    )


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        (0, 1, "chunks are not among"),
        (0, -1, "chunks are not among"),
        (1, 2**62, "chunks are not among"),
        (2, 0, "no numbers, or too many"),
        (2, 2**31, "no numbers, or too many"),
        (3, 2, "neither as long as"),
        (4, 291, "not in its chunks"),
        (4, -1, "not in its chunks"),
        (4, 2**63 - 1, "not in its chunks"),
        (5, 11, "not as much room"),
        (5, 9, "room for more"),
        (6, -1, "a limit that numbers cannot have"),
    ],
)
def test_refusals(backend: str, column: int, value: int, error: str) -> None:
    kernels.use(backend)
    wanted = np.array([[0, 3, ITEMS, 4, 0, 10, 0]])
    wanted[0, column] = value
    with pytest.raises(ValueError, match=error):
        kernels.read_chunks(0, np.arange(3), np.zeros(3, np.uint8), wanted, np.empty(10, np.int64))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_addresses_that_no_file_has(backend: str) -> None:
    kernels.use(backend)
    for at in (-1, 2**62):
        with pytest.raises(ValueError, match=r"chunk_at\[1\] is"):
            kernels.read_chunks(
                0, np.array([0, at]), np.ones(2, np.uint8), np.array([[0, 2, 5, 8, 4, 2, 0]]), np.empty(2, np.int64)
            )


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize("longest", [0, 3, 200])
def test_take_bags(dtype: type, longest: int) -> None:
    rng = np.random.default_rng(longest)
    offsets = np.r_[0, np.cumsum(rng.integers(0, longest + 1, 300))].astype(np.int64)
    items = rng.integers(0, 1000, offsets[-1]).astype(dtype)
    rows = rng.integers(0, 300, 1000)
    out_offsets = np.r_[0, np.cumsum(np.diff(offsets)[rows])].astype(np.int64)

    def run() -> np.ndarray:
        out = np.empty(out_offsets[-1], dtype)
        kernels.take_bags(items, offsets, rows, out_offsets, out)
        return out

    wanted = [items[offsets[row] : offsets[row + 1]] for row in rows]
    np.testing.assert_array_equal(same_from_all(run), np.concatenate(wanted))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_take_bags_refuses(backend: str) -> None:
    kernels.use(backend)
    items, offsets, out = np.arange(5), np.array([0, 2, 5]), np.empty(3, np.int64)
    for rows, out_offsets in (([2], [0, 0]), ([-1], [0, 0]), ([0], [0, 3]), ([0], [2, 4]), ([1], [-3, 0])):
        with pytest.raises(ValueError, match=r"rows|out_offsets"):
            kernels.take_bags(items, offsets, np.array(rows), np.array(out_offsets), out)
    with pytest.raises(ValueError, match="offsets"):
        kernels.take_bags(items, np.array([0, 6]), np.array([0]), np.array([0, 6]), np.empty(6, np.int64))
