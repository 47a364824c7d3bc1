"""What it costs to count where the time of a run goes (docs/time.md): samples/s with it beside without it, in pairs.

    python benchmarks/times.py [--quick] [--pairs N] [--steps N] [--json FILE] [--parts cost,adds_up]

Part ``cost``. The quickstart's model and data, on fused ranks and, under ``hybrid``, with owners and dense ranks apart.
Turns of steps with and without alternate in the same run, so that a pair has the same ranks, rows and neighbours. For
figures the machine has to be quiet: on a busy one pairs tell of the neighbours. ``share`` needs no quiet: it is what
phases and waits of a step take in a loop of their own. All threads of a rank are in it, as if none ran beside another.
``time.cost`` is the most that any case costs.

Part ``adds_up`` (JSON in <FILE>_adds_up). ``time.adds_up`` is the largest share of a rank's wall clock that is in no
part: of every rank, in each configuration of ``tests/training/test_times.py``, on 1 to 4 ranks.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _report import ROOT, asked, claim, finish, hpcrec, interval, write_config
from _report import options as benchmark_options
from on_ranks.launch import local

CASES: dict[str, tuple[int, list[str]]] = {
    "fused": (2, []),
    "hybrid": (2, ["topology.mode=split", "policy.name=hybrid", "policy.staleness=1"]),
    "split": (4, ["topology.mode=split"]),
}
CONFIG = """
[data]
train = "{folder}/data/train.h5"
[model]
name = "dlrm"
width = 16
options = {{ bottom = [64], top = [128, 64] }}
[embedding]
optimizer = {{ name = "adagrad", lr = 0.02 }}
[dense]
optimizer = {{ name = "Adam", lr = 0.004 }}
[train]
batch_size = 2048
"""
PAIRS, STEPS = 400, 4
QUICK = {"pairs": 4, "steps": 5, "samples": 40_000}
MOST, MOST_UNACCOUNTED = 0.01, 0.02
PARTS = ("cost", "adds_up")
TEST = "tests/training/test_times.py"


def main() -> None:
    parser = benchmark_options(__doc__, PARTS)
    parser.add_argument("--pairs", type=int, help=f"of turns ({PAIRS})")
    parser.add_argument("--steps", type=int, help=f"of a turn ({STEPS})")
    options = parser.parse_args()
    for part, path in asked(parser, options, PARTS):
        if part == "cost":
            pairs = options.pairs or (QUICK["pairs"] if options.quick else PAIRS)
            steps = options.steps or (QUICK["steps"] if options.quick else STEPS)
            cost(path, pairs, steps, quick=options.quick)
        else:
            adds_up(path, (2,) if options.quick else (1, 2, 3, 4))


def cost(path: Path | None, pairs: int, steps: int, *, quick: bool) -> None:
    """Turns with and without, of each case."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        samples = ["--samples", str(QUICK["samples"])] if quick else []
        hpcrec("prepare", "synthetic", "--out", f"{name}/data", *samples)
        for case in ("fused",) if quick else CASES:
            rows.append(measured(Path(name), case, pairs, steps))
            print("  ".join(f"{k} {of:.4g}" if isinstance(of, float) else f"{k} {of}" for k, of in rows[-1].items()))
    worst = max(rows, key=lambda row: row["cost"])
    sure = (worst["cost_least"], worst["cost_most"])
    claims = [claim("time.cost", worst["cost"], f"of samples/s, {worst['case']}", f"<= {MOST}", sure=sure)]
    for row in rows:
        sure = (row["cost_least"], row["cost_most"])
        claims.append(claim(f"times.{row['case']}.cost", row["cost"], "of samples/s", f"<= {MOST}", sure=sure))
        claims.append(claim(f"times.{row['case']}.share", row["share"], "of a step, by counts", f"<= {MOST}"))
    finish("times", rows, claims, path)


def adds_up(path: Path | None, ranks: tuple[int, ...]) -> None:
    """Runs the test on so many ranks, all cases on each, and takes what it left."""
    sys.path.insert(0, str(ROOT / "tools"))
    from run_tests import MPI_ENVIRONMENT, mpirun

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **MPI_ENVIRONMENT, "HPCREC_COUNTS": folder}
        for n in ranks:
            chosen = ["-k", "parts_add_up", "-m", f"parallel[{n}]", TEST]  # slow ones too: each case on each number
            line = [*mpirun(n), sys.executable, "-m", "pytest", "-q", *chosen]
            done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:  # the row of a case that is beyond the goal is there all the same
                print(f"{TEST} failed on {n} ranks:\n{done.stdout[-3000:]}", flush=True)
        rows = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("times-*.json"))]
    if len(rows) % len(ranks) or not rows:
        sys.exit(f"{TEST} kept {len(rows)} rows on {len(ranks)} numbers of ranks: some cases ended before they could")
    worst = max(rows, key=lambda row: max(row["unaccounted"].values()))
    unit = f"of a rank's time, the most of {len(rows)} runs: {worst['case']} on {worst['ranks']} ranks"
    goal = f"<= {MOST_UNACCOUNTED}"
    finish("times", rows, [claim("time.adds_up", max(worst["unaccounted"].values()), unit, goal)], path)


def measured(folder: Path, case: str, pairs: int, steps: int) -> dict[str, Any]:
    """A row: the median cost over pairs, of samples/s, and its interval."""
    ranks, settings = CASES[case]
    config = write_config(folder, CONFIG.format(folder=folder))
    job = {"kind": "counting", "config": str(config), "settings": settings, "n_pairs": pairs, "steps": steps}
    (found,) = local([job], ranks)
    step_s = found["step_s"]
    costs = [1 - without / counted for counted, without in zip(step_s["with"], step_s["without"], strict=True)]
    least, most = interval(costs)
    return {
        "case": case,
        "ranks": ranks,
        "pairs": pairs,
        "steps": steps,
        "cost": sorted(costs)[len(costs) // 2],
        "cost_least": least,
        "cost_most": most,
        "calls": found["calls"],
        "called_us": found["called_s"] * 1e6,
        "share": found["share"],
    }


if __name__ == "__main__":
    main()
