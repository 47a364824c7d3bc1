"""Timelines as text: a line for each thread of a rank, a letter for what it does in each piece of time."""

from collections.abc import Mapping
from typing import Any

COLUMNS = 96
LETTERS = {  # phases that are work or messages; the rest is drawn as waiting
    "route": "i",
    "gather": "g",
    "values": "V",
    "assemble": "a",
    "samples": "a",
    "forward": "f",
    "backward": "b",
    "finite": "b",
    "agree": "s",
    "dense_reduce": "s",
    "dense_update": "d",
    "disassemble": "a",
    "gradients": "G",
    "update": "u",
}
LEGEND = (
    "i ids are routed, g rows gathered, V values cross, a vectors taken apart or put together, f forward, b backward, "
    "s dense sums, d dense update, G gradients cross, u rows learn, . waits for another thread, | a step ends"
)
_THREADS = ("main", "values", "gradients", "route")


def drawn(row: Mapping[str, Any], ranks: Mapping[int, str]) -> str:
    """The steps of a recorded run on these ranks, by the name that each is given; time goes from left to right."""
    until_s = max(row["ends"][rank][-1] for rank in ranks)
    lines, wide = [], max(map(len, ranks.values()))
    for rank, name in ranks.items():
        for thread in _THREADS:
            spans = [span for span in row["spans"] if span[0] == rank and span[1] == thread]
            marks = row["ends"][rank] if thread == "main" else ()
            if any(phase in LETTERS and ended_s > 0 for _, _, phase, _, ended_s in spans):
                lines.append(f"{name:<{wide}} {thread:<10}{_line(spans, marks, until_s)}".rstrip())
        lines.append("")
    steps = len(next(iter(row["ends"]))) - 1
    return "\n".join([*lines[:-1], f"{'':{wide + 11}}{steps} steps, {1e3 * until_s:.0f} ms"])


def _line(spans: Any, marks: Any, until_s: float) -> str:
    """What was begun last is shown where several phases are inside each other."""
    line = [" "] * COLUMNS
    for _, _, phase, began_s, ended_s in sorted(spans, key=lambda span: span[3]):
        if ended_s <= 0 or began_s >= until_s:
            continue
        first, last = (round(s / until_s * COLUMNS) for s in (max(began_s, 0), min(ended_s, until_s)))
        for at in range(first, min(max(last, first + 1), COLUMNS)):
            line[at] = LETTERS.get(phase, ".")
    for mark_s in marks[1:-1]:
        line[min(round(mark_s / until_s * COLUMNS), COLUMNS - 1)] = "|"
    return "".join(line)
