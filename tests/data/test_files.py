"""What the disk refuses names files as they will be called, once nothing is temporary any more."""

import errno
from pathlib import Path

import pytest

from hpcrec.data.files import settled, temporary_beside, writing
from hpcrec.errors import OutputError


def test_names_of_temporary_files_and_of_folders_that_hold_them() -> None:
    folder = temporary_beside(Path("/runs/out"))
    assert folder != Path("/runs/out")
    assert settled(temporary_beside(folder / "model.json")) == Path("/runs/out/model.json")
    assert settled(Path("/runs/.hidden/a.part")) == Path("/runs/.hidden/a.part")


def test_errors_name_them_and_the_file_that_was_refused(tmp_path: Path) -> None:
    hidden = temporary_beside(tmp_path / "out")
    with pytest.raises(OutputError) as found, writing(tmp_path / "out"):
        (hidden / "tables").mkdir()
    assert str(found.value).startswith(
        f"{tmp_path}/out: cannot be written (No such file or directory: {tmp_path}/out/tables)"
    )
    says = rf"^{tmp_path}/out/a: cannot be written \(No space left on device\)\."
    with pytest.raises(OutputError, match=says), writing(hidden / "a"):
        raise OSError(errno.ENOSPC, "No space left on device", str(hidden / "a"))


def test_what_h5py_could_not_read_is_refused_and_a_missing_key_is_not(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"), writing(tmp_path / "a"):
        raise KeyError(
            "Unable to synchronously open object (file read failed: errno = 5, error message = 'Input/output error')"
        )
    with pytest.raises(KeyError, match="ids"), writing(tmp_path / "a"):
        raise KeyError("ids")
