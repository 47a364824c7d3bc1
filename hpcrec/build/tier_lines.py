"""What is to be expected of rows on a disk, as text: reads, space, writes, speed, and which tables should be whole.

Knows what owners have (``build.tiers``), rates of disks and steps in memory as numbers; where these are not given, a
disk is measured here, and steps are those of the run that the folder has. Knows no communicator.
"""

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrec.build.memory import ranks_asked_for
from hpcrec.build.tiers import Tiers, disk_bytes, tiers_of
from hpcrec.config import Config, StoreConfig, load_config
from hpcrec.disk.rate import RandomReads
from hpcrec.errors import HpcrecError
from hpcrec.plan.placement import Expected, TierPart, expect, least_bytes, memory_for, place
from hpcrec.units import format_bytes

WRITTEN_OF_HANDED = 2.0  # bytes, of rows that leave a memory of an eighth (docs/tiers.md)
WANTED = 0.9  # of the speed in memory
LARGE_PART = 0.1  # of its rows: where a step asks for so many, a table belongs in memory
MEASURED_S = 0.5
PAGE_CPU_S = 4e-6  # of a page that is read; measured with the disk, where that is
PLACE_CPU_S = 0.35e-6  # of a row that a step asks for, in memory or not: 5.4 ms for 15,300 of them (docs/tiers.md)
_ALL = 'takes as much memory as the rows: store.name = "dram"'
_DAY_S = 86_400
_GAIN = 0.99  # a placement that leaves more of the time is not worth a line


@dataclass(frozen=True)
class Disk:
    """Of a host.

    Attributes
    ----------
    reads_per_s : dict of int to float
        By bytes of a page.
    said : str
        Where that is from.
    page_cpu_s : float
        That a page takes of the processor.
    """

    reads_per_s: Mapping[int, float]
    said: str
    page_cpu_s: float = PAGE_CPU_S

    def seconds(self, parts: Sequence[TierPart], found: Expected) -> float:
        """Of reads, a step."""
        sizes = {part.table: part.page_bytes for part in parts}
        return sum(n / self.reads_per_s[sizes[table]] for table, n in found.pages.items())

    def beside(self, owners: Sequence[tuple[Sequence[TierPart], Expected]]) -> "Beside":
        """What owners on one host take."""
        asked = max(sum(part.curve.asked for part in parts if part.table in of.pages) for parts, of in owners)
        return Beside(
            sum(self.seconds(parts, of) for parts, of in owners),
            self.page_cpu_s * max(of.pages_read for _, of in owners),
            PLACE_CPU_S * asked,
        )


@dataclass(frozen=True)
class Beside:
    """Seconds that rows on a disk take beside a step: the disk, and of the owner with most the processor.

    Attributes
    ----------
    reads_s : float
    pages_cpu_s, places_cpu_s : float
        For its pages; for places of the rows that it asks for.
    """

    reads_s: float
    pages_cpu_s: float
    places_cpu_s: float

    @property
    def cpu_s(self) -> float:
        """Of the processor."""
        return self.pages_cpu_s + self.places_cpu_s


def nearest(path: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    path = path.absolute()
    return next(p for p in (path, *path.parents) if p.is_dir())


def measured(path: Path, sizes: Sequence[int]) -> Disk | str:
    """The disk of a folder, or why it cannot be had."""
    folder, found, way, page_cpu_s = nearest(path), dict[int, float](), "", 0.0
    try:
        for page_bytes in sizes:
            with RandomReads(folder, page_bytes) as reads:
                pages, seconds, cpu_s = reads.run(MEASURED_S)
                found[page_bytes], way = pages / seconds, reads.way
                page_cpu_s = max(page_cpu_s, cpu_s / pages)
    except (HpcrecError, OSError) as error:
        return str(error)
    return Disk(found, f"measured just now in {folder} by {way}", page_cpu_s)


def predicted_step(step_s: float, beside: Beside) -> float:
    """Seconds of a step of which so many are in memory.

    All that is taken of the processor is added: where every core computes, threads that share a step's work wait for
    the one whose core is taken. Where the disk is slower, it reads nothing while rows are given their places.
    """
    return max(step_s + beside.cpu_s, beside.reads_s + beside.places_cpu_s)


def step_in_memory(config: Config, samples_per_s: float | None) -> tuple[float | None, str]:
    """Seconds of a step with all rows in memory, and where that is from: as given, or of the run in ``run.folder``."""
    if samples_per_s is not None:
        return config.train.batch_size / samples_per_s, "--samples-per-s"
    folder = Path(config.run.folder)
    try:
        if load_config(folder / "config.toml").store.name == "disk":
            return None, ""
        found = float(json.loads((folder / "summary.json").read_text())["throughput"]["samples_per_s"])
    except (HpcrecError, OSError, ValueError, KeyError, TypeError):
        return None, ""
    return (config.train.batch_size / found, f"as of the run in {folder}") if found > 0 else (None, "")


def tier_report(
    config: Config,
    ranks: int | None,
    *,
    counted: Path | None = None,
    samples_per_s: float | None = None,
    reads_per_s: float | None = None,
) -> list[str]:
    """Lines for so many ranks on one host; by default as many as ``memory_report`` takes.

    Raises
    ------
    ConfigError, DataError
        What a run would refuse.
    """
    fewest = config.dense.codistillation.groups * (2 if config.topology.mode == "split" else 1)
    host_of = [0] * (ranks or ranks_asked_for(config) or fewest)
    tiers = tiers_of(config, host_of, counted)
    if isinstance(tiers, str):
        return [f"rows on the disk: not predicted, for {tiers}"]
    if not tiers.parts:
        return ["rows on the disk: none, for all tables are copies"]
    assert config.store.path is not None, "config.keys asks for it"
    sizes = sorted({part.page_bytes for parts in tiers.parts.values() for part in parts})
    if reads_per_s is None:
        disk = measured(Path(config.store.path), sizes)
    else:
        disk = Disk(dict.fromkeys(sizes, reads_per_s), "--reads-per-s")
    step_s, said = step_in_memory(config, samples_per_s)
    plural = "s" * (len(tiers.parts) > 1)
    return [
        f"rows on the disk, with {len(tiers.parts)} owner{plural} on one host:",
        *(f"  {line}" for line in _lines(tiers, config.store, disk, step_s, said)),
    ]


def _lines(tiers: Tiers, store: StoreConfig, disk: Disk | str, step_s: float | None, said: str) -> list[str]:
    assert store.path is not None and store.memory_bytes is not None, "config.keys asks for both"
    path, memory_bytes = Path(store.path), store.memory_bytes
    found = {rank: expect(parts, memory_bytes, tiers.whole) for rank, parts in tiers.parts.items()}
    lines = []
    if all(of is not None for of in found.values()):
        expected = {rank: of for rank, of in found.items() if of is not None}
        lines += _read_lines(tiers, expected)
        if store.window:
            lines.append(f"store.window = {store.window}: reads, and what follows from them, are at most so many")
        beside, predicted_s = None, step_s
        if isinstance(disk, str):
            lines.append(f"disk: not measured ({disk}); give --reads-per-s")
        else:
            beside = disk.beside([(tiers.parts[rank], of) for rank, of in expected.items()])
            rates = ", ".join(f"{n:,.0f} reads/s of {size // 1024} KiB" for size, n in disk.reads_per_s.items())
            lines.append(f"disk: {rates} ({disk.said}): {1e3 * beside.reads_s:,.1f} ms a step for all owners")
            predicted_s = None if step_s is None else predicted_step(step_s, beside)
        lines += _speed_lines(tiers, expected, memory_bytes, beside, step_s, said)
        lines += _written_lines(expected, path, predicted_s)
        if store.daily_bytes is not None:
            lines.append(_budget_line(expected, store.daily_bytes, predicted_s))
    lines += _space_lines(tiers, path)
    lines += _least_lines(tiers, memory_bytes)
    lines += _place_lines(tiers, memory_bytes, disk)
    return lines


def _read_lines(tiers: Tiers, expected: Mapping[int, Expected]) -> list[str]:
    worst = max(expected, key=lambda rank: expected[rank].rows_read)
    of, parts = expected[worst], [part for part in tiers.parts[worst] if part.table not in tiers.whole]
    held, rows = sum(of.held.values()), sum(part.rows for part in parts)
    asked = sum(part.curve.asked for part in tiers.parts[worst])
    who = f"rank {worst}" + (f", the most of {len(expected)}" if len(expected) > 1 else "")
    most = sorted(of.reads.items(), key=lambda item: -item[1])[:5]
    by_table = ", ".join(f"{name} {n:,.1f}" for name, n in most if n >= 0.05)
    return [
        f"reads ({who}): {of.rows_read:,.1f} of {asked:,.1f} rows a step, in {of.pages_read:,.1f} pages of "
        f"{format_bytes(of.read_bytes)} together; memory has {held:,.0f} of {rows:,} rows"
        + (f"; {by_table}" if by_table else ""),
    ]


def _speed_lines(
    tiers: Tiers,
    expected: Mapping[int, Expected],
    memory_bytes: int,
    beside: Beside | None,
    step_s: float | None,
    said: str,
) -> list[str]:
    if step_s is None:
        return ["speed: not predicted; give --samples-per-s, of this run with all rows in memory"]
    allowed_s, pages = step_s / WANTED, sum(of.pages_read for of in expected.values())
    if beside is None:
        return []
    speed = (
        f"speed: {step_s / predicted_step(step_s, beside):.2f} of that in memory, where a step takes "
        f"{1e3 * step_s:,.1f} ms ({said}), reads beside it {1e3 * beside.reads_s:,.1f} of the disk, and with places "
        f"for rows {1e3 * beside.cpu_s:,.1f} of cores that are busy"
    )
    left_s = allowed_s - step_s - beside.places_cpu_s  # of the processor, for pages
    if left_s <= 0:
        return [speed, f"{WANTED} of it {_ALL}"]
    lines, reading_s = [speed], allowed_s - beside.places_cpu_s
    if beside.reads_s > reading_s and allowed_s >= step_s + beside.cpu_s:
        lines.append(f"{WANTED} of it takes a disk of {pages / reading_s:,.0f} reads/s, or")
    if beside.reads_s > 0:
        most = min(reading_s / beside.reads_s, left_s / beside.pages_cpu_s if beside.pages_cpu_s > 0 else math.inf)
        lines.append(f"{WANTED} of it {_memory_text(tiers, memory_bytes, pages * most)}")
    return lines


def _memory_text(tiers: Tiers, memory_bytes: int, pages: float) -> str:
    """The memory with which owners read so many pages a step."""
    total = max(sum(part.n_bytes for part in parts) for parts in tiers.parts.values())
    enough = memory_for(list(tiers.parts.values()), pages, tiers.whole)
    if enough is None or enough >= total:
        return _ALL
    less = "" if enough > memory_bytes else f"; there are {memory_bytes:,}"
    return f"takes store.memory_bytes = {enough:,}, 1/{total / enough:.1f} of the rows' bytes{less}"


def _written_lines(expected: Mapping[int, Expected], path: Path, step_s: float | None) -> list[str]:
    a_step = WRITTEN_OF_HANDED * sum(of.handed_bytes for of in expected.values())
    line = f"writes: {format_bytes(a_step)} a step once memory is full"
    if step_s is not None:
        a_day = a_step * _DAY_S / step_s
        room = os.statvfs(nearest(path))
        size = room.f_blocks * room.f_frsize
        line += f", {format_bytes(a_day)} a day, {a_day / size:.2f} times what {nearest(path)} has"
    return [line]


def _budget_line(expected: Mapping[int, Expected], daily_bytes: int, step_s: float | None) -> str:
    """Of the owner that writes most."""
    worst = max(expected, key=lambda rank: expected[rank].handed_bytes)
    a_step = WRITTEN_OF_HANDED * expected[worst].handed_bytes
    least_s = a_step * _DAY_S / daily_bytes
    line = f"budget: store.daily_bytes = {daily_bytes:,} lets rank {worst} begin a step every {1e3 * least_s:,.1f} ms"
    if step_s is None:
        return line
    if least_s <= step_s:
        return f"{line}, and steps take {1e3 * step_s:,.1f}: they do not wait for it"
    return (
        f"{line}, {least_s / step_s:.1f} times what steps take: they wait for it; for none to wait it takes "
        f"{a_step * _DAY_S / step_s:,.0f}"
    )


def _space_lines(tiers: Tiers, path: Path) -> list[str]:
    wanted = sum(disk_bytes(parts, tiers.whole) for parts in tiers.parts.values())
    room = os.statvfs(nearest(path))
    free = room.f_bavail * room.f_frsize
    short = "" if wanted <= free else ": too little once all rows are written"
    return [f"space: up to {format_bytes(wanted)}; {format_bytes(free)} are free in {nearest(path)}{short}"]


def _least_lines(tiers: Tiers, memory_bytes: int) -> list[str]:
    """The least memory, and the largest ratio, of the owner that can save the least."""
    least = {rank: least_bytes(parts, tiers.whole) for rank, parts in tiers.parts.items()}
    lines, worst = [], max(least, key=lambda rank: least[rank])
    if memory_bytes < least[worst]:
        lines.append(f"store.memory_bytes is {memory_bytes:,}, but rank {worst} needs {least[worst]:,} or more")
    ratios = {}
    for rank, parts in tiers.parts.items():
        n_bytes, maps = sum(part.n_bytes for part in parts), tiers.map_bytes[rank]
        ratios[rank] = (n_bytes + maps) / (least[rank] + maps), n_bytes, maps
    ratio, n_bytes, maps = min(ratios.values())
    beside = f", maps of ids ({format_bytes(maps)}) included" if maps else ""
    lines.append(
        f"least: store.memory_bytes = {least[worst]:,}; rows take {format_bytes(n_bytes)}, so at most {ratio:.1f} "
        f"times less{beside}"
    )
    return lines


def _place_lines(tiers: Tiers, memory_bytes: int, disk: Disk | str) -> list[str]:
    """Which tables should be whole: by time, and those of which a step asks for much."""
    owners = list(tiers.parts.values())
    rates = {} if isinstance(disk, str) else disk.reads_per_s
    read_s = {part.page_bytes: 1 / rates.get(part.page_bytes, 1.0) for parts in owners for part in parts}
    placed = place(owners, memory_bytes, read_s)
    now, then = (_reads(owners, memory_bytes, whole) for whole in (tiers.whole, placed))
    lines = []
    if then is not None and (now is None or then < _GAIN * now):
        names = ", ".join(json.dumps(name) for name in sorted(placed))
        lines.append(f"better: store.whole = [{names}], {then:,.1f} reads a step of all owners in place of "
                     + ("an error" if now is None else f"{now:,.1f}"))  # fmt: skip
    large = {
        part.table: part.curve.asked / part.rows
        for parts in owners
        for part in parts
        if part.table not in tiers.whole and part.curve.asked >= LARGE_PART * part.rows
    }
    if large:
        names = ", ".join(f"{name} ({share:.0%})" for name, share in sorted(large.items(), key=lambda i: -i[1]))
        lines.append(f"keep in memory (store.whole) tables of which a step asks for a tenth of all rows: {names}")
    return lines


def _reads(owners: Sequence[Sequence[TierPart]], memory_bytes: int, whole: Collection[str]) -> float | None:
    found = [expect(parts, memory_bytes, whole) for parts in owners]
    return None if any(of is None for of in found) else sum(of.pages_read for of in found if of is not None)
