"""tools/results.py: each claim is on the page once, those that fall short first, with what it takes to judge it."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_tool", ROOT / "tools" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["results_tool"] = module
    spec.loader.exec_module(module)
    return module


def claim(name: str, value: float | None, unit: str = "times", goal: str | None = None, holds: Any = None, **more: str):
    return {"id": name, "value": value, "unit": unit, "goal": goal, "holds": holds, **more}


def write(folder: Path, stem: str, when: str, *claims: dict[str, Any], rows: Any = ()) -> None:
    machine = {"cpu": "a processor", "cores": 2, "system": "Linux"}
    head = {"name": "speed", "when": when, "machine": machine, "versions": {"torch": "2.13", "commit": "abc"}}
    (folder / f"{stem}.json").write_text(json.dumps({**head, "rows": list(rows), "claims": claims}))


def test_what_falls_short_is_first_and_marked(results: ModuleType, tmp_path: Path) -> None:
    write(
        tmp_path, "speed", "2026-11-21T17:09:27Z",
        claim("met", 2.00001, "times (1.9 to 2.1)", ">= 1", True),
        claim("free", 7.0),
        claim("low", 0.94999, "of", ">= 0.95, or 1 in 0.9 to 0.99", False, commit="d"),
        claim("absent", None, "of it", ">= 0.5", None, reason="no disk"),
        claim("speed.w1.2ranks", 1.3, "hpcrec / tbe", ">= 1", True),
        rows=[{"workload": "w1", "ranks": 2, "ratios": "1.5 1.25 1.3"}, {"status": "skipped", "reason": "no peer"}],
    )  # fmt: skip
    text = results.page(results.files(tmp_path))
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert lines == [
        "| `low` | **no** | 0.94999 | 0.9 to 0.99 | of, commit d | >= 0.95, or 1 in the interval | [speed](#speed) |",
        "| `absent` |  | none: no disk |  | of it | >= 0.5 | [speed](#speed) |",
        "| `met` | yes | 2 | 1.9 to 2.1 | times | >= 1 | [speed](#speed) |",
        "| `speed.w1.2ranks` | yes | 1.3 | 1.250 to 1.500 | hpcrec / tbe | >= 1 | [speed](#speed) |",
        "| `free` |  | 7 |  | times |  | [speed](#speed) |",
    ]
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Goals that are not met", "## Not measured", "## Goals that are met", "## Figures without a goal",
        "## Benchmarks",
    ]  # fmt: skip
    entry = text.partition("### speed\n")[2]
    assert entry.startswith(
        "\nSpeed of whole training steps beside TorchRec, hand-written FBGEMM and DDP: same cores, model and batches.\n"
        "`python benchmarks/speed.py --peers PYTHON "
    )
    assert (
        ", 2026-11-21, 2 cores of a processor, Linux, torch 2.13, commit abc.\nNot measured, no peer: 1 rows." in entry
    )
    assert "Rows: 1, in [speed.json](../benchmarks/results/speed.json)." in entry


def test_of_two_files_the_newer_claim_stands_and_the_other_is_named(results: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "speed", "2026-11-21T17:09:27Z", claim("a", 1.0, goal=">= 2", holds=False), claim("b", 1.0))
    write(tmp_path, "speed_peers", "2026-11-21T20:44:24Z", claim("a", 3.0, goal=">= 2", holds=True))
    lines = [line for line in results.page(results.files(tmp_path)).splitlines() if line.startswith("| `")]
    assert lines == [
        "| `a` | yes | 3 (1 in [speed](#speed)) |  | times | >= 2 | [speed_peers](#speed_peers) |",
        "| `b` |  | 1 |  | times |  | [speed](#speed) |",
    ]


def test_the_page_has_each_claim_once_and_leads_to_files_that_there_are(results: ModuleType) -> None:
    files = results.files(ROOT / results.FOLDER)
    text = results.page(files)
    named = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert sorted(named) == sorted({c["id"] for file in files for c in file.result["claims"]})
    short, _, rest = text.partition("## Goals that are met")
    assert "**no**" in short and "| yes |" not in short and "**no**" not in rest
    links = re.findall(r"\]\(\.\./([^)]+)\)", text)
    assert len(links) == 2 * len(files) and all((ROOT / link).is_file() for link in links)
    assert {f"#{file.stem}" for file in files if file.result["claims"]} == set(
        re.findall(r"\]\((#[^)]+)\)", text.partition("## Goals")[2])
    )


def test_speeds_in_the_readme_are_those_that_were_measured() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "speed_peers.json").read_text())["rows"]
    speeds = {
        (row["workload"], row["contender"]): f"{row['samples_per_s']:,.0f} ({row['min']:,.0f} to {row['max']:,.0f})"
        for row in rows
        if "samples_per_s" in row
    }
    speeds["w1", "torchrec"] = speeds["w3", "torchrec"] = ""  # of another loss than the others'; not trained by it
    text = (ROOT / "README.md").read_text()
    for workload in ("w1", "w2", "w3"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {workload.upper()} on 2 ranks")]
        shown = [cell.strip() for cell in line.split("|")[2:-1]]
        contenders = ("hpcrec-fused-mpi", "torchrec", "tbe")
        assert shown == [*(speeds[workload, contender] for contender in contenders), ""]
