#!/usr/bin/env python
"""Writes docs/results.md from benchmarks/results/*.json: every claim once, those that fall short of their goal first.

A claim's command, machine, date and rows are those of its file, of which the end of the page has an entry each. Of two
files with a claim of the same name the newer one's stands, and the other's value is named beside it. With ``--check``
nothing is written, and the tool fails where the page is not what the JSON says.
"""

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results.md"
FOLDER = Path("benchmarks/results")
HEAD = """# Results

Written by `tools/results.py` from `benchmarks/results/`, which `make bench` fills. Each claim is here once: a value,
its interval where it has one, its unit, its goal, and the benchmark that it is from. [Benchmarks](#benchmarks), below,
has what each of these is, its command, the machine and the date, and its rows as JSON. What a claim counts is said by
the docstring of its benchmark, in which `<...>` stands for a part of the name.

Times and speeds are of the machine named. Machines that are shared are noisy, so they are medians where several runs
were made, and ratios to something measured in the same run. An interval is of 90 % where the benchmark computes one,
and of a speed beside a peer's the range over rounds. Without an interval a value is a count, or was measured once.
"""
TABLE = "\n| claim | holds | value | interval | unit | goal | from |\n|---|---|---:|---|---|---|---|\n"
NUMBER = r"-?[\d.]+(?:e[+-]?\d+)?"
IN_UNIT = re.compile(rf" \(({NUMBER} to {NUMBER})\)$")
IN_GOAL = re.compile(rf", or 1 in ({NUMBER} to {NUMBER})$")
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
    **{f"levels_{part}": part for part in ("messages", "rows", "slowdown")},
    "losses": "counts",
    **{f"losses_{part}": part for part in ("node", "speed")},
    "towers": "speed",
    **{f"towers_{part}": part for part in ("planted", "planted_dcn", "share", "towers", "long")},
    **{f"towers_{part}": part for part in ("speed_one", "codecs", "partition")},
    **{f"towers_{part}": f"{part} --data DIR" for part in ("movielens", "criteo")},
    "first_hour": "causes",
    **{f"first_hour_{part}": part for part in ("init", "newcomer", "mistakes", "blocks", "page")},
    "times": "cost",
    "times_adds_up": "adds_up",
    "tiers": "disk",
    **{f"tiers_{part}": part for part in ("stays", "stores", "runs", "drift", "checkpoint", "clock")},
}
DESCRIBED = {  # by which file a part is described, where it is not that of its name
    **{f"cached_{part}": "quality_part" for part in QUALITY},
    **{f"hybrid_{part}": "auc_part" for part in ("synthetic", "movielens", "criteo", "hot")},
    **{f"towers_{part}": "quality_part" for part in ("planted", "planted_dcn", "share", "towers", "long")},
    **{f"towers_{part}": "quality_part" for part in ("movielens", "criteo")},
    "towers_speed_one": "speed_part",
    "gpu": "",  # all of its parts are in one file
}
# what the committed figures were run with
EXTRA = {
    "real_data": " --data DIR",
    "horovod_cycle": " --quick",
    "balance": " --quick",
    "checkpoint": " --ranks 1",
    **{stem: f" --parts {part}" for stem, part in PARTS.items()},
    "tiers_stays": " --parts stays --pairs FILE",
    "tiers_runs": " --parts runs --only w1-own --ahead 1 --evict lfu_aging,lru --turns 8 --slack 64",
    "tiers_runs_w2": " --parts runs --only w2-1m --ahead 1 --turns 8 --slack 400",
    "kernels": " --parts tables --peers PYTHON",
    "speed": " --peers PYTHON --contenders hpcrec-fused,hpcrec-fused-mpi,tbe --steps 20",
    "speed_peers": " --peers PYTHON --contenders hpcrec-fused-mpi,hpcrec-split,tbe,torchrec,ddp --ranks 2 --rounds 3"
    " --steps 10 --extras ''",
}
COMMANDS = {"soak": "make soak"}


@dataclass(frozen=True)
class File:
    """A file of results: ``stem`` is its name without the ending."""

    stem: str
    result: Mapping[str, Any]

    @property
    def entry(self) -> str:
        """A link to its entry on the page."""
        return f"[{self.stem}](#{self.stem.lower()})"


@dataclass(frozen=True)
class Claim:
    """A claim of the newest file that has it; ``others`` are its values in older ones, with their entries."""

    file: File
    found: Mapping[str, Any]
    others: Sequence[tuple[float | None, str]]

    @property
    def section(self) -> str:
        """Under which heading it stands."""
        if self.found["goal"] is None:
            return "Figures without a goal"
        return {True: "Goals that are met", False: "Goals that are not met", None: "Not measured"}[self.found["holds"]]

    def line(self) -> str:
        """Its row of the table."""
        claim, goal = self.found, self.found["goal"] or ""
        holds = {True: "yes", False: "**no**", None: ""}[claim["holds"]]
        older = "".join(f" ({number(value)} in {entry})" for value, entry in self.others)
        unit = IN_UNIT.sub("", claim["unit"]) + (f", commit {claim['commit']}" if "commit" in claim else "")
        why = f": {claim['reason']}" if "reason" in claim else ""
        cells = (f"`{claim['id']}`", holds, number(claim["value"], goal) + why + older, self.interval(), unit)
        return f"| {' | '.join(cells)} | {IN_GOAL.sub(', or 1 in the interval', goal)} | {self.file.entry} |\n"

    def interval(self) -> str:
        """What its value lies in: as the benchmark has computed it, or the range over rounds."""
        found = IN_UNIT.search(self.found["unit"]) or IN_GOAL.search(self.found["goal"] or "")
        if found:
            return found[1]
        for row in self.file.result["rows"]:
            if "ratios" in row and f"speed.{row['workload']}.{row['ranks']}ranks" == self.found["id"]:
                ratios = [float(ratio) for ratio in row["ratios"].split()]
                return f"{min(ratios):.3f} to {max(ratios):.3f}"
        return ""


def number(value: float | None, goal: str = "") -> str:
    """To four digits, or to as many as tell it from the limit of a goal."""
    if value is None:
        return "none"
    limit = float(goal.split()[1].rstrip(",")) if goal else None
    return next(text for digits in range(4, 18) if float(text := f"{value:.{digits}g}") != limit or value == limit)


def files(folder: Path) -> list[File]:
    """All of them, by name."""
    return [File(path.stem, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def claims(files: Sequence[File]) -> list[Claim]:
    """Each claim once, in the order of the files that they stand in."""
    by_name: dict[str, list[tuple[File, Mapping[str, Any]]]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.result["when"], reverse=True):
        for claim in file.result["claims"]:
            by_name[claim["id"]].append((file, claim))
    newest = {
        name: Claim(found[0][0], found[0][1], [(claim["value"], file.entry) for file, claim in found[1:]])
        for name, found in by_name.items()
    }
    return [newest[c["id"]] for f in files for c in f.result["claims"] if newest[c["id"]].file is f]


def page(files: Sequence[File]) -> str:
    """The page as text."""
    sections: dict[str, list[str]] = {
        name: [] for name in ("Goals that are not met", "Not measured", "Goals that are met", "Figures without a goal")
    }
    for claim in claims(files):
        sections[claim.section].append(claim.line())
    parts = [HEAD]
    for name, lines in sections.items():
        if lines:
            parts += [f"\n## {name}\n\n{len(lines)} claims.\n", TABLE, *lines]
    parts.append("\n## Benchmarks\n")
    parts += [part for file in files for part in entry(file)]
    return "".join(parts)


def entry(file: File) -> Iterator[str]:
    """What a file's benchmark is, and how, where and when it ran."""
    result = file.result
    source, machine, versions = program(result["name"]), result["machine"], result["versions"]
    yield f"\n### {file.stem}\n\n{described(file)}\n"
    command = COMMANDS.get(result["name"], f"python {source}{EXTRA.get(file.stem, '')}")
    yield f"`{command}`, {result['when'][:10]}, {machine['cores']} cores of {machine['cpu']}, {machine['system']}, "
    if "gpu" in machine:
        yield f"{machine['gpu'] or 'no GPU'}, "
    yield ", ".join(f"{k} {v}" for k, v in versions.items() if k in ("python", "torch", "numpy", "commit")) + ".\n"
    skipped = Counter(row["reason"] for row in result["rows"] if row.get("status") == "skipped")
    yield "".join(f"Not measured, {reason}: {n} rows.\n" for reason, n in skipped.items())
    rows = len(result["rows"]) - skipped.total()
    yield f"Rows: {rows}, in [{file.stem}.json](../{FOLDER}/{file.stem}.json). Source: [{source}](../{source}).\n"


def program(name: str) -> Path:
    """The program that wrote a result, from the root of the checkout."""
    benchmark = Path("benchmarks", f"{name}.py")
    return benchmark if (ROOT / benchmark).exists() else Path("tools", f"{name}.py")


def described(file: File) -> str:
    """The first sentence of the benchmark's part, or of the benchmark."""
    source = program(file.result["name"])
    part = PARTS.get(file.stem, "").split()[:1]
    name = DESCRIBED.get(file.stem, part[0] if part else "")
    folder = ROOT / source.with_name(f"{source.stem}_parts")
    for path in (folder / f"{name}_part.py", folder / f"{name}.py", ROOT / source):
        if path.exists():
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            return text.partition("\n")[0].replace("``", "`")
    raise FileNotFoundError(f"{file.stem}.json is of {file.result['name']}, and there is no {source}")


def main() -> None:
    """Writes or checks the page."""
    text = page(files(ROOT / FOLDER))
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit("docs/results.md is not what benchmarks/results says. Run python tools/results.py.")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
