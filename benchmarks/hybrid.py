"""Policies beside ``sync``: what overlap gains where a link is as busy as the cores, and what it costs where it is not.

    python benchmarks/hybrid.py [--parts cost,one,speed] [--quick] [--json FILE] [--cluster DIR]

DLRM of width 64 over Criteo Kaggle's 26 features with at most 1,000,000 rows each, one id a bag, by P(rank k) ~
(k + 1)^-1.05; global batch 8,192; dense gradients summed by MPI. Runs of all policies take turns in one launch; a
ratio is that of two runs of a turn, and its interval the 90 % one of order statistics. Steps are timed from barrier to
barrier in the midst of a run, so that as much is in flight at the end as at the beginning.

``cost``   2 and 4 fused ranks of this machine: ``persia.no_cost`` is the least, over both, of the ratio's lower bound
``one``    one owner and one dense rank, a core each: ``persia.speedup.one_owner_one_dense``
``speed``  4 emulated hosts with a rank on each, at the link rate at which the bytes of the busier direction take as
           long as a step without links (both cores are busy in it), and at half and at twice that:
           ``persia.speedup.fused``, ``persia.speedup.split`` (two owners, two dense ranks) and, with form ``rows``,
           ``ahead.speedup.2`` and ``.4`` (dense ranks), at that rate

The JSON of each part but the first lies beside it, as <FILE>_<part>.
"""

import argparse
import os
from functools import partial
from pathlib import Path

from _report import ROOT, asked, claim, finish
from _report import options as benchmark_options
from des_parts import shapes
from des_parts.cells import show
from hybrid_parts import runs
from hybrid_parts.runs import Row
from on_ranks import launch

PARTS = ("cost", "one", "speed")
REPEATS, STEPS = 7, 24
LEAST_COST = 0.98
GOALS = {"one": 1.6, "fused": 1.6, "split": 2.1, "ahead": 1.2}
SPLIT = ("topology.mode=split", "topology.owners=2", "topology.dense=2")
PLACEMENTS = {  # settings, and the policies beside sync
    "fused": ((), ("hybrid 1", "hybrid 2")),
    "split": (SPLIT, ("hybrid 1", "hybrid 2")),
    "fused, rows": (("exchange.form=rows",), ("ahead", "hybrid 1")),
    "split, rows": ((*SPLIT, "exchange.form=rows"), ("ahead", "hybrid 1")),
}
CLAIMED = "hybrid 2"  # whichever is faster
RATES = (1.0, 0.5, 2.0)  # times that of balance


def main() -> None:
    parser = benchmark_options(__doc__, PARTS)
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hpcrec" / "speed"
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    parser.add_argument("--cache", type=Path, default=cache, help="where data sets are kept")
    options = parser.parse_args()
    data = shapes.prepare("onehot", options.cache, Path())
    assert data is not None, "it is generated"
    for part, path in asked(parser, options, PARTS):
        rows, claims = {"cost": cost, "one": one, "speed": speed}[part](data, options)
        for row in rows:
            show(row)
        finish("hybrid", rows, claims, path)


def much(options: argparse.Namespace) -> dict[str, int]:
    """Steps that are timed of a run, and runs of each policy."""
    return {"steps": 8, "repeats": 1} if options.quick else {"steps": STEPS, "repeats": REPEATS}


def cost(data: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """On one host there is nothing to hide."""
    rows = []
    for ranks in (2,) if options.quick else (2, 4):
        here = partial(launch.local, ranks=ranks)
        found = runs.in_turn(here, data, ("sync", "hybrid 1"), (), **much(options))
        rows += runs.compared(found, part="cost", ranks=ranks)
    worst = min(row["low"] for row in rows if row["policy"] != "sync")
    return rows, [claim("persia.no_cost", worst, "of sync's steps/s, lower bound, worst", f">= {LEAST_COST:g}")]


def one(data: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """An owner and a dense rank wait for each other in sync."""
    settings = ("topology.mode=split", "topology.owners=1", "topology.dense=1")
    found = runs.in_turn(
        partial(launch.local, ranks=2), data, ("sync", "hybrid 1", "hybrid 2"), settings, **much(options)
    )
    rows = runs.compared(found, part="one", ranks=2)
    (claimed,) = [row["speedup"] for row in rows if row["policy"] == CLAIMED]
    unit = "times sync's steps/s, one owner and one dense rank"
    return rows, [claim("persia.speedup.one_owner_one_dense", claimed, unit, f">= {GOALS['one']:g}")]


def speed(data: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Where a link is as busy as the cores."""
    reason = launch.why_no_hosts(options.cluster)
    if reason is not None:
        return [{"part": "speed", "result": reason}], []
    rows, claims = [], []
    for placement, (settings, others) in PLACEMENTS.items():
        if options.quick and placement != "fused":
            continue
        (alone,) = launch.local([runs.job(data, "sync", settings, STEPS)])
        rate_mbit = 8e-6 * runs.busiest_bytes(alone) / alone["step_s"]
        for times in RATES[:1] if options.quick else RATES:
            rate = f"{max(1, round(rate_mbit * times))}mbit"
            there = partial(launch.on_hosts, cluster=options.cluster, rate=rate)
            found = runs.in_turn(there, data, ("sync", *others), settings, **much(options))
            rows += runs.compared(found, part="speed", placement=placement, rate=rate, of_balance=times)
    for placement, name, kind in (
        ("fused", "persia.speedup.fused", CLAIMED),
        ("split", "persia.speedup.split", CLAIMED),
        ("fused, rows", "ahead.speedup.4", "ahead"),
        ("split, rows", "ahead.speedup.2", "ahead"),
    ):
        at = [r for r in rows if (r["placement"], r["of_balance"]) == (placement, 1.0) and r["policy"] == kind]
        goal = GOALS["ahead"] if kind == "ahead" else GOALS[placement]
        value = at[0]["speedup"] if at else None
        claims.append(claim(name, value, "times sync's steps/s at the point of balance", f">= {goal:g}"))
    return rows, claims


if __name__ == "__main__":
    main()
