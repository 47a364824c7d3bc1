"""The table of docs/bad_input.md names tests that exist, with their parameters, and every parameter of them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.bad_input import test_data, test_resume, test_settings
from tests.forked import ROOT

PARAMETERS = {
    "test_data.py": test_data.WRONG,
    "test_resume.py": test_resume.CHANGED,
    "test_settings.py": test_settings.WRONG,
}


def named() -> Iterator[tuple[Path, str, str | None]]:
    for line in (ROOT / "docs" / "bad_input.md").read_text().splitlines():
        if line.startswith("|") and not line.startswith(("| input", "|---")):
            found = re.fullmatch(r"\| .+ \| .+ \| [012] \| `(tests/[\w/]+\.py)::(\w+)(?:\[(.+)\])?` \|", line)
            assert found, f"a row without a test: {line}"
            yield ROOT / found[1], found[2], found[3]


def test_every_row_names_a_test() -> None:
    rows = list(named())
    assert len(rows) > 40 and len({(path, test, parameter) for path, test, parameter in rows}) == len(rows)
    for path, test, parameter in rows:
        functions = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        assert test in functions, f"{path}: no {test}"
        if parameter is not None:
            assert parameter in PARAMETERS.get(path.name, ("corrupt later", "another")), f"{test}: no {parameter}"


def test_every_kind_has_a_row() -> None:
    rows = {(path.name, parameter) for path, _, parameter in named()}
    missing = {(name, kind) for name, kinds in PARAMETERS.items() for kind in kinds} - rows
    assert missing == {("test_data.py", "label -1")}  # with "label 2" in one row
