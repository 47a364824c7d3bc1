"""Functions, files and calls of ours that one step of the quickstart's model enters, by ``tools/step_trace.py``.

Rank 0 of 2, every rank in both roles, batch 2,048, with a batch read and one routed ahead. The other commit's figures,
found by the same tool, are in the table.

``house.step_functions``, ``house.step_files``: form ``pooled``. ``house.step_calls.<form>``: calls of these functions,
comprehensions left out. ``house.test_minutes``: how long ``make test`` took, from --tests, the file that
``tools/run_tests.py --json`` has written.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from _report import ROOT, claim
from house_parts.checkout import Checkout
from house_parts.pairs import Row
from house_parts.speed_part import QUICKSTART, QUICKSTART_DATA
from speed_parts import launch

TRACE = ROOT / "tools" / "step_trace.py"
RANKS = 2
GOALS = {"pooled": 650, "rows": 800}  # calls
FUNCTIONS_GOAL, FILES_GOAL, MINUTES_GOAL = "<= 170", "<= 50", "<= 15"


def trace(sides: Sequence[Checkout], settings: Sequence[str], tests: Path | None) -> tuple[list[Row], list[Row]]:
    """Rows of each side, and the claims of the last of them."""
    rows = [row(side, form, settings) for side in sides for form in GOALS]
    found = {one["form"]: one for one in rows[-len(GOALS) :]}
    claims = [
        counted("house.step_functions", found["pooled"], "functions", FUNCTIONS_GOAL),
        counted("house.step_files", found["pooled"], "files", FILES_GOAL),
        *(counted(f"house.step_calls.{form}", found[form], "calls", f"<= {most}") for form, most in GOALS.items()),
        minutes(tests),
    ]
    return rows, claims


def row(side: Checkout, form: str, settings: Sequence[str]) -> Row:
    """The figures of one checkout's step."""
    every = [f"--set=data.train={QUICKSTART_DATA}", f"--set=exchange.form={form}", *(f"--set={s}" for s in settings)]
    found = launch.run(
        lambda out: side.on_ranks(RANKS, TRACE, QUICKSTART, *every, "--json", out), launch.environment(RANKS)
    )
    if "package" in found:
        side.check(found["package"])
    kept = {key: value for key, value in found.items() if key in ("functions", "files", "calls", "most", "result")}
    print(f"{side.commit:10} {form:8}", *(f"{key} {value}" for key, value in kept.items()), flush=True)
    return {"commit": side.commit, "form": form, **kept}


def counted(name: str, found: Row, key: str, goal: str) -> Row:
    """A figure as a claim."""
    return claim(name, found.get(key), f"{key} a step", goal, found.get("result"))


def minutes(tests: Path | None) -> Row:
    """How long the tests took, if somebody has run them."""
    name, unit = "house.test_minutes", "minutes of make test"
    if tests is None:
        return claim(name, None, unit, MINUTES_GOAL, "--tests names no file of tools/run_tests.py --json")
    return claim(name, json.loads(tests.read_text())["machine"]["took_s"] / 60, unit, MINUTES_GOAL)
