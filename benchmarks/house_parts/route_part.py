"""Routing of one dense rank's batch against 4, 64 and 1,000 owners, the others simulated: ``route.py``, both commits.

Launches of the two alternate; a figure is the median of the launches' medians. Bytes are those of messages of ids, each
rounded up to 64; the 32 that tell every rank the size of its message are not among them.

``house.route_ms.1000``: milliseconds a batch at 1,000 owners. ``house.ids_bytes.1000``: bytes an id there. The table
also has the commit before, and the ratio of times at each number of owners.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from _report import claim
from house_parts.checkout import Checkout
from house_parts.pairs import Row
from speed_parts import launch

ROUTE = Path(__file__).resolve().parent / "route.py"
OWNERS = (4, 64, 1000)
LAUNCHES, ROUNDS, QUICK_ROUNDS = 3, 10, 3
MS_GOAL, BYTES_GOAL = "<= 10", "<= 10"


def route(
    sides: Sequence[Checkout], data: Path, *, quick: bool, owners: Sequence[int] = OWNERS
) -> tuple[list[Row], list[Row]]:
    """A row for each number of owners; claims of the last side."""
    rounds, launches = (QUICK_ROUNDS, 1) if quick else (ROUNDS, LAUNCHES)
    ran: list[list[Row]] = [[] for _ in sides]
    for number in range(launches):
        for at in range(len(sides))[:: 1 if number % 2 == 0 else -1]:
            ran[at].append(launched(sides[at], data, rounds, owners))
    names = [f"{name}_" for name in ("before", "after")[-len(sides) :]]
    rows = [row_of(n, dict(zip(names, ran, strict=True))) for n in owners]
    for row in rows:
        words = (f"{key} {value if isinstance(value, str) else f'{value:.4g}'}" for key, value in row.items())
        print("  ".join(words), flush=True)
    return rows, claims(ran[-1], owners[-1])


def launched(side: Checkout, data: Path, rounds: int, owners: Sequence[int]) -> Row:
    """What one process measured."""

    def line(out: Path) -> list[str]:
        return side.alone(ROUTE, out, data, rounds, *owners)

    found = launch.run(line, launch.environment(1))
    if "package" in found:
        side.check(found["package"])
    return found


def row_of(owners: int, ran: Mapping[str, Sequence[Row]]) -> Row:
    """A line of the table: each side's figures, and the ratio of times where both have them."""
    found = {name: median_of(launches, owners) for name, launches in ran.items()}
    failed = [of["result"] for of in found.values() if "result" in of]
    if failed:
        return {"owners": owners, "result": failed[0]}
    row: Row = {"owners": owners, **{f"{name}{key}": of[key] for name, of in found.items() for key in of}}
    if len(found) > 1:
        before, after = found.values()
        row["ratio"] = before["ms"] / after["ms"]
    return row


def median_of(launches: Sequence[Row], owners: int) -> Row:
    """Over the launches of one side; ``result`` where one failed."""
    for one in launches:
        if "result" in one:
            return {"result": one["result"]}
    of = [one["owners"][str(owners)] for one in launches]
    return {key: statistics.median(one[key] for one in of) for key in ("ms", "bytes_per_id")}


def claims(launches: Sequence[Row], owners: int) -> list[Row]:
    """Of this commit, at the most owners."""
    of = median_of(launches, owners)
    return [
        claim(f"house.route_ms.{owners}", of.get("ms"), "ms a batch of 512 samples", MS_GOAL, of.get("result")),
        claim(f"house.ids_bytes.{owners}", of.get("bytes_per_id"), "bytes an id", BYTES_GOAL, of.get("result")),
    ]
