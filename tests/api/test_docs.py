"""examples/tracker does what its README says; the blocks of docs/python.md are run by tests/docs."""

import re
import subprocess
import sys
from pathlib import Path

from hpcrec.preparation.prepare_synthetic import prepare_synthetic

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_tracker_keeps_a_run(tmp_path: Path) -> None:
    prepare_synthetic(tmp_path / "data", samples=2000)
    script = ROOT / "examples" / "tracker" / "tracker.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path / "data", tmp_path / "run"], capture_output=True, text=True, check=True
    )
    *_, last = said = done.stdout.splitlines()
    assert (
        last.startswith("first finished 20 ") and len([line for line in said if re.fullmatch(r"\d+ 0\.\d+", line)]) == 4
    )
