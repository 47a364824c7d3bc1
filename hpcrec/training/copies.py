"""What a run tells of copies of rows on dense ranks: in lines of metrics, summary.json, the report, and as advice.

A line is of all steps since the line before; the summary of all steps since the run was begun, or resumed. Knows what
is counted (``exchange.record``), not how.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcrec.exchange.forms.missing import MISSING_SHARE, bin_names, enough_ticks
from hpcrec.exchange.record import CopiesRecord
from hpcrec.exchange.shadow import ENDS
from hpcrec.types import Floats

MOST_READS = 0.5  # share of a run's ticks; where rows with few of them have more, the run is short for its staleness
_BINS = [*(f"{end:g}" for end in ENDS), "more"]


class CopiesLines:
    """What lines have of one session's copies; its verbs are called in the same order on every rank.

    Parameters
    ----------
    record : CopiesRecord
        Of no step.
    """

    def __init__(self, record: CopiesRecord) -> None:
        self._names, self._tables = record.names, record.tables
        self._sizes = [len(record.names), len(record.missing), 1, len(record.tables), len(record.tables)]
        self._before = _flat(record)

    def here(self, record: CopiesRecord) -> tuple[Floats, Floats]:
        """What has been counted on this rank since the last call: to be summed over ranks, and the largest taken."""
        now = _flat(record)
        found, self._before = now - self._before, now
        if record.distances is None:
            return found, np.zeros(0)
        most = record.distances.most.copy()
        record.distances.most[:] = 0
        return found, most

    def values(self, total: Floats, most: Floats) -> dict[str, Any]:
        """What a line says of these, over all ranks."""
        parts = np.split(total, np.cumsum(self._sizes)[:-1])
        counts = dict(zip(self._names, parts[0].astype(np.int64).tolist(), strict=True))
        reads = counts.get("reads", 0)
        if not reads:
            return {}
        said: dict[str, Any] = {"copies.hit_rate": counts["copies_read"] / reads, "copies.misses": counts["misses"]}
        said |= {f"copies.{name}": n for name, n in counts.items() if name == "too_old" or name.startswith("pushed_")}
        said["copies.missing"] = _binned(parts[1])
        said["copies.missing_mean"] = float(parts[2][0]) / reads
        for t, table in enumerate(self._tables):
            if n := parts[3][t]:
                said[f"copies.distance.{table}.mean"] = float(parts[4][t] / n)
                said[f"copies.distance.{table}.max"] = float(most[t])
        return said


def _flat(record: CopiesRecord) -> Floats:
    found = record.distances
    shadows = [] if found is None else [found.reads, found.total]
    return np.concatenate([record.counts, record.missing, [record.missing_ticks], *shadows]).astype(np.float64)


def _binned(reads: Floats) -> dict[str, int]:
    """Reads by the ticks that they lacked; bins behind the last one that has any are left out."""
    used = int(np.flatnonzero(reads).max(initial=0)) + 1
    return dict(zip(bin_names(used), reads[:used].astype(np.int64).tolist(), strict=True))


def copies_summary(every: Sequence[tuple[Mapping[str, float], CopiesRecord | None]]) -> dict[str, Any]:
    """``copies`` of ``summary.json``, of all ranks' figures and records."""
    figures = [of for of, _ in every]
    names = sorted({name for of in figures for name in of})
    said: dict[str, Any] = {name: sum(of.get(name, 0.0) for of in figures) for name in names}
    records = [record for _, record in every if record is not None]
    if not records or not records[0].names:
        return said
    said["missing"] = _binned(np.sum([of.missing for of in records], axis=0))
    said["missing_ticks"] = sum(of.missing_ticks for of in records)
    distances = [of.distances for of in records if of.distances is not None]
    if distances:
        reads, total, binned = (
            np.sum([getattr(of, name) for of in distances], axis=0) for name in ("reads", "total", "binned")
        )
        said["distances"] = {
            table: {
                "reads": int(reads[t]),
                "mean": float(total[t] / reads[t]),
                "up_to": {end: int(n) for end, n in zip(_BINS, binned[t], strict=True) if n},
            }
            for t, table in enumerate(records[0].tables)
            if reads[t]
        }
    return said


def copies_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the report and the table at the end say, as (name, value)."""
    found = summary["copies"]
    if not found.get("reads"):
        return []
    reads, moved = found["reads"], {"missed": found["misses"], "too old": found["too_old"]}
    pushed = {name[7:].replace("_", " "): n for name, n in found.items() if name.startswith("pushed_") and n}
    rows = [
        ("copies", f"{found['copies_read'] / reads:.1%} of {reads:,.0f} reads"),
        ("copies: rows sent", ", ".join(f"{n:,.0f} {why}" for why, n in moved.items())),
        ("copies: rows pushed", ", ".join(f"{n:,.0f} by {why}" for why, n in pushed.items()) or "none"),
    ]
    lacked = ", ".join(f"{n / sum(found['missing'].values()):.1%} lack {bin_}" for bin_, n in found["missing"].items())
    rows.append(("copies: reads", f"{lacked} ticks"))
    for table, of in found.get("distances", {}).items():
        rows.append(
            (f"copies: distance of {table}", f"{of['mean']:.3g} of the row's length, mean of {of['reads']:,} reads")
        )
    return rows


def copies_advice(summary: Mapping[str, Any], staleness: int, most_missing: int) -> str:
    """Where a run was short for its staleness: most ticks went to rows of which a large share may be missing.

    Parameters
    ----------
    summary : mapping
        Of a run that began at its first step.
    staleness, most_missing : int
        That of the policy; ticks that a read may lack by it.
    """
    found = summary["copies"]
    if not found.get("ticks"):
        return ""
    share = found["ticks_of_few"] / found["ticks"]
    if share <= MOST_READS:
        return ""
    enough = enough_ticks(most_missing)
    return (
        f"policy.staleness = {staleness} is much for a run of {summary['steps']:,} steps: {share:.0%} of the "
        f"gradients of cached rows are of rows that have got fewer than {enough:,}, so that the {most_missing:,} "
        f"that a read may lack are more than {MISSING_SHARE:.0%} of them. Lower "
        "policy.staleness, or train longer."
    )
