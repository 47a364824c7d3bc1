"""Checksums are of what a writer gave, and an error that only `fsync` or `close` reports is one of the write."""

import errno
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrec.checkpoint.checkpoint import CheckpointWriter, find_checkpoint
from hpcrec.data import hdf5_out
from hpcrec.data.hdf5_filled import Filled
from hpcrec.data.hdf5_out import Given, Output
from hpcrec.errors import CheckpointError, OutputError


def fill(writer: CheckpointWriter, value: float = 1.0, rows: int = 4000) -> None:
    block = (np.arange(rows), np.full((rows, 8), value, np.float32), {"momentum": np.zeros((rows, 8), np.float32)})
    writer.write_table_part("t", 0, [block], n_ids=rows, rows=rows, width=8, columns=(0, 8))
    writer.write_dense({"w": np.full(100_000, value)}, {"w": {"step": 3}}, {"buffer": np.ones(3)})
    writer.write_state({})


def write(run: Path, step: int) -> None:
    writer = CheckpointWriter(run, step)
    writer.begin()
    fill(writer)
    writer.commit()


def test_checksums_of_any_order_of_writes(tmp_path: Path) -> None:
    """Short and long writes, one over the other, gaps, and cuts: as a file of the same writes has it."""
    rng = np.random.default_rng(0)
    for case in range(60):
        path = tmp_path / str(case)
        with path.open("w+b", buffering=0) as file:
            given = Given(file.fileno())
            for _ in range(int(rng.integers(1, 12))):
                if rng.random() < 0.15:
                    size = int(rng.integers(0, 300_000))
                    file.truncate(size)
                    given.truncate(size)
                at, n = int(rng.integers(0, 200_000)), int(rng.choice([1, 100, 70_000, 150_000]))
                data = rng.bytes(n)
                given.put(at, memoryview(data))
                os.pwrite(file.fileno(), data, at)
            whole = path.read_bytes()
            assert given.n_bytes == len(whole)
            assert given.crc32(0, len(whole)) == zlib.crc32(whole)
            a, b = sorted(rng.integers(0, len(whole) + 1, 2).tolist())
            assert given.crc32(a, b, 7) == zlib.crc32(whole[a:b], 7)


def test_checksums_of_hdf5_files_are_those_of_their_bytes(tmp_path: Path) -> None:
    with Output(tmp_path / "a.h5", remembered=True) as output:
        for i in range(40):
            group = output.file.require_group(f"g{i % 7}")
            group.create_dataset(f"d{i}", data=np.random.default_rng(i).random(10 ** (i % 6))).attrs["i"] = i
    whole = (tmp_path / "a.h5").read_bytes()
    assert (output.given.n_bytes, output.given.crc32(0, output.given.n_bytes)) == (len(whole), zlib.crc32(whole))
    with Filled(tmp_path / "b.h5", {"x": ((5, 3), np.float64)}, lambda file: file.attrs.update(a="b" * 999)) as filled:
        filled.append("x", np.arange(15.0))
    whole = (tmp_path / "b.h5").read_bytes()
    assert (filled.n_bytes, filled.crc32) == (len(whole), zlib.crc32(whole))


class Lost:
    """The last write to a file, by whichever way, does not reach it; only its ``call`` says so, by an error or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, call: str) -> None:
        self.name, self.told = name, 0
        real = {"fsync": os.fsync, "close": os.close}[call]

        def failing(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            real(descriptor)
            if path.name == name and not self.told:
                self.told += 1
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize("name", ["part-0.h5", "dense.h5", "state.json"])
def test_what_fsync_alone_reports_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write(tmp_path, 1)
    lost = Lost(monkeypatch, name, "fsync")
    with pytest.raises(CheckpointError, match=rf"step 2 could not be written: .*{name}.*Disk quota exceeded"):
        write(tmp_path, 2)
    assert lost.told == 1 and find_checkpoint(tmp_path).step == 1


def test_what_close_alone_reports_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = type(hdf5_out._Disk(tmp_path / "x")._raw)

    class Refusing(raw):  # type: ignore[misc, valid-type]
        def close(self) -> None:
            was_open = not self.closed
            super().close()
            if was_open:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    def opened(path: Path, *_: Any, **__: Any) -> Any:
        return Refusing(path, "w+")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        output = Output(tmp_path / "a.h5")
    output.file["x"] = 1
    with pytest.raises(OutputError, match=r"a\.h5: cannot be written \(Input/output error\)"):
        output.close()


def test_a_file_that_the_disk_made_something_else_of_is_found_at_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reports it: then the checksum of what was given tells it, and the one before is taken."""
    write(tmp_path, 1)
    raw_open = Path.open

    class Silent:
        """Drops long writes, and says that they were made."""

        def __init__(self, file: Any) -> None:
            self._file, self.dropped = file, 0

        def write(self, data: Any) -> int:
            if len(data) > 10_000:
                self.dropped += 1
                self._file.seek(len(data), 1)
                return len(data)
            return int(self._file.write(data))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    made: list[Silent] = []

    def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = raw_open(path, mode, *args, **kwargs)
        if path.name == "dense.h5" and "w" in mode:
            made.append(Silent(file))
            return made[-1]
        return file

    monkeypatch.setattr(Path, "open", opened)
    write(tmp_path, 2)
    monkeypatch.undo()
    assert made[0].dropped
    with pytest.warns(UserWarning, match=r"dense\.h5 has another checksum than its manifest says"):
        assert find_checkpoint(tmp_path).step == 1
