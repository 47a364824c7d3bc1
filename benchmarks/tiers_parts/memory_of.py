"""What memory is taken beside rows: for each row of a table, declared or dynamic, and for each that is cached.

Each is counted by those who have it, and is what a process has more of once all is there (RssAnon: memory that it
shares with nobody), in a process of its own; the larger of both is claimed. Knows the tier, maps of ids and the plan of
a cache; judges nothing.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _report import claim

from hpcrec.disk.tier import BlockRows, Tier, Wanted
from hpcrec.embedding.dynamic import DynamicRows
from hpcrec.embedding.shards import build_families
from hpcrec.embedding.stores.cache_plan import CachePlan
from hpcrec.types import Dynamic, Feature, Lookup, TableSpec

TIERS = Path(__file__).resolve().parents[1] / "tiers.py"
WIDTH = 16
AT_ONCE = 1 << 15  # rows that are handed over, read, or given to ids at once
STEP_ROWS = 1 << 14  # that a step asks a cache for, about as many as one of W1
UNDER_WAY = 2  # steps that have their rows in the cache: the present one, and one that is brought ahead
MOST_FILLS = 8  # times its slots that are asked for until a cache is full

Row = dict[str, Any]


def sizes(*, quick: bool) -> Mapping[str, int]:
    """Rows of each kind of what is measured."""
    dynamic, slots = (2_000_000, 1 << 19) if quick else (10_000_000, 1 << 21)
    return {"declared": 10_000_000, "dynamic": dynamic, "dynamic-lru": dynamic, "cached": slots}


def apart(folder: Path, kind: str, n_rows: int) -> Row:
    """In a process of its own."""
    line = [sys.executable, str(TIERS), "--folder", str(folder), "--memory-of", f"{kind}:{n_rows}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    found: Row = json.loads(done.stdout)
    return found


def here(folder: Path, asked: str) -> Row:
    """In this process; ``asked`` is ``KIND:ROWS``."""
    kind, n_rows = asked.split(":")
    return MEASURED[kind](folder, int(n_rows))


def claims_of(rows: Sequence[Row]) -> list[Row]:
    """Of dynamic rows those that take more: where ids may lose them, so that there is an order of who goes first."""
    found = {row["memory_of"]: row["bytes_a_row"] for row in rows if "memory_of" in row}
    said = f"bytes a row of the table, where ids may lose theirs; {found['dynamic']:.3g} where none does"
    return [
        claim("tiers.memory_per_row", found["declared"], "bytes a row of the table", "<= 4.5"),
        claim("tiers.memory_per_row.dynamic", found["dynamic-lru"], said, "<= 20"),
        claim("tiers.memory_per_cached_row", found["cached"], "bytes a cached row, beside it and its state", "<= 24"),
    ]


def declared(folder: Path, n_rows: int) -> Row:
    """A tier of so many rows, all of them written and some read."""
    rng = np.random.default_rng(3)
    order = rng.permutation(n_rows)
    warm_tier(folder)
    before = rss_bytes()
    with Tier(folder / "tier", blocks(n_rows)) as tier:
        for start in range(0, n_rows, AT_ONCE):
            written(tier, order[start : start + AT_ONCE])
        read(tier, n_rows, rng)
        return row_of("declared", n_rows, rss_bytes() - before, tier.n_bytes)


def dynamic(folder: Path, n_rows: int, evict: Literal["lru"] | None = None) -> Row:
    """The same with a map of the ids that have these rows: all given; and some lost, where that may be."""
    rng = np.random.default_rng(4)
    warm_tier(folder)
    ids_of(AT_ONCE, evict).admit(drawn(rng, AT_ONCE))
    before = rss_bytes()
    ids = ids_of(n_rows, evict)
    with Tier(folder / "tier", blocks(n_rows)) as tier:
        while len(ids) < n_rows:
            written(tier, given(ids, drawn(rng, AT_ONCE)))
        while evict and ids.figures().evicted < n_rows // 8:
            written(tier, given(ids, drawn(rng, AT_ONCE)))
        read(tier, n_rows, rng)
        taken, counted = rss_bytes() - before, tier.n_bytes + ids.figures().map_bytes
    return row_of("dynamic-lru" if evict else "dynamic", n_rows, taken, counted)


def dynamic_lru(folder: Path, n_rows: int) -> Row:
    """The same, of ids of which the least recently used ones lose their rows."""
    return dynamic(folder, n_rows, "lru")


def cached(_: Path, slots: int) -> Row:
    """The plan of a cache, all of whose slots have a row that has changed, while some steps are under way."""
    rng = np.random.default_rng(5)
    list(steps_of(CachePlan(1 << 12, None), rng, 4 * UNDER_WAY, 1 << 8))  # what does not depend on slots is there
    before = rss_bytes()
    plan = CachePlan(slots, None)
    full = False
    for step in steps_of(plan, rng, MOST_FILLS * slots // STEP_ROWS, STEP_ROWS):
        full = step * STEP_ROWS >= slots and len(plan.changed()) == slots
        if full:
            break
    assert full, f"of {slots} slots {len(plan.changed())} have a row that has changed"
    taken = rss_bytes() - before
    return row_of("cached", slots, taken, plan.map_bytes + plan._dirty.nbytes)


MEASURED: Mapping[str, Callable[[Path, int], Row]] = {
    "declared": declared,
    "dynamic": dynamic,
    "dynamic-lru": dynamic_lru,
    "cached": cached,
}


def row_of(kind: str, n_rows: int, taken: int, counted: int) -> Row:
    """One line of the table."""
    more = max(taken, counted) / n_rows
    return {
        "memory_of": kind,
        "rows": n_rows,
        "bytes_a_row": more,
        "resident_bytes": taken,
        "counted_bytes": counted,
    }


# Steps of a cache.


def steps_of(plan: CachePlan, rng: np.random.Generator, steps: int, n_rows: int) -> Iterator[int]:
    """Steps that ask for rows at random and change them, of which the last few are under way."""
    for step in range(1, steps + 1):
        plan.admit(step, np.unique(rng.integers(0, 1 << 40, n_rows)), step)
        plan.late(step)
        plan.changes(step)
        plan.give_back(plan.release(step - UNDER_WAY)[1])
        yield step


# Rows of a tier, and ids that have them.


def blocks(n_rows: int) -> list[BlockRows]:
    """Rows with row-wise Adagrad."""
    return [BlockRows(n_rows, {"": (np.dtype("f4"), (WIDTH,)), "accumulator": (np.dtype("f4"), ())})]


def columns(n_rows: int) -> dict[str, np.ndarray]:
    return {"": np.zeros((n_rows, WIDTH), np.float32), "accumulator": np.zeros(n_rows, np.float32)}


def warm_tier(folder: Path) -> None:
    """What does not depend on rows is there."""
    with Tier(folder / "warm", blocks(AT_ONCE)) as tier:
        written(tier, np.arange(AT_ONCE))
        read(tier, AT_ONCE, np.random.default_rng(6))


def written(tier: Tier, rows: np.ndarray) -> None:
    if len(rows):
        tier.write({0: Wanted(rows, columns(len(rows)))})


def read(tier: Tier, n_rows: int, rng: np.random.Generator) -> None:
    for _ in range(10):
        tier.read({0: Wanted(rng.integers(0, n_rows, AT_ONCE), columns(AT_ONCE))}).wait()


def ids_of(n_rows: int, evict: Literal["lru"] | None) -> DynamicRows:
    """One owner's, of a table of so many rows."""
    table = TableSpec(name="ids", rows=n_rows, width=WIDTH, dynamic=Dynamic(evict=evict))
    feature, lookup = Feature(name="ids", cardinality=0), Lookup(feature="ids", table="ids")
    more: dict[str, Any] = {"owners": (0,), "dense": (0,), "replicate_rows": 0}
    (family,) = build_families({"ids": table}, [feature], [lookup], {}, **more)
    return DynamicRows(family, 0)


def given(ids: DynamicRows, unique: np.ndarray) -> np.ndarray:
    """Rows that these ids were given."""
    rows, fresh = ids.admit(unique)
    return rows[fresh]


def drawn(rng: np.random.Generator, n: int) -> np.ndarray:
    """Distinct ids, of all that there are."""
    return np.unique(rng.integers(-(2**63), 2**63 - 1, n))


def rss_bytes() -> int:
    """Of this process: memory that it shares with nobody."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
