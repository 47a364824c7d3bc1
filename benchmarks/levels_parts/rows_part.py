"""A click model of one id a feature (W1): rows that ranks of a host ask for together, and each by itself.

Criteo's tables of 16 columns, whole on their owners or dealt as the product does, P(rank k) ~ (k + 1)^-1.05, 8,192
samples a step. On 4 emulated hosts of 2 ranks, each an owner and a dense rank, runs of form ``rows`` by both paths take
turns in one launch, with what ``auto`` chooses by both; steps are timed from barrier to barrier. ``levels.cross_ratio``
is of the bytes of values and gradients that cross hosts, by the ledger, over those of the flat path; of 8 hosts of 8
ranks by the ledger of 64 ranks on this machine that are told these hosts, for whose time nothing is said.
``BURST`` as of ``dealt_part``.
"""

from functools import partial
from pathlib import Path

from _report import claim, repeated
from _workloads import CRITEO, W1
from des_parts.cells import Row, show
from hybrid_parts import runs
from levels_parts import arms
from on_ranks import launch

from hpcrec.types import Feature

BATCH, N_DENSE, SEED = 8192, 13, 11
RANKS, STEPS, REPEATS = 2, 8, 5
MANY = (8, 8)
BURST = "8kb"
GOALS = {"4x2": 0.88, "8x8": 0.68}
SETTINGS = (f"train.batch_size={BATCH}", f"model.width={W1.width}", "exchange.replicate_rows=0")
ARMS = {
    "rows": ("exchange.form=rows",),
    "rows, levels": ("exchange.form=rows", "exchange.path=levels"),
    "auto": ("exchange.form=auto",),
    "auto, levels": ("exchange.form=auto", "exchange.path=levels"),
}


def measure(cache: Path, cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    if (reason := launch.why_no_hosts(cluster)) is not None:
        return [{"part": "rows", "result": reason}], []
    rows, claims = list[Row](), list[Row]()
    steps, repeats = (3, 1) if quick else (STEPS, REPEATS)
    data = prepared(cache, BATCH * (STEPS + arms.WARMUP + arms.COOLDOWN))
    for rate in arms.RATES[: 1 if quick else None]:
        link = arms.UNSHAPED if rate == "unshaped" else rate
        there = partial(launch.on_hosts, cluster=cluster, rate=link, ranks_per_host=RANKS, burst=BURST)
        if rate != "unshaped":
            rows.append(arms.streamed(there, RANKS, rate))
        jobs = {name: arms.job(data, (*SETTINGS, *own), steps) for name, own in ARMS.items()}
        found = runs.in_turn(there, jobs, repeats)
        rows += [arms.line("rows", found, name, name.split(",")[0], rate, RANKS) for name in ARMS]
        for form in ("rows", "auto"):
            ratios = [b["step_s"] / a["step_s"] for a, b in zip(found[f"{form}, levels"], found[form], strict=True)]
            unit = f"times the samples/s of the flat path, form {form}"
            name = f"levels.speed.one_hot.{form}.{rate}"
            claims.append(repeated(name, ratios, unit))
        if rate == arms.RATES[0]:
            claims.append(_ratio("4x2", found["rows, levels"][0], found["rows"][0], RANKS))
    if not quick:
        rows_of_many, of_many = many(data)
        rows, claims = [*rows, *rows_of_many], [*claims, of_many]
    return rows, claims


def many(data: Path) -> tuple[list[Row], Row]:
    """Bytes of 64 ranks that are told that they are on 8 hosts."""
    hosts, ranks = MANY
    jobs = []
    for name in ("rows", "rows, levels"):
        job = arms.job(data, (*SETTINGS, *ARMS[name]), 1)
        jobs.append({**job, "ranks_a_host": ranks})
    flat, levels = launch.local(jobs, hosts * ranks, bound=False)
    for name, row in (("rows", flat), ("rows, levels", levels)):
        show({"part": "rows", "hosts": "8x8", "arm": name, "crossing_kb": 1e-3 * arms.crossing(row, ranks)})
    rows: list[Row] = [
        {"part": "rows", "rate": "none", "arm": f"{name}, 8x8", "crossing_kb": 1e-3 * arms.crossing(row, ranks)}
        for name, row in (("rows", flat), ("rows, levels", levels))
    ]
    return rows, _ratio("8x8", levels, flat, ranks)


def _ratio(name: str, levels: Row, flat: Row, ranks: int) -> Row:
    share = arms.crossing(levels, ranks) / arms.crossing(flat, ranks)
    unit = "of the bytes of values and gradients across hosts, of rows that each rank asks for"
    return claim(f"levels.cross_ratio.rows.{name}", share, unit, f"<= {GOALS[name]}")


def prepared(cache: Path, samples: int) -> Path:
    """The data set."""
    features = [Feature(name=f"f{t}", cardinality=rows) for t, rows in enumerate(CRITEO)]
    return arms.prepared(cache / f"one-hot-{samples}.h5", features, samples, N_DENSE, SEED)
