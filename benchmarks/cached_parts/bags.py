"""Bytes of ``cached`` beside those of form ``pooled``, by ids a bag, counted without values and without MPI.

26 tables of 100,000 rows, 4 fused ranks, 128 samples a rank, bags of so many distinct ids by P(rank k) ~ (k + 1)^-1.05,
a staleness of 100, 10 % of the rows kept by ``lru``, full and settled (``settled``). A pooled bag is one vector each
way however many ids it has, and all of its ids cross; of copies cross the distinct rows that are old or not there.
Decisions are those of the product (``decided``), requests are packed by its code, bytes by its formulas (``wire``).
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from _report import claim
from cached_parts import settled, wire
from cached_parts.decided import Ranks
from cached_parts.placed import Placed, Popularity
from des_parts.cells import Row, show

from hpcrec import kernels
from hpcrec.types import Ints

RANKS, SEED, BATCH, EXPONENT, STALENESS, CAPACITY = 4, 3, 128, 1.05, 100, 0.1
WIDTHS, BAGS, CLAIMED = (16, 128), (1, 2, 4, 8, 12, 16, 20), 20
DRAWN = 4  # times as many ids as a bag has, of which the first distinct ones are taken


@dataclass
class Grid:
    """What is counted."""

    rows: tuple[int, ...]
    bags: tuple[int, ...]
    burn: int
    counted: int


WHOLE = Grid((100_000,) * 26, BAGS, 20, 30)
QUICK = Grid((20_000,) * 8, (1, CLAIMED), 4, 4)


class Drawn:
    """Bags of a rank's part of a batch.

    Parameters
    ----------
    placed : Placed
    ids : int
        Of a bag.
    """

    def __init__(self, placed: Placed, ids: int) -> None:
        self._placed, self._ids = placed, ids
        weights = np.arange(1.0, placed.rows[0] + 1) ** -EXPONENT
        self._ends = np.cumsum(weights) / weights.sum()
        orders = (np.random.default_rng((SEED, t)).permutation(n) for t, n in enumerate(placed.rows))
        self._numbers = [placed.numbers(t, order) for t, order in enumerate(orders)]
        low, high = float(ids), 50.0 * ids
        chance = weights / weights.sum()
        for _ in range(50):  # ids drawn one by one, by which a bag would have so many distinct ones
            self.draws = (low + high) / 2
            distinct = -np.expm1(self.draws * np.log1p(-chance)).sum()
            low, high = (self.draws, high) if distinct < ids else (low, self.draws)

    def step(self, rng: np.random.Generator) -> list[Ints]:
        """Rows of each table [samples, ids]."""
        return [numbers[self._distinct(rng)] for numbers in self._numbers]

    def _distinct(self, rng: np.random.Generator) -> Ints:
        n = self._ids * DRAWN if self._ids > 1 else 1
        drawn = np.searchsorted(self._ends, rng.random((BATCH, n)))
        order = np.argsort(drawn, axis=1, kind="stable")
        sorted_ = np.take_along_axis(drawn, order, axis=1)
        again = np.zeros(drawn.shape, bool)
        again[:, 1:] = sorted_[:, 1:] == sorted_[:, :-1]
        first = np.sort(np.where(again, n, order), axis=1)[:, : self._ids]
        assert first.max() < n, "so many ids have enough distinct ones"
        return np.take_along_axis(drawn, first, axis=1)


def measure(*, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    grid = QUICK if quick else WHOLE
    placed = Placed(grid.rows, RANKS, WIDTHS[0])
    assert set(placed.kinds) == {"table"}, "a bag has one owner"
    rows, shares = list[Row](), dict[tuple[int, int], float]()
    for ids in grid.bags:
        for row in _counted(grid, placed, ids):
            rows.append(row)
            shares[row["width"], ids] = row["pooled_over_cached"]
            show(row)
    claims = list[Row]()
    for width in WIDTHS:
        unit = "bytes of pooled by those of cached"
        claims.append(claim(f"het.bags.pooled_over_cached.{CLAIMED}.{width}", shares[width, CLAIMED], unit, "<= 0.5"))
        even = _even([(ids, shares[width, ids]) for ids in grid.bags])
        claims.append(claim(f"het.bags.break_even.{width}", even, "ids a bag, above which pooled is fewer bytes"))
    return rows, claims


def _counted(grid: Grid, placed: Placed, ids: int) -> list[Row]:
    rng = np.random.default_rng((SEED, ids))
    drawn, popular = Drawn(placed, ids), Popularity(placed, EXPONENT, SEED)
    draws = round(BATCH * drawn.draws) if ids > 1 else BATCH
    past = settled.Past(popular, RANKS, rng, samples=0, batch=draws)  # none: lru is drawn by ages
    room = math.ceil(CAPACITY * placed.total)
    held = settled.Settled(popular, draws, RANKS, rng).caches("lru", room, [STALENESS], past)
    ranks = Ranks(placed.owner, held, [STALENESS], settled.CLOCK)
    steps = [[drawn.step(rng) for _ in range(RANKS)] for _ in range(grid.burn + grid.counted)]
    distinct = [[np.unique(np.concatenate(tables, axis=None)) for tables in of_ranks] for of_ranks in steps]
    ranks.run(distinct[: grid.burn])
    counted = distinct[grid.burn :]
    decided = ranks.run(counted)
    asked = np.array([[np.bincount(placed.owner[r], minlength=RANKS) for r in of] for of in counted])
    requests = np.array([[placed.request_bytes(r) for r in of] for of in counted])
    moved = decided.sent[..., 0], decided.pushed[..., 0]
    bags = np.array([[_bag_bytes(placed, tables) for tables in of_ranks] for of_ranks in steps[grid.burn :]])
    vectors = np.broadcast_to(BATCH * _tables_of(placed), bags.shape)
    out = list[Row]()
    for width in WIDTHS:
        cached = wire.of_cached(asked, requests, *moved, width, staleness=STALENESS, entries=placed.entries)
        kb = {
            "pooled": 1e-3 * wire.between(wire.of_rows(vectors, bags, width)).mean(),  # a vector a bag, each way
            "rows": 1e-3 * wire.between(wire.of_rows(asked, requests, width)).mean(),
            "cached": 1e-3 * wire.between(cached).mean(),
        }
        about = {"part": "bags", "ids": ids, "width": width, "rows_asked": float(asked.sum() / asked[..., 0].size)}
        out.append(
            {
                **about,
                "misses": float(decided.misses.sum() / asked.sum()),
                "sent": float(moved[0].sum() / asked.sum()),
                "pushed": float(moved[1].sum() / asked.sum()),
                **{f"kb_{name}": float(n) for name, n in kb.items()},
                "pooled_over_cached": float(kb["pooled"] / kb["cached"]),
            }
        )
    return out


def _tables_of(placed: Placed) -> Ints:
    """How many tables each rank owns [R]."""
    return np.bincount([placed.owner[placed.numbers(t, np.zeros(1, np.int64))[0]] for t in range(len(placed.rows))])


def _bag_bytes(placed: Placed, tables: list[Ints]) -> Ints:
    """Of requests for whole bags, by owner [R]; as the wire packs them, not padded."""
    first = [int(placed.numbers(t, np.zeros(1, np.int64))[0]) for t in range(len(tables))]
    order = sorted(range(len(tables)), key=lambda t: (placed.owner[first[t]], t))
    ids = np.concatenate([tables[t].reshape(-1) - first[t] for t in order])
    bags, each = tables[0].shape
    cells = np.array([[placed.owner[first[t]], t, bags * each, bags] for t in order], np.int64)
    lengths = np.full(bags * len(tables), each, np.int64)
    none = np.zeros(len(tables), bool)
    plan = kernels.plan_requests(ids, lengths, cells, np.zeros(placed.ranks, bool), none, 4)
    return plan.bytes_R


def _even(shares: list[tuple[int, float]]) -> float:
    """Where pooled is as many bytes, between the counts around it; the last, where it never is."""
    for (before, high), (after, low) in itertools.pairwise(shares):
        if high >= 1 > low:
            return before + (after - before) * (high - 1) / (high - low)
    return float(shares[0][0] if shares[0][1] < 1 else shares[-1][0])
