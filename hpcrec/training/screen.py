"""What a run that has ended shows on a terminal: what came out and of which weights, why it ended, where the time went.

One screen; all the rest that its summary says is in ``report``. Knows summary.json.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpcrec.training import times
from hpcrec.training.report import quality_rows
from hpcrec.units import format_bytes

LINES, COLUMNS = 40, 80  # of a terminal; no line is longer, but those of advice, which are whole sentences
_LEFT_OUT = ("steps wait", "steps compute", "rows read", "rows ahead")  # the page has them


def of_end(summary: Mapping[str, Any]) -> str:
    """Its lines, and what to change under them."""
    rows = [row for row in quality_rows(summary) if row[0] not in _LEFT_OUT and "calibration_by" not in row[0]]
    rows += times.screen_rows(summary["time"])
    rows.append(("memory", f"{format_bytes(max(summary['peak_rss_bytes'].values()))} at most of a rank"))
    sent = sum(sum(of.values()) for of in summary["wire_bytes"].values()) / max(summary["steps"], 1)
    rows.append(("messages", f"{format_bytes(sent)} a step, all ranks"))
    wide = max(len(name) for name, _ in rows)
    lines = [line for name, value in rows for line in _folded(name, value, wide)]
    return "\n".join([*lines, *(f"\n{sentence}" for sentence in summary.get("advice", ()))])


def _folded(name: str, value: str, wide: int) -> Sequence[str]:
    """A row, on as many lines as it takes; broken behind commas and colons, else not at all."""
    first, *parts = re.split("(?<=[,:]) ", value)
    lines = [f"{name:<{wide}}  {first}"]
    for part in parts:
        if len(lines[-1]) + 1 + len(part) > COLUMNS:
            lines.append(" " * (wide + 2) + part)
        else:
            lines[-1] += f" {part}"
    return lines
