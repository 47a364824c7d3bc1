"""Whether every command and Python block of the pages is run, and prints what its page says: ``tests/docs`` runs them.

Knows the lists of that test, and what pytest writes of its cases; nothing of what pages say.
"""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path
from typing import Any

from _report import ROOT, claim, finish

TEST = "tests/docs/test_blocks.py::test_a_block_does_what_its_page_says"


def run(path: Path | None) -> None:
    """Runs them all, those that have a test of their own by that, and writes how many did what their page says."""
    sys.path.insert(0, str(ROOT))
    from tests.docs.pages import paths
    from tests.docs.test_blocks import ELSEWHERE, NOT_RUN, code

    blocks = [block for page in paths() for block in code(page)]
    passed = _passed([TEST, *dict.fromkeys(ELSEWHERE.values())])
    rows = list[dict[str, Any]]()
    for block in blocks:
        name = ELSEWHERE.get(block.key, f"{TEST}[{block}]")
        found = {"page": block.page, "line": block.line, "first": block.key[1], "test": name}
        if block.key in NOT_RUN:
            rows.append(found | {"test": None, "status": "skipped", "reason": NOT_RUN[block.key]})
        else:
            rows.append(found | {"passed": passed.get(name, False)})
            print(f"{block} {'did' if passed.get(name) else 'DID NOT DO'} what its page says", flush=True)
    run_here = [row["passed"] for row in rows if "passed" in row]
    unit = f"of {len(run_here)} blocks; {len(rows) - len(run_here)} others are listed with why they are not run"
    finish("first_hour", rows, [claim("docs.blocks_run", sum(run_here), unit, f">= {len(run_here)}")], path)


def _passed(tests: list[str]) -> dict[str, bool]:
    """Whether each case passed, by its name; that of a function with cases stands for all of them."""
    cases = defaultdict[str, list[bool]](list)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "cases.xml"
        line = [sys.executable, "-m", "pytest", "-q", "--junitxml", str(out), "-o", "junit_family=xunit1"]
        subprocess.run([*line, "-o", "faulthandler_timeout=1800", *tests], cwd=ROOT, check=False)
        if not out.exists():
            sys.exit("pytest ended before it could say which blocks have passed")
        for case in ET.parse(out).iter("testcase"):
            test = f"{case.get('file')}::{case.get('name')}"
            passed = case.find("failure") is None and case.find("error") is None and case.find("skipped") is None
            cases[test].append(passed)
            cases[test.partition("[")[0]].append(passed)
    return {test: all(found) for test, found in cases.items()}
