"""Part ``stays``: reads a step by what a cache of rows keeps, beside the best fixed set and the optimum.

The product's ``kernels.SlotMap``, by itself, is given the distinct rows of one step after the other; a row that has no
slot is read. Steps are of W1's tables (``_workloads.py``) by a power law of any exponent, or of tables and batches that
are both a whole part of these; with ``--pairs FILE`` also MovieLens' pairs of users and items, each epoch in a random
order of its own. All rules see the same steps. The *best fixed set* is of the most probable rows, as many
as there are slots, which no rule is told. The *optimum* is Belady's, of as many rows in any places, from the steps that
came: after each step those rows stay that are asked for soonest, a row of the step itself only if it is one of them.

With the known future the rule is told the rows of the next steps: of two more in each step, while less than 92 % of the
slots that the step does not use are foreseen, else of none. A run is as long as it takes the best fixed set to read as
many rows as there are slots 13 times; reads count from the 9th to the 12th.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim, finish
from _workloads import CRITEO, SEED, W1
from tiers_parts.shown import said

from hpcrec import kernels

TURNOVERS, FROM, TO = 13, 9, 12  # reads of the best fixed set, by slots
ENOUGH = 0.92  # of the slots that the step does not use: foreseen
PIECE = 64  # steps that are drawn at once
Steps = list[np.ndarray]
# Exponent, 1 / share of the rows that have slots, 1 / part of tables and batches.
CELLS = [(law, share, 20) for law in (1.05, 1.2) for share in (4, 8, 16)]
FULL = [(1.05, 8, 1)]
QUICK = [(1.05, 8, 100)]
PAIRS_BATCH = 64
PAIRS_SHARES = (4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What steps ask for.

    Attributes
    ----------
    law : float or str
    chances : float64 [rows]
        That a step asks for a row.
    drawn : callable
        So many steps: distinct rows of each, int32, ascending.
    """

    law: float | str
    chances: np.ndarray
    drawn: Callable[[int], Steps]


def stays(folder: Path, path: Path | None, arguments: argparse.Namespace) -> None:  # noqa: ARG001
    """The part; writes its JSON to ``path``."""
    cells = QUICK if arguments.quick else CELLS + FULL
    rows = [said(cell(by_law(law, part), share, windows=(law, share, part) == CELLS[1])) for law, share, part in cells]
    if arguments.pairs is not None:
        asked = by_pairs(arguments.pairs)
        rows += [said(cell(asked, share, windows=False)) for share in PAIRS_SHARES]
    most = {key: max(row[key] for row in rows) for key in ("over_best", "known_over_best", "over_optimum")}
    claims = [
        claim("tiers.reads_over_best", most["over_best"], "of the reads of the best fixed set", "<= 1.15"),
        claim(
            "tiers.reads_over_best.known", most["known_over_best"], "of the same, with the next steps known", "< 1"
        ),
        claim("tiers.reads_over_optimum", most["over_optimum"], "of Belady's, with the next steps known", "<= 1.1"),
    ]  # fmt: skip
    finish("tiers", rows, claims, path)


def by_law(law: float, part: int) -> Asked:
    """W1's tables and batch, divided by ``part``."""
    tables = [max(3, n // part) for n in CRITEO]
    batch = W1.batch // part
    chances = np.concatenate([weights(n, law) for n in tables])
    return Asked(
        law=law,
        chances=-np.expm1(batch * np.log1p(-chances)),
        drawn=lambda n_steps: drawn(tables, law, batch, n_steps),
    )


def by_pairs(file: Path) -> Asked:
    """A table of users and one of items; of each the rows that any pair has."""
    user_N, item_N = (
        np.unique(of, return_inverse=True)[1] for of in np.loadtxt(file, np.int64, "#", ",", skiprows=1).T
    )
    both_N2 = np.stack([user_N, item_N + user_N.max() + 1], 1).astype(np.int32)
    chances = np.bincount(both_N2.reshape(-1)) / len(both_N2)

    def steps(n_steps: int) -> Steps:
        rng, found = np.random.default_rng(SEED), Steps()
        while len(found) < n_steps:
            epoch = rng.permutation(both_N2)
            epoch = epoch[: len(epoch) // PAIRS_BATCH * PAIRS_BATCH].reshape(-1, 2 * PAIRS_BATCH)
            found += [np.unique(step) for step in epoch[: n_steps - len(found)]]
        return found

    return Asked(law="movielens", chances=-np.expm1(PAIRS_BATCH * np.log1p(-chances)), drawn=steps)


def cell(of: Asked, share: int, *, windows: bool) -> dict[str, Any]:
    """One workload and cache."""
    asked, n_rows = of.chances, len(of.chances)
    slots = n_rows // share // kernels.WAYS * kernels.WAYS
    best = np.argpartition(asked, -slots)[-slots:]
    fixed = float(asked.sum() - asked[best].sum())
    turnover = slots / fixed  # steps
    steps = of.drawn(round(TURNOVERS * turnover))
    counted = slice(round(FROM * turnover), round(TO * turnover))
    outside = np.ones(n_rows, bool)
    outside[best] = False
    reads = {
        "best_fixed": mean([int(outside[ids].sum()) for ids in steps[counted]]),
        "lru": run(steps, slots, "lru", 0, counted)[0],
        "lfu_aging": run(steps, slots, "lfu_aging", 0, counted)[0],
        "optimum": optimum(steps, slots, n_rows, counted),
    }
    reads["known"], window = run(steps, slots, "lfu_aging", None, counted)
    row = {"exponent": of.law, "rows": n_rows, "slots": slots, "steps": len(steps), "a_step": mean([*map(len, steps)])}
    row |= {f"{key}_reads": value for key, value in reads.items()} | {"known_steps": window}
    if windows:
        row |= {
            f"known_{n}_reads": run(steps, slots, "lfu_aging", n, counted)[0]
            for n in (round(window * times) for times in (1 / 16, 1 / 4, 1 / 2, 2))
        }
    return row | {
        "lru_over_best": reads["lru"] / reads["best_fixed"],
        "over_best": reads["lfu_aging"] / reads["best_fixed"],
        "known_over_best": reads["known"] / reads["best_fixed"],
        "over_optimum": reads["known"] / reads["optimum"],
    }


def mean(counts: list[int]) -> float:
    return sum(counts) / len(counts)


def weights(n: int, law: float) -> np.ndarray:
    """Chances of a table's rows, by rank."""
    found = np.arange(1, n + 1, dtype=np.float64) ** -law
    return found / found.sum()


def drawn(tables: list[int], law: float, batch: int, n_steps: int) -> Steps:
    """Distinct rows of each step, int32, ascending; tables one after the other, rows by rank: slots lie by hash."""
    ends = [np.cumsum(weights(n, law)) for n in tables]
    starts = np.cumsum([0, *tables])
    rng, steps = np.random.default_rng(SEED), Steps()
    for first in range(0, n_steps, PIECE):
        size = min(PIECE, n_steps - first), batch
        rows = np.concatenate(
            [s + np.searchsorted(e, rng.random(size) * e[-1]) for s, e in zip(starts, ends, strict=False)], 1
        )
        steps += [np.unique(row).astype(np.int32) for row in rows]
    return steps


def run(steps: Steps, slots: int, evict: Any, window: int | None, counted: slice) -> tuple[float, float]:
    """Reads a step of a rule, and how many next steps it was told of: ``window``, or by its own count (None)."""
    cache = kernels.SlotMap(slots, evict=evict, seed=0, device=None)
    reads, ahead = [], []
    told = 0  # the last step that it knows of
    for now, ids in enumerate(steps, 1):
        told = max(told, now)
        until = told + 2 * (cache.foreseen < ENOUGH) if window is None else now + window
        while told < min(until, len(steps)):
            told += 1
            cache.foresee(steps[told - 1].astype(np.int64), told)
        placed = cache.admit(ids.astype(np.int64), now)
        reads.append(placed.n_new + int((placed.slots < 0).sum()))
        ahead.append(told - now)
    return mean(reads[counted]), mean(ahead[counted])


def optimum(steps: Steps, slots: int, n_rows: int, counted: slice) -> float:
    """Reads a step of Belady's choice of so many rows, in any places.

    ``due`` of a row that is there is the step that asks for it next, 0 of others; no such step is after ``far``.
    """
    never = len(steps) + 1
    following = np.full(n_rows, never, np.int32)
    nexts = Steps()
    for now in range(len(steps), 0, -1):
        ids = steps[now - 1]
        nexts.append(following[ids])
        following[ids] = now
    nexts.reverse()
    due, reads = np.zeros(n_rows, np.int32), []
    size, far = 0, len(steps)
    for ids, its_next in zip(steps, nexts, strict=True):
        there = due[ids] > 0
        reads.append(int((~there).sum()))
        size -= int(there.sum())
        due[ids] = 0
        soon = its_next <= far
        due[ids[soon]] = its_next[soon]
        size += int(soon.sum())
        if size < slots:
            later = np.flatnonzero(~soon & (its_next < never))
            later = later[np.argsort(its_next[later], kind="stable")][: slots - size]
            due[ids[later]] = its_next[later]
            size += len(later)
            far = max(far, int(its_next[later].max(initial=0)))
        while size > slots:
            last = steps[far - 1]
            last = last[due[last] == far][: size - slots]
            due[last] = 0
            size -= len(last)
            far -= size > slots
    return mean(reads[counted])
