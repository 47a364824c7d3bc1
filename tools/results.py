#!/usr/bin/env python
"""Writes docs/results.md from benchmarks/results/*.json: every claim with its goal, command, machine and date.

With ``--check`` it writes nothing and fails where the page is not what the JSON says.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results.md"
HEAD = """# Results

Written by `tools/results.py` from `benchmarks/results/`, which `make bench` fills. Times and speeds are of the machine
named; machines that are shared are noisy, so they are medians where several runs were made, and ratios to something
measured in the same run. What a claim counts is said by the docstring of its benchmark.
"""
CACHED = ("bags", "counts", "everywhere", "known", "lookups", "predicted", "thresholded", "time")
QUALITY = (
    *(f"{data}_{optimizer}" for data in ("synthetic", "movielens") for optimizer in ("sgd", "rowwise_adagrad")),
    "hot_sgd",
    "movielens_long_rowwise_adagrad",
)
HYBRID = ("one", "speed", "rows", "bound", "drains", "synthetic", "movielens", "criteo", "hot", "capacity")
PARTS = {
    "des": "bytes",
    **{f"des_{part}": part for part in ("time", "auc", "hosts")},
    "dct": "quality",
    **{f"dct_{part}": part for part in ("ranks", "curve", "time", "codistill")},
    "dct_real": "real --data DIR",
    "house": "trace",
    **{f"house_{part}": part for part in ("speed", "overhead", "route", "memory")},
    "hybrid": "cost",
    **{f"hybrid_{part}": part for part in HYBRID},
    "kernels_messages": "messages",
    "cached_affinity": "affinity --data DIR",
    **{f"cached_{part}": part for part in CACHED},
    **{f"cached_{part}": f"{part} --data DIR" for part in ("history", "dealt", *QUALITY)},
    "levels_dealt": "dealt",
    **{f"levels_{part}": part for part in ("rows", "slowdown")},
    "losses": "counts",
    **{f"losses_{part}": part for part in ("node", "speed")},
    "towers": "speed",
    **{f"towers_{part}": part for part in ("planted", "share", "towers", "short", "codecs", "partition")},
    "towers_movielens": "movielens --data DIR",
    "tiers": "disk",
    **{f"tiers_{part}": part for part in ("stays", "stores", "runs", "drift", "checkpoint", "clock")},
}
# what the committed figures were run with
EXTRA = {
    "real_data": " --data DIR",
    "horovod_cycle": " --quick",
    "balance": " --quick",
    "checkpoint": " --ranks 1",
    **{stem: f" --parts {part}" for stem, part in PARTS.items()},
    "tiers_runs": " --parts runs --only w1-own --ahead 2,1 --turns 10 --slack 64",
    "kernels": " --parts tables --peers PYTHON",
    "speed": " --peers PYTHON --contenders hpcrec-fused,hpcrec-fused-mpi,tbe --steps 20",
    "speed_peers": " --peers PYTHON --contenders hpcrec-fused-mpi,hpcrec-split,tbe,torchrec,ddp --ranks 2 --rounds 3"
    " --steps 10 --extras ''",
}
COMMANDS = {"soak": "make soak"}


def page() -> str:
    """The page as text."""
    parts = [HEAD]
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        result = json.loads(path.read_text())
        name, machine, versions = result["name"], result["machine"], result["versions"]
        command = COMMANDS.get(name, f"python benchmarks/{name}.py{EXTRA.get(path.stem, '')}")
        parts.append(f"\n## {path.stem}\n\n`{command}`, {result['when'][:10]}, ")
        parts.append(f"{machine['cores']} cores of {machine['cpu']}, {machine['system']}, ")
        if "gpu" in machine:
            parts.append(f"{machine['gpu'] or 'no GPU'}, ")
        parts.append(", ".join(f"{k} {v}" for k, v in versions.items() if k in ("python", "torch", "numpy", "commit")))
        parts.append(".\n\n| claim | value | unit | goal | holds |\n|---|---:|---|---|---|\n")
        for claim in result["claims"]:
            none = f"unmeasured: {claim['reason']}" if "reason" in claim else "none"
            value = none if claim["value"] is None else f"{claim['value']:.4g}"
            holds = {True: "yes", False: "**no**", None: ""}[claim["holds"]]
            unit = claim["unit"] + (f", commit {claim['commit']}" if "commit" in claim else "")
            parts.append(f"| {claim['id']} | {value} | {unit} | {claim['goal'] or ''} | {holds} |\n")
        skipped = Counter(row["reason"] for row in result["rows"] if row.get("status") == "skipped")
        parts += [f"\nNot measured, {reason}: {n} rows.\n" for reason, n in skipped.items()]
        rows = [row for row in result["rows"] if row.get("status") != "skipped"]
        parts.append("\n" + rows_table(rows) if rows else "")
    return "".join(parts)


def rows_table(rows: list[dict[str, object]]) -> str:
    """The rows that the claims come from; one table for rows of the same keys, and one for each count by several."""
    out, before = [], None
    for row in rows:
        keys = list(row)
        if keys != before:
            out.append(("\n" if before else "") + f"| {' | '.join(keys)} |\n|{'---|' * len(keys)}\n")
            before = keys
        out.append(f"| {' | '.join(map(cell, row.values()))} |\n")
    out += [by_table(name, by) for row in rows for name, by in counted_by(row)]
    return "".join(out)


def cell(value: object) -> str:
    """A number to four digits; of several their median and range; of counts by name those that are one number each."""
    if isinstance(value, dict) and value.keys() == {"median", "min", "max", "n"}:
        return f"{value['median']:.4g} ({value['min']:.4g} to {value['max']:.4g})"
    if isinstance(value, dict):
        named = [f"{name} ({flat(one)})" for name, one in value.items() if isinstance(one, dict)]
        return ", ".join([*([flat(value)] if flat(value) else []), *named])
    if isinstance(value, list):
        return " ".join(map(cell, value))
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def flat(counts: dict[str, object]) -> str:
    """Counts that are one number each."""
    return ", ".join(f"{name}: {cell(one)}" for name, one in counts.items() if not isinstance(one, dict))


def counted_by(row: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Counts by something, each with what it is of: a row has them two levels deep, under ``counted``."""
    counted = row.get("counted")
    for name, counts in counted.items() if isinstance(counted, dict) else ():
        for key, by in counts.items():
            if isinstance(by, dict) and by:
                yield f"{name}, {key}", by


def by_table(name: str, by: dict[str, object]) -> str:
    """A table of counts: names of parts (``a|b|c``) give a row for all but the last part, and a column for each last.

    An empty cell is a pair that nothing was counted of.
    """
    deepest = max(key.count("|") for key in by)
    if deepest == 0:
        return f"\n{name}: {flat(by)}.\n"
    if deepest == 1:
        lines = [f"| {' | '.join(key.split('|'))} | {cell(value)} |\n" for key, value in by.items()]
        return f"\n{name}:\n\n| | | |\n|---|---|---|\n{''.join(lines)}"
    cells = {tuple(key.rsplit("|", 1)): cell(value) for key, value in by.items()}
    firsts, lasts = sorted({first for first, _ in cells}), sorted({last for _, last in cells})
    head = [" "] * deepest + lasts
    lines = [[*first.split("|"), *(cells.get((first, last), "") for last in lasts)] for first in firsts]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"\n{name}:\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}\n{table}"


def main() -> None:
    """Writes or checks the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit("docs/results.md is not what benchmarks/results says. Run python tools/results.py.")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
