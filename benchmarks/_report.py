"""What every benchmark writes: a table on the terminal, and the same as JSON with its claims.

A claim is a figure with an id, a goal and whether it holds, computed here and nowhere else.
"""

import argparse
import json
import math
import operator
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("hpcrec", "torch", "numpy", "h5py", "mpi4py", "horovod")
CONFIDENCE = 0.9  # of intervals


def options(description: str | None, parts: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks share; ``parts`` where it has several."""
    parser = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less work: within 60 s on 2 cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table and the claims here")
    if parts:
        named = f"{','.join(parts)}; with --quick {parts[0]}"
        parser.add_argument("--parts", help=f"what is measured ({named}); those after the first write FILE_<part>")
    return parser


def asked(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, parts: Sequence[str]
) -> list[tuple[str, Path | None]]:
    """Each part that the command line asks for, and the file of its JSON."""
    found = (arguments.parts or (parts[0] if arguments.quick else ",".join(parts))).split(",")
    for part in found:
        if part not in parts:
            parser.error(f"--parts has {part!r}; allowed are {', '.join(parts)}")
    path = arguments.json
    beside = {part: path and path.with_stem(f"{path.stem}_{part}") for part in parts}
    return [(part, path if part == parts[0] else beside[part]) for part in found]


def claim(
    name: str,
    value: float | None,
    unit: str,
    goal: str | None = None,
    reason: str | None = None,
    within: tuple[float, float] | None = None,
    sure: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """A claim; ``goal`` is like ``>= 0.97``, None where there is none; ``reason`` says why it has no value.

    ``within`` is the value's interval: then the goal holds too where 1 is in it. ``sure`` is the same, of a value that
    meets its goal where all of its interval does.
    """
    holds = None
    if goal is not None and value is not None:
        sign, limit = goal.split()
        meets = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}[sign]
        holds = all(meets(each, float(limit)) for each in (value, *(sure or ())))
        holds = holds or (within is not None and within[0] <= 1.0 <= within[1])
    if within is not None and goal is not None:
        goal = f"{goal}, or 1 in {within[0]:.3f} to {within[1]:.3f}"
    if sure is not None:
        unit = f"{unit} ({sure[0]:.3g} to {sure[1]:.3g})"
    found = {"id": name, "value": value, "unit": unit, "goal": goal, "holds": holds}
    return found if reason is None else found | {"reason": reason}


def repeated(name: str, values: Sequence[float], unit: str, goal: str | None = None) -> dict[str, Any]:
    """A claim of the median, which holds where its interval does; of no values it has none."""
    if not values:
        return claim(name, None, unit, goal)
    return claim(name, statistics.median(values), unit, goal, sure=interval(values))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The narrowest pair of order statistics, alike from both ends, that holds the median with ``CONFIDENCE``.

    The k-th from either end holds it with 1 - 2 P(fewer than k of n fair coins fall heads). Of fewer than 5 values no
    pair does: then it is their range.
    """
    ordered, n = sorted(values), len(values)
    beyond, k = 0.0, 0
    while beyond + math.comb(n, k) / 2**n <= (1 - CONFIDENCE) / 2:
        beyond += math.comb(n, k) / 2**n
        k += 1
    return ordered[max(k, 1) - 1], ordered[n - max(k, 1)]


def finish(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    claims: Sequence[Mapping[str, Any]],
    path: Path | None,
    beside: Mapping[str, Any] | None = None,
    commit: str | None = None,
) -> None:
    """Prints the claims and, if asked, writes the JSON.

    ``beside`` is what else is to be said of the machine; ``commit`` is what figures are of, if not the present one.
    """
    for item in claims:
        value = "none" if item["value"] is None else f"{item['value']:.4g}"
        said = {True: "holds", False: "FALLS SHORT", None: "not measured"}[item["holds"]]
        said += f" ({item['reason']})" if "reason" in item else ""
        goal = "" if item["goal"] is None else f"  goal {item['goal']}: {said}"
        print(f"{item['id']:56} {value:>10} {item['unit']}{goal}")
    if path is None:
        return
    result = {
        "name": name,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {**machine(), **(beside or {})},
        "versions": {
            "python": platform.python_version(),
            **{p: version(p) for p in PACKAGES},
            "commit": commit or commit_here(),
        },
        "rows": list(rows),
        "claims": list(claims),
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def hpcrec(*arguments: str) -> None:
    """Runs a command of hpcrec; ends with its output where it fails."""
    done = subprocess.run([sys.executable, "-m", "hpcrec", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def write_config(folder: Path, text: str) -> Path:
    """A configuration of a run in ``folder``/run that says nothing and keeps nothing but its results."""
    path = folder / "config.toml"
    path.write_text(f'{text}[run]\nfolder = "{folder}/run"\nprogress = false\ntensorboard = false\n')
    return path


def trained(config: Path, ranks: int, *settings: str, begin: Sequence[str] = ()) -> dict[str, Any]:
    """``summary.json`` of a run of ``write_config``'s; ``settings`` as ``section.key=value``.

    ``begin``: what is run in place of ``hpcrec``, which takes its arguments.
    """
    every = [f"--set={setting}" for setting in settings]
    hpcrec("run", "-n", str(ranks), "--", *begin, "train", str(config), *every)
    found: dict[str, Any] = json.loads((config.parent / "run" / "summary.json").read_text())
    return found


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def machine() -> dict[str, Any]:
    """Processor, cores and memory."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": models[0] if models else platform.machine(), "cores": len(models), "system": platform.system()}


def version(package: str) -> str:
    """Of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def commit_here() -> str:
    """Of this checkout; with ``+`` where it has changes."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return said.stdout.strip() or "none"
