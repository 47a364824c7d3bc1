"""Random mutations of every kind of input end in a clean error or a correct result; see `fuzz`.

They run in a process of their own, so that a crash or a hang is seen, with the seed that makes it. To repeat one:
``python -m tests.bad_input.fuzz KIND SEED 1 FOLDER``.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_input.fuzz import KINDS
from tests.counts import keep_counts, share_of
from tests.forked import ROOT

SOME = 24
MANY = {  # 10,000 in all, more of those that are quick
    "config_text": 1800,
    "config_values": 2000,
    "tsv": 600,
    "data_bytes": 1200,
    "data_structure": 1000,
    "checkpoint_bytes": 1000,
    "checkpoint_structure": 600,
    "export_bytes": 600,
    "export_structure": 1200,
}


def run(kind: str, first: int, count: int, folder: Path) -> dict[str, int]:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.bad_input.fuzz", kind, str(first), str(count)]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    seed = next((line for line in reversed(lines) if line.startswith("seed ")), "no seed")
    assert done.returncode == 0, f"{seed} ended with status {done.returncode}\n{done.stderr[-6000:]}"
    return dict(json.loads(lines[-1]))


@pytest.mark.parametrize("kind", KINDS)
def test_some_mutations(kind: str, tmp_path: Path) -> None:
    counts = run(kind, 0, SOME, tmp_path)
    assert sum(counts.values()) == SOME and counts["error"] > 0


def test_a_name_that_is_listed_and_not_found_is_damage(tmp_path: Path) -> None:
    """One byte of the list of names: dense columns were read as if there were none."""
    assert run("data_bytes", 254, 1, tmp_path) == {"error": 1, "result": 0}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutations(kind: str, tmp_path: Path) -> None:
    many = share_of(MANY[kind])
    counts = run(kind, SOME, many, tmp_path)
    keep_counts(f"mutations-{kind}", {"mutations": sum(counts.values()), "counts": counts})
    assert sum(counts.values()) == many
    assert counts["error"] > 0 and counts["result"] > 0  # both are met, so neither goes untested
