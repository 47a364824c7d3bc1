"""What is lost at the edges: errors, power cuts, schedules, kills and mutations survived; a lost node; what it costs.

    python benchmarks/losses.py [--parts counts,node,speed] [--quick] [--json FILE] [--soak FILE] [--against COMMIT]
        [--pairs N]

``counts`` reads what ``make soak`` has written and runs nothing. ``losses.injected`` are calls on files that failed,
``losses.power_cuts`` cuts that lost something, ``losses.schedules`` distinct schedules of simulated ranks, in which
something took effect; ``losses.kills`` and ``losses.mutations`` are those that exist, ``_mpich`` the same under MPICH.
``losses.wrong`` counts what was wrong after any of them, failed tests of those parts included, ``losses.ranks`` are the
real ones of the largest run.

``node``: ``survive.node_s`` is the time from Slurm's notice that a node is lost to the first step of the attempt on the
others, the longer of a job by srun and one by mpirun, on the Slurm of ``make slurm-test``.

``speed``: ``losses.speed`` is the least of three ratios to the commit before (``BEFORE``, built beside this one as in
``benchmarks/house.py``), each the median of pairs of runs that alternate: the quickstart's samples a second, a
checkpoint's writing and its loading. Each commit writes and loads by its own ``benchmarks/on_ranks/saving.py``.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import checkpoint
from _report import ROOT, asked, claim, finish, interval
from _report import options as benchmark_options
from house_parts import checkout, pairs, speed_part
from house_parts.pairs import Cell, Row, Sides

BEFORE = "a8e7b95"
PARTS = ("counts", "node", "speed")
SOAK = ROOT / "benchmarks" / "results" / "soak.json"
GOALS = {  # claim: its goal, the unit, the counts that it adds up and the key in them, the part of the soak
    "losses.injected": (10_000, "calls that failed", "errors", "injected", ""),
    "losses.power_cuts": (10_000, "cuts that lost something", "cuts", "cuts", ""),
    "losses.schedules": (100_000, "distinct schedules", "schedules-", "schedules", ""),
    "losses.kills": (100, "kills", "kills-", "kills", ""),
    "losses.mutations": (10_000, "mutations", "mutations-", "mutations", ""),
    "losses.kills_mpich": (100, "kills under MPICH", "kills-", "kills", "-mpich"),
    "losses.mutations_mpich": (10_000, "mutations under MPICH", "mutations-", "mutations", "-mpich"),
    "losses.ranks": (64, "ranks", "ranks", "ranks", ""),
}
NODE_GOAL_S, SPEED_GOAL = 60, ">= 0.98"
NODE_TEST = "tests/slurm/test_lost_node.py"
QUICKSTART_RANKS, WARMUP, STEPS = 2, 20, 150
CHECKPOINT_BYTES, ROUNDS = 512 << 20, 3


def main() -> None:
    parser = benchmark_options(__doc__, PARTS)
    parser.add_argument("--soak", type=Path, default=SOAK, help="what make soak has written")
    parser.add_argument("--against", default=BEFORE, metavar="COMMIT", help=f"the commit before ({BEFORE})")
    parser.add_argument("--pairs", type=int, default=speed_part.PAIRS, help=f"pairs of runs ({speed_part.PAIRS})")
    options = parser.parse_args()
    for part, path in asked(parser, options, PARTS):
        if part == "counts":
            rows, claims, commit = counts(options.soak)
            finish("losses", rows, claims, path, commit=commit)
        elif part == "node":
            finish("losses", *node(quick=options.quick), path)
        else:
            finish("losses", *speed(options), path)


def counts(file: Path) -> tuple[list[Row], list[Row], str | None]:
    """What the soak counted, and the commit that it is of."""
    soak: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"rows": [], "versions": {"commit": None}}
    by_part: dict[str, list[Row]] = {}
    for row in soak["rows"]:
        by_part.setdefault(row["part"], []).append(row)
    rows: list[Row] = []
    claims: list[Row] = []
    wrong = failed = 0
    for name, (goal, unit, prefix, key, suffix) in GOALS.items():
        found = {}
        for part, tries in by_part.items():
            if part.endswith("-mpich") == bool(suffix):
                # tries of one part draw the same cases: only what the last one counted is counted
                found.update({n: c for n, c in tries[-1]["counted"].items() if n.startswith(prefix)})
        rows += [{"claim": name, "counted": counted, **values} for counted, values in found.items()]
        total = sum(values[key] for values in found.values())
        reason = None if found else "make soak has not run it"
        claims.append(claim(name, total if found else None, unit, f">= {goal}", reason))
    for tries in by_part.values():
        counted_there = [counted for row in tries for counted in row["counted"].values()]
        if counted_there:
            wrong += sum(int(counted.get("wrong", 0)) for counted in counted_there)
            failed += sum(row["failed"] for row in tries)
    none = None if rows else "make soak has not run"
    claims.append(claim("losses.wrong", wrong + failed if rows else None, "wrong, or failed tests", "<= 0", none))
    return rows, claims, soak["versions"]["commit"]


def node(*, quick: bool) -> tuple[list[Row], list[Row]]:
    """A lost node, by either launcher."""
    goal, unit = f"<= {NODE_GOAL_S}", "s from Slurm's notice to a step of the next attempt, the longer one"
    if quick:
        return [], [claim("survive.node_s", None, unit, goal, "it takes minutes, which --quick leaves out")]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "tests.json"
        line = [sys.executable, str(ROOT / "tools" / "run_tests.py"), "--slurm", "only", "--json", str(out), NODE_TEST]
        subprocess.run([*line, "-k", "goes_on_with_the_others"], cwd=ROOT, check=False)
        rows = [row for row in json.loads(out.read_text())["rows"] if str(row.get("counted", "")).startswith("node-")]
    if len(rows) != 2:
        return rows, [claim("survive.node_s", None, unit, goal, f"{NODE_TEST} failed, or there is no Slurm here")]
    return rows, [claim("survive.node_s", max(row["node_s"] for row in rows), unit, goal)]


def speed(options: Any) -> tuple[list[Row], list[Row]]:
    """Pairs of runs of the commit before and this one."""
    quick, unit = options.quick, "of the commit before, least of samples/s, writing and loading"
    other = checkout.beside(options.against, build=not quick)
    if other is None:
        reason = f"{options.against} is not set up, which --quick leaves out"
        return [], [claim("losses.speed", None, unit, SPEED_GOAL, reason)]
    if not speed_part.QUICKSTART_DATA.exists():
        sys.exit(f"losses: there is no {speed_part.QUICKSTART_DATA}; make data writes it")
    sides, n = (other, checkout.this()), speed_part.QUICK_PAIRS if quick else options.pairs
    settings = (f"data.train={speed_part.QUICKSTART_DATA}",)
    cell = Cell(
        name="quickstart", config=speed_part.QUICKSTART, ranks=QUICKSTART_RANKS, warmup=WARMUP, steps=STEPS,
        settings=settings,
    )  # fmt: skip
    rows = [pairs.time_row(sides, cell, pairs.alternating(sides, cell, n)), *saving(sides, n)]
    short = next((row for row in rows if row.get("pairs", 0) < speed_part.PAIRS), None)
    if short is not None:
        reason = short.get("result", f"{short['pairs']} pairs, {speed_part.PAIRS} are needed")
        return rows, [claim("losses.speed", None, unit, SPEED_GOAL, reason)]
    least = min(rows, key=lambda row: row["ratio"])
    return rows, [
        *(
            claim(f"losses.speed.{row['cell']}", row["ratio"], "of the commit before", SPEED_GOAL, within=of(row))
            for row in rows
        ),
        claim("losses.speed", least["ratio"], unit, SPEED_GOAL, within=of(least)),
    ]


def of(row: Row) -> tuple[float, float]:
    """The interval of a row's ratio."""
    return row["low"], row["high"]


def saving(sides: Sides, n: int) -> list[Row]:
    """Writing and loading of a checkpoint by both, in turns: a median of each run's rounds."""
    found: list[tuple[Row, Row]] = []
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = Path(name)
        checkpoint.prepare(folder, CHECKPOINT_BYTES // checkpoint.ROW_BYTES)
        for number in range(n):
            ran = {side: saved(sides[side], folder) for side in ((0, 1), (1, 0))[number % 2]}
            found.append((ran[0], ran[1]))
            said = ", ".join(f"{key} {ran[0][key]:.3f} -> {ran[1][key]:.3f} s" for key in ("writing", "loading"))
            print(f"checkpoint {said}", flush=True)
    rows = []
    for key in ("writing", "loading"):
        ratios = [before[key] / after[key] for before, after in found]
        low, high = interval(ratios)
        times = {f"{side}_s": statistics.median(pair[i][key] for pair in found) for i, side in pairs.NAMES}
        head = {"cell": key, "before": sides[0].commit, "after": sides[1].commit, "pairs": len(found)}
        rows.append({**head, **times, "ratio": statistics.median(ratios), "low": low, "high": high})
    return rows


def saved(side: checkout.Checkout, folder: Path) -> Row:
    """What one commit took for it."""
    out = folder / "found.json"
    out.unlink(missing_ok=True)
    script = side.root / "benchmarks" / "on_ranks" / "saving.py"
    numbers = ["--bytes", CHECKPOINT_BYTES, "--window-s", 8, "--windows", 1, "--rounds", ROUNDS, "--out", out]
    shutil.rmtree(folder / "run")
    (folder / "run").mkdir()
    line = [str(side.bin / "hpcrec"), "run", "-n", "1", "--launcher-option", "--bind-to none", "--", str(script)]
    done = subprocess.run(
        [*line, str(folder / "config.toml"), *map(str, numbers)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"losses: {side.commit} failed\n{(done.stdout + done.stderr)[-3000:]}")
    found = json.loads(out.read_text())
    return {key: statistics.median(found[f"{key}_s"]) for key in ("writing", "loading")}


if __name__ == "__main__":
    main()
