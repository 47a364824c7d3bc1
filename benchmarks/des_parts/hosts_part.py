"""Time of a step across emulated hosts with slow links, beside the bytes, and beside what is predicted of it.

4 hosts of this machine, a rank on each, links of 1 Gbit/s both ways, made by the scripts of --cluster; owners read ids.
All hosts share the cores, so that the links have to be slow for a step to show them. ``bytes_saved`` and ``time_saved``
are shares of those of ``rows``.

Predicted is

    step = compute + rounds x latency + bytes of values / bandwidth + bytes of gradients and dense sums / bandwidth

``compute``: a step of the same configuration with the same ranks on this machine without the hosts, less what its
messages take when they are sent again there with nothing between them (``rank.sent_again``). Times of steps, there and
here, are medians of ``REPEATS`` runs, all configurations one after the other, over and over. Bytes: of the ledger,
those that cross the link and direction that most of that phase cross; the phases follow each other. ``latency`` and
``bandwidth``: measured by ``links`` in the same launch as the steps, before and after them, medians; the bandwidth is
that of messages from all owners to all dense ranks that put as many bytes on a link, between sizes measured by
interpolation. ``rounds``: values, agreement on finite gradients (there and back), gradients. Nothing is fitted to the
steps measured. ``des.step_time_error``: largest difference of the two as a share of what was measured.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim
from des_parts import cells
from des_parts.cells import Row, Shape
from on_ranks import launch

from hpcrec.comm.ledger import TAGS

STEPS, LONG_STEPS, ROUNDS, ERROR = 12, 36, 4, 0.15  # the second where a step takes milliseconds
REPEATS = 3
AHEAD = 4  # steps at the ends of a run that are not timed: more than are read and routed ahead
PHASES = (("values",), ("gradients", "dense"))
QUICK_MODELS, QUICK_SHAPES = ("fm",), ("multihot",)


def measure(data: dict[str, Path], cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    reason = launch.why_no_hosts(cluster)
    if reason is not None:
        print(f"hosts: skipped, {reason}", flush=True)
        return [{"hosts": "skipped", "result": reason}], claims([])
    every = [s for s in cells.SHAPES if s.data in data and (not quick or s.name in QUICK_SHAPES)]
    models = QUICK_MODELS if quick else cells.MODELS
    wanted = [(shape, model, form) for shape in every for model in models for form in cells.FORMS]
    # A rank alone on its host would take all cores for its own, and here the hosts share them.
    settings = ["topology.owner_threads=1", "topology.dense_threads=1"]
    jobs = [job(shape, data[shape.data], model, form, settings) for shape, model, form in wanted]
    repeats = 1 if quick else REPEATS
    here = medians(list(launch.local([{**job, "again": True} for job in jobs * repeats])), len(jobs))
    links: Row = {"kind": "links"}
    before, *found, after = launch.on_hosts([links, *jobs * repeats, links], cluster)
    there = medians(found, len(jobs))
    latency_s, points = joined(before, after)
    rows: list[Row] = []
    for (shape, model, form), local, across in zip(wanted, here, there, strict=True):
        predicted_s = local["compute_s"] + links_s(across["bytes_TRR"], latency_s, points)
        rows.append(row(shape, model, form, local, across, predicted_s))
    add_savings(rows)
    for r in rows:
        cells.show(r)
    made = claims(rows)
    return [*rows, *link_rows(latency_s, points)], made


def job(shape: Shape, data: Path, model: str, form: str, settings: Sequence[str]) -> Row:
    """A run whose steps are timed while batches are read and ids routed ahead."""
    steps = (STEPS if shape.name == "multihot" else LONG_STEPS) + 2 * AHEAD
    every = [*settings, f"train.steps={steps}"]
    return cells.job(shape, data, model, "read", form, settings=every, warmup=AHEAD, cooldown=AHEAD)


def medians(found: Sequence[Row], n_jobs: int) -> list[Row]:
    """Of each job the first row, with the median times of all its rows; ``found`` has the jobs over and over."""

    def median_s(rows: Sequence[Row], of: Callable[[Row], float]) -> float:
        return float(np.median([of(row) for row in rows]))

    every = [found[i::n_jobs] for i in range(n_jobs)]
    return [
        {
            **rows[0],
            "step_s": median_s(rows, lambda row: row["step_s"]),
            "compute_s": median_s(rows, lambda row: row["step_s"] - row.get("exchange_s", 0.0)),
        }
        for rows in every
    ]


def joined(before: Row, after: Row) -> tuple[float, list[tuple[float, float]]]:
    """Latency, and (bytes on a link, seconds) by size: means of what was measured before and after."""
    points = [(n, (s + t) / 2) for (n, s), (_, t) in zip(before["points"], after["points"], strict=True)]
    return (before["latency_s"] + after["latency_s"]) / 2, points


def links_s(bytes_TRR: Any, latency_s: float, points: Sequence[tuple[float, float]]) -> float:
    """Seconds of a step's messages, of their sizes by tag, sender and receiver."""
    by_tag = dict(zip(TAGS, np.array(bytes_TRR), strict=True))
    total_s = ROUNDS * latency_s
    for phase in PHASES:
        busiest = busiest_link(np.sum([by_tag[tag] for tag in phase], axis=0))
        total_s += busiest / bandwidth(busiest, latency_s, points) if busiest else 0.0
    return total_s


def busiest_link(bytes_RR: np.ndarray) -> float:
    """Bytes that one host, whichever most, sends or receives."""
    return float(max(bytes_RR.sum(axis=1).max(), bytes_RR.sum(axis=0).max()))


def bandwidth(n_bytes: float, latency_s: float, points: Sequence[tuple[float, float]]) -> float:
    """Bytes a second where ``n_bytes`` are on a link. Outside the sizes measured it is that of the nearest of them."""
    sizes = np.array([n for n, _ in points])
    bytes_per_s = sizes / np.maximum([s - latency_s for _, s in points], 1e-9)
    return float(np.interp(n_bytes, sizes, bytes_per_s))


def row(shape: Shape, model: str, form: str, local: Row, across: Row, predicted_s: float) -> Row:
    """One line of the table."""
    return {
        "shape": shape.name,
        "model": model,
        "form": form,
        "bytes": sum(cells.by_tag(across).values()),
        "compute_ms": 1e3 * local["compute_s"],
        "predicted_ms": 1e3 * predicted_s,
        "measured_ms": 1e3 * across["step_s"],
        "error": predicted_s / across["step_s"] - 1,
    }


def link_rows(latency_s: float, points: Sequence[tuple[float, float]]) -> list[Row]:
    """What the links did by themselves."""
    every = [{"link_bytes": n, "ms": 1e3 * s, "gbit_per_s": 8e-9 * n / s} for n, s in points]
    return [{"link_latency_us": 1e6 * latency_s}, *every]


def add_savings(rows: Sequence[Row]) -> None:
    """Shares of the bytes and the time of ``rows`` that each row saves."""
    for r in rows:
        base = next(b for b in rows if (b["shape"], b["model"], b["form"]) == (r["shape"], r["model"], "rows"))
        r["bytes_saved"] = cells.saving(r["bytes"], base["bytes"])
        r["time_saved"] = cells.saving(r["measured_ms"], base["measured_ms"])


def claims(rows: Sequence[Row]) -> list[Row]:
    """The worst prediction."""
    worst = max((abs(r["error"]) for r in rows), default=None)
    return [claim("des.step_time_error", worst, "of the step time measured, worst", f"<= {ERROR:g}")]
