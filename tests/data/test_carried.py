"""What says how values became ids goes along with a run, by links or copies, and never that of another data set."""

import errno
import os
from pathlib import Path

import pytest

from hpcrec.data.carried import MAP, VOCABULARY, carried, carry


@pytest.mark.parametrize("links", [True, False])
def test_files_are_those_of_the_last_data_set(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    carry(data, run / "source")
    assert carried(run) is None
    for said in ("one", "two"):
        for name in (MAP, VOCABULARY):
            (data / name).unlink(missing_ok=True)
            (data / name).write_text(f"{name} {said}")
        carry(data, run / "source")
        found = {path.name: path.read_text() for path in (run / "source").iterdir()}
        assert found == {name: f"{name} {said}" for name in (MAP, VOCABULARY)}
        assert carried(run) == run / "source"
    (data / VOCABULARY).unlink()
    carry(data, run / "source")
    assert [path.name for path in (run / "source").iterdir()] == [MAP]
    (data / MAP).unlink()
    carry(data, run / "source")
    assert carried(run) is None and list((run / "source").iterdir()) == []
