"""Starts the programs of this folder with the library preloaded, several at a time, and adds up what they found."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.failing_files.library import environment
from tests.failing_files.seeded import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
ERRORS_ON = (
    "first", "increment", "again", "retried", "resume", "damaged", "notes", "first notes", "prepare", "prepare one",
    "prepare restart", "data",
)  # fmt: skip
CUTS_ON = (
    "first/1", "first/2", "first/3", "increment/1", "increment/2", "long/1", "long/3", "again/1", "again/2",
    "retried/1+3", "retried/1+9", "retried/2+5", "retried/2+14", "retried/2+21", "linked/1", "linked/2",
    "resume/1", "damaged/1", "notes/1", "first notes/1", "prepare/1", "prepare one/1", "prepare restart/1", "export/1",
)  # fmt: skip


def asked(
    method: str, arguments: Sequence[Sequence[str]], folder: Path, *, fault: str = "", limit_s: float = 1500
) -> list[dict[str, Any]]:
    """What ``errors`` or ``cuts`` found, one process for each list of arguments."""
    variables: Mapping[str, str] = environment() | ({VARIABLE: fault} if fault else {})
    started = []
    for i, each in enumerate(arguments):
        out, said = folder / f"{method}-{i}.json", folder / f"{method}-{i}.log"
        command = [sys.executable, "-m", f"tests.failing_files.{method}", *each, "--out", str(out)]
        with said.open("w") as errors:  # a pipe that nobody reads while the one before it runs would fill, and hold it
            started.append((out, said, subprocess.Popen(command, cwd=ROOT, env=variables, stderr=errors)))
    found = []
    for out, said, process in started:
        process.wait(timeout=limit_s)
        assert process.returncode == 0, said.read_text()[-4000:]
        found.append(json.loads(out.read_text()))
    return found


def added(found: Sequence[dict[str, Any]], name: str) -> Counter[str]:
    """Their counts by a key, together."""
    return sum((Counter(each[name]) for each in found), Counter())


def told(wrong: Sequence[Any]) -> str:
    """All that was wrong, of which pytest would show the first."""
    return json.dumps(wrong, indent=1)[:20_000]
