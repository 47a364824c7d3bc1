#!/usr/bin/env python
"""The slow tests, in parts that each take less than an hour: the same properties as ``make test`` at long counts.

    tools/soak.py [--share S] [--minutes M] [--parts NAME,...] [--list]

Schedules, failing calls, lost power, kills, mutations and judgements of ranks are counted in tens of thousands; a soak
of all of them takes a night. ``--share`` is how much of these counts is drawn: a fifth where it is not given, which
takes about four hours on 2 cores; 1 for all. Rows say their share, and a part that passed with more stands.

What a part found goes to ``benchmarks/results/soak.json``, with what its tests counted and the commit that it ran on.
Called again, it goes on with the parts that have not passed as things are; one that failed stays there beside the try
that passed. With ``--minutes`` no part is begun that is expected to take longer than what is left. The commit is the
last one that changed the product, the same for every row; beside it a row names the last one that changed the tests
which it ran, and counts as long as that stands. A tree with other changes than to results and documents is refused: a
figure has to name what it is of.

Ends with exit status 1 where a part failed, 75 where parts are left.

Knows which parts there are, and ``tools/run_tests.py``, which runs each; nothing of what they test.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
OF_NO_CODE = ("benchmarks/results", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PRODUCT = (  # and what it stands on
    "hpcrec",
    "native",
    "slurm",
    "examples",
    "pyproject.toml",
    "setup.cfg",
    "tools/horovod.sh",
    "tools/requirements-*.txt",
    "tools/setup.sh",
)
WHOLE = ("tests", "tools", "benchmarks/*.py", "Makefile")
FAILED, LEFT = 1, 75
LIMIT_S, TEST_LIMIT_S = 3600, 3500  # of each run of a part, and of a test in it: some parts are one test
COUNTED = {  # tests of parts of their own, left out of the others
    "errors": "tests/failing_files/test_errors.py",
    "cuts": "tests/failing_files/test_cuts.py",
    "kills": "tests/training/test_kills.py",
    "maps": "tests/training/test_maps.py",
    "mutations": "tests/bad_input/test_fuzz.py",
    "pages": "tests/report_page/test_browser.py",
    "ranks": "tests/training/test_many_ranks.py",
    "simulated": "tests/simulated/test_simulated.py",
    "files": "tests/failing_files/test_seeded_files.py",
    "seeded": "tests/faults/test_seeded.py",
    "slow ranks": "tests/training/test_slow_ranks.py",
}
SHARED = (  # what tests of parts of their own stand on
    "tests/conftest.py",
    "tests/counts.py",
    "tests/reference.py",
    "tests/checkpoint/tools/made.py",
    "tests/comm/job.py",
    "tests/data/conftest.py",
    "tests/faults/seeded.py",
    "tests/training/launched.py",
    "tests/training/learned.py",
    "tests/training/runs.py",
    "tools/run_tests.py",
    "tools/soak.py",
)


@dataclass(frozen=True)
class Part:
    """One of them: ``minutes`` at most, on 2 cores; ``arguments`` the command line of ``run_tests.py``.

    These are of a fifth of the counts; all of them take up to five times as long.

    ``tests`` are files and folders of the tests that it runs, and of what those stand on. For those that drive a
    ``browser`` it is installed first.
    """

    name: str
    minutes: float
    arguments: tuple[str, ...]
    tests: tuple[str, ...] = WHOLE
    mpich: bool = False
    slow: bool = True
    browser: bool = False


def parts() -> Iterator[Part]:
    """All, quick ones first."""
    alone, files, kills = ("--ranks", ""), ("tests/failing_files", *SHARED), (COUNTED["kills"], *SHARED)
    bad = ("tests/bad_input", "tests/forked.py", *SHARED)
    yield Part("cuts", 3, (*alone, COUNTED["cuts"]), files)
    yield Part("errors", 5, (*alone, COUNTED["errors"], "-k", "ten_thousand"), files)
    for scenario, minutes in (("train", 7), ("export", 6), ("predict", 2)):
        yield Part(
            f"errors-{scenario}", minutes, (*alone, COUNTED["errors"], "-k", f"many_calls and {scenario}-"), files
        )
    yield Part("mutations", 2, (*alone, COUNTED["mutations"]), bad)
    pages = ("tests/report_page", "tests/training/test_telemetry.py", "tools/browser.sh", *SHARED)
    yield Part("pages", 4, (*alone, COUNTED["pages"]), pages, browser=True)
    yield Part("kills", 12, (*alone, COUNTED["kills"]), kills)
    yield Part("ranks", 10, (*alone, COUNTED["ranks"]), (COUNTED["ranks"], *SHARED))
    for scenario, minutes in (("stall", 2), ("prepare", 3), ("restart", 2), ("claim", 9), ("commit", 7)):
        chosen = (*alone, COUNTED["simulated"], "-k", f"soak and {scenario}")
        yield Part(f"schedules-{scenario}", minutes, chosen, ("tests/simulated", *SHARED))
    yield Part("faults-schedules", 10, (*alone, COUNTED["simulated"], "-k", "not soak"), ("tests/simulated", *SHARED))
    yield Part("faults-files", 20, (*alone, COUNTED["files"]), files)
    yield Part("faults", 40, (*alone, COUNTED["seeded"]))
    yield Part("maps", 20, ("--ranks", "2,4", COUNTED["maps"]))
    slow_ranks = ("--no-serial", "--ranks", "4", COUNTED["slow ranks"])
    yield Part("slow-ranks", 15, slow_ranks, (COUNTED["slow ranks"], "tests/cost.py", *SHARED))
    others = tuple(f"--ignore={file}" for file in COUNTED.values())
    yield Part("serial", 40, (*alone, *others))
    for n, minutes in ((1, 12), (2, 12), (3, 12), (4, 25)):
        yield Part(f"on {n} rank" + "s" * (n > 1), minutes, ("--no-serial", "--ranks", str(n), *others))
    yield Part("mutations-mpich", 2, (*alone, COUNTED["mutations"]), bad, mpich=True)
    yield Part("kills-mpich", 12, (*alone, COUNTED["kills"]), kills, mpich=True)
    yield Part("ends-mpich", 5, (*alone, "tests/comm", "tests/launcher/test_terminal.py"), mpich=True, slow=False)
    yield Part("mpich", 30, ("--no-serial", "--ranks", "2,3"), mpich=True, slow=False)


def main() -> int:
    """Runs what is left; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=share, default=0.2, help="of the long counts, 0.01 to 1 (0.2)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no part that takes longer")
    parser.add_argument("--parts", help="only these, and again where they have passed")
    parser.add_argument("--list", action="store_true", help="say which parts there are and what became of them")
    options = parser.parse_args()
    every = {part.name: part for part in parts()}
    asked = options.parts.split(",") if options.parts else []
    if unknown := [name for name in asked if name not in every]:
        parser.error(f"--parts has {', '.join(unknown)}; allowed are {', '.join(every)}")
    commit, tests = last_change(PRODUCT), {part.name: last_change(part.tests) for part in every.values()}
    rows = [row for row in written() if row["commit"] == commit and row.get("tests") == tests.get(row["part"])]
    passed = {row["part"] for row in rows if row["failed"] == 0 and row["share"] >= options.share}
    if options.list:
        for part in every.values():
            print(f"{part.name:20} {part.minutes:4.0f} min  {'passed' if part.name in passed else ''}")
        return 0
    if changed := changes():
        sys.exit(f"soak: the tree has changes, so its figures would name no commit:\n{changed}")
    began_s, left = time.monotonic(), 0
    for part in every.values():
        if part.name not in asked if asked else part.name in passed:
            continue
        if (time.monotonic() - began_s) / 60 + part.minutes > options.minutes:
            left += 1
            print(f"soak: {part.name} is left, it takes about {part.minutes:g} minutes", flush=True)
            continue
        print(f"=== soak: {part.name}, about {part.minutes:g} minutes", flush=True)
        row = {"part": part.name, "commit": commit, "tests": tests[part.name], "share": options.share}
        rows.append(row | run(part, options.share))
        write(rows, list(every))
    newest = {row["part"]: row for row in rows}
    bad = [name for name, row in newest.items() if row["failed"]]
    print(f"soak: {len(newest) - len(bad)} of {len(every)} parts have passed on {commit}" + said(", failed: ", bad))
    return FAILED if bad else LEFT if left else 0


def said(head: str, names: Sequence[str]) -> str:
    """Them, where there are any."""
    return head + ", ".join(names) if names else ""


def share(text: str) -> float:
    """A share of the long counts."""
    if not 0.01 <= (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.01 and 1")
    return value


def run(part: Part, of_counts: float) -> dict[str, Any]:
    """Runs a part with such a share of the counts; what passed, and what its tests counted."""
    python = ROOT / (".venv-mpich" if part.mpich else ".venv") / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="hpcrec-soak-") as folder:
        out = Path(folder) / "found.json"
        line = [str(python), str(ROOT / "tools" / "run_tests.py"), "--json", str(out)]
        line += ["--limit-s", str(LIMIT_S), "--test-limit-s", str(TEST_LIMIT_S)]
        if part.slow:
            line += ["--slow", "--slurm", "no"]
        if part.browser:  # without one its tests skip, and a part of which nothing passed has failed
            subprocess.run([str(ROOT / "tools" / "browser.sh"), "install"], check=False, stdin=subprocess.DEVNULL)
        began_s, began = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        subprocess.run([*line, *part.arguments], cwd=ROOT, check=False, env=environment(python, of_counts))
        rows = json.loads(out.read_text())["rows"] if out.exists() else []
    total = {word: sum(row.get(word, 0) for row in rows if "part" in row) for word in ("passed", "failed", "skipped")}
    if not total["passed"]:
        total["failed"] = max(total["failed"], 1)  # it ended before it could say so
    counted = {row["counted"]: {k: v for k, v in row.items() if k != "counted"} for row in rows if "counted" in row}
    return {"began": began, "seconds": round(time.monotonic() - began_s), **total, "counted": counted}


def environment(python: Path, of_counts: float) -> Mapping[str, str]:
    """Ours, with the programs of an environment first on the path, and the share that tests/counts.py reads."""
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    activated = {"PATH": path, "VIRTUAL_ENV": str(python.parent.parent)}
    return {**os.environ, **activated, "HPCREC_SOAK_SHARE": str(of_counts)}


def written() -> list[dict[str, Any]]:
    """Rows of earlier calls."""
    return list(json.loads(RESULTS.read_text())["rows"]) if RESULTS.exists() else []


def write(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Writes all that was found on this commit, after each part."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from _report import claim, finish

    passed = {row["part"] for row in rows if row["failed"] == 0}
    failed = len({row["part"] for row in rows if row["failed"]} - passed)
    claims = [
        claim("soak.failed", failed, "parts of which no try passed", "<= 0"),
        claim("soak.parts", len(passed), f"of {len(names)} parts passed", f">= {len(names)}"),
    ]
    hours = {"hours": round(sum(row["seconds"] for row in rows) / 3600, 2)}
    finish("soak", rows, claims, RESULTS, hours, commit=rows[-1]["commit"])


def last_change(paths: Sequence[str]) -> str:
    """The last commit that changed any of these."""
    return git("log", "-1", "--format=%h", "--", *paths)


def changes() -> str:
    """What of it is not committed."""
    return git("status", "--porcelain", "--", ".", *(f":!{name}" for name in OF_NO_CODE))


def git(*arguments: str) -> str:
    """What git says; ends where this is no checkout."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"soak: the commit has to be known, and git says: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
