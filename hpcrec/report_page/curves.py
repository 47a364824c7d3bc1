"""Curves of metrics.jsonl: which quantities belong in one chart, by step and by time, and thinned for the page.

Knows names of metrics and lines; nothing of how curves are drawn.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpcrec.report_page.folder import Ran
from hpcrec.training.metric_names import DEFAULT, KINDS, is_own

MOST_POINTS = 2000  # of a curve, above which it is thinned
PAGE_POINTS = 40_000  # of all curves of a page, each of about 25 bytes
LEAST_POINTS = 120  # of a thinned curve, however many there are
TRAINING, VALIDATION = "training", "validation"
SPEED = {  # keys of lines that are no metrics, with their charts
    "wire_bytes_per_step": "bytes sent a step",
    "read_age_mean": "updates that rows lacked, mean",
    "copies.hit_rate": "share of reads from copies",
    "memory_bytes": "memory, the most of a rank",
}
BYTES = tuple(chart for key, chart in SPEED.items() if "bytes" in key)
RATE = "samples/s"


@dataclass(frozen=True)
class Curve:
    """One quantity of one run, in the order of its steps.

    Attributes
    ----------
    run : int
        Which of the page's runs.
    kind : str
        ``training`` or ``validation``.
    of : str
        The label or group of samples that it is of; empty: of all.
    steps, seconds_s, values : sequences, all of one length
        ``seconds_s`` is how long the run had been under way, pauses between its attempts left out.
    """

    run: int
    kind: str
    of: str = ""
    steps: list[int] = field(default_factory=list)
    seconds_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """Curves that share an axis.

    Attributes
    ----------
    name : str
    curves : sequence of Curve
    attainable : mapping of int to float
        By run, the value that its data set says can be had.
    """

    name: str
    curves: Sequence[Curve]
    attainable: Mapping[int, float] = field(default_factory=dict)


def charts_of(runs: Sequence[Ran]) -> list[Chart]:
    """All charts of some runs, in the order in which they are shown; those without two points in any curve left out."""
    found: dict[str, dict[tuple[int, str, str], Curve]] = {}
    for i, run in enumerate(runs):
        seconds_s = running_s([_time(line) for line in run.lines], run.spans_s)
        for line, at_s in zip(run.lines, seconds_s, strict=True):
            for chart, kind, of, value in _quantities(line):
                curve = found.setdefault(chart, {}).setdefault((i, kind, of), Curve(i, kind, of))
                curve.steps.append(line["step"])
                curve.seconds_s.append(at_s)
                curve.values.append(value)
        if rate := _rate(i, run, seconds_s):
            found.setdefault(RATE, {})[i, TRAINING, ""] = rate
    names = sorted(found, key=lambda name: (_rank(name), list(found).index(name)))
    charts = [Chart(name, list(found[name].values()), _attainable(name, runs)) for name in names]
    return [chart for chart in charts if any(len(curve.steps) > 1 for curve in chart.curves)]


def thinned(charts: Sequence[Chart]) -> tuple[list[Chart], int]:
    """Charts of which no curve has more points than the page has room for, and how many that is; 0: none is thinned."""
    most = most_points(sum(len(chart.curves) for chart in charts))
    if all(len(curve.steps) <= most for chart in charts for curve in chart.curves):
        return list(charts), 0
    return [Chart(c.name, [_thin(curve, most) for curve in c.curves], c.attainable) for c in charts], most


def most_points(n_curves: int) -> int:
    """Of each of so many curves of a page."""
    return max(LEAST_POINTS, min(MOST_POINTS, PAGE_POINTS // max(n_curves, 1)))


def kept_points(values: Sequence[float], most: int) -> list[int]:
    """Which of a curve's points are drawn: of each of ``most // 4`` stretches the first, lowest, highest and last.

    So the curve looks the same: within a stretch it covers what all points would.
    """
    n = len(values)
    if n <= most:
        return list(range(n))
    stretches = max(most // 4, 1)
    kept: set[int] = set()
    for k in range(stretches):
        inside = range(n * k // stretches, n * (k + 1) // stretches)
        kept |= {inside[0], min(inside, key=values.__getitem__), max(inside, key=values.__getitem__), inside[-1]}
    return sorted(kept)


def running_s(times_s: Sequence[float | None], spans_s: Sequence[tuple[float, float]]) -> list[float]:
    """For how long a run had been under way at some times of day, pauses between its attempts left out.

    Parameters
    ----------
    times_s : sequence of float or None
        Seconds since the epoch; where one is not known, it is taken for the one before.
    spans_s : sequence of (float, float)
        Attempts. Where they do not reach back to the first time, the run is taken to have begun with it.
    """
    known = [at_s for at_s in times_s if at_s is not None]
    if not known:
        return [0.0] * len(times_s)
    spans = list(spans_s) if spans_s and spans_s[0][0] <= known[0] else [(known[0], max(known))]
    found: list[float] = []
    last_s = known[0]
    for at_s in times_s:
        last_s = last_s if at_s is None else at_s
        found.append(sum(min(max(last_s - from_s, 0.0), to_s - from_s) for from_s, to_s in spans))
    return found


def _thin(curve: Curve, most: int) -> Curve:
    kept = kept_points(curve.values, most)
    steps, seconds_s = [curve.steps[i] for i in kept], [curve.seconds_s[i] for i in kept]
    return replace(curve, steps=steps, seconds_s=seconds_s, values=[curve.values[i] for i in kept])


def _quantities(line: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    """What a line has for charts: (chart, kind, of, value)."""
    for key, value in line.items():
        named: tuple[str, str, str] | None = None
        if key == "loss" or key in SPEED:
            named = SPEED.get(key, key), TRAINING, ""
        for kind, prefix in ((TRAINING, "train_"), (VALIDATION, "validation_")):
            if key.startswith(prefix):
                named = _metric(key.removeprefix(prefix), kind)
        if named is None:
            continue
        if isinstance(value, list):  # of groups of ranks, each of which trains a model
            for group, one in enumerate(value):
                if _is_number(one):
                    yield named[0], named[1], f"{named[2]} group {group}".strip(), float(one)
        elif _is_number(value):
            yield *named, float(value)


def _metric(name: str, kind: str) -> tuple[str, str, str] | None:
    """The chart of a metric, and the label that it is of: that is in front of its name. None of what is no metric."""
    if is_own(name):
        return name, kind, ""
    plain, at, k = name.partition("@")
    known = [metric for metric in KINDS if plain == metric or plain.endswith(f"_{metric}")]
    if not known:
        return None
    metric = max(known, key=len)  # pr_auc is no auc
    return metric + at + k, kind, plain.removesuffix(metric).removesuffix("_")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _time(line: Mapping[str, Any]) -> float | None:
    at_s = line.get("time")
    return float(at_s) if isinstance(at_s, int | float) and _is_number(at_s) else None


def _rate(i: int, run: Ran, seconds_s: Sequence[float]) -> Curve | None:
    """Samples a second from one logged line of steps to the next, with what else was done between them."""
    batch = run.config.get("train", {}).get("batch_size")
    if not isinstance(batch, int):
        return None
    curve = Curve(i, TRAINING)
    logged = [(line["step"], at_s) for line, at_s in zip(run.lines, seconds_s, strict=True) if "loss" in line]
    for (step, at_s), (next_step, next_s) in itertools.pairwise(logged):
        if next_s > at_s and next_step > step:
            curve.steps.append(next_step)
            curve.seconds_s.append(next_s)
            curve.values.append(batch * (next_step - step) / (next_s - at_s))
    return curve if curve.steps else None


def _rank(name: str) -> int:
    """The loss first, then metrics that every run has, then others, then what is no metric."""
    if name == "loss":
        return 0
    if name in DEFAULT:
        return 1 + DEFAULT.index(name)
    after = [*SPEED.values()]
    return 100 if name == RATE else 101 + after.index(name) if name in after else 50


def _attainable(name: str, runs: Sequence[Ran]) -> dict[int, float]:
    found = {i: run.summary.get("eval", {}).get(f"attainable_{name}") for i, run in enumerate(runs)}
    return {i: float(value) for i, value in found.items() if value is not None}
