"""What tools/step_trace.py counts and writes, and that the page which it writes names functions that there are."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.runs import write_data

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]
import step_trace  # noqa: E402 - no package

del sys.path[:1]
HOP = re.compile(r"( *)- `([^`]+)` (\S+)")
CONFIG = """
[data]
train = "{folder}/data.h5"
[model]
name = "fm"
width = 4
[topology]
mode = "fused"
[dense]
reducer = "mpi"
[train]
batch_size = 16
[run]
folder = "{folder}/run"
"""


def functions_of(tree: ast.AST, inside: str = "") -> Iterator[str]:
    """Qualified names, as code objects have them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inside + node.name
            yield from functions_of(node, f"{inside}{node.name}.<locals>.")
        else:
            yield from functions_of(node, inside)


def hops_in(page: str) -> list[tuple[int, str, str]]:
    _, _, rest = page.partition(step_trace.MARKS[0])
    walk, _, _ = rest.partition(step_trace.MARKS[1])
    return [(len(m[1]) // 2, m[3], m[2]) for m in map(HOP.match, walk.splitlines()) if m is not None]


def test_the_page_names_functions_that_there_are() -> None:
    hops = hops_in((ROOT / "docs" / "architecture.md").read_text())
    assert len(hops) > 50
    for _, file, function in hops:
        path = ROOT / "hpcrec" / file
        known = set(functions_of(ast.parse(path.read_text()))) if path.exists() else set()
        assert function in known, f"{file} has no {function}: write the walk of docs/architecture.md again, as it says"


def test_a_step_is_counted_and_written(tmp_path: Path) -> None:
    write_data(tmp_path / "data.h5")
    (tmp_path / "config.toml").write_text(CONFIG.format(folder=tmp_path))
    page, out = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text(f"before\n{step_trace.MARKS[0]}what was there\n{step_trace.MARKS[1]}after\n")
    line = [sys.executable, "-m", "hpcrec", "run", "-n", "2", "--", str(ROOT / "tools/step_trace.py")]
    line += [str(tmp_path / "config.toml"), "--json", str(out), "--markdown", str(page)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["calls"] > found["functions"] > found["files"] > 10
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "what was there" not in text
    hops = [hop[1:] for hop in hops_in(text)]
    assert ("training/session.py", "Step.run") in hops and "stall-watch" not in text
    assert len(set(hops)) == len(hops) <= found["functions"]


def test_hops_are_calls_into_other_files() -> None:
    walk = [(0, "a", "f"), (1, "a", "g"), (2, "b", "h"), (3, "b", "i"), (1, "b", "j"), (2, "a", "k"), (0, "a", "l")]
    hops = list(step_trace.hops([step_trace.Entered(*one) for one in walk]))
    assert [(hop.depth, hop.function) for hop in hops] == [(0, "f"), (1, "h"), (1, "j"), (2, "k"), (0, "l")]


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(step_trace.MARKS[0])
    with pytest.raises(SystemExit, match="has no line"):
        step_trace.put_into(page, "text")
    assert page.read_text() == step_trace.MARKS[0]


def test_figures() -> None:
    trace = step_trace.Trace(Counter({("a", "f"): 3, ("a", "g"): 1, ("b", "f"): 1}))
    assert trace.figures == {"functions": 3, "files": 2, "calls": 5}
    assert trace.most == "a 4, b 1"
