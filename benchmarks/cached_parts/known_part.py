"""How far the rules by which copies go are from the best that any rule does, by count.

Criteo Kaggle's 26 tables with at most ``MOST_ROWS`` rows each, 4 ranks, one id a bag by P(rank k) ~ (k + 1)^-a. Copies
go by the product's own maps, ``known`` by ``kernels.KnownMap``, which knows the rank's own rows of the next steps
(``policy.window``); ``frequent`` keeps the rows of the highest chance, as no rule can that does not know it. Decisions
are those of the product (``decided``), bytes by its formulas (``wire``). Caches begin empty, ``BURN`` steps pass, and
``COUNTED`` follow; that they are settled is shown by the halves of these.

A read of a row that has a copy need not be served by it: at a staleness of s it may lack too many ticks. So beside
the reads that find a copy (``found``) stand those that copies serve (``served``), and the bytes saved. No rule here
looks at ticks: ``known`` finds the most copies, not the fewest bytes. Knows counts; knows no values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from _report import claim
from _workloads import CRITEO
from cached_parts import wire
from cached_parts.decided import Cache, Decided, Fixed, Map, Ranks
from cached_parts.placed import Placed, Popularity
from des_parts.cells import Row, show

from hpcrec import kernels
from hpcrec.types import Ints

RANKS, SEED, WIDTH = 4, 3, 64
MOST_ROWS = 20_000
EXPONENTS, BATCHES, CAPACITIES, STALENESS = (1.05, 1.2), (128,), (0.05, 0.1), (10, 100)
RULES, WINDOWS = ("lru", "lfu", "lightlfu", "frequent"), (1, 3, 10, 100, 1000)
BURN, COUNTED = 1000, 300
CLAIMED = 0.1, 100  # capacity and staleness


@dataclass(frozen=True)
class Grid:
    """What is counted."""

    most_rows: int
    exponents: Sequence[float]
    batches: Sequence[int]
    capacities: Sequence[float]
    windows: Sequence[int]
    burn: int
    counted: int


WHOLE = Grid(MOST_ROWS, EXPONENTS, BATCHES, CAPACITIES, WINDOWS, BURN, COUNTED)
QUICK = Grid(2_000, EXPONENTS[:1], BATCHES[:1], CAPACITIES[1:], WINDOWS[:2], 150, 100)


class Foreseeing:
    """A known map that is told of all steps to come, as the window allows. See ``Map``.

    Parameters
    ----------
    steps : sequence of int64
        The rank's rows of each step.
    capacity, window : int
    """

    def __init__(self, steps: Sequence[Ints], capacity: int, window: int) -> None:
        self._map, self._steps = kernels.KnownMap(capacity=capacity, window=window), iter(steps)
        for _ in range(window):
            self._foresee()

    def _foresee(self) -> None:
        rows = next(self._steps, None)
        if rows is not None:
            self._map.foresee(rows)

    def admit(self, ids: Ints) -> kernels.Admitted:
        """See ``Map``."""
        self._foresee()
        return self._map.admit(ids)

    def find(self, ids: Ints) -> Ints:
        """See ``Map``."""
        return self._map.find(ids)


def measure(*, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    grid, rows = QUICK if quick else WHOLE, list[Row]()
    placed = Placed(tuple(min(n, grid.most_rows) for n in CRITEO), RANKS, WIDTH)
    arms = [*((rule, 0) for rule in RULES), *(("known", window) for window in grid.windows)]
    for e, exponent in enumerate(grid.exponents):
        popular = Popularity(placed, exponent, SEED)
        for batch in grid.batches:
            rng = np.random.default_rng((SEED, e, batch))
            n = grid.burn + grid.counted + max(grid.windows)
            steps = [[popular.distinct(batch, rng) for _ in range(RANKS)] for _ in range(n)]
            for capacity in grid.capacities:
                places, mine = math.ceil(capacity * placed.total), list[Row]()
                for rule, window in arms:
                    maps = [_map(rule, window, [of[rank] for of in steps], popular, places) for rank in range(RANKS)]
                    caches = [Cache.of(of, places, len(STALENESS)) for of in maps]
                    ranks = Ranks(placed.owner, caches, STALENESS)
                    ranks.run(steps[: grid.burn])
                    counted = steps[grid.burn : grid.burn + grid.counted]
                    how = {"exponent": exponent, "batch": batch, "capacity": capacity, "cache": rule, "window": window}
                    mine += _rows(placed, counted, ranks.run(counted), how)
                rows += _beside_the_best(mine)
    return rows, [] if quick else _claims(rows)


def _map(rule: str, window: int, steps: Sequence[Ints], popular: Popularity, places: int) -> Map:
    if rule == "known":
        return Foreseeing(steps, places, window)
    if rule == "frequent":
        return Fixed(np.argpartition(-popular.chance, places)[:places], len(popular.chance))
    return kernels.IdMap(capacity=places, evict=rule)  # type: ignore[arg-type]


def _rows(placed: Placed, steps: Sequence[Sequence[Ints]], decided: Decided, how: Row) -> list[Row]:
    """By staleness."""
    asked = np.array([[np.bincount(placed.owner[rows], minlength=RANKS) for rows in of] for of in steps])
    requests = np.array([[placed.request_bytes(rows) for rows in of] for of in steps])
    base, half, out = wire.between(wire.of_rows(asked, requests, WIDTH)).sum(), len(steps) // 2, list[Row]()
    for i, s in enumerate(STALENESS):
        sent, pushed = decided.sent[..., i], decided.pushed[..., i]
        own = wire.of_cached(asked, requests, sent, pushed, WIDTH, staleness=s, entries=placed.entries)
        served = [1 - sent[part].sum() / asked[part].sum() for part in (slice(half), slice(half, None))]
        out.append(
            {
                "part": "known",
                **how,
                "staleness": s,
                "found": float(1 - decided.misses[..., i].sum() / asked.sum()),
                "served": float(1 - sent.sum() / asked.sum()),
                "served_halves": [float(of) for of in served],
                "saved": float(1 - wire.between(own).sum() / base),
            }
        )
    return out


def _beside_the_best(rows: list[Row]) -> list[Row]:
    """Each with its shares of what ``known`` has, by window."""
    for row in rows:
        for best in rows:
            if best["cache"] == "known" and best["staleness"] == row["staleness"]:
                row[f"found_of_{best['window']}"] = row["found"] / best["found"]
                row[f"served_of_{best['window']}"] = row["served"] / best["served"]
        show(row)
    return rows


def _claims(rows: Sequence[Row]) -> list[Row]:
    out, most = list[Row](), max(WINDOWS)
    for row in rows:
        if (row["capacity"], row["staleness"]) != CLAIMED or row["batch"] != BATCHES[0]:
            continue
        name = f"{row['exponent']:g}.{row['cache']}" + f"_{row['window']}" * (row["cache"] == "known")
        if (row["cache"], row["window"]) != ("known", most):
            for what, verb in (("found", "find a copy"), ("served", "copies serve")):
                unit = f"of the reads that {verb} under known with a window of {most} steps"
                out.append(claim(f"het.known.{what}.{name}", row[f"{what}_of_{most}"], unit))
        out.append(claim(f"het.known.saved.{name}", row["saved"], "of the bytes of deduplicated rows, fewer"))
    return out
