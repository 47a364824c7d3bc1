"""Six causes, each planted in runs at a strength that costs a fifth of samples/s, and what those runs say of them.

Knows how each is planted and command lines; what is said comes from summary.json.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _report import claim, finish, hpcrec
from on_ranks.launch import why_no_hosts

from hpcrec.training.advice import causes

HERE = Path(__file__).resolve().parent
LEAST_COST, MOST_COST = 0.1, 0.35  # of samples/s, the median of the runs that count as planted at a fifth
COST, NEAR, TRIES = 0.2, 0.05, 4  # of samples/s; how near is enough; runs until the strength is taken as it is
CONFIG = """
[data]
train = "{folder}/data/train.h5"
[model]
name = "{model}"
folder = "{here}"
width = {width}
options = {{ bottom = [{bottom}], top = [{top}]{options} }}
[embedding]
optimizer = {{ name = "rowwise_adagrad", lr = 0.02 }}
[train]
batch_size = 2048
steps = {steps}
[run]
folder = "{folder}/run"
progress = false
tensorboard = false
"""
LARGE = {"width": 16, "bottom": "256", "top": "512, 256"}  # most of a step is the model
ROWS = {"width": 128, "bottom": "16", "top": "16"}  # most of it is rows
UNSHAPED = "none"
TABLES = ("history", "tags", "user", "item", "site", "campaign", "city", "category", "device", "hour")


@dataclass(frozen=True)
class Size:
    """How many ranks, runs of each cause, and runs with nothing planted; steps of a run, and samples to train on."""

    ranks: tuple[int, ...] = (2, 4)
    times: int = 5
    healthy: int = 20
    steps: int = 160
    samples: int = 400_000


QUICK = Size(ranks=(2,), times=1, healthy=1, steps=60, samples=100_000)


@dataclass(frozen=True)
class Arm:
    """How a run is started: ``strength`` 0 is that with nothing planted."""

    model: Mapping[str, Any] = field(default_factory=lambda: LARGE)
    settings: tuple[str, ...] = ()
    options: str = ""
    name: str = "dlrm"
    environment: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()  # what hpcrec's command line stands behind
    rate: str | None = None  # of links of emulated hosts


@dataclass(frozen=True)
class Planted:
    """A cause: what it is called, how it is planted with a strength, and the first strength that is tried."""

    cause: str
    arm: Callable[[float, Path, int], Arm]
    first: float
    fixed: bool = False  # it has no strength


def slow_rank(ms: float, _: Path, ranks: int) -> Arm:
    """Milliseconds a step that the last rank computes for longer."""
    return Arm(name="planted:build", options=f", slow_rank = {ranks - 1}, slow_ms = {ms:.4f}")


def slow_link(share: float, *_: object) -> Arm:
    """A hundredth of a Gbit/s by ``share``; 0 is unshaped."""
    return Arm(rate=f"{round(10_000 / share)}kbit" if share else UNSHAPED)


def slow_disk(us: float, folder: Path, _: int) -> Arm:
    """Microseconds that a read of rows takes longer; memory has a half of them."""
    rows = ("store.name=disk", f"store.path={folder}/rows", "store.memory_bytes=12000000", "store.io=threads")
    return Arm(settings=rows, environment=_slow_reads(us, folder / "rows"))


def reader(us: float, folder: Path, _: int) -> Arm:
    """Microseconds that a read of the data set takes longer."""
    return Arm(settings=("data.window=1", "data.chunk=2048"), environment=_slow_reads(us, folder / "data"))


def skewed_owner(share: float, *_: object) -> Arm:
    """That share of the tables, those of most lookups first, are held by the first owner alone, the others by all."""
    n = round(share * len(TABLES))
    tables = ", ".join(f'{name} = {{ shard = "table", owners = [0] }}' for name in TABLES[:n])
    rest = ", ".join(f'{name} = {{ shard = "row" }}' for name in TABLES[n:])
    return Arm(model=ROWS, settings=(f"embedding.tables={{ {', '.join(filter(None, (tables, rest)))} }}",))


def few_threads(strength: float, *_: object) -> Arm:
    """All ranks are bound to the first core."""
    return Arm(before=("taskset", "--cpu-list", "0") if strength else ())


PLANTED = {
    "slow_rank": Planted("slow rank", slow_rank, 10.0),
    "slow_link": Planted("slow link", slow_link, 0.1),
    "slow_disk": Planted("slow disk", slow_disk, 200.0),
    "skewed_owner": Planted("skewed owner", skewed_owner, 0.5),
    "few_threads": Planted("few threads", few_threads, 1.0, fixed=True),
    "reader": Planted("reader", reader, 2000.0),
}


def _slow_reads(us: float, under: Path) -> dict[str, str]:
    library = under.parent / "slow_reads.so"
    if not library.exists():
        source = str(HERE / "slow_reads.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "SLOW_READS_UNDER": str(under), "SLOW_READS_US": str(round(us))}


def run(chosen: Sequence[str], cluster: Path, path: Path | None, *, quick: bool) -> None:
    """Measures them and writes what was found."""
    size = QUICK if quick else Size()
    rows, missing = list[dict[str, Any]](), dict[str, str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hpcrec("prepare", "synthetic", "--out", f"{folder}/data", "--samples", str(size.samples))
        for cause in chosen:
            if cause == "slow_link" and (why := why_no_hosts(cluster)):
                missing[cause] = why
                continue
            for n in size.ranks:
                rows += _planted(cause, n, folder, cluster, size)
        for i in range(size.healthy):
            n, planted = size.ranks[i % len(size.ranks)], list(PLANTED.values())[i % len(PLANTED)]
            arm = planted.arm(0.0, folder, n)
            if arm.rate is not None and why_no_hosts(cluster):
                arm = Arm()
            rows.append(_row("healthy", n, 0.0, _trained(arm, n, folder, cluster, size.steps)))
            _say(rows[-1])
    finish("first_hour", rows, _claims(rows, missing), path)


def _planted(cause: str, ranks: int, folder: Path, cluster: Path, size: Size) -> list[dict[str, Any]]:
    """Rows of so many runs, each beside one with nothing planted, once the strength is found."""
    planted = PLANTED[cause]

    def measured(strength: float) -> Mapping[str, Any]:
        return _trained(planted.arm(strength, folder, ranks), ranks, folder, cluster, size.steps)

    strength, rows = planted.first, list[dict[str, Any]]()
    healthy = statistics.median(_rate(measured(0.0)) for _ in range(min(size.times, 3)))
    for _ in range(0 if planted.fixed else TRIES):
        cost = 1 - _rate(measured(strength)) / healthy
        print(f"{cause} on {ranks} ranks: strength {strength:.4g} costs {cost:.1%}", flush=True)
        if abs(cost - COST) <= NEAR:
            break
        strength *= min(max(COST / (1 - COST) / max(cost / (1 - cost), 0.02), 0.2), 4.0)
        if cause == "skewed_owner":
            strength = min(strength, 1.0)
    for _ in range(size.times):
        found = measured(strength)
        rows.append(_row(cause, ranks, strength, found, 1 - _rate(found) / _rate(measured(0.0))))
        _say(rows[-1])
    return rows


def _rate(summary: Mapping[str, Any]) -> float:
    return float(summary["throughput"]["samples_per_s"])


def _row(cause: str, ranks: int, strength: float, summary: Mapping[str, Any], cost: float = 0.0) -> dict[str, Any]:
    """What a run said; ``first`` is the cause whose sentence it ended with."""
    found = [{"name": one.name, "share": round(one.share, 3)} for one in causes(summary)]
    said = summary["advice"][0] if summary["advice"] else ""
    first = next((one.name for one in causes(summary) if one.sentence == said), "")
    on_page = bool(said) and summary["on_page"]
    told = {"found": found, "first": first, "said": said, "on_page": on_page, "slow": len(summary["slow_ranks"])}
    rate = {"samples_per_s": _rate(summary), "cost": round(cost, 3)}
    return {"cause": cause, "ranks": ranks, "strength": strength, **rate, **told}


def _say(row: Mapping[str, Any]) -> None:
    print(f"{row['cause']:13} {row['ranks']} ranks  cost {row['cost']:6.1%}  said: {row['said']}", flush=True)


def _trained(arm: Arm, ranks: int, folder: Path, cluster: Path, steps: int) -> dict[str, Any]:
    """``summary.json`` of a run, and whether its page has its advice."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    config = folder / "config.toml"
    options = {"model": arm.name, "here": HERE, "options": arm.options, "steps": steps, "folder": folder}
    config.write_text(CONFIG.format(**options, **arm.model))
    settings = [f"--set={setting}" for setting in arm.settings]
    environment = {**os.environ, **arm.environment}
    if arm.rate is None:
        line = [*arm.before, sys.executable, "-m", "hpcrec", "run", "-n", str(ranks), "--", "train", str(config)]
        _run([*line, *settings], environment)
    else:
        scripts = cluster.resolve() / "hosts"
        try:
            _run([str(scripts / "up.sh"), str(ranks), arm.rate], environment)
            hpcrec_here = [sys.executable, "-m", "hpcrec", "train", str(config), *settings]
            path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
            _run([str(scripts / "run.sh"), str(ranks), "1", *hpcrec_here], {**environment, "PATH": path})
        finally:
            subprocess.run([str(scripts / "down.sh")], check=False)
    found: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    page = (folder / "run" / "report.html").read_text()
    return {**found, "on_page": bool(found["advice"]) and found["advice"][0].split(":")[0] in page}


def _run(line: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(line)} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")


def _near_a_fifth(rows: Sequence[Mapping[str, Any]]) -> bool:
    return not rows or LEAST_COST <= statistics.median(row["cost"] for row in rows) <= MOST_COST


def _ranks(rows: Sequence[Mapping[str, Any]]) -> set[int]:
    return {row["ranks"] for row in rows}


def _claims(rows: Sequence[Mapping[str, Any]], missing: Mapping[str, str]) -> list[dict[str, Any]]:
    """How many causes every one of their runs named, and how many healthy runs were blamed."""
    of_cause = {name: [row for row in rows if row["cause"] == name] for name in PLANTED}
    named = [
        name
        for name, found in of_cause.items()
        if found
        and all(row["first"] == PLANTED[name].cause and row["on_page"] for row in found)
        and (PLANTED[name].fixed or all(_near_a_fifth([r for r in found if r["ranks"] == n]) for n in _ranks(found)))
    ]
    healthy = [row for row in rows if row["cause"] == "healthy"]
    blamed = sum(bool(row["found"] or row["slow"]) for row in healthy)
    why = "; ".join(f"{name}: {reason}" for name, reason in missing.items()) or None
    return [
        claim("first_hour.causes_named", len(named), f"of {len(PLANTED)} causes, in every run", ">= 6", why),
        claim("first_hour.false_blame", blamed, f"of {len(healthy)} runs with nothing planted", "<= 0"),
    ]
