"""Random reads of a disk: pages are counted that came, nothing is left behind, and errors say what to change."""

import errno
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrec.disk.pages import Way
from hpcrec.disk.rate import RandomReads
from hpcrec.errors import OutputError, TierError
from hpcrec.units import MiB


@pytest.mark.parametrize("way", ["auto", "threads"])
@pytest.mark.parametrize("page_bytes", [4096, 16384])
def test_pages_that_come_are_counted(tmp_path: Path, way: Way, page_bytes: int) -> None:
    with RandomReads(tmp_path, page_bytes, way=way, n_bytes=4 * MiB) as reads:
        assert not list(tmp_path.iterdir()), "it goes at once"
        pages, seconds, cpu_s = reads.run(0.05)
    assert pages % 512 == 0 and 0.05 <= seconds < 5 and 0.0 < cpu_s / pages < 1e-3
    assert 500 < pages / seconds < 5_000_000  # of anything from a rotating disk to memory


def test_what_a_limit_has_saved_up_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches come at once, and then one in 50 ms, as where a disk is let to give so many pages a second."""
    with RandomReads(tmp_path, 4096, n_bytes=4 * MiB) as reads:
        waited, wait = itertools.count(), reads._io.wait

        def limited(ticket: int) -> Any:
            time.sleep(0.05 if next(waited) >= 3 else 0.0)
            return wait(ticket)

        monkeypatch.setattr(reads._io, "wait", limited)
        pages, seconds, _ = reads.run(0.2)
    assert pages / seconds <= 1.02 * 512 / 0.05, "nobody sleeps for less"


def test_a_page_that_cannot_be_read(tmp_path: Path) -> None:
    with RandomReads(tmp_path, 4096, n_bytes=4 * MiB) as reads:
        reads._io.fail(False, 700, errno.EIO)
        with pytest.raises(TierError, match=r"a page cannot be read back \(Input/output error\). Give store.path on"):
            reads.run(5.0)


def test_a_folder_that_takes_no_file(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"gone: a file to be read at random cannot be written \(No such file"):
        RandomReads(tmp_path / "gone", 4096)
