"""A model of dynamic tables with bags of 20 ids: vectors added in their owners' host, and tables within one.

``TABLES`` tables of 64 columns without declared rows, which are dealt over all owners by default, 20 ids a bag by
P(rank k) ~ (k + 1)^-1.05, 4 emulated hosts of 2 ranks, each an owner and a dense rank. Runs take turns in one launch,
steps are timed from barrier to barrier in their midst, and a ratio is that of two runs of a turn.
``levels.speed.dealt`` is what the product does by itself with levels (tables within hosts) over the best that it does
without: forms ``pooled``, ``rows``, and what ``auto`` takes of all. ``levels.speed.placement`` is tables within hosts
without levels over that best, and ``levels.speed.levels_alone`` the first over these: what placement gave, and what
levels gave. Levels with tables over all hosts are in the table. ``levels.cross_ratio`` is of the bytes of values and
gradients that cross hosts, by the ledger, over those of pooled vectors that nobody adds. The hosts share 2 cores: hosts
of n cores have the same balance at a link 2 n times as fast. ``BURST``, which passes unshaped, is at most a twentieth
of what a host sends in a phase of values or gradients; ids, ``control`` and dense gradients stay below that. A plain
stream shows that the link still holds its rate.
"""

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from _report import claim, repeated
from des_parts.cells import Row
from hybrid_parts import runs
from levels_parts import arms
from on_ranks import launch

TABLES, IDS, ROWS, CAPACITY, BATCH, N_DENSE = 8, 20, 60_000, 64_000, 512, 4
RANKS, STEPS, REPEATS, SEED = 2, 10, 5, 11
BURST = "8kb"
GOALS = {"1gbit": 1.7, "100mbit": 4.0}
WITHIN, OVER_ALL = (
    tuple(f"embedding.tables.f{t}.shard={kind}" for t in range(TABLES)) for kind in ("host", "row")
)  # fmt: skip
PLACED = "within hosts, flat"
ARMS = {
    "pooled": ("exchange.form=pooled",),
    "rows": ("exchange.form=rows",),
    "auto": ("exchange.form=auto",),
    PLACED: ("exchange.form=pooled", *WITHIN),
    "over all, levels": ("exchange.form=pooled", "exchange.path=levels", *OVER_ALL),
    "levels": ("exchange.form=pooled", "exchange.path=levels"),
}
BEFORE = ("pooled", "rows", "auto")


def measure(cache: Path, cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    if (reason := launch.why_no_hosts(cluster)) is not None:
        return [{"part": "dealt", "result": reason}], []
    rows, claims = list[Row](), list[Row]()
    steps, repeats = (4, 1) if quick else (STEPS, REPEATS)
    data = prepared(cache, BATCH * (STEPS + arms.WARMUP + arms.COOLDOWN))
    for rate in arms.RATES[: 1 if quick else None]:
        link = arms.UNSHAPED if rate == "unshaped" else rate
        there = partial(launch.on_hosts, cluster=cluster, rate=link, ranks_per_host=RANKS, burst=BURST)
        if rate != "unshaped":
            rows.append(arms.streamed(there, RANKS, rate))
        found = runs.in_turn(there, {name: job(data, own, steps) for name, own in ARMS.items()}, repeats)
        best = min(BEFORE, key=lambda name: statistics.median(row["step_s"] for row in found[name]))
        rows += [arms.line("dealt", found, name, best, rate, RANKS) for name in ARMS]
        goal = f">= {GOALS[rate]}" if rate in GOALS else None
        for name, arm, beside, what, wanted in (
            ("dealt", "levels", best, f"{best}, the best without levels", goal),
            ("placement", PLACED, best, f"{best}, of tables within hosts, both flat", None),
            ("levels_alone", "levels", PLACED, "tables within hosts, flat", None),
        ):
            ratios = [b["step_s"] / a["step_s"] for a, b in zip(found[arm], found[beside], strict=True)]
            claims.append(repeated(f"levels.speed.{name}.{rate}", ratios, f"times the samples/s of {what}", wanted))
        if rate == arms.RATES[0]:
            flat = arms.crossing(found["pooled"][0], RANKS)
            for name, arm, most in (("dealt", "over all, levels", 0.55), ("within", "levels", 0.15)):
                share = arms.crossing(found[arm][0], RANKS) / flat
                unit = "of the bytes of values and gradients across hosts"
                claims.append(claim(f"levels.cross_ratio.{name}", share, unit, f"<= {most}"))
    return rows, claims


def job(data: Path, own: Sequence[str], steps: int) -> Row:
    """A run."""
    dynamic = [f"embedding.tables.f{t}.dynamic.capacity={CAPACITY}" for t in range(TABLES)]
    return arms.job(data, (*dynamic, *own), steps)


def prepared(cache: Path, samples: int) -> Path:
    """The data set."""
    return arms.prepared(cache / f"levels-{samples}.h5", arms.bags(TABLES, ROWS, IDS), samples, N_DENSE, SEED)
