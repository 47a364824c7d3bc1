"""Time of a step of ``cached`` over slow links, beside deduplicated rows and each id by itself, under ``sync``.

Wide & Deep as HET has it (``het_wdl.py``), 128 columns, one id a bag by P(rank k) ~ (k + 1)^-1.05, 128 samples a dense
rank, SGD, a copy of a tenth of the rows by LFU, full and settled from the start (``on_ranks/settle.py``); tables of
Criteo Kaggle's sizes with at most ``MOST`` rows each. Runs take turns in one launch, steps are timed from barrier to
barrier in their midst, and a ratio is that of two runs of a turn. The same is shown where what crosses overlaps with
the model: deduplicated rows under ``hybrid``, and ``cached`` with a lookahead, of 2 steps both. Each host's 2 cores are
all hosts': what they compute counts as much more here as there are hosts. The sum of dense gradients is in every run,
and alike.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from _report import claim
from _workloads import CRITEO
from cached_parts.runs import SEED, prepared
from des_parts.cells import Row, show
from hybrid_parts import runs
from on_ranks import launch

CONFIG = Path(__file__).resolve().parent / "het.toml"
MOST, EXPONENT, CAPACITY = 1_000_000, 1.05, 0.1
ROWS = tuple(min(rows, MOST) for rows in CRITEO)
DENSE, BATCH, N_DENSE = 4, 128, 13
WARMUP, COOLDOWN, STEPS, REPEATS = 4, 2, 14, 5
BURST = "8kb"  # below a twentieth of what a host sends in a phase
ONE_OWNER = ("topology.mode=split", "topology.owners=1", f"topology.dense={DENSE}")
ARMS = {  # by name: settings, and the staleness that copies have settled by
    "rows": (("exchange.form=rows",), None),
    "each id": (("exchange.form=pooled",), None),
    "cached 10": (("policy.name=cached", "policy.staleness=10", "policy.cache=lfu"), 10),
    "cached 100": (("policy.name=cached", "policy.staleness=100", "policy.cache=lfu"), 100),
    "rows early": (("policy.name=hybrid", "policy.staleness=2", "exchange.form=rows"), None),
    "cached early": (
        ("policy.name=cached", "policy.staleness=100", "policy.cache=lfu", "policy.lookahead=2"),
        100,
    ),
}
THRESHOLDED = ("rows", "each id", "cached 100", "rows early", "cached early")
UNIT = "times the steps/s of {}"


def measure(cache: Path, cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """As the paper has it, one owner: rows of the table, and claims."""
    reason = launch.why_no_hosts(cluster)
    if reason is not None:
        return [{"part": "time", "result": reason}], []
    rows, claims = [], []
    for rate, goal in (("100mbit", 4.4), ("1gbit", 2.0)):
        there = partial(launch.on_hosts, cluster=cluster, rate=rate, hosts=1 + DENSE, burst=BURST)
        found = _found(there, cache, ONE_OWNER, quick=quick)
        rows += compared(found, part="time", placement="one owner", rate=rate)
        claims.append(ratio(found, f"het.speedup.{rate}", "rows", goal))
        if rate == "100mbit":
            claims.append(ratio(found, f"het.speedup_each_id.{rate}", "each id", 8.0))
        claims.append(ratio(found, f"het.speedup_ahead.{rate}", "rows early", None, "cached early"))
        if quick:
            break
    return rows, claims


def thresholded(cache: Path, cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """As ``measure`` at 100 Mbit/s, but the dense sum, which is the longer part of a step by then, is thresholded."""
    reason = launch.why_no_hosts(cluster)
    if reason is not None:
        return [{"part": "thresholded", "result": reason}], []
    there = partial(launch.on_hosts, cluster=cluster, rate="100mbit", hosts=1 + DENSE, burst=BURST)
    found = _found(there, cache, (*ONE_OWNER, "dense.compression=dct"), THRESHOLDED, quick=quick)
    rows = compared(found, part="thresholded", placement="one owner", rate="100mbit")
    claims = [ratio(found, "het.speedup_dct.100mbit", "rows", 4.4)]
    claims.append(ratio(found, "het.speedup_dct_each_id.100mbit", "each id", 8.0))
    return rows, [*claims, ratio(found, "het.speedup_dct_ahead.100mbit", "rows early", None, "cached early")]


def everywhere(cache: Path, cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """An owner beside every dense rank, on hosts and on one: rows of the table, and claims."""
    reason, rows, claims = launch.why_no_hosts(cluster), list[Row](), list[Row]()
    places = {"one host": partial(launch.local, ranks=DENSE)}
    if reason is None:
        on_hosts = partial(launch.on_hosts, cluster=cluster, rate="100mbit", hosts=DENSE, burst=BURST)
        places = {"an owner on every host": on_hosts, **places}
    for name, there in places.items():
        found = _found(there, cache, ("dense.reducer=mpi",) if name == "one host" else (), quick=quick)
        rows += compared(found, part="everywhere", placement=name, rate="none" if name == "one host" else "100mbit")
        claim_of = "het.speedup_one_host" if name == "one host" else "het.speedup_all_owners.100mbit"
        claims.append(ratio(found, claim_of, "rows", 0.95 if name == "one host" else None))
    return rows, claims


def _found(
    there: runs.Launch, cache: Path, placement: Sequence[str], arms: Collection[str] = tuple(ARMS), *, quick: bool
) -> dict[str, list[Row]]:
    steps, repeats = (4, 1) if quick else (STEPS, REPEATS)
    samples = DENSE * BATCH * (STEPS + WARMUP + COOLDOWN)
    data = prepared(cache, samples, name="cached-time", rows=ROWS, n_dense=N_DENSE)
    return runs.in_turn(
        there, {name: job for name, job in jobs(data, placement, steps).items() if name in arms}, repeats
    )


def jobs(data: Path, placement: Sequence[str], steps: int) -> dict[str, Row]:
    """A run of each arm."""
    out = {}
    for name, (own, staleness) in ARMS.items():
        settings = [f"data.train={data}", "train.steps=1000000", *placement, *own]
        out[name] = {"kind": "train", "config": str(CONFIG), "settings": settings, "warmup": WARMUP}
        out[name] |= {"cooldown": COOLDOWN, "leave_after": WARMUP + steps + COOLDOWN}  # where nothing is drained
        if staleness is not None:
            out[name]["settled"] = {"rows": ROWS, "capacity": CAPACITY, "exponent": EXPONENT, "seed": SEED}
            out[name]["settled"]["staleness"] = staleness
    return out


def compared(found: Mapping[str, Sequence[Row]], **about: object) -> list[Row]:
    """A line of the table for each arm: how many times as fast as deduplicated rows, and bytes of the busiest rank."""
    lines = []
    for name, of in found.items():
        speedup, low, high = runs.faster(found, name, "rows")
        step_s = float(np.median([row["step_s"] for row in of]))
        cpu_s = float(np.median([row["cpu_s"] for row in of]))
        line = {**about, "arm": name, "runs": len(of), "step_ms": 1e3 * step_s, "cpu_ms": 1e3 * cpu_s}
        line |= {"speedup": speedup, "low": low, "high": high, "busiest_kb": 1e-3 * runs.busiest_bytes(of[0])}
        show(line)
        lines.append(line)
    return lines


def ratio(
    found: Mapping[str, Sequence[Row]], name: str, other: str, goal: float | None, arm: str = "cached 100"
) -> Row:
    """A claim."""
    value, low, high = runs.faster(found, arm, other)
    return claim(name, value, UNIT.format(other), None if goal is None else f">= {goal:g}", sure=(low, high))
