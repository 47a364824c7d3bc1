"""What the page shows of one run beside its curves: tables, and bars by rank, in sections that each have a title.

Every section is made of a summary, and is left out where the summary, as that of a run that failed or goes on, says
nothing of it. Rows that a terminal shows too are those of ``training.report``. Knows the keys of summary.json; nothing
of HTML.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrec.report_page.compare import flat, shown
from hpcrec.report_page.folder import Ran
from hpcrec.training import attempts, report, times
from hpcrec.training.copies import copies_rows
from hpcrec.units import format_bytes

TICKS = 8  # numbers under bars, at most
_OWNED = (
    "rows",
    "bytes",
    "steps",
    "lookups_per_step",
    "distinct_per_step",
    "read_ms",
    "find_ms",
    "gather_ms",
    "update_ms",
)
_TIMES = {**times.KINDS, "unaccounted_s": "unaccounted"}


@dataclass(frozen=True)
class Table:
    """Rows whose first cell is their name.

    Attributes
    ----------
    rows : sequence of sequence of str
    heads : sequence of str
        Of the columns; empty: none are shown.
    folded : str
        What the table is, where it is shown only when asked for; empty: it is shown.
    shares : sequence of sequence of float
        By row, lengths of a bar's parts in per cent; empty: there are no bars.
    parts : sequence of str
        Names of these.
    """

    rows: Sequence[Sequence[str]]
    heads: Sequence[str] = ()
    folded: str = ""
    shares: Sequence[Sequence[float]] = ()
    parts: Sequence[str] = ()
    kind: str = "table"


@dataclass(frozen=True)
class Column:
    """A stacked bar: its name, what a pointer on it says, and the heights of its parts in per cent of the highest."""

    name: str
    says: str
    heights: Sequence[float]


@dataclass(frozen=True)
class Columns:
    """Stacked bars beside each other.

    Attributes
    ----------
    label : str
        What is shown, for who does not see it.
    most : str
        What a full height is.
    parts : sequence of str
        Names of the parts of a bar, from below.
    columns : sequence of Column
    note : str
        Under the bars.
    """

    label: str
    most: str
    parts: Sequence[str]
    columns: Sequence[Column]
    note: str = ""
    kind: str = "columns"

    @property
    def every(self) -> int:
        """Each so many-th bar has its name under it."""
        return -(-len(self.columns) // TICKS)


@dataclass(frozen=True)
class Text:
    """Text as it is, with its line breaks."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Section:
    """A title and what is under it; ``folded`` sections are opened by the reader."""

    title: str
    items: Sequence[Table | Columns | Text]
    folded: bool = False


def sections_of(run: Ran) -> list[Section]:
    """All sections of a run, in the order in which they are shown."""
    found = [section for make in _SECTIONS for section in make(run.summary)] if run.summary else []
    if run.attempts:
        found.append(Section("Attempts", [Table(run.attempts, attempts.ROW_HEADS)]))
    data = flat(run.config.get("data", {}), "data")
    if data:
        found.append(Section("Data", [Table([(key, shown(value)) for key, value in data.items()])], folded=True))
    for title, key in (("Topology", "topology"), ("Versions", "versions")):
        if rows := [(str(name), str(value)) for name, value in run.summary.get(key, {}).items()]:
            found.append(Section(title, [Table(rows)], folded=True))
    if run.config_text:
        found.append(Section("Configuration", [Text(run.config_text)], folded=True))
    return found


def bars(
    label: str,
    of: Mapping[str, Sequence[float]],
    parts: Sequence[str],
    told: Callable[[float], str],
    note: str = "",
) -> Columns:
    """Stacked bars of numbers, none of them negative.

    Parameters
    ----------
    of : mapping of str to sequence of float [parts]
        By name of the bar.
    told : callable
        Writes a number with its unit.
    """
    highest = max((sum(values) for values in of.values()), default=0.0)
    columns = [
        Column(
            name,
            f"{label.partition(':')[0]} {name}: "
            + ", ".join(f"{part} {told(value)}".strip() for part, value in zip(parts, values, strict=True)),
            [round(100 * value / highest, 2) if highest else 0.0 for value in values],
        )
        for name, values in of.items()
    ]
    return Columns(label, told(highest), parts, columns, note)


def ranges(numbers: Iterable[int]) -> str:
    """``0 to 3, 7``: numbers, those that follow each other as one range."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


def _times(summary: Mapping[str, Any]) -> Iterator[Section]:
    ranks = summary["time"]["ranks"]
    if not ranks:
        return
    of = {rank: [found[kind] for kind in _TIMES] for rank, found in ranks.items()}
    by_role: dict[str, list[int]] = {}
    for rank, found in ranks.items():
        by_role.setdefault(found["role"], []).append(int(rank))
    note = "; ".join(f"{role}: rank{'s' * (len(of_role) > 1)} {ranges(of_role)}" for role, of_role in by_role.items())
    rows = [
        (f"rank {rank} ({found['role']})", *(f"{found[kind]:.2f} s" for kind in ("whole_s", *_TIMES)))
        for rank, found in ranks.items()
    ]
    shown_bars = bars("rank: seconds of each rank by what it did", of, list(_TIMES.values()), "{:.4g} s".format, note)
    yield Section("Time by rank", [shown_bars, Table(rows, ("", "whole", *_TIMES.values()), "Times as a table")])
    for title, parts in times.tables(summary["time"]):
        yield Section(title, [Table(parts, times.HEADS)], folded=True)


def _bytes(summary: Mapping[str, Any]) -> Iterator[Section]:
    sent = {tag: (n["same_host"], n["cross_host"]) for tag, n in summary["wire_bytes"].items()}
    most = max(map(sum, sent.values()), default=0)
    if not most:
        return
    rows = [row for row in report.wire_rows(summary) if sum(sent[row[0]])]
    shares = [[round(100 * n / most, 2) for n in sent[row[0]]] for row in rows]
    heads = ("", "same host", "across hosts", "a step")
    items: list[Table | Columns | Text] = [Table(rows, heads, shares=shares, parts=heads[1:3])]
    if none := [tag for tag, n in sent.items() if not sum(n)]:
        items.append(Table([("nothing sent as", ", ".join(none))]))
    yield Section("Bytes sent, all ranks", items)


def _memory(summary: Mapping[str, Any]) -> Iterator[Section]:
    peaks = summary["peak_rss_bytes"]
    if not peaks:
        return
    label = "rank: the most memory that each rank held"
    rows = [(f"rank {rank}", format_bytes(n)) for rank, n in peaks.items()]
    shown_bars = bars(label, {rank: [float(n)] for rank, n in peaks.items()}, [""], format_bytes)
    yield Section("Most memory", [shown_bars, Table(rows, folded="Memory as a table")])


def _owners(summary: Mapping[str, Any]) -> Iterator[Section]:
    owners = summary["owners"]
    if not owners:
        return
    work = ("read", "find", "gather", "update")
    held = {rank: [float(owner["bytes"])] for rank, owner in owners.items()}
    worked = {rank: [owner[f"{kind}_ms"] for kind in work] for rank, owner in owners.items()}
    items: list[Table | Columns | Text] = [bars("owner: bytes of rows with their state", held, [""], format_bytes)]
    if any(map(any, worked.values())):
        items.append(bars("owner: milliseconds of work in a step", worked, work, "{:.3g} ms".format))
    if even := report.imbalance_rows(summary):
        items.append(Table(even))
    items.append(Table(report.owner_rows(summary), report.OWNER_HEADS, "Owners as a table"))
    yield Section("Owners", items)
    figures = dict.fromkeys(key for owner in owners.values() for key in owner if key not in _OWNED)
    if figures:
        said = [(key, [float(o[key]) for o in owners.values() if key in o]) for key in figures]
        tiers = [
            (
                key.replace("_", " "),
                *(_figure(key, value) for value in (min(n), statistics.median(n), max(n))),
            )
            for key, n in said
        ]
        yield Section("Tiers: what owners' stores did", [Table(tiers, ("over owners", "least", "median", "most"))])


def _figure(key: str, value: float) -> str:
    """A figure of a store, by what the end of its name says of its unit."""
    if "bytes" in key:
        return format_bytes(value)
    if key.endswith("_s"):
        return f"{value:.3g} s"
    if key.endswith(("_hits", "_behind")):
        return f"{value:.1%}"
    return f"{value:,.6g}"


def _staleness(summary: Mapping[str, Any]) -> Iterator[Section]:
    ages = {age: int(n) for age, n in summary["read_age"].items()}
    if not (total := sum(ages.values())):
        return
    rows = [(f"{age} update{'s' * (age != '1')}", f"{n / total:.1%}", f"{n:,} rows") for age, n in ages.items()]
    shares = [[round(100 * n / total, 2)] for n in ages.values()]
    heads = ("lacked", "share", "read")
    yield Section("Staleness of rows when they were read", [Table(rows, heads, shares=shares, parts=[""])])


def _others(summary: Mapping[str, Any]) -> Iterator[Section]:
    if calibrated := report.calibration_rows(summary):
        yield Section("Calibration", [Table(calibrated, report.CALIBRATION_HEADS)], folded=True)
    if found := report.compression_rows(summary):
        yield Section("Thresholded", [Table(found)])
    if copied := copies_rows(summary):
        yield Section("Copies of rows on dense ranks", [Table(copied)])
    if chosen := report.choice_rows(summary):
        yield Section("Forms chosen", [Table(chosen)])
    if dynamic := report.dynamic_rows(summary):
        yield Section("Dynamic tables", [Table(dynamic, report.DYNAMIC_HEADS)])


_SECTIONS = (_times, _bytes, _staleness, _owners, _memory, _others)
