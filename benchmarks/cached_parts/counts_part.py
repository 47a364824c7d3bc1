"""Bytes of ``cached`` beside those of ``sync`` with form ``rows``, counted without values and without MPI.

Criteo Kaggle's 26 tables with at most a million rows each (``_workloads.CRITEO``, 5.6 million rows: five are cut), 4
fused ranks, one id a bag by P(rank k) ~ (k + 1)^-a, which row has which rank drawn. Decisions are those of the product
(``decided``), bytes by its formulas (``wire``), the requests packed by its own code; counted is what crosses between
different ranks, as the ledger does. Caches begin full and settled (``settled``), ``BURN`` steps pass, ``COUNTED``
follow; that they are settled is shown by what is saved in the halves of these. Decisions do not depend on the width.

That the count is right is shown where it can be: runs of the product over MPI, from empty caches to a drain point,
whose ledger has to have every byte of it, by tag, sender and receiver (``check``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from _report import claim
from _workloads import CRITEO
from cached_parts import settled, wire
from cached_parts.decided import Cache, Decided, Ranks
from cached_parts.placed import Placed, Popularity
from des_parts.cells import Row, show

from hpcrec.types import Ints

RANKS, SEED = 4, 3
EXPONENTS, BATCHES, WIDTHS = (1.05, 1.2), (128, 512, 2048), (16, 64, 128)
STALENESS, CAPACITIES, CACHES = (0, 1, 10, 100), (0.05, 0.1, 0.15), ("lru", "lfu", "lightlfu", "frequent")
CLAIMED_CAPACITY, CLAIMED_CACHES, IN_DETAIL = 0.1, ("lru", "lfu", "lightlfu"), (10, 100)
COLD = ((1.05, 128), (1.05, 2048), (1.2, 128))
COLD_ARMS = (*((cache, "sum") for cache in CLAIMED_CACHES), ("lfu", "max"))
BURN, COUNTED, WATCHED, EACH_ID_STEPS = 100, 300, 10, 5
PAST = 1_500_000, 512  # samples of a rank that maps have seen, an eighth of its epoch of Criteo Kaggle; in batches
GOALS = {
    **{(128, width): 0.88 for width in WIDTHS},
    (512, 16): 0.85,
    (512, 64): 0.87,
    (512, 128): 0.87,
}
GOAL_S10, GOAL_EACH_ID = {128: 0.75}, 0.95
UNIT = "of the bytes of deduplicated rows, fewer"


@dataclass
class Counted:
    """Some steps' rows and bytes by dense rank and owner, int64 [steps, R, R], and what caches decided in them."""

    placed: Placed
    asked: Ints
    requests: Ints
    each_id: tuple[Ints, Ints]  # of a few steps: ids, and bytes of requests


@dataclass
class Grid:
    """What is counted."""

    rows: Sequence[int]
    exponents: Sequence[float]
    batches: Sequence[int]
    capacities: Sequence[float]
    widths: Sequence[int]
    cold: Sequence[tuple[float, int]]
    burn: int
    counted: int
    past: tuple[int, int]


WHOLE = Grid(CRITEO, EXPONENTS, BATCHES, CAPACITIES, WIDTHS, COLD, BURN, COUNTED, PAST)
QUICK = Grid(
    tuple(min(n, 20_000) for n in CRITEO),
    EXPONENTS[:1],
    BATCHES[:1],
    (CLAIMED_CAPACITY,),
    WIDTHS[:1],
    (),
    20,
    40,
    (100_000, 256),
)


def measure(*, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    grid = QUICK if quick else WHOLE
    rows, claims = list[Row](), list[Row]()
    placed = Placed(grid.rows, RANKS, grid.widths[0])
    others = [Placed(grid.rows, RANKS, width).owner for width in grid.widths[1:]]
    assert all(np.array_equal(owner, placed.owner) for owner in others), "every width has the same owners"
    for e, exponent in enumerate(grid.exponents):
        popular = Popularity(placed, exponent, SEED)
        room = [math.ceil(capacity * placed.total) for capacity in grid.capacities]
        samples, of = grid.past
        before = np.random.default_rng((SEED, e))
        past = settled.Past(popular, RANKS, before, samples=samples, batch=of)
        for batch in grid.batches:
            rng = np.random.default_rng((SEED, e, batch))
            steps = [[popular.distinct(batch, rng) for _ in range(RANKS)] for _ in range(grid.burn + grid.counted)]
            counted = _requests(placed, popular, batch, steps[grid.burn :], rng)
            full = settled.Settled(popular, batch, RANKS, rng)
            about: Row = {"part": "counts", "exponent": exponent, "batch": batch}
            for capacity, places in zip(grid.capacities, room, strict=True):
                for cache in CACHES:
                    if cache == "lightlfu" and capacity != CLAIMED_CAPACITY:
                        continue  # it has to be run for each batch
                    held = full.caches(cache, places, STALENESS, past)
                    ranks = Ranks(placed.owner, held, STALENESS, settled.CLOCK)
                    ranks.run(steps[: grid.burn])
                    packed = _Packed(placed)
                    decided = ranks.run(steps[grid.burn :], watch=packed.add)
                    how = {**about, "cache": cache, "capacity": capacity, "begins": "settled"}
                    rows += _table(grid, counted, decided, packed, how)
            if (exponent, batch) in grid.cold:
                cold = _requests(placed, popular, batch, steps, rng)
                for cache, rule in COLD_ARMS:
                    places = math.ceil(CLAIMED_CAPACITY * placed.total)
                    empty = [Cache.empty(places, cache, len(STALENESS)) for _ in range(RANKS)]
                    packed = _Packed(placed)
                    decided = Ranks(placed.owner, empty, STALENESS, rule=rule).run(steps, watch=packed.add)
                    how = {**about, "cache": cache, "capacity": CLAIMED_CAPACITY, "begins": "empty"}
                    how |= {} if rule == "sum" else {"rule": rule}
                    rows += _table(grid, cold, decided, packed, how)
            claims += _claims(rows, exponent, batch, grid.widths)
    return rows, claims


class _Packed:
    """What rows that are pushed would take if they were named as requests are, of some steps."""

    def __init__(self, placed: Placed) -> None:
        self._placed = placed
        self._bytes_S, self._rows_S = np.zeros((2, len(STALENESS)))

    def add(self, step: int, pushed: Sequence[tuple[Ints, np.ndarray]]) -> None:
        """One rank's of a step: rows and their ticks, 0 where they are not pushed."""
        if step % WATCHED:
            return
        for i in range(len(STALENESS)):
            rows = np.sort(np.concatenate([of[ticks[:, i] > 0] for of, ticks in pushed]))
            if len(rows):
                self._bytes_S[i] += self._placed.request_bytes(rows).sum()
                self._rows_S[i] += len(rows)

    def of(self, i: int, pushed: Ints) -> Ints:
        """Bytes of so many rows."""
        each = self._bytes_S[i] / max(self._rows_S[i], 1.0)
        return np.ceil(each * pushed).astype(np.int64)


def _requests(
    placed: Placed, popular: Popularity, batch: int, steps: Sequence[Sequence[Ints]], rng: np.random.Generator
) -> Counted:
    n = placed.ranks
    asked = [[np.bincount(placed.owner[rows], minlength=n) for rows in of_ranks] for of_ranks in steps]
    requests = [[placed.request_bytes(rows) for rows in of_ranks] for of_ranks in steps]
    ids, packed = np.zeros((2, EACH_ID_STEPS, n, n), np.int64)
    tables = len(placed.rows)
    for t in range(EACH_ID_STEPS):
        for rank in range(n):
            rows = rng.permuted(popular.samples(batch, rng).reshape(tables, batch), axis=1).reshape(-1)
            packed[t, rank], ids[t, rank] = placed.each_id_bytes(rows)
    return Counted(placed, np.array(asked), np.array(requests), (ids, packed))


def _table(grid: Grid, counted: Counted, decided: Decided, packed: _Packed, how: Row) -> list[Row]:
    """Of each staleness: what is saved at each width; and where the bytes are, where there are claims."""
    out = list[Row]()
    settled_ = how["begins"] == "settled"
    asked = counted.asked.sum()
    for i, s in enumerate(STALENESS):
        sent, pushed, misses = decided.sent[..., i].sum(), decided.pushed[..., i].sum(), decided.misses[..., i].sum()
        row = {
            **how,
            "staleness": s,
            "rows_asked": _short(asked / counted.asked.shape[0] / RANKS),
            "missed": _short(misses / asked),
            "too_old": _short((sent - misses) / asked),
            "pushed": _short(pushed / asked),
        }
        details = list[Row]()
        for width in grid.widths:
            saved = _saved(counted, decided, packed, i, width)
            row[f"saved_{width}"] = saved["saved"]
            if width == grid.widths[len(grid.widths) // 2] or not settled_:
                row[f"halves_{width}"] = saved["halves"]
            if settled_ and s in IN_DETAIL and how["capacity"] == CLAIMED_CAPACITY:
                details.append({**how, "staleness": s, "width": width, **saved})
        out += [row, *details]
        show(row)
    return out


def _saved(counted: Counted, decided: Decided, packed: _Packed, i: int, width: int) -> Row:
    """What crosses at a staleness and width, and what would if messages were others."""
    asked, requests, s = counted.asked, counted.requests, STALENESS[i]
    sent, pushed = decided.sent[..., i], decided.pushed[..., i]
    base = wire.of_rows(asked, requests, width)
    names = packed.of(i, pushed)
    entries = counted.placed.entries

    def cached(clock: int = wire.CLOCK, names: Ints | None = None) -> list[wire.Message]:
        return wire.of_cached(
            asked, requests, sent, pushed, width, staleness=s, entries=entries, clock=clock, names=names
        )  # fmt: skip

    own, half = cached(), len(asked) // 2
    base_S, own_S = wire.between(base), wire.between(own)

    def saved(messages: Sequence[wire.Message]) -> float:
        return _short(1 - wire.between(messages).sum() / base_S.sum())

    each = wire.between(wire.of_each_id(*counted.each_id, width)).mean()
    everything = wire.between(own, to_self=True).sum() / wire.between(base, to_self=True).sum()
    return {
        "saved": saved(own),
        "halves": [_short(1 - own_S[part].sum() / base_S[part].sum()) for part in (slice(half), slice(half, None))],
        "saved_each_id": _short(1 - own_S.mean() / each),
        "saved_all_far": _short(1 - everything),  # as if owners were other ranks than dense ones
        "saved_clock_4": saved(cached(4)),  # clocks that cross, of so many bytes
        "saved_clock_2": saved(cached(2)),
        "saved_clock_1": saved(cached(1)),
        "saved_names_packed": saved(cached(names=names)),
        "kb_rows": {tag: _short(_kb(of) / len(asked)) for tag, of in wire.by_tag(base).items()},
        "kb_cached": {tag: _short(_kb(of) / len(asked)) for tag, of in wire.by_tag(own).items()},
        "kb_cached_by_kind": {kind: _short(1e-3 * n) for kind, n in wire.by_kind(own).items()},
    }


def _kb(bytes_RR: Ints) -> float:
    return 1e-3 * float(bytes_RR.sum() - np.trace(bytes_RR))


def _short(number: float) -> float:
    return float(f"{number:.5g}")


def _claims(rows: Sequence[Row], exponent: float, batch: int, widths: Sequence[int]) -> list[Row]:
    """Of the better of the product's rules, at the capacity that is claimed."""
    out = list[Row]()
    mine = [r for r in rows if "width" in r and (r["exponent"], r["batch"]) == (exponent, batch)]
    for width in widths:
        of = {s: [r for r in mine if (r["staleness"], r["width"]) == (s, width)] for s in IN_DETAIL}
        found = {s: [r for r in some if r["cache"] in CLAIMED_CACHES] for s, some in of.items()}
        name, goal = f"{exponent:g}.{batch}.{width}", GOALS.get((batch, width))
        best = {s: max(r["saved"] for r in some) for s, some in found.items()}
        each = max(r["saved_each_id"] for r in found[100])
        out.append(claim(f"het.bytes_saved.{name}", best[100], UNIT, None if goal is None else f">= {goal:g}"))
        goal_s10 = GOAL_S10.get(batch)
        goal_text = None if goal_s10 is None else f">= {goal_s10:g}"
        out.append(claim(f"het.bytes_saved_s10.{name}", best[10], UNIT, goal_text))
        unit = "of the bytes of each id pulled and pushed, fewer"
        out.append(claim(f"het.bytes_saved_each_id.{name}", each, unit, f">= {GOAL_EACH_ID:g}"))
    return out
