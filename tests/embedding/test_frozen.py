"""Rows as they were, copies of them in memory and in a file: all are right, and little is read of the file."""

from pathlib import Path

import numpy as np
import pytest

from hpcrec.embedding import frozen
from hpcrec.embedding.frozen import FrozenRows
from tests.embedding.frozen_arrays import frozen_arrays

N, WIDTH, PIECE = 40_000, 8, 500
ROW_BYTES = 8 + 4 * WIDTH + 4  # its number, row and state


def frozen_rows(folder: Path, rng: np.random.Generator, changed: float) -> tuple[FrozenRows, dict[str, np.ndarray]]:
    """Rows of which a share was changed, many of them more than once, with little memory for copies."""
    arrays = {"": rng.standard_normal((N, WIDTH)).astype(np.float32), "state": rng.random(N).astype(np.float32)}
    expected = {name: array.copy() for name, array in arrays.items()}
    kept = frozen_arrays(arrays, np.ones(N, bool), folder / "spill", 64 * 1024)
    for _ in range(40):
        rows = rng.choice(N, int(N * changed / 20), replace=False)
        kept.keep(rows)
        for array in arrays.values():
            array[rows] = np.nan
    return kept, expected


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read of the file."""
    found, real = list[int](), frozen._File._get

    def counted(*given: object) -> np.ndarray:
        found.append((values := real(*given)).nbytes)
        return values

    monkeypatch.setattr(frozen._File, "_get", counted)
    return found


@pytest.mark.parametrize("changed", [0.01, 0.6])
def test_of_a_file_each_piece_reads_what_it_takes(tmp_path: Path, read: list[int], changed: float) -> None:
    kept, expected = frozen_rows(tmp_path, np.random.default_rng(1), changed)
    for start in range(0, N, PIECE):
        piece = slice(start, start + PIECE)
        for name, values in kept.take(piece).items():
            assert np.array_equal(values, expected[name][piece])
    n_bytes = (tmp_path / "spill").stat().st_size if changed > 0.1 else 0
    assert (n_bytes > 500_000) == (changed > 0.1)
    blocks = len(kept._runs) * (N // PIECE) * 2 * frozen._BLOCK * 8  # which row numbers begin and end in
    assert sum(read) <= n_bytes + blocks, "each piece of the whole file, before"
    kept.close()
    assert not (tmp_path / "spill").exists()


def test_of_rows_here_and_there_blocks_are_read(tmp_path: Path, read: list[int]) -> None:
    rng = np.random.default_rng(2)
    kept, expected = frozen_rows(tmp_path, rng, 0.6)
    for rows in np.array_split(rng.permutation(N), N // 10)[:300]:
        before = sum(read)
        for name, values in kept.take(rows).items():
            assert np.array_equal(values, expected[name][rows])
        runs = sum(isinstance(run, frozen._Written) for run in kept._runs)
        assert sum(read) - before <= runs * len(rows) * 2 * frozen._BLOCK * ROW_BYTES
    assert sum(read) > 0


def test_a_file_that_was_cut_short_is_an_error_that_names_it(tmp_path: Path) -> None:
    kept, _ = frozen_rows(tmp_path, np.random.default_rng(1), 0.6)
    with (tmp_path / "spill").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(OSError, match=r"the file ends before its size.*spill"):
        kept.take(slice(0, N))
