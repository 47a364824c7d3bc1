"""Streams that take no more: a process goes on, and ends as it would have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def ended(code: str, folder: Path, full: str) -> tuple[int, str]:
    """Its exit status, and what its other stream has, where one of two is on a full disk."""
    other = {"stdout": "stderr", "stderr": "stdout"}[full]
    with Path("/dev/full").open("w") as disk, (folder / "other").open("w+") as file:
        line = [sys.executable, "-c", code]
        done = subprocess.run(line, cwd=ROOT, env=BUFFERED, check=False, **{full: disk, other: file})
    return done.returncode, (folder / "other").read_text()


@pytest.mark.parametrize("full", ["stdout", "stderr"])
def test_what_is_said_on_a_full_disk_changes_no_exit_status(tmp_path: Path, full: str) -> None:
    code = "from hpcrec.comm.failure import say, tell\nfor i in range(3): say('said\\n'); tell('told')"
    assert ended(code, tmp_path, full) == (0, {"stdout": "said\n", "stderr": "told\n"}[full] * 3)
    assert ended(f"{code}\nraise SystemExit(75)", tmp_path, full)[0] == 75


def test_python_itself_ends_with_another_status_there(tmp_path: Path) -> None:
    """Or the tests above could not fail."""
    code = "import contextlib, sys\nwith contextlib.suppress(OSError): print('said', file=sys.stderr, flush=True)"
    assert ended(code, tmp_path, "stderr")[0] == 120


def test_a_stream_that_is_free_again_has_what_was_held_back(tmp_path: Path) -> None:
    code = """
import os, sys
from hpcrec.comm.failure import say
kept = os.dup(2)
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
say("first\\n")
os.dup2(kept, 2)
say("second\\n")
"""
    with (tmp_path / "said").open("w") as file:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=BUFFERED, stderr=file, check=False)
    assert done.returncode == 0 and (tmp_path / "said").read_text() == "first\nsecond\n"


def test_a_stream_that_is_closed_is_forgiven(tmp_path: Path) -> None:
    code = "import sys\nfrom hpcrec.comm.failure import say\nsys.stderr.close()\nsay('said\\n')\nprint('on')"
    assert ended(code, tmp_path, "stderr") == (0, "on\n")
