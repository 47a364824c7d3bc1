"""Counts schedules: ``python -m tests.simulated.count SCENARIO --first 0 --count 100 --json FILE``.

Runs in a folder of its own, in memory where there is ``/dev/shm``, and anew with a fixed ``PYTHONHASHSEED``, so that a
seed repeats exactly. Ends with exit status 1 at the first schedule that is wrong, and shows it.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

MEMORY = Path("/dev/shm")
HASH_SEED = "0"


def main() -> int:
    """Counts; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("--first", type=int, default=0, help="seed of the first schedule")
    parser.add_argument("--count", type=int, default=100, help="how many")
    parser.add_argument("--within-s", type=float, default=float("inf"), help="end after so many seconds")
    parser.add_argument("--json", type=Path, help="where counts and identities go")
    parser.add_argument("--go-on", action="store_true", help="past schedules that are wrong; each is shown")
    parser.add_argument("--fault", help="import hpcrec with this one of tests.simulated.faults")
    args = parser.parse_args()
    if args.fault:
        from tests.faults.seeded import Seeded
        from tests.simulated.faults import FAULTS

        sys.meta_path.insert(0, Seeded(FAULTS[args.fault]))
    from tests.simulated import scenarios, system

    began_s = time.monotonic()
    identities: dict[str, None] = {}
    ranks: Counter[str] = Counter()
    events: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    drawn = points = 0
    json_file = args.json and args.json.absolute()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="hpcrec-simulated-") as folder:
        os.chdir(folder)
        with system.installed():
            for seed in range(args.first, args.first + args.count):
                if time.monotonic() - began_s > args.within_s:
                    break
                done = scenarios.one(args.scenario, seed)
                drawn, points = drawn + 1, points + done.points
                if done.counted and done.identity not in identities:
                    identities[done.identity] = None
                    ranks[str(done.ranks)] += 1
                    events.update(done.events)
                if done.wrong:
                    wrong.append(asdict(done))
                    print(f"{args.scenario}, seed {seed}: {done.wrong}\n", flush=True)
                    if not args.go_on:
                        break
        os.chdir("/")
    took_s = time.monotonic() - began_s
    result = {
        "scenario": args.scenario,
        "drawn": drawn,
        "distinct": len(identities),
        "wrong": len(wrong),
        "points": points,
        "ranks": dict(sorted(ranks.items(), key=lambda item: int(item[0]))),
        "events": dict(sorted(events.items())),
        "seconds": round(took_s, 1),
    }
    print(json.dumps(result, indent=1))
    if json_file:
        json_file.write_text(json.dumps({**result, "found": wrong, "identities": list(identities)}, indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulated.count", *sys.argv[1:]])
    sys.exit(main())
