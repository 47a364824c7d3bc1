"""tools/soak.py goes on where it ended, on the commit that it names; benchmarks/losses.py counts what it wrote."""

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]
import losses  # noqa: E402 - a benchmark

del sys.path[:1]
COUNTED = {
    "cuts": {"cuts": {"cuts": 10_000, "wrong": 0}},
    "errors": {"errors": {"injected": 10_200, "wrong": 0}},
    "errors-export": {"errors-export": {"injected": 1_600, "wrong": 0}},
    "kills": {"kills-resumed-split-plain-0": {"kills": 3}, "kills-resumed-split-plain-1": {"kills": 2}},
    "kills-mpich": {"kills-resumed-split-plain-0": {"kills": 1}},
}


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def committed(folder: Path, file: str, text: str) -> str:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "a change")
    return git(folder, "log", "-1", "--format=%h")


@pytest.fixture
def soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, in a checkout of its own with nothing in it."""
    spec = importlib.util.spec_from_file_location("soak", ROOT / "tools" / "soak.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "benchmarks/results/soak.json")
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    git(tmp_path, "init", "-q")
    return module


@pytest.fixture
def call(soak: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str]]]:
    """Runs it; its exit status, and the parts that it ran. ``failing`` are those that fail."""

    def run_it(*words: str, failing: tuple[str, ...] = ()) -> tuple[int, list[str]]:
        ran = []

        def run(part: Any, _: float) -> dict[str, Any]:
            ran.append(part.name)
            failed = int(part.name in failing)
            row = {"began": "now", "seconds": 60, "passed": 5, "failed": failed, "skipped": 0}
            return {**row, "counted": COUNTED.get(part.name, {})}

        monkeypatch.setattr(soak, "run", run)
        monkeypatch.setattr(sys, "argv", ["soak.py", *words])
        return soak.main(), ran

    return run_it


def found(soak: ModuleType) -> dict[str, Any]:
    return dict(json.loads(soak.RESULTS.read_text()))


def values(claims: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["id"]: one["value"] for one in claims}


def test_no_part_takes_more_than_an_hour(soak: ModuleType) -> None:
    every = list(soak.parts())
    assert len({part.name for part in every}) == len(every) > 15
    assert max(part.minutes for part in every) < 60
    assert all((ROOT / file).exists() for file in soak.COUNTED.values())


def test_it_goes_on_where_it_ended_and_begins_anew_on_another_commit(
    soak: ModuleType, call: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    first = committed(tmp_path, "hpcrec/a.py", "1")
    names = [part.name for part in soak.parts()]
    status, ran = call("--minutes", "22")  # none takes any time here: those that are expected to are left
    assert status == soak.LEFT and ran == [part.name for part in soak.parts() if part.minutes <= 20]
    assert found(soak)["versions"]["commit"] == first
    assert values(found(soak)["claims"]) == {"soak.failed": 0, "soak.parts": len(ran)}
    committed(tmp_path, "docs/results.md", "figures")  # and the results themselves
    status, further = call(failing=("serial",))
    assert status == soak.FAILED and sorted(ran + further) == sorted(names)
    assert call() == (0, ["serial"])
    tries = [row["failed"] for row in found(soak)["rows"] if row["part"] == "serial"]
    assert tries == [1, 0] and {row["commit"] for row in found(soak)["rows"]} == {first}
    second = committed(tmp_path, "hpcrec/a.py", "2")
    assert call("--parts", "cuts") == (0, ["cuts"])
    assert [(row["part"], row["commit"]) for row in found(soak)["rows"]] == [("cuts", second)]


def test_a_part_stands_that_passed_with_as_large_a_share(
    soak: ModuleType, call: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    committed(tmp_path, "hpcrec/a.py", "1")
    every = [part.name for part in soak.parts()]
    assert call("--share", "0.5") == (0, every) and call() == (0, [])
    assert {row["share"] for row in found(soak)["rows"]} == {0.5}
    assert call("--share", "1") == (0, every)
    for bad in ("0", "2", "a half"):
        with pytest.raises(SystemExit):
            call("--share", bad)


def test_a_part_stands_until_its_own_tests_change(
    soak: ModuleType, call: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    product = committed(tmp_path, "hpcrec/a.py", "1")
    every = {part.name for part in soak.parts()}
    assert set(call()[1]) == every
    tests = committed(tmp_path, "tests/failing_files/a.py", "2")
    whole = {part.name for part in soak.parts() if part.tests is soak.WHOLE}
    anew = {name for name in every if name in ("cuts", "faults-files") or name.startswith("errors")} | whole
    assert set(call()[1]) == anew
    assert {(row["commit"], row["tests"]) for row in found(soak)["rows"] if row["part"] in anew} == {(product, tests)}
    for file in ("tests/kernels/a.py", "benchmarks/a.py"):
        committed(tmp_path, file, "3")
        assert set(call()[1]) == whole
    for file in ("tools/requirements-run.txt", "tools/run_tests.py"):
        committed(tmp_path, file, "4")
        assert set(call()[1]) == every


def test_tests_of_parts_of_their_own_stand_on_what_is_named(soak: ModuleType) -> None:
    """Every module of tests that they import, directly or not, is under a path that the part names."""
    for part in soak.parts():
        if part.tests is soak.WHOLE:
            continue
        named = [ROOT / path for path in part.tests]
        files = [file for path in named for file in ([path] if path.suffix else path.rglob("*.py"))]
        every = imported([str(file.relative_to(ROOT)) for file in files if file.suffix == ".py"])
        assert any(argument in every for argument in part.arguments)
        missing = {path for path in every if not path.startswith(part.tests)}
        assert not missing, f"{part.name} does not name {sorted(missing)}"


def imported(files: list[str]) -> set[str]:
    """Files of tests that these import, they among them."""
    found, left = set[str](), files
    while left:
        path = left.pop()
        if path in found or not (ROOT / path).exists():
            continue
        found.add(path)
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                at = node.module.replace(".", "/")
                left += [f"{at}.py", *(f"{at}/{name.name}.py" for name in node.names)]
    return found


def test_a_tree_with_changes_is_refused(
    soak: ModuleType, call: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    committed(tmp_path, "hpcrec/a.py", "1")
    (tmp_path / "hpcrec/a.py").write_text("2")
    with pytest.raises(SystemExit, match=r"name no commit:\n ?M hpcrec/a\.py"):
        call()
    with pytest.raises(SystemExit):
        call("--parts", "cats")


def test_claims_are_what_the_soak_counted(
    soak: ModuleType, call: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    assert all(one["value"] is None and one["reason"] for one in losses.counts(soak.RESULTS)[1])
    commit = committed(tmp_path, "hpcrec/a.py", "1")
    call("--parts", "cuts,errors,errors-export,kills,kills-mpich", failing=("kills",))
    rows, claims, of = losses.counts(soak.RESULTS)
    assert of == commit and len(rows) == 6
    assert values(claims) == {
        "losses.injected": 11_800, "losses.power_cuts": 10_000, "losses.schedules": None, "losses.kills": 5,
        "losses.mutations": None, "losses.kills_mpich": 1, "losses.mutations_mpich": None, "losses.ranks": None,
        "losses.wrong": 1,
    }  # fmt: skip
    call("--parts", "kills")  # the same kills again: they are no further ones, and what failed stays
    assert values(losses.counts(soak.RESULTS)[1])["losses.kills"] == 5
    assert values(losses.counts(soak.RESULTS)[1])["losses.wrong"] == 1
    held = {one["id"]: one["holds"] for one in claims}
    assert held["losses.injected"] and held["losses.kills"] is held["losses.wrong"] is False
