"""A step of DLRM and DCN with towers at their place, of the same towers on dense ranks, and of the flat models.

26 tables of 100,000 rows and 64 columns with bags of 20 (W2) or one id, 4 emulated hosts of 2 ranks, each an owner and
a dense rank, 4 towers of features in their order, dense sums through Horovod. The flat arm is the best that the product
does by itself: path and forms ``auto``. Runs take turns in one launch, steps are timed from barrier to barrier in their
midst, and a ratio is that of two runs of a turn. Across shaped links the third arm runs at the chosen ratio alone, for
it takes as long as the flat one. What a tower is worth for its quality is measured elsewhere, at 16 columns
(``quality_part``): the goal is of the largest ratio that holds there on planted and on real data, as far as their
results are there (``chosen``), and every ratio stands in the name of its figure.

``towers.speed.<model>.<shape>.r<ratio>.<link>``: times the steps a second of the flat arm. Beside each row stand ``c``,
the share of the flat step that the link takes (1 less the unshaped step over the shaped one); ``k``, the unshaped step
of the third arm, towers on dense ranks, over the flat one's: what a smaller top spares or modules cost; ``q``, counted
bytes across hosts of the flat arm over those of the towers, all tags, dense sums too; and ``bound``, 1 / ((1 - c) k + c
/ q). ``towers.of_bound.<shape>``: the worst share of it, by the lower end of its interval. It may be above 1, since
bytes that do not cross are not copied either, which the third arm does: ``k_at`` is the unshaped step of towers at
their place over the flat one's, and ``of_bound_at`` the share of the bound that this makes. A plain stream shows that
the shaped link holds its rate. The hosts share 2 cores: hosts of n cores have the same balance at a link 2 n times as
fast. ``BURST``, which passes unshaped, is less than a twentieth of what a host sends in a phase of values or gradients;
ids, ``control`` and single messages of dense sums stay below that.
"""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _report import ROOT, claim
from des_parts.cells import Row, show
from hybrid_parts import runs
from levels_parts import arms
from on_ranks import launch

from hpcrec.comm.ledger import TAGS

CONFIG = Path(__file__).resolve().parent / "towers.toml"
TABLES, ROWS, BATCH, N_DENSE = 26, 100_000, 8192, 13
PARTS = {"speed": "bags", "speed_one": "one"}  # shapes
IDS = {"bags": 20, "one": 1}  # a bag
RANKS, STEPS, REPEATS, SEED = 2, 3, 5, 17
WARMUP, COOLDOWN = 2, 1
BURST, BURST_BYTES = "8kb", 8192
RATES = ("100mbit", "1gbit")
RATIOS = (2, 4, 8)
FLAT = ("exchange.form=auto", "exchange.path=auto")
MODELS = {
    "dmt_dlrm": ("dlrm", "bottom=[512, 256], top=[512, 256]"),
    "dmt_dcn": ("dcn", "hidden=[256, 128]"),
}


def measure(cache: Path, cluster: Path, part: str, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, of the part of this name, and claims."""
    if (reason := launch.why_no_hosts(cluster)) is not None:
        return [{"part": part, "result": reason}], []
    repeats, models = (1, tuple(MODELS)[:1]) if quick else (REPEATS, tuple(MODELS))
    samples = BATCH * (STEPS + WARMUP + COOLDOWN)
    rates, shape = RATES[: 1 if quick else None], PARTS[part]
    there = {
        rate: partial(launch.on_hosts, cluster=cluster, rate=rate, ranks_per_host=RANKS, burst=BURST)
        for rate in (arms.UNSHAPED, *rates)
    }
    streams = [arms.streamed(there[rate], RANKS, rate) for rate in rates]
    path = cache / f"towers-{samples}-{shape}.h5"
    data = arms.prepared(path, arms.bags(TABLES, ROWS, IDS[shape]), samples, N_DENSE, SEED)
    rows = list[Row]()
    for model in models:
        jobs = {name: job(data, own) for name, own in arms_of(model).items()}
        here = {name: of for name, of in jobs.items() if not third(name)}
        first = {name: list(there[arms.UNSHAPED]([of])).pop() for name, of in here.items()}
        enough(first)  # before hours of them
        found = {arms.UNSHAPED: runs.in_turn(there[arms.UNSHAPED], jobs, repeats)}
        shaped = here | {name: of for name, of in jobs.items() if name == third_of(chosen(model)[0])}
        for rate in rates:
            found[rate] = runs.in_turn(there[rate], shaped, repeats)
            enough({name: of[0] for name, of in found[rate].items() if not third(name)})
        rows += [line(part, model, ratio, rate, found) for rate in rates for ratio in RATIOS]
    worst = min(rows, key=lambda row: row["low"] / row["bound"])
    sure = (worst["low"] / worst["bound"], worst["high"] / worst["bound"])
    claims = [claimed(row) for row in rows]
    return rows + streams, [
        *claims,
        claim(f"towers.of_bound.{shape}", worst["of_bound"], "of the bound, the least", ">= 0.9", sure=sure),
    ]


def third_of(ratio: int) -> str:
    """The arm of the same towers on dense ranks."""
    return f"r{ratio}, dense ranks"


def third(name: str) -> bool:
    """Whether an arm is one of these."""
    return name in map(third_of, RATIOS)


def arms_of(model: str) -> dict[str, tuple[str, ...]]:
    """Settings of each."""
    flat, options = MODELS[model]
    found: dict[str, tuple[str, ...]] = {}
    found["flat"] = (f"model.name={flat}", f"model.options={{{options}}}", *FLAT)
    for ratio in RATIOS:
        towers = f"model.options={{{options}, n_towers=4, ratio={ratio}.0}}"
        found[f"r{ratio}"] = (f"model.name={model}", towers, "exchange.form=partial", "exchange.path=levels")
        found[third_of(ratio)] = (f"model.name={model}", towers, *FLAT, "exchange.at_place=false")
    return found


def job(data: Path, own: Sequence[str]) -> Row:
    """A run, in whose midst so many steps are timed."""
    every = [f"data.train={data}", f"train.steps={WARMUP + STEPS + COOLDOWN}", f"train.batch_size={BATCH}", *own]
    return {"kind": "train", "config": str(CONFIG), "settings": every, "warmup": WARMUP, "cooldown": COOLDOWN}


def line(part: str, model: str, ratio: int, rate: str, found: Mapping[str, Mapping[str, Sequence[Row]]]) -> Row:
    """Of the table."""
    there, here = found[rate], found[arms.UNSHAPED]
    at, flat = f"r{ratio}", "flat"

    def step_s(of: Mapping[str, Sequence[Row]], name: str) -> float:
        return statistics.median(row["step_s"] for row in of[name])

    faster, low, high = runs.faster(there, at, flat)
    c, k = 1 - step_s(here, flat) / step_s(there, flat), step_s(here, third_of(ratio)) / step_s(here, flat)
    crossing = {name: arms.crossing(there[name][0], RANKS, every_tag=True) for name in (at, flat)}
    q = crossing[flat] / crossing[at]
    bound = 1 / ((1 - c) * k + c / q)
    k_at = step_s(here, at) / step_s(here, flat)
    row: Row = {
        "part": part,
        "model": model,
        "shape": PARTS[part],
        "ratio": ratio,
        "rate": rate,
        "runs": len(there[at]),
    }
    row |= {"step_ms": 1e3 * step_s(there, at), "flat_ms": 1e3 * step_s(there, flat)}
    row |= {"unshaped_ms": 1e3 * step_s(here, at)}
    if third_of(ratio) in there:
        row["dense_ranks_ms"] = 1e3 * step_s(there, third_of(ratio))
    row |= {"faster": faster, "low": low, "high": high, "c": c, "k": k, "q": q, "bound": bound}
    row |= {"of_bound": faster / bound, "k_at": k_at, "of_bound_at": faster * ((1 - c) * k_at + c / q)}
    row |= {"crossing_kb": 1e-3 * crossing[at], "flat_crossing_kb": 1e-3 * crossing[flat]}
    show(row)
    return row


def enough(found: Mapping[str, Row], ranks: int = RANKS) -> None:
    """Ends where a host sends so little in a phase of values or gradients that much of it passes unshaped."""
    for name, row in found.items():
        for tag in ("values", "gradients"):
            bytes_RR = np.array(row["bytes_TRR"])[TAGS.index(tag)]
            host_R = np.arange(len(bytes_RR)) // ranks
            far_R = (bytes_RR * (host_R[:, None] != host_R[None, :])).sum(axis=1)
            least = float(np.bincount(host_R, far_R).min())
            if least < 20 * BURST_BYTES:
                sys.exit(f"{name}: a host sends {least:.0f} bytes of {tag}: much passes unshaped. Raise BATCH.")


def chosen(model: str, results: Path = ROOT / "benchmarks" / "results") -> tuple[int, str]:
    """The ratio whose speed has the goal, and why that one."""
    largest: dict[str, Any] = {}
    for data, files in {"planted": ("planted", "planted_dcn"), "movielens": ("movielens",)}.items():
        paths = [path for path in (results / f"towers_{name}.json" for name in files) if path.exists()]
        claims = [of for path in paths for of in json.loads(path.read_text())["claims"]]
        largest[data] = {of["id"]: of["value"] for of in claims}.get(f"towers.largest_ratio.{data}.{model}")
    if None not in largest.values():
        return int(min(largest.values())), "the largest that loses nothing on planted data and MovieLens"
    if largest["planted"] is not None:
        return int(largest["planted"]), "the largest that loses nothing on planted data alone"
    return RATIOS[0], "of which it is not shown that it loses nothing"


def claimed(row: Row) -> Row:
    """How many times as fast it was."""
    ratio, why = chosen(row["model"])
    goal = ">= 1.9" if (row["shape"], row["rate"], row["ratio"]) == ("bags", "100mbit", ratio) else None
    name = f"towers.speed.{row['model']}.{row['shape']}.r{row['ratio']}.{row['rate']}"
    return claim(
        name,
        row["faster"],
        "times the flat model's steps a second" + (f", r {why}" if row["ratio"] == ratio else ""),
        goal,
        sure=(row["low"], row["high"]),
    )
