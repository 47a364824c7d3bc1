"""A run's summary as rows for a reader, and as the table that a terminal shows when it has ended.

The page shows the same rows (``report_page``). Knows the summary's keys (``telemetry``) and nothing of how a run goes.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcrec.training import times
from hpcrec.training.calibration import told
from hpcrec.training.copies import copies_rows
from hpcrec.training.ended import ended_words, evaluated_words, metrics_of
from hpcrec.training.metric_names import TABLES
from hpcrec.training.slow_ranks import describe
from hpcrec.units import format_bytes, format_duration


def text_table(summary: Mapping[str, Any]) -> str:
    """The summary as lines for a terminal."""
    rows = [*quality_rows(summary)]
    rows += [(f"sent: {tag}", f"{same} same host, {cross} across hosts") for tag, same, cross, _ in wire_rows(summary)]
    rows += compression_rows(summary)
    rows += choice_rows(summary)
    rows += times.short_rows(summary["time"])
    rows += imbalance_rows(summary)
    for table, in_use, *rest in dynamic_rows(summary):
        said = (f"{n} {what}" for n, what in zip(rest, DYNAMIC_HEADS[2:], strict=True))
        rows.append((f"dynamic: {table}", ", ".join((in_use, *said))))
    wide = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{wide}}  {value}" for name, value in rows)


def quality_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What came out and how fast, as (name, value)."""
    rows = [("status", str(summary["status"]))]
    rows += [("ended", why)] if (why := ended_words(summary)) else []
    rows += [
        ("steps", f"{summary['steps']:,}"),
        ("samples", f"{summary['samples']:,}"),
    ]
    tries = summary.get("attempts")  # not there if they could not be read
    if tries is not None and tries["number"] > 1:
        lost = f"{tries['lost_steps']:,} steps done again, {format_duration(tries['lost_s'])}"
        rows.append(("attempts", f"{tries['number']}, {format_duration(tries['total_s'])} in all; {lost} of them lost"))
    rows += [("evaluated", of)] if (of := evaluated_words(summary["eval"])) else []
    found = dict(summary["eval"])
    for name in [name for name in TABLES if name in found]:
        found |= _shown_calibration(name, found.pop(name))
    for name, value in metrics_of(found).items():
        rows.append((name, _metrics(value) if isinstance(value, Mapping) else _number(value)))
    throughput = summary["throughput"]
    rows.append(("samples/s", f"{throughput['samples_per_s']:,.0f}"))
    step_ms = throughput["step_ms"]
    rows.append(("step", f"{step_ms['p50']:.3g} ms median, {step_ms['p95']:.3g} ms 95th percentile"))
    rows += step_rows(summary)
    if n_rows := sum((age := summary["read_age"]).values()):
        share = {n: rows_read / n_rows for n, rows_read in age.items() if rows_read}
        rows.append(("rows read", ", ".join(f"{part:.1%} lack {n}" for n, part in share.items()) + " updates"))
    rows += copies_rows(summary)
    if ahead := summary.get("rows_ahead"):  # a summary of before knows nothing of it
        rows.append(("rows ahead", f"{ahead['steps']} step{'s' * (ahead['steps'] > 1)}: {ahead['why']}"))
    return rows + [("slow", f"{describe(rank)}, {rank['lines']:,} lines") for rank in summary["slow_ranks"]]


def _shown_calibration(name: str, found: Any) -> dict[str, list[float | None]]:
    """Calibration of all deciles, or of all values that a feature has."""
    if not isinstance(found, Mapping):
        return {name: list(told(name, found).values())}
    return {f"{name} {f} ({_values(of)})": [one["calibration"] for one in of] for f, of in found.items()}


def _values(of: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(one["value"]) for one in of)


CALIBRATION_HEADS = ("", "samples", "mean prediction", "mean label", "calibration")


def calibration_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Calibration by decile of the prediction, from the lowest up, and by the values of features."""
    by_label = {f"{label}, ": of for label, of in (summary["eval"].get("by_label") or {}).items()}
    parts = list[tuple[str, Mapping[str, Any]]]()
    for label, found in (by_label or {"": summary["eval"]}).items():
        deciles = found.get("calibration_by_decile") or ()
        parts += [(f"{label}decile {i}", one) for i, one in enumerate(deciles, start=1)]
        for feature, of in (found.get("calibration_by") or {}).items():
            parts += [(f"{label}{feature}: {one['value']}", one) for one in of]
    quantities = ("predicted", "label", "calibration")
    return [
        (name, f"{one['samples']:,}", *("none" if one[q] is None else f"{one[q]:.6g}" for q in quantities))
        for name, one in parts
    ]


def step_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What steps of the slowest rank that runs the model waited for, and what they computed; nothing without one.

    Shares of the time of its steps, which add up to all of it.
    """
    found = times.steps_of(summary["time"])
    steps_s = sum(found.values())
    if not steps_s:
        return []
    share = {name: seconds / steps_s for name, seconds in found.items()}
    waited = ", ".join(f"{share[f'wait for {word}']:.1%} for {word}" for word in times.WAITS_FOR.values())
    drains = summary["drains"]
    if drains["number"]:
        waited += f"; {drains['number']:,} drain points cost {drains['s'] / steps_s:.1%}"
    computed = f"{share['model']:.1%} the model, {share['rows computed']:.1%} rows, {share['other']:.1%} other"
    if (owners := times.owners_compute(summary["time"])) is not None:
        computed += f"; the slowest owner rows for {owners:.1%} of its time"
    return [("steps wait", waited), ("steps compute", computed)]


DRAINS_SHARE = 0.02  # of steps' time, above which it is said what drain points cost


def drains_advice(summary: Mapping[str, Any], every: Mapping[str, int]) -> str:
    """What drain points cost, where it is much; ``every``: how many steps lie between them, by key."""
    number, seconds = summary["drains"]["number"], summary["drains"]["s"]
    steps_s = sum(times.steps_of(summary["time"]).values())
    share = seconds / steps_s if number and steps_s else 0.0
    if share <= DRAINS_SHARE:
        return ""
    keys = " and ".join(f"{name} = {n}" for name, n in every.items())
    more = " and ".join(f"{name} = {math.ceil(n * share / DRAINS_SHARE)}" for name, n in every.items())
    return (
        f"Drain points take {share:.1%} of the time of steps, {seconds / number * 1e3:.3g} ms each: {keys}. "
        f"With {more} it is {DRAINS_SHARE:.0%}."
    )


def _number(value: float | Sequence[float | None]) -> str:
    """A number, or that of each group."""
    if isinstance(value, Sequence):
        return ", ".join("none" if one is None else f"{one:.6g}" for one in value)
    return f"{value:.6g}"


def _metrics(found: Mapping[str, float | None]) -> str:
    """Those of a label, on one line; none is one that its samples do not define."""
    numbers = {name: value for name, value in found.items() if name not in TABLES}
    return ", ".join(f"{name} {'none' if value is None else _number(value)}" for name, value in numbers.items())


def wire_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Bytes sent by all ranks, as (tag, same host, across hosts, both a step)."""
    steps = max(summary["steps"], 1)
    return [
        (tag, format_bytes(n["same_host"]), format_bytes(n["cross_host"]), format_bytes(sum(n.values()) / steps))
        for tag, n in summary["wire_bytes"].items()
    ]


def compression_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What thresholding let through of dense gradients and of vectors, and how often it found thresholds anew."""
    rows: list[tuple[str, str]] = []
    if found := summary["dense_compression"]:
        sent, plain = format_bytes(found["sent_bytes"]), format_bytes(found["plain_bytes"])
        less = "" if found["ratio"] is None else f", {found['ratio']:.3g} times less"
        rows.append(("dense gradients: sent", f"{sent} in place of {plain}{less}"))
        if found["density"] is not None:
            rows.append(("dense gradients: density", f"{found['density']:.3g}"))
        anew = found["thresholds"]
        rows.append(("dense gradients: thresholds", f"{anew['scheduled']:,} by schedule, {anew['drift']:,} by drift"))
    if found := summary["exchange_thresholds"]:
        rows.append(("vectors: density", f"{found['density']:.3g}"))
        rows.append(("vectors: thresholds", f"{found['drift']:,} thresholds found anew by drift"))
    return rows


def choice_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What form ``auto`` chose: features by form, copies, bytes a step predicted and counted, work at owners."""
    choice = summary["exchange"]
    if not choice:
        return []
    shown = [f"{n} {form}" for form, n in Counter(choice["forms"].values()).items()]
    shown += [f"{len(choice['copied_tables'])} tables copied"] if choice["copied_tables"] else []
    predicted = choice["predicted_bytes_per_step"]
    counted = sum(choice["counted_bytes_per_step"].get(tag, 0) for tag in predicted)
    shown.append(f"{format_bytes(sum(predicted.values()))} a step predicted, {format_bytes(counted)} counted")
    if choice["owner_flops_per_step"]:
        shown.append(f"{choice['owner_flops_per_step'] / 1e6:,.1f} Mflop a step at owners")
    return [("forms chosen", ", ".join(shown)), *_kept_rows(choice, summary["copies"])]


def _kept_rows(choice: Mapping[str, Any], copies: Mapping[str, float]) -> list[tuple[str, str]]:
    """Bytes of features whose rows dense ranks keep, where ``auto`` could have given them another form."""
    if "predicted_kept_bytes_per_step" not in choice:
        return []
    counted = copies.get("sent_bytes", 0.0) / max(choice["counted_steps"], 1)
    shown = f"{format_bytes(choice['predicted_kept_bytes_per_step'])} a step predicted, {format_bytes(counted)} counted"
    return [("copies of rows", f"{shown}, but for the ids asked for")]


OWNER_HEADS = ("", "rows", "with state", "lookups a step", "distinct rows", "read", "find", "gather", "update")


def owner_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What each owner holds and does in a step."""
    return [
        (
            f"rank {rank}",
            f"{o['rows']:,}",
            format_bytes(o["bytes"]),
            f"{o['lookups_per_step']:,.0f}",
            f"{o['distinct_per_step']:,.0f}",
            *(f"{o[key]:.3g} ms" for key in ("read_ms", "find_ms", "gather_ms", "update_ms")),
        )
        for rank, o in _pairs(summary, "owners")
    ]


DYNAMIC_HEADS = ("", "rows in use", "admitted", "evicted", "left without a row")


def dynamic_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Ids of dynamic tables: how many have rows, have had them and lost them, and were asked for without one."""
    return [
        (name, f"{f['rows']:,} of {f['capacity']:,}", *(f"{f[key]:,}" for key in ("admitted", "evicted", "refused")))
        for name, f in _pairs(summary, "dynamic_tables")
    ]


def imbalance_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fullest and the busiest owner against the mean."""
    if not summary["imbalance"]:
        return []
    shown = ", ".join(f"{name} {value:.2f}" for name, value in summary["imbalance"].items())
    return [("owners: most / mean", shown)]


def _pairs(summary: Mapping[str, Any], key: str) -> Iterable[tuple[Any, Any]]:
    return summary[key].items()
