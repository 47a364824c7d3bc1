"""This commit beside another: time and memory of steps in pairs of runs, and what a step enters, calls and routes.

    python benchmarks/house.py [--parts trace,speed,overhead,route,memory] [--against COMMIT] [--quick] [--json FILE]
        [--tests FILE] [--only w1,w2,w3] [--ranks 1,2,4] [--pairs N] [--set section.key=value]

The other commit (by default ``BEFORE``, the last one before stores, policies and forms became contracts) is cloned into
the cache folder and set up there with an environment of its own, once. Runs of the two alternate, one launch a run, by
the same program, ``house_parts/rank.py``, with the same configuration and data. ``house_parts`` says what each part
measures and claims: ``trace_part`` for ``trace``, ``speed_part`` for ``speed``, ``overhead`` and ``memory``,
``route_part`` for ``route``. The JSON of each part but ``trace`` lies beside it, as <FILE>_<part>.

With --quick nothing is set up: where the other commit is not there yet, what needs it has no value.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from _report import asked, finish
from _report import options as benchmark_options
from house_parts import checkout, route_part, speed_part, trace_part
from house_parts.pairs import Row, Sides
from speed_parts import hpcrec_data, workload

BEFORE = "8aa9f1f"
PARTS = ("trace", "speed", "overhead", "route", "memory")
NEED_QUICKSTART = ("trace", "overhead")
QUICK = {"only": "w1", "ranks": "2"}


def main() -> None:
    parser = benchmark_options(__doc__, PARTS)
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hpcrec" / "speed"
    parser.add_argument("--against", default=BEFORE, metavar="COMMIT", help=f"the other commit ({BEFORE})")
    parser.add_argument("--tests", type=Path, metavar="FILE", help="what tools/run_tests.py --json has written")
    parser.add_argument("--only", help="workloads (w1,w2,w3)")
    parser.add_argument("--ranks", help="numbers of ranks (1,2,4)")
    few = speed_part.MEMORY_PAIRS
    parser.add_argument("--pairs", type=int, help=f"pairs of runs ({speed_part.PAIRS}; of memory {few})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for both commits' runs")
    parser.add_argument("--data", type=Path, default=cache, help="where data sets are kept")
    options = parser.parse_args()
    for key, value in {"only": "w1,w2,w3", "ranks": "1,2,4", **(QUICK if options.quick else {})}.items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    names = options.only.split(",")
    if not set(names) <= set(speed_part.WORKLOADS):
        parser.error(f"--only has {options.only!r}; allowed are {', '.join(speed_part.WORKLOADS)}")
    parts = asked(parser, options, PARTS)
    if not speed_part.QUICKSTART_DATA.exists() and any(part in NEED_QUICKSTART for part, _ in parts):
        sys.exit(f"house: there is no {speed_part.QUICKSTART_DATA}; make data writes it")
    this, other = checkout.this(), checkout.beside(options.against, build=not options.quick)
    rows: list[Row] = []
    for part, path in parts:
        rows, claims = measured(part, (this,) if other is None else (other, this), names, options)
        finish("house", rows, claims, path)
    if any("result" in row for row in rows):
        sys.exit("house: some runs failed; what the launches said is above")


def measured(
    part: str, every: Sequence[checkout.Checkout], names: Sequence[str], options: argparse.Namespace
) -> tuple[list[Row], list[Row]]:
    """Rows and claims of a part; ``every``: the other checkout, if there is one, and this one."""
    quick = options.quick
    if part == "trace":
        return trace_part.trace(every, options.set, options.tests)
    if part == "route":
        workload.generate("w1", options.data)
        return route_part.route(every, options.data, quick=quick)
    sides: Sides | None = (every[0], every[1]) if len(every) == 2 else None
    reason = None if sides else f"{options.against} is not set up, which --quick leaves out"
    pairs = options.pairs or (speed_part.QUICK_PAIRS if quick else speed_part.PAIRS)
    if part == "overhead":
        return speed_part.overhead(sides, speed_part.small(options.set, quick=quick), pairs, reason)
    for name in names if sides else ():
        hpcrec_data.prepare(name, options.data)
    ranks = [int(n) for n in options.ranks.split(",")]
    cells = speed_part.cells(names, ranks, options.data, options.set, quick=quick)
    if part == "speed":
        return speed_part.speed(sides, cells, pairs, reason)
    return speed_part.memory(sides, cells, options.pairs or min(pairs, speed_part.MEMORY_PAIRS), reason)


if __name__ == "__main__":
    main()
