"""Policies beside ``sync``: what overlap gains where a link is as busy as the cores, and what it costs where it is not.

    python benchmarks/hybrid.py [--parts NAMES] [--quick] [--json FILE] [--cluster DIR] [--data DIR]

DLRM of width 64 over Criteo Kaggle's 26 features with at most 1,000,000 rows each, one id a bag, by P(rank k) ~
(k + 1)^-1.05; global batch 8,192; dense gradients summed by MPI. Runs of all policies take turns in one launch; a
ratio is that of two runs of a turn, and its interval the 90 % one of order statistics; it meets a goal where all of
that does. Steps are timed from barrier to barrier in the midst of a run, so that as much is in flight at the end as at
the beginning. ``cpu_ms`` is the processor time of a step, of all ranks, in which waiting has its part: beside that of
``sync`` it says what threads that wait cost.

``cost``      2 and 4 fused ranks of this machine: ``persia.no_cost`` is the least, over both, of the ratio's lower
              bound
``one``       one owner and one dense rank, a core each, on bags of several ids (the workload ``des-multihot``), by
              which an owner has as much to do as a dense rank: ``persia.speedup.one_owner_one_dense``
``speed``     4 emulated hosts with a rank on each, at the link rate at which the bytes of the busier direction take as
              long as a step of ``sync`` over links that are not shaped (both cores are busy in it, with what messages
              take of them), and at half and at twice that: ``persia.speedup.fused`` and ``persia.speedup.split`` (two
              owners, two dense ranks), at that rate. The latter is held to ``sync`` on fused ranks too
              (``persia.speedup.split_over_best``), the staleness that ``auto`` finds to 10 (``persia.auto_tau``)
``rows``      the same with form ``rows``: ``ahead.speedup.2`` and ``.4`` (dense ranks), and ``hybrid`` over it
              (``persia.over_ahead``); ``ahead.early_share`` is the part of a dense rank's bags that may be read early
``bound``     there, a step of ``hybrid`` over the largest of what nothing can hide, measured in the same launch: dense
              ranks alone (the same rows again and again), the exchange alone (a model that computes a sum), bytes of
              the busier direction over the rate, and a step of ``sync`` over links that are not shaped:
              ``persia.over_bound.fused`` and ``.split``
``drains``    there, what steps wait longer by a drain point, in steps, of a run that has one every 20 steps; the share
              of the time that they take every 100 steps is ``persia.drain_share``
``synthetic``, ``movielens``, ``criteo`` and ``hot``
              AUC by staleness beside ``sync`` (``hybrid_parts/auc_part.py``): ``persia.auc_interval.<data>.tau<n>``
``capacity``  6.25 trillion logical ids of 16 columns (``hybrid_parts/capacity_part.py``)
``timeline``  what threads do when in three steps of each policy, for docs/consistency.md

The JSON of each part but the first lies beside it, as <FILE>_<part>.
"""

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from _report import ROOT, asked, claim, finish, interval
from _report import options as benchmark_options
from des_parts import shapes
from des_parts.cells import show
from hybrid_parts import auc_part, capacity_part, drawing, runs
from hybrid_parts.runs import Row
from on_ranks import launch

AUC = tuple(case.name for case in auc_part.CASES)
PARTS = ("cost", "one", "speed", "rows", "bound", "drains", *AUC, "capacity", "timeline")
REPEATS, STEPS = 5, 14
FEW_REPEATS = 2  # away from the point of balance: the curve, of which nothing is claimed
LEAST_COST = 0.98
GOALS = {"one": 1.6, "fused": 1.6, "split": 2.1, "ahead": 1.2}  # placements named here have rates, and auto, too
SPLIT = ("topology.mode=split", "topology.owners=2", "topology.dense=2")
PLACEMENTS = {  # settings, and the policies beside sync
    "fused": ((), ("hybrid 1", "hybrid 2")),
    "split": (SPLIT, ("hybrid 1", "hybrid 2")),
}
IN_ROWS = {
    "fused, rows": (("exchange.form=rows",), ("ahead", "hybrid 2")),
    "split, rows": ((*SPLIT, "exchange.form=rows"), ("ahead", "hybrid 2")),
}
Placements = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
CLAIMED = "hybrid 2"  # whichever is faster
ELSEWHERE = "sync, fused"  # beside runs of the split placement, at their rate
OF_IDEAL = 0.92  # at four dense ranks, of 2 / (2 - e): what a share e of early bytes allows where cores take as long
DRAINS, DRAIN_EVERY, DRAIN_INTERVAL, MOST_DRAINED = 5, 20, 100, 0.02
UNSHAPED = "10gbit"  # more than the cores can send
BOUND_GOAL = 1.15
PAGE, MARKS = ROOT / "docs" / "consistency.md", ("<!-- timeline -->\n", "<!-- /timeline -->\n")
RATES = (1.0, 0.5, 2.0)  # times that of balance


def main() -> None:
    parser = benchmark_options(__doc__, PARTS)
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hpcrec" / "speed"
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data", help="real samples")
    parser.add_argument("--cache", type=Path, default=cache, help="where data sets are kept")
    options = parser.parse_args()
    parts = {
        "cost": cost,
        "one": one,
        "speed": partial(speed, PLACEMENTS),
        "rows": partial(speed, IN_ROWS),
        "bound": bound,
        "drains": drains,
        **{name: partial(auc, name) for name in AUC},
        "capacity": capacity,
        "timeline": timeline,
    }
    for part, path in asked(parser, options, PARTS):
        rows, claims = parts[part](prepared("multihot" if part == "one" else "onehot", options), options)
        for row in rows:
            show(row)
        if part != "timeline":
            finish("hybrid", rows, claims, path)


def prepared(shape: str, options: argparse.Namespace) -> Path:
    """The data set of a shape."""
    data = shapes.prepare(shape, options.cache, Path())
    assert data is not None, "it is generated"
    return data


def much(options: argparse.Namespace, *, at_balance: bool = True) -> dict[str, int]:
    """Steps that are timed of a run, and runs of each policy."""
    if options.quick:
        return {"steps": 8, "repeats": 1}
    return {"steps": STEPS, "repeats": REPEATS if at_balance else FEW_REPEATS}


def cost(data: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """On one host there is nothing to hide."""
    rows = []
    n = much(options)
    for ranks in (2,) if options.quick else (2, 4):
        here, jobs = partial(launch.local, ranks=ranks), runs.arms(data, ("sync", "hybrid 1"), (), n["steps"])
        found = runs.in_turn(here, jobs, n["repeats"])
        rows += runs.compared(found, part="cost", ranks=ranks)
    worst = min(row["low"] for row in rows if row["policy"] != "sync")
    return rows, [claim("persia.no_cost", worst, "of sync's steps/s, lower bound, worst", f">= {LEAST_COST:g}")]


def one(data: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """An owner and a dense rank wait for each other in sync."""
    settings, n = ("topology.mode=split", "topology.owners=1", "topology.dense=1"), much(options)
    jobs = runs.arms(data, ("sync", "hybrid 1", "hybrid 2"), settings, n["steps"])
    found = runs.in_turn(partial(launch.local, ranks=2), jobs, n["repeats"])
    rows = runs.compared(found, part="one", ranks=2)
    value, low, high = runs.faster(found, CLAIMED, "sync")
    name, unit = "persia.speedup.one_owner_one_dense", "times sync's steps/s, one owner and one dense rank"
    return rows, [claim(name, value, unit, f">= {GOALS['one']:g}", sure=(low, high))]


def speed(placements: Placements, data: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Where a link is as busy as the cores."""
    reason = launch.why_no_hosts(options.cluster)
    if reason is not None:
        return [{"part": "speed", "result": reason}], []
    rows, claims = [], []
    for placement, (settings, others) in list(placements.items())[: 1 if options.quick else None]:
        rate_mbit, _ = balance(data, settings, options)
        for times in RATES if placement in GOALS and not options.quick else RATES[:1]:
            rate, n = f"{max(1, round(rate_mbit * times))}mbit", much(options, at_balance=times == 1)
            there = partial(launch.on_hosts, cluster=options.cluster, rate=rate)
            jobs = runs.arms(data, ("sync", *others), settings, n["steps"])
            if placement == "split":
                jobs[ELSEWHERE] = runs.job(data, "sync", (), n["steps"])
            part = "speed" if placement in PLACEMENTS else "rows"
            about = {"part": part, "placement": placement, "rate": rate, "of_balance": times}
            if times == 1 and placement in GOALS and not options.quick:
                (seeks,) = there([runs.sought(data, settings)])
                about["auto"], about["waited"] = seeks["staleness"], list(seeks["waited"].values())
                jobs |= runs.arms(data, (f"hybrid {seeks['staleness']}", "hybrid 10"), settings, n["steps"])
            found = runs.in_turn(there, jobs, n["repeats"])
            rows += runs.compared(found, **about)
            if times == 1:
                claims += at_balance(placement, found, about)
    return rows, claims


def at_balance(placement: str, found: Mapping[str, Sequence[Row]], about: Row) -> list[Row]:
    """Claims of a placement there."""
    claims = []

    def add(name: str, one: str, other: str, unit: str, goal: str | None) -> None:
        value, *ends = runs.faster(found, one, other)
        claims.append(claim(name, value, unit, goal, sure=(ends[0], ends[1])))

    unit = "times {}'s steps/s at the point of balance"
    if placement in GOALS:
        add(f"persia.speedup.{placement}", CLAIMED, "sync", unit.format("sync"), f">= {GOALS[placement]:g}")
        if "auto" in about:
            add(f"persia.auto_tau.{placement}", f"hybrid {about['auto']}", "hybrid 10", unit.format("hybrid 10"), None)
    else:
        ranks = 2 if placement.startswith("split") else 4
        shares = [row["early_share"] for row in found["ahead"]]
        share = statistics.median(shares)
        goal = GOALS["ahead"] if ranks == 2 else OF_IDEAL * 2 / (2 - share)
        add(f"ahead.speedup.{ranks}", "ahead", "sync", unit.format("sync"), f">= {goal:.3g}")
        claims.append(claim(f"ahead.early_share.{ranks}", share, "of the bags of a dense rank may be read early"))
        add(f"persia.over_ahead.{ranks}", CLAIMED, "ahead", unit.format("ahead"), None)
    if ELSEWHERE in found:
        add(
            "persia.speedup.split_over_best",
            CLAIMED,
            ELSEWHERE,
            "times the steps/s of sync on fused ranks, at that rate",
            None,
        )
    return claims


def balance(data: Path, settings: Sequence[str], options: argparse.Namespace) -> tuple[float, Row]:
    """The rate at which links take as long as the cores, in Mbit/s; and the run over links that are not shaped."""
    found = list(launch.on_hosts([runs.job(data, "sync", settings, STEPS)] * 2, options.cluster, UNSHAPED))
    return 8e-6 * runs.busiest_bytes(found[-1]) / found[-1]["step_s"], found[-1]  # the first warms up


def bound(data: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What a step takes beside the largest of its parts."""
    reason = launch.why_no_hosts(options.cluster)
    if reason is not None:
        return [{"part": "bound", "result": reason}], []
    rows, claims = [], []
    for placement in ("fused",) if options.quick else ("fused", "split"):
        settings, n = PLACEMENTS[placement][0], much(options)
        rate_mbit, unshaped = balance(data, settings, options)
        rate = max(1, round(rate_mbit))
        jobs = [runs.job(data, CLAIMED, settings, n["steps"]), *runs.alone(data, CLAIMED, settings, n["steps"])]
        found = iter(launch.on_hosts(jobs * n["repeats"], options.cluster, f"{rate}mbit"))
        turns = list(zip(found, found, found, strict=True))
        link_s = 8e-6 * runs.busiest_bytes(unshaped) / rate
        ratios = []
        for whole, exchange, dense in turns:
            largest = max(exchange["step_s"], dense["step_s"], link_s, unshaped["step_s"])
            ratios.append(whole["step_s"] / largest)
        low, high = interval(ratios)
        ms = (1e3 * statistics.median(run["step_s"] for run in of) for of in zip(*turns, strict=True))
        names = ("step_ms", "exchange_ms", "dense_ms")
        about = {"part": "bound", "placement": placement, "rate": f"{rate}mbit", **dict(zip(names, ms, strict=True))}
        cores = {"link_ms": 1e3 * link_s, "cores_ms": 1e3 * unshaped["step_s"]}
        rows.append({**about, **cores, "over_bound": statistics.median(ratios), "low": low, "high": high})
        unit = "of the largest part of a step"
        name, goal = f"persia.over_bound.{placement}", f"<= {BOUND_GOAL:g}"
        claims.append(claim(name, statistics.median(ratios), unit, goal, sure=(low, high)))
    return rows, claims


def drains(data: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What a drain point costs there, owners and dense ranks apart."""
    reason = launch.why_no_hosts(options.cluster)
    if reason is not None:
        return [{"part": "drains", "result": reason}], []
    rate = f"{round(balance(data, SPLIT, options)[0])}mbit"
    many = 2 if options.quick else DRAINS
    often = runs.job(data, CLAIMED, (*SPLIT, f"checkpoint.every={DRAIN_EVERY}"), many * DRAIN_EVERY)
    found = list(launch.on_hosts([often] * (1 if options.quick else FEW_REPEATS), options.cluster, rate))
    steps = [row["drained_s"] / row["drains"] / row["step_s"] for row in found]
    about = {"part": "drains", "rate": rate, "drains": sum(row["drains"] for row in found)}
    row = {**about, "steps_each": statistics.median(steps), "low": min(steps), "high": max(steps)}
    share, goal = row["steps_each"] / DRAIN_INTERVAL, f"<= {MOST_DRAINED:g}"
    unit = f"of the time of steps, with a drain point every {DRAIN_INTERVAL} of them"
    return [row], [claim("persia.drain_share", share, unit, goal)]


def auc(name: str, _: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What old rows cost."""
    arms = auc_part.Arms(
        staleness=(1, 2, 5, 10),
        settings=lambda tau: ["policy.name=hybrid", f"policy.staleness={tau}"],
        claimed=(2, 10),
        claim="persia.auc_interval.{data}.tau{staleness}",
    )
    return auc_part.measure(options.cache, options.data, name, arms, quick=options.quick)


def capacity(_: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What many ids cost, of which few have rows."""
    return capacity_part.measure(options.cache, quick=options.quick)


def timeline(data: Path, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Pictures of steps of an owner and of a dense rank, put into the page."""
    reason = launch.why_no_hosts(options.cluster)
    if reason is not None:
        return [{"part": "timeline", "result": reason}], []
    rate = f"{round(balance(data, SPLIT, options)[0])}mbit"
    policies = {"sync": SPLIT, "ahead": (*SPLIT, "exchange.form=rows"), "hybrid 1": SPLIT, "hybrid 2": SPLIT}
    jobs = [runs.pictured(data, policy, settings) for policy, settings in policies.items()]
    forms = "Form `pooled`, of `ahead` `rows`, in which fewer bytes cross."
    text = [f"Two owners and two dense ranks, links of {rate}. {forms}\nLetters: {drawing.LEGEND}."]
    for policy, row in zip(policies, launch.on_hosts(jobs, options.cluster, rate), strict=True):
        ranks = {row["roles"].index(role): role for role in ("owner", "dense rank")}
        text.append(f"`{policy}`:\n\n```text\n{drawing.drawn(row, ranks)}\n```")
    page = PAGE.read_text()
    before, first, rest = page.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(before + first + "\n\n".join(text) + "\n" + MARKS[1] + after)
    return [], []


if __name__ == "__main__":
    main()
