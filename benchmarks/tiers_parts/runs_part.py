"""Runs with store ``disk`` beside the same runs in memory, under a memory limit, in turns of some steps.

What is measured, and of what, is said by ``benchmarks/tiers.py``. Knows workloads, laws and settings; how rows come to
be where they are after a long run is for ``settled``.
"""

import argparse
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _report import available_bytes, claim, finish, interval, spread
from speed_parts import hpcrec_data, workload
from speed_parts.launch import PARTS as CONFIGS
from tiers_parts import fio, laws, limits, settled
from tiers_parts.arm import Arm, EndedError
from tiers_parts.shown import said

LAWS = {"w1-own": (1.05, 1.2), "w2-1m": (1.05, 1.2), "w1-few": (1.05,)}
CONFIG = {"w1-own": "w1", "w2-1m": "w2", "w1-few": "w1"}
SPEED = {1.05: ">= 0.9", 1.2: ">= 0.95"}
OF_BOUND = ">= 0.85"
FIO_DEPTH = 64
FIO_BYTES = 4 << 30  # of its file, at most
DISK_SPARE = 1.7  # times the bytes of rows: what the disk may have of a run's
SPARE_STEPS = 2  # that are routed ahead at the end, beside those of ``exchange.prefetch``
PRODUCTS = "lfu_aging"  # what the store does; others are for comparison, and are the benchmark's doing
EVICT = (PRODUCTS, "lru")
INDEX_BYTES, KNOWN_BYTES = 4, 21  # of a row on the disk; of one in memory, beside itself
AT_ONCE = 1 << 14  # rows that the cache is filled with at once, at most: as many as a step of W1 wants

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done of a workload: turns, steps of each, and seconds of fio's."""

    turns: int
    steps: int
    fio_s: float = 2.0


SIZES = {"w1-own": Size(turns=30, steps=20), "w2-1m": Size(turns=12, steps=5), "w1-few": Size(turns=5, steps=8)}
QUICK = Size(turns=3, steps=4, fio_s=0.5)
QUICK_SLACK_MB = 64  # what a run takes beside rows weighs much where they are few


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A run with a disk: the memory is 1 / ``budget`` of rows and states; ``evict`` is who goes from it."""

    budget: int
    ahead: int
    evict: str

    def __str__(self) -> str:
        return f"1/{self.budget}, {self.ahead} ahead, {self.evict}"


@dataclass
class Turns:
    """What a run did, turn by turn.

    Attributes
    ----------
    answers : list of list of dict
        By turn, of each rank.
    losses : dict of int to float
        By step.
    """

    answers: list[list[Row]] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)

    def add(self, answer: list[Row]) -> None:
        """One turn."""
        self.answers.append(answer)
        sums = np.sum([rank["losses"] for rank in answer], axis=0)
        first = answer[0]["step"] - len(sums)
        self.losses |= {first + i: float(loss) for i, loss in enumerate(sums)}

    @property
    def step_s(self) -> list[float]:
        """Mean of a step in each turn, of the slowest rank."""
        return self.longest("seconds")

    def longest(self, name: str) -> list[float]:
        """The most of any rank, by turn."""
        return [max(rank[name] for rank in of) for of in self.answers]

    def total(self, name: str) -> list[float]:
        """Of all ranks, by turn."""
        return [sum(rank[name] for rank in of) for of in self.answers]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of this part."""
    parser.add_argument("--only", default="w1-own,w2-1m", help="part runs: workloads (w1-own,w2-1m)")
    parser.add_argument("--laws", help="part runs: exponents (1.05,1.2)")
    parser.add_argument("--budgets", default="8", help="part runs: the memory is 1/n of rows and states, n (8)")
    parser.add_argument("--ahead", help="part runs: exchange.prefetch (0,1,2,4)")
    parser.add_argument("--evict", default=PRODUCTS, help=f"part runs: who goes, {PRODUCTS} or lru ({PRODUCTS})")
    parser.add_argument("--ranks", type=int, default=1, help="part runs: fused ranks (1)")
    parser.add_argument("--turns", type=int, help="parts stores and runs: of each (8; 30 of w1-own, 12 of w2-1m)")
    parser.add_argument("--at-once", type=int, default=2, help="part runs: runs with store disk that take turns (2)")
    parser.add_argument("--slack", type=float, default=0.0, metavar="MB", help="part runs: the limit is higher by (0)")
    parser.add_argument("--data", type=Path, default=Path("~/.cache/hpcrec/speed").expanduser(), help="where data are")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="part runs: for all runs")


def runs(folder: Path, path: Path | None, arguments: argparse.Namespace) -> None:
    """The part; writes its JSON to ``path``."""
    names = ["w1-few"] if arguments.quick else arguments.only.split(",")
    reason = limits.why_none()
    rows: list[Row] = []
    if reason is not None:
        print(f"runs: not measured: {reason}")
    for name in names if reason is None else ():
        if name not in LAWS:
            sys.exit(f"--only has {name!r}; allowed are {', '.join(LAWS)}")
        exponents = [float(law) for law in arguments.laws.split(",")] if arguments.laws else LAWS[name]
        for exponent in exponents:
            case = Case(name, exponent, folder / f"{name}-{exponent:g}", arguments)
            rows += [said(row) for row in case.measured()]
    finish("tiers", rows, claims_of(rows, reason, names), path)


class Case:
    """A workload by one law: the run in memory, and those with a disk, some at once."""

    def __init__(self, name: str, exponent: float, folder: Path, arguments: argparse.Namespace) -> None:
        self.name, self.exponent, self.folder = name, exponent, folder
        self.of = name if exponent == workload.ZIPF_EXPONENT else f"{name}-{exponent:g}"
        self.w = workload.WORKLOADS[self.of]
        self.size = QUICK if arguments.quick else SIZES[name]
        self.turns = arguments.turns or self.size.turns
        self.ranks, self.at_once, self.more = arguments.ranks, arguments.at_once, arguments.set
        self.slack_bytes = round(1e6 * (arguments.slack + (QUICK_SLACK_MB if arguments.quick else 0)))
        ahead = [int(n) for n in (arguments.ahead or ("1" if arguments.quick else "0,1,2,4")).split(",")]
        budgets, evict = arguments.budgets.split(","), arguments.evict.split(",")
        for rule in evict:
            if rule not in EVICT:
                sys.exit(f"--evict has {rule!r}; allowed are {', '.join(EVICT)}")
        self.arms = [Variant(budget=int(b), ahead=n, evict=rule) for b in budgets for rule in evict for n in ahead]
        self.lead = max(ahead) + 1
        needed = (self.turns + 1) * (self.lead + self.size.steps) + self.lead + SPARE_STEPS
        if needed > self.w.n_batches:
            sys.exit(f"{self.of}: {needed} steps, but {self.w.n_batches} batches; lower --turns or --ahead")
        self.data = hpcrec_data.prepare(self.of, arguments.data)
        self.chances = laws.in_a_step(self.w.rows, exponent, self.w.batch * self.w.ids)
        self._orders: dict[tuple[int, str], tuple[settled.Numbers, settled.Numbers]] = {}  # of the cache's rows
        self.rows_bytes = 4 * (self.w.width + 1) * len(self.chances)  # with the state of row-wise Adagrad

    def measured(self) -> Iterator[Row]:
        """Lines of the table."""
        if available_bytes() < 2 * self.rows_bytes:
            yield self.skipped(f"less than {2 * self.rows_bytes / 1e9:.0f} GB of memory are free")
            return
        with ExitStack() as stack:
            groups = -(-len(self.arms) // self.at_once)
            memory = self._begin(stack, "dram", (), groups, None)
            memory.ask("open")
            memory.ask("steps", lead=self.lead, steps=self.size.steps)  # what it takes at most is known then
            if fio.why_none() is None:
                fio.fio(self.folder, min(self.rows_bytes, FIO_BYTES), 1, None)
            for first in range(0, len(self.arms), self.at_once):
                yield from self._together(memory, self.arms[first : first + self.at_once])

    def skipped(self, reason: str) -> Row:
        """A line of what was not measured."""
        return {"workload": self.name, "exponent": self.exponent, "status": "skipped", "reason": reason}

    def _begin(self, stack: ExitStack, name: str, settings: Sequence[str], groups: int, limit: int | None) -> Arm:
        steps = (groups * self.turns + 1) * (self.lead + self.size.steps) + self.lead + SPARE_STEPS
        every = [f"data.train={self.data}", f"train.steps={steps}", *self.more, *settings]
        arm = Arm(self.folder / name, CONFIGS / f"{CONFIG[self.name]}.toml", every, self.ranks, limit)
        stack.callback(arm.end)
        return arm

    def _together(self, memory: Arm, arms: Sequence[Variant]) -> Iterator[Row]:
        """Runs with a disk that take turns with the one in memory, and with fio."""
        with ExitStack() as stack:
            begun, facts, found = {}, {}, defaultdict(Turns)
            for variant in arms:
                try:
                    begun[variant], facts[variant] = self._settled(stack, memory, variant)
                except EndedError as error:
                    yield self.skipped(f"{variant}: {error}")
            everybody: dict[Any, Arm] = {"dram": memory, **begun}
            rates: list[float] = []
            names = list(everybody)
            for turn in range(self.turns if begun else 0):
                if fio.why_none() is None:
                    rates.append(fio.fio(self.folder, min(self.rows_bytes, FIO_BYTES), FIO_DEPTH, self.size.fio_s))
                for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                    found[name].add(everybody[name].ask("steps", lead=self.lead, steps=self.size.steps))
            for of, arm in begun.items():
                same_losses(found["dram"], found[of])
                about = {"limit_mb": (arm.limit_bytes or 0) / 1e6, "most_mb": arm.most_bytes / 1e6}
                about["dram_most_mb"] = memory.most_bytes / 1e6
                with_disk = [found[variant] for variant in begun]
                yield self._row(found["dram"], found[of], rates, with_disk, {**facts[of], **about})

    def _settled(self, stack: ExitStack, memory: Arm, variant: Variant) -> tuple[Arm, Row]:
        """A run whose rows lie as after a long time, and what is to be said of it."""
        free = shutil.disk_usage(self.folder).free
        if free < DISK_SPARE * self.rows_bytes:
            raise EndedError(
                f"{free / 1e9:.0f} GB of disk are free, {DISK_SPARE * self.rows_bytes / 1e9:.0f} are needed"
            )
        share = self.rows_bytes // variant.budget
        name = f"disk-{variant.budget}-{variant.ahead}-{variant.evict}"
        settings = ["store.name=disk", f"store.path={self.folder / name / 'rows'}"]
        settings += [f"exchange.prefetch={variant.ahead}", f"store.memory_bytes={share // self.ranks}"]
        limit = memory.most_bytes - self.rows_bytes + share + self.slack_bytes
        arm = self._begin(stack, name, settings, 1, limit)
        opened = arm.ask("open", evict=variant.evict)
        cached = sum(rank["cached_rows"] for rank in opened)
        assert cached > 0, "run_rank.cached_rows does not find the caches"
        key = cached, variant.evict
        if key not in self._orders:
            by_use = variant.evict == PRODUCTS
            self._orders = {key: settled.drawn(self.chances, self._rows_of(), cached, 1, by_use=by_use)}
        gone, inside = self._orders[key]
        tables = {f"f{i}": int(first) for i, first in enumerate(np.cumsum([0, *self.w.rows[:-1]]))}
        arm.ask("write all")
        for what, order in (("write over", gone), ("ask for", inside)):
            file = self.folder / name / "order"
            order.tofile(file)
            arm.ask(what, order=str(file), tables=tables, at_once=max(1, min(AT_ONCE, cached // 4)), first=-1)
            file.unlink()
        settled_mb = arm.most_bytes / 1e6
        arm.ask("steps", lead=self.lead, steps=1)
        return arm, {
            "settled_mb": settled_mb,
            "budget": f"1/{variant.budget}",
            "ahead": variant.ahead,
            "evict": variant.evict,
            "cached_rows": cached,
            "slack_mb": self.slack_bytes / 1e6,
        }

    def _rows_of(self) -> list[np.ndarray]:
        """Of each table the row of each rank, as ``workload.generate`` has it."""
        return [np.random.default_rng([workload.SEED, t]).permutation(n) for t, n in enumerate(self.w.rows)]

    def _of_host(self, turns: Turns, name: str) -> float:
        """Milliseconds of all cores of the host in a step, of the rank that was slowest to say so."""
        return 1e3 * statistics.median(turns.longest(f"{name}_s")) / self.size.steps

    def _row(self, memory: Turns, disk: Turns, rates: Sequence[float], with_disk: Sequence[Turns], about: Row) -> Row:
        """One line of the table. ``rates``: fio's; ``with_disk``: all runs that read in these turns."""
        steps, whole = self.size.steps, len(self.chances) // int(about["budget"].removeprefix("1/"))
        cached = min(about["cached_rows"], len(self.chances))
        of = [one / steps for one in disk.step_s]
        in_memory = [one / steps for one in memory.step_s[-len(of) :]]
        ratios = [b / a for a, b in zip(of, in_memory, strict=True)]
        reads = [n / steps for n in disk.total("disk_rows_read")]
        half = len(reads) // 2
        best = laws.misses(self.chances, whole)
        freed = INDEX_BYTES * len(self.chances) // (self.rows_bytes // len(self.chances) + KNOWN_BYTES)
        gives = rates_of(rates, with_disk)
        shares = [max(b, best / rate) / a for a, b, rate in zip(of, in_memory, gives, strict=True)] if gives else []
        return {
            "workload": self.name,
            "exponent": self.exponent,
            "ranks": self.ranks,
            **about,
            "step_ms": spread([1e3 * one for one in of]),
            "dram_ms": spread([1e3 * one for one in in_memory]),
            **middle("speed", ratios),
            **middle("of_bound", shares),
            "fio_per_s": spread(rates) if rates else None,
            "disk_per_s": spread(gives) if gives else None,
            "per_s_for_0.9": 0.9 * best / statistics.median(in_memory),
            "waited_ms": 1e3 * statistics.median(disk.longest("rows_waited_s")) / steps,
            "cpu_ms": 1e3 * statistics.median(disk.total("cpu_s")) / steps,
            "dram_cpu_ms": 1e3 * statistics.median(memory.total("cpu_s")) / steps,
            **{f"{name}_ms": self._of_host(disk, name) for name in ("idle", "interrupts", "stolen")},
            **{f"dram_{name}_ms": self._of_host(memory, name) for name in ("idle", "interrupts", "stolen")},
            "reads": statistics.mean(reads),
            "reads_over_best": statistics.mean(reads) / max(laws.misses(self.chances, cached), 1e-9),
            "best_fixed_cached": laws.misses(self.chances, cached),
            "best_fixed_budget": best,
            "best_fixed_index_on_disk": 2 * laws.misses(self.chances, cached + freed),
            "lru_cached": laws.lru_misses(self.chances, laws.horizon(self.chances, cached)),
            "hit_share": 1 - statistics.mean(reads) / self.chances.sum(),
            "miss_drift": statistics.mean(reads[half:]) / max(statistics.mean(reads[:half]), 1e-9),
            "pages_read": statistics.mean(disk.total("disk_pages_read")) / steps,
            "written_kb": statistics.mean(disk.total("disk_bytes_written")) / steps / 1e3,
            "written_of_changed": written_of_changed(disk),
        }


def rates_of(rates: Sequence[float], with_disk: Sequence[Turns]) -> list[float]:
    """Reads a second that the disk has given in each turn: by fio, or by a run that read more; none without fio."""
    read = [[n / s for n, s in zip(of.total("disk_rows_read"), of.step_s, strict=True)] for of in with_disk]
    return [max(each) for each in zip(rates, *read, strict=True)] if rates else []


def written_of_changed(disk: Turns) -> float | None:
    """Bytes written in all turns by those of rows handed over in them; None where none were."""
    handed = sum(disk.total("disk_bytes_handed"))
    return sum(disk.total("disk_bytes_written")) / handed if handed > 0 else None


def middle(name: str, values: Sequence[float]) -> Row:
    """Median and interval under this name; None where there are none."""
    if not values:
        return {name: None}
    low, high = interval(values)
    return {name: statistics.median(values), f"{name}_low": low, f"{name}_high": high}


def same_losses(memory: Turns, disk: Turns) -> None:
    """Ends where the same step has another loss: no bit may depend on the store."""
    steps = memory.losses.keys() & disk.losses.keys()
    differ = [step for step in sorted(steps) if memory.losses[step] != disk.losses[step]]
    if differ:
        step = differ[0]
        sys.exit(f"step {step} has a loss of {disk.losses[step]!r} with disk, {memory.losses[step]!r} with dram")


def claims_of(rows: Sequence[Row], reason: str | None, names: Sequence[str]) -> list[Row]:
    """By exponent, of the first budget: the best number of steps ahead. Of these workloads; of all, where few ran."""
    claims = []
    for name, workload_name, key in (("speed.w1_own", "w1-own", "speed"), ("of_bound.w2_1m", "w2-1m", "of_bound")):
        for exponent in LAWS[workload_name] if workload_name in names or "w1-few" in names else ():
            of = [row for row in rows if (row["workload"], row["exponent"]) == (workload_name, exponent)]
            ran = [row for row in of if row.get(key) is not None and row["evict"] == PRODUCTS]
            ran = [row for row in ran if row["budget"] == ran[0]["budget"]]
            goal = SPEED[exponent] if key == "speed" else OF_BOUND
            unit = "of the samples/s in memory" if key == "speed" else "of the bound's speed"
            if ran:
                best = max(ran, key=lambda row: row[key])
                unit += f", {best['budget']}, {best['ahead']} ahead"
                unit += f", limit {best['slack_mb']:.0f} MB higher" if best.get("slack_mb") else ""
                sure = best[f"{key}_low"], best[f"{key}_high"]
                claims.append(claim(f"tiers.{name}.{exponent:g}", best[key], unit, goal, sure=sure))
            else:
                why = reason or next((row["reason"] for row in of if "reason" in row), None)
                why = why or (fio.why_none() if of else None) or "not among those that ran"
                claims.append(claim(f"tiers.{name}.{exponent:g}", None, unit, goal, reason=why))
    return claims
