"""What it costs to count where the time of a run goes (docs/time.md): samples/s with it beside without it, in pairs.

    python benchmarks/times.py [--quick] [--pairs N] [--steps N] [--json FILE]

The quickstart's model and data, on fused ranks and, under ``hybrid``, with owners and dense ranks apart. Turns of
steps with and without alternate in the same run, so that a pair has the same ranks, rows and neighbours. For figures
the machine has to be quiet: on a busy one pairs tell of the neighbours. ``share`` needs no quiet: it is what phases and
waits of a step take in a loop of their own. All threads of a rank are in it, as if none ran beside another.
"""

import tempfile
from pathlib import Path
from typing import Any

from _report import claim, finish, hpcrec, interval, write_config
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
PAIRS, STEPS = 30, 20
QUICK = {"pairs": 4, "steps": 5, "samples": 40_000}
MOST = 0.01


def main() -> None:
    parser = benchmark_options(__doc__)
    parser.add_argument("--pairs", type=int, help=f"of turns ({PAIRS})")
    parser.add_argument("--steps", type=int, help=f"of a turn ({STEPS})")
    options = parser.parse_args()
    pairs = options.pairs or (QUICK["pairs"] if options.quick else PAIRS)
    steps = options.steps or (QUICK["steps"] if options.quick else STEPS)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        samples = ["--samples", str(QUICK["samples"])] if options.quick else []
        hpcrec("prepare", "synthetic", "--out", f"{name}/data", *samples)
        for case in ("fused",) if options.quick else CASES:
            rows.append(measured(Path(name), case, pairs, steps))
            print("  ".join(f"{k} {of:.4g}" if isinstance(of, float) else f"{k} {of}" for k, of in rows[-1].items()))
    claims = []
    for row in rows:
        sure = (row["cost_least"], row["cost_most"])
        claims.append(claim(f"times.{row['case']}.cost", row["cost"], "of samples/s", f"<= {MOST}", sure=sure))
        claims.append(claim(f"times.{row['case']}.share", row["share"], "of a step, by counts", f"<= {MOST}"))
    finish("times", rows, claims, options.json)


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
