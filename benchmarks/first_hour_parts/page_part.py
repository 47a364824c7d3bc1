"""How far anything of the report page stands out of the window, in a browser: ``tests/report_page`` looks at it.

Knows that test, and where it leaves what it measured; the browser is installed by ``tools/browser.sh``.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _report import ROOT, claim, finish

TEST = "tests/report_page/test_browser.py"


def run(path: Path | None) -> None:
    """Looks at every page in every width and theme, and writes the most that stands out."""
    subprocess.run([str(ROOT / "tools" / "browser.sh"), "install"], check=True, stdin=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HPCREC_COUNTS": folder}
        line = [sys.executable, "-m", "pytest", "-q", "-o", "faulthandler_timeout=1800", TEST]
        status = subprocess.run(line, cwd=ROOT, env=environment, check=False).returncode
        found = Path(folder) / "pages.json"
        if not found.exists():
            sys.exit(f"{TEST} looked at no page; is there a browser? It ended with {status}")
        rows = json.loads(found.read_text())["looks"]
    most = max(row["overflow_px"] for row in rows)
    unit = f"the most of {len(rows)} looks; {'the test passed' if status == 0 else 'the test FAILED'}"
    finish("first_hour", rows, [claim("report.overflow_px", most, unit, "<= 0")], path)
