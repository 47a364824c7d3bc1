"""Writes the report page: what is on it, filled into the template, with its script and style inside the one file.

Curves are JSON that no text in it can end early. Knows how a page is put together; what is on it comes from
``sections``, ``curves`` and ``compare``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcrec.data.files import write_text
from hpcrec.errors import DataError
from hpcrec.report_page.compare import differences
from hpcrec.report_page.curves import BYTES, RATE, SPEED, TRAINING, Chart, Curve, charts_of, thinned
from hpcrec.report_page.filled import filled_in, texts
from hpcrec.report_page.folder import Ran, of_ended
from hpcrec.report_page.sections import Section, Table, sections_of
from hpcrec.training import report
from hpcrec.training.ended import ended_words, metrics_of
from hpcrec.training.metric_names import TABLES
from hpcrec.training.slow_ranks import describe
from hpcrec.training.telemetry import as_json
from hpcrec.training.times import WAITS_FOR, steps_of
from hpcrec.units import format_bytes, format_duration

FILE = "report.html"
_SCRIPTS = ("uplot/uPlot.iife.min.js", "page.js")
_TILES = 3  # metrics among the large figures, at most
_TONES = {"finished": "good", "stopped": "wait", "failed": "bad", "cut off": "bad"}
_UNENDED = {
    "running": "It is running: this page shows what it has written so far.",
    "unknown": "It has not written how it ended: it is running, or was cut off. This page shows what it has written.",
    "cut off": "It was cut off without a word, as when it is killed. This page shows what it had written.",
}


@dataclass(frozen=True)
class Tile:
    """A large figure: what it is, its value, and a word on it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class View:
    """A run as the template shows it.

    Attributes
    ----------
    run : Ran
    tone : str
        Of its state: ``good``, ``wait``, ``bad`` or ``open``.
    why : str
        How it ended, in a sentence.
    error : sequence of str
        What it failed with: the first line, and the rest; empty where it did not.
    slow : sequence of str
        Ranks that were slow for their work.
    advice : sequence of str
        What to do, in sentences.
    tiles : sequence of Tile
    waited : sequence of (str, float)
        What steps waited for, in per cent of their time.
    computed : str
        What they computed in the rest of it.
    rows : sequence of (str, str)
        All that is said of the result.
    sections : sequence of Section
    """

    run: Ran
    tone: str
    why: str
    error: Sequence[str]
    slow: Sequence[str]
    advice: Sequence[str]
    tiles: Sequence[Tile]
    waited: Sequence[tuple[str, float]]
    computed: str
    rows: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def write_report(folder: Path, summary: Mapping[str, Any]) -> Path:
    """Writes report.html of a run that ends with this summary, into its folder; returns its path.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    folder = Path(folder)
    return write_page([of_ended(folder, as_json(summary))], folder / FILE)


def write_page(runs: Sequence[Ran], path: Path) -> Path:
    """Writes the page of some runs; returns its path.

    Raises
    ------
    DataError
        A run's files hold something else than a run writes there.
    OutputError
        It cannot be written.
    """
    write_text(path, page(runs))
    return path


def page(runs: Sequence[Ran]) -> str:
    """The page of some runs, as text; raises as ``write_page``."""
    try:
        return filled_in("runs.html", {**_shown(runs), "scripts": [texts([name]) for name in _SCRIPTS]})
    except (AttributeError, IndexError, OverflowError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{', '.join(str(run.folder) for run in runs)}: files hold something else than this release of hpcrec "
            f"writes there ({type(error).__name__}: {error}). Leave such a run out, or write its page with the release "
            "that ran it."
        ) from error


def _shown(runs: Sequence[Ran]) -> dict[str, Any]:
    """What the template is filled with."""
    views = [_view(run) for run in runs]
    charts, most = thinned(charts_of(runs))
    curves = [_learned(chart, runs) for chart in charts if chart.name != RATE and chart.name not in SPEED.values()]
    speed = [_learned(chart, runs) for chart in charts if chart.name == RATE or chart.name in SPEED.values()]
    several = len(runs) > 1
    return {
        "title": ", ".join(f"{run.name}: {run.state}" for run in runs),
        "views": views,
        "groups": [group for group in (("Learning curves", curves), ("Speed and traffic", speed)) if group[1]],
        "data": {"charts": [chart["drawn"] for chart in curves + speed]},
        "most": most,
        "left_out": [(run.name, run.left_out) for run in runs if run.left_out],
        "overview": _overview(views) if several else None,
        "differences": _differences(runs) if several else [],
    }


# ---- a run -----------------------------------------------------------------------------------------------------------


def _view(run: Ran) -> View:
    summary = run.summary
    step_rows = dict(report.step_rows(summary)) if summary else {}
    return View(
        run=run,
        tone=_TONES.get(run.state, "open"),
        why=_why(run),
        error=[part for part in str(summary.get("error") or "").partition("\n")[::2] if part],
        slow=[describe(rank) for rank in summary.get("slow_ranks", [])],
        advice=[str(said) for said in summary.get("advice") or ()],
        tiles=_tiles(run) if summary else _tiles_so_far(run),
        waited=_waited(summary) if step_rows else [],
        computed=step_rows.get("steps compute", ""),
        rows=report.quality_rows(summary) if summary else _rows_so_far(run),
        sections=sections_of(run),
    )


def _why(run: Ran) -> str:
    if not run.summary:
        said = _UNENDED.get(run.state, f"Its state is: {run.state}.")
        times_s = [line["time"] for line in run.lines if isinstance(line.get("time"), int | float)]
        last = f"{datetime.fromtimestamp(times_s[-1], UTC):%Y-%m-%d %H:%M:%S}" if times_s else ""
        return said + (f" Its last line is of {last} UTC." if last else "")
    said = ended_words(run.summary) or ""
    return f"{said[:1].upper()}{said[1:]}." if said else ""


def _tiles(run: Ran) -> list[Tile]:
    summary = run.summary
    tiles = list[Tile]()
    found = metrics_of({k: v for k, v in summary["eval"].items() if not k.startswith("attainable_")})
    for name, value in found.items():
        if isinstance(value, int | float) and len(tiles) < _TILES:
            most = summary["eval"].get(f"attainable_{name.rpartition(' ')[2]}")
            tiles.append(
                Tile(name.replace("_", " "), f"{value:.4f}", "" if most is None else f"of {most:.4f} attainable")
            )
    throughput = summary["throughput"]
    tiles.append(Tile("samples/s", f"{throughput['samples_per_s']:,.0f}", f"{summary['samples']:,} samples"))
    step_ms = throughput["step_ms"]
    tiles.append(Tile("step, median", _ms(step_ms["p50"]), f"{_ms(step_ms['p95'])} 95th percentile"))
    if tries := summary.get("attempts"):
        n = tries["number"]
        tiles.append(Tile("time", format_duration(tries["total_s"]), f"{n} attempt{'s' * (n != 1)}"))
    if peaks := summary["peak_rss_bytes"]:
        tiles.append(Tile("most memory", format_bytes(max(peaks.values())), "of one rank"))
    return tiles


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else format_duration(milliseconds / 1000)


def _tiles_so_far(run: Ran) -> list[Tile]:
    steps = [Tile("step", f"{run.lines[-1]['step']:,}", "so far")] if run.lines else []
    return steps + [Tile(name, value) for name, value in _rows_so_far(run)[2:5]]


def _rows_so_far(run: Ran) -> list[tuple[str, str]]:
    """What is known of a run without a summary: the last that was written of its loss, metrics and speed."""
    rows = [("status", run.state), ("steps", f"{run.lines[-1]['step']:,} so far" if run.lines else "none so far")]
    for chart in charts_of([run]):
        for curve in chart.curves:
            if curve.values and chart.name == RATE:
                rows.append((RATE, f"{curve.values[-1]:,.0f}"))
            elif curve.values and chart.name not in SPEED.values():
                name = " ".join(filter(None, (curve.kind, curve.of, chart.name)))
                rows.append((name, f"{curve.values[-1]:,.6g}"))
    return rows


def _waited(summary: Mapping[str, Any]) -> list[tuple[str, float]]:
    found = steps_of(summary["time"])
    steps_s = sum(found.values())
    return [(word, 100 * found[f"wait for {word}"] / steps_s) for word in WAITS_FOR.values()]


# ---- several runs ----------------------------------------------------------------------------------------------------


def _overview(views: Sequence[View]) -> Table:
    """All that is said of the results but long tables, a column for each run."""
    every = [dict(view.rows) for view in views]
    names = dict.fromkeys(name for rows in every for name in rows if not any(table in name for table in TABLES))
    rows = [(name, *(rows.get(name, "") for rows in every)) for name in names]
    return Table(rows, ("", *(view.run.name for view in views)))


def _differences(runs: Sequence[Ran]) -> list[tuple[str, Table | None]]:
    """What differs in configuration, and in versions and topology of runs that have a summary; None: nothing does."""
    ended = [run for run in runs if run.summary]
    found: list[tuple[str, Table | None]] = []
    for title, of, every in (
        ("configuration", runs, [run.config for run in runs]),
        ("versions", ended, [run.summary["versions"] for run in ended]),
        ("topology", ended, [run.summary["topology"] for run in ended]),
    ):
        if len(of) > 1:
            rows = differences(every)
            found.append((title, Table(rows, ("", *(run.name for run in of))) if rows else None))
    return found


# ---- curves ----------------------------------------------------------------------------------------------------------


def _learned(chart: Chart, runs: Sequence[Ran]) -> dict[str, Any]:
    """A chart: what the script draws, a sentence on it, and its numbers as a table."""
    names = [_name(curve, chart, runs) for curve in chart.curves]
    levels = {f"attainable{'' if len(runs) == 1 else f', {runs[i].name}'}": y for i, y in chart.attainable.items()}
    if len(set(levels.values())) == 1:
        levels = {"attainable": next(iter(levels.values()))}
    several_kinds = len({curve.kind for curve in chart.curves}) > 1
    told = format_bytes if chart.name in BYTES else "{:,.6g}".format
    rows = []
    for name, curve in zip(names, chart.curves, strict=True):
        at = {curve.values.index(end): end for end in (min(curve.values), max(curve.values))}
        low, high = min(at, key=at.__getitem__), max(at, key=at.__getitem__)
        between = (f"{told(curve.values[i])} (step {curve.steps[i]:,})" for i in (low, high))
        rows.append((name, told(curve.values[0]), *between, told(curve.values[-1])))
    rows += [(name, "", "", "", told(value)) for name, value in levels.items()]
    return {
        "name": chart.name,
        "says": "; ".join(f"{row[0]}: from {row[1]} to {row[4]}" if row[1] else f"{row[0]}: {row[4]}" for row in rows),
        "table": Table(rows, ("", "first", "lowest", "highest", "last"), folded="Numbers"),
        "drawn": {
            "name": chart.name,
            "bytes": told is format_bytes,
            "curves": [
                _drawn(curve, name, curve.run if len(runs) > 1 else None, thin=several_kinds and curve.kind == TRAINING)
                for curve, name in zip(chart.curves, names, strict=True)
            ],
            "levels": [[name, value] for name, value in levels.items()],
        },
    }


def _name(curve: Curve, chart: Chart, runs: Sequence[Ran]) -> str:
    only = all(other.kind == TRAINING for other in chart.curves) and chart.name != "loss" and not curve.of
    kind = "" if only else f"{curve.kind} {curve.of}".strip()
    return ", ".join(filter(None, (runs[curve.run].name if len(runs) > 1 else "", kind))) or chart.name


def _drawn(curve: Curve, name: str, run: int | None, *, thin: bool) -> dict[str, Any]:
    """What the script draws; ``run`` is the one whose color it has, on a page of several."""
    return {
        "name": name,
        "run": run,
        "training": curve.kind == TRAINING,
        "thin": thin,
        "step": curve.steps,
        "time": [round(at_s, 3) for at_s in curve.seconds_s],
        "value": [float(f"{value:.6g}") for value in curve.values],
    }
