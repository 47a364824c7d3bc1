"""Times metrics by group over ranks: GAUC of 10 million samples in a million groups, on 2 ranks.

    python benchmarks/metrics.py [--quick] [--ranks N] [--json FILE]

Each rank draws its part of the samples (``--quick``: 1 million in 100,000 groups): groups as likely as each other,
logits that float32 holds, as models give them, labels of which a fifth are positive, no weights. A repeat is one
evaluation of the metric alone, from arrays in memory to the answer on all ranks: samples change ranks, are sorted and
counted. It takes as long as its slowest rank. Rows are of GAUC, of GAUC where samples have weights, which are sorted
another way, and of the other metrics by group; a claim is the median of the first.

``metrics.gauc_s``    seconds of GAUC; the goal is of 10 million samples, so that --quick claims nothing
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _report import claim, finish, options, repeated, spread

RANK = Path(__file__).resolve().parent / "on_ranks" / "metrics_rank.py"
FULL, QUICK = (10_000_000, 1_000_000), (1_000_000, 100_000)  # samples, groups
REPEATS, QUICK_REPEATS = 5, 3


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="2 by default, which the claim is of")
    arguments = parser.parse_args()
    quick = arguments.quick
    samples, groups = QUICK if quick else FULL
    rows = measure(arguments.ranks, samples, groups, QUICK_REPEATS if quick else REPEATS)
    for row in rows:
        print(f"{row['metric']:24} {row['median']:8.3f} s ({row['min']:.3f} to {row['max']:.3f}), {row['value']:.6f}")
    finish("metrics", rows, claims_of(rows, arguments.ranks, quick=quick), arguments.json)


def measure(ranks: int, samples: int, groups: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each metric: seconds of its repeats, and what it came to."""
    job = {"samples": samples, "groups": groups, "repeats": repeats}
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "rows.json"
        command = [sys.executable, "-m", "hpcrec", "run", "-n", str(ranks), "--threads", "1", "--", str(RANK)]
        done = subprocess.run([*command, json.dumps(job), str(out)], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found = json.loads(out.read_text())
    about = {"ranks": ranks, "samples": samples, "groups": groups}
    return [
        {"metric": row["metric"], "value": row["value"], **about, **spread(row["seconds"]), "seconds": row["seconds"]}
        for row in found
    ]


def claims_of(rows: list[dict[str, Any]], ranks: int, *, quick: bool) -> list[dict[str, Any]]:
    """The claim, of GAUC without weights; none of other sizes than the goal's."""
    name, unit, goal = "metrics.gauc_s", "s", "<= 10"
    if quick or ranks != 2:
        return [claim(name, None, unit, goal, reason="the goal is of 10 million samples on 2 ranks")]
    return [repeated(name, rows[0]["seconds"], unit, goal)]


if __name__ == "__main__":
    main()
