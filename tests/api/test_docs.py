"""docs/python.md and examples/tracker do what they say: the code of one is run block after block, in one folder."""

import re
import subprocess
import sys
from pathlib import Path

from hpcrec.preparation.prepare_synthetic import prepare_synthetic

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_blocks_of_the_page_run(tmp_path: Path) -> None:
    """As a script: its functions and classes are those of no module."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    checks = """
assert run.status == "finished" and len(losses) == 3 and own.config["model"]["name"] == "__main__:Linear"
assert best.best < 2 and open("log.csv").readline() == "step,name,value\\n"
assert probabilities.shape == (2000,) and few.shape == (2,) and 0 < probabilities.min() < probabilities.max() < 1
assert (run.predict(clicks) == probabilities).all() and len(given) == 2 and given[0] == given[1]
"""
    (tmp_path / "page.py").write_text("".join(blocks) + checks)
    subprocess.run([sys.executable, "page.py"], cwd=tmp_path, check=True)


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
