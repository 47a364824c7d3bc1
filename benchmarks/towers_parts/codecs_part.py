"""Towers, narrow rows and codecs of the flat DLRM: AUC beside samples a second across hosts.

AUC are means over 3 of the seeds of ``quality_part``, of its data at a share of 5 % and with its rates: of towers and
narrow rows those that part ``planted`` has, since a model learns the same on any ranks; of ``bf16`` and of ``dct``,
vector by vector, those of runs on 4 ranks, each of which takes itself for a host, by the rates of flat fp32. Density
0.4375 has about the bytes of r = 4 there and back.

Samples a second are those of 4 emulated hosts of a rank each, whose links pass 100 Mbit/s, at a batch of 8,192, by
which no phase of a host has less than 20 times what passes unshaped (``BURST``); the arms take turns. All forms are
``pooled``, or ``partial`` of towers: tables of 40 rows stand for large ones here, and whole rows of them would cross
for next to nothing. ``crossing_kb`` is what crosses in a step, all tags. The picture, for which matplotlib has to be
there, has one against the other.
"""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from _report import interval
from des_parts.cells import Row, show
from levels_parts import arms
from on_ranks import launch
from towers_parts.data import Planted
from towers_parts.quality_part import FLAT, PILOT, RATIOS, SEEDS, SHARE, STEPS, Arm, Measured, arms_of
from towers_parts.speed_part import BURST, enough
from towers_parts.trained import CONFIG, Case, Kept, gap

MODEL, RANKS, RATE, BATCH, REPEATS = "dmt_dlrm", 4, "100mbit", 8192, 5
TIMED, WARMUP, COOLDOWN = 8, 4, 2
BLOCKS = 2  # of 65,536 samples
CODECS = {
    "fp32": (),
    "bf16": ("exchange.codec=bf16",),
    **{
        f"dct, {density:g} kept": (
            "exchange.codec=dct",
            "exchange.dct.threshold=vector",
            f"exchange.dct.density={density}",
        )
        for density in (0.4375, 0.25, 0.125)
    },
}
MARKS = {"flat": "o", "narrow": "s", "towers": "D"}


def measure(kept: Kept, cluster: Path, picture: Path | None, *, quick: bool) -> list[Row]:
    """Rows of the table."""
    pilot = Planted(SHARE, PILOT)
    measured = Measured(kept, pilot, pilot.groups, *((100, 0) if quick else (STEPS, STEPS)))
    seeds = SEEDS[: 2 if quick else 3]
    if picture is not None:
        import matplotlib.figure  # noqa: F401  before hours of runs
    auc = {name: [kept.auc(data, case) for data, case in of] for name, of in cases(kept, measured, seeds).items()}
    timed = speeds(kept.cache, cluster, measured, repeats=1 if quick else REPEATS)
    rows = []
    for name, of in auc.items():
        row: Row = {"part": "codecs", "arm": name, "seeds": len(seeds), "auc": statistics.mean(of)}
        row |= gap(of, auc["fp32"]) | {f"{key}_over_r4": value for key, value in gap(of, auc["r4"]).items()}
        row["rate"] = RATE if timed else "no hosts"
        if timed:
            per_s = [run["samples_per_s"] for run in timed[name]]
            row["samples_per_s"], (row["least_per_s"], row["most_per_s"]) = statistics.median(per_s), interval(per_s)
            row["crossing_kb"] = 1e-3 * arms.crossing(timed[name][0], 1, every_tag=True)
        rows.append(row)
        show(row)
    if picture is not None and timed:
        draw(rows, picture)
    return rows


def cases(kept: Kept, measured: Measured, seeds: Sequence[int]) -> dict[str, list[tuple[Planted, Case]]]:
    """Data and runs of each arm, by seed; runs of a seed side by side."""
    found: dict[str, list[tuple[Planted, Case]]] = {}
    for seed in seeds:
        data = Planted(SHARE, seed)
        own = {name: measured.case(FLAT, seed, more, RANKS if more else 1) for name, more in CODECS.items()}
        others = [arm for arm in arms_of(MODEL, data.groups) if arm.name != "flat"]
        own |= {arm.name: measured.case(arm, seed) for arm in others}
        kept.run(data, own.values())
        for name, case in own.items():
            found.setdefault(name, []).append((data, case))
    return found


def settings_of(groups: Sequence[Sequence[str]]) -> dict[str, tuple[Arm, tuple[str, ...]]]:
    """Of each arm, as it is timed."""
    towers = tuple(map(tuple, groups))
    found = {name: (FLAT, more) for name, more in CODECS.items()}
    for arm in arms_of(MODEL, towers, RATIOS):
        if arm.name != "flat":
            found[arm.name] = (arm, ("exchange.form=partial",) if arm.kind == "towers" else ())
    return found


def speeds(cache: Path, cluster: Path, measured: Measured, *, repeats: int) -> dict[str, list[Row]]:
    """Runs of each arm across hosts, which take turns; none where there are no hosts."""
    if (reason := launch.why_no_hosts(cluster)) is not None:
        print(f"codecs: samples a second are left out: {reason}", flush=True)
        return {}
    there = partial(launch.on_hosts, cluster=cluster, rate=RATE, burst=BURST)
    steps, data = WARMUP + TIMED + COOLDOWN, Planted(SHARE, SEEDS[0])
    with data.files(cache / "timed", blocks=(BLOCKS, 1)) as folder:
        jobs = {}
        for name, (arm, more) in settings_of(data.groups).items():
            every = [*arm.settings(steps), *measured.rates(arm), *more]
            every += [f"data.train={folder / 'train.h5'}", f"train.batch_size={BATCH}"]
            job = {"kind": "train", "config": str(CONFIG), "settings": every, "warmup": WARMUP, "cooldown": COOLDOWN}
            jobs[name] = job
        arms.streamed(there, 1, RATE)
        found = list(there(list(jobs.values())))
        enough(dict(zip(jobs, found, strict=True)), ranks=1)
        found += there([job for _ in range(repeats - 1) for job in jobs.values()]) if repeats > 1 else []
    return {name: found[at :: len(jobs)] for at, name in enumerate(jobs)}


def draw(rows: Sequence[Mapping[str, float | str]], path: Path) -> None:
    """AUC against samples a second."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        name = str(row["arm"])
        kind = "towers" if name.startswith("r") else name.partition(" ")[0] if name.startswith("narrow") else "flat"
        axes.plot(float(row["samples_per_s"]), float(row["auc"]), MARKS[kind], color=f"C{list(MARKS).index(kind)}")
        axes.annotate(name, (float(row["samples_per_s"]), float(row["auc"])), (5, 4), textcoords="offset points")
    axes.set(
        xlabel="samples/s, 4 emulated hosts, 100 Mbit/s, batch 8,192, flat as pooled",
        ylabel="AUC, planted data, share 5 %, batch 2,048",
    )
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
