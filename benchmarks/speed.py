"""Speed of whole training steps beside TorchRec, hand-written FBGEMM and DDP, on the same cores, model and batches.

    python benchmarks/speed.py [--peers PYTHON] [--only w1,w2] [--ranks 1,2,4] [--rounds 5] [--quick] [--json FILE]

A round launches every contender once, as processes of its own, in turn (the first one rotates): warm-up, then measured
steps, timed from barrier to barrier. Samples/s are medians over rounds; ``speed.<workload>.<n>ranks`` is the better of
hpcrec's split and fused roles over the fastest peer. 1 rank has 2 threads, 2 and 4 ranks have 1 thread each. Peers have
their batches in memory; hpcrec reads its own from HDF5 as it goes. ``speed_parts/workload.py`` says what is trained.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _report import finish
from _report import options as benchmark_options
from speed_parts import hpcrec_data

PARTS = Path(__file__).resolve().parent / "speed_parts"
HPCREC = ("hpcrec-fused", "hpcrec-split")
CACHE = Path("~/.cache/hpcrec").expanduser()
LAUNCH_LIMIT_S = 600


def main() -> None:
    parser = benchmark_options(__doc__)
    parser.add_argument("--only", default="w1,w2,w3", help="workloads")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks")
    parser.add_argument("--contenders", default=",".join(HPCREC), help="who runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="measured steps a launch")
    parser.add_argument("--warmup", type=int, default=5, help="steps before them")
    parser.add_argument("--data", type=Path, default=CACHE / "speed", help="where data are kept")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for hpcrec's configurations")
    options = parser.parse_args()
    rows = []
    for name in options.only.split(","):
        hpcrec_data.prepare(name, options.data)
        for ranks in map(int, options.ranks.split(",")):
            rows += measured(options, name, ranks)
    finish("speed", rows, [], options.json)


def measured(options: argparse.Namespace, name: str, ranks: int) -> list[dict[str, Any]]:
    """One row a contender and round."""
    contenders = [c for c in options.contenders.split(",") if not (c == "hpcrec-split" and ranks == 1)]
    rows = []
    for number in range(options.rounds):
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            row = launched(options, contender, name, ranks)
            row = {"workload": name, "ranks": ranks, "contender": contender, "round": number, **row}
            show(row)
            rows.append(row)
    return rows


def launched(options: argparse.Namespace, contender: str, name: str, ranks: int) -> dict[str, Any]:
    """What one launch measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        argv = hpcrec_line(options, contender, name, ranks, out)
        load = os.getloadavg()[0]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LAUNCH_LIMIT_S, check=False)
        if done.returncode or not out.exists():
            sys.exit(f"{' '.join(argv)}\n{done.stdout}{done.stderr}")
        return {**json.loads(out.read_text()), "load_before": load}


def hpcrec_line(options: argparse.Namespace, contender: str, name: str, ranks: int, out: Path) -> list[str]:
    """The command that runs hpcrec's loop."""
    mode = contender.removeprefix("hpcrec-")
    settings = [f"data.train={options.data / name}.h5", f"topology.mode={mode}", *options.set]
    script = [str(PARTS / "hpcrec_rank.py"), name, str(out), str(options.warmup), str(options.steps)]
    launcher = [sys.executable, "-m", "hpcrec", "run", "-n", str(ranks), "--threads", str(threads(ranks)), "--"]
    return [*launcher, *script, str(PARTS / f"{name}.toml"), *settings]


def threads(ranks: int) -> int:
    """Threads of each rank: the same for all contenders, for the 2 cores of the machine that the goals are for."""
    return 2 if ranks == 1 else 1


def show(row: dict[str, Any]) -> None:
    """One line, and hpcrec's phases."""
    ms = row["step_ms"]
    print(
        f"{row['workload']:6} {row['ranks']} ranks  {row['contender']:14} {row['samples_per_s']:10.0f} samples/s  "
        f"step {ms['mean']:7.2f} ms (p10 {ms['p10']:.2f}, p50 {ms['p50']:.2f}, p90 {ms['p90']:.2f})  "
        f"loss {row['loss_first']:.4f} -> {row['loss_last']:.4f}  load {row['load_before']:.1f}",
        flush=True,
    )
    for role, phases in row.get("phase_ms", {}).items():
        order = sorted(phases, key=lambda phase: -phases[phase])
        print(f"         {role:6} ms/step: " + "  ".join(f"{p} {phases[p]:.2f}" for p in order), flush=True)


if __name__ == "__main__":
    main()
