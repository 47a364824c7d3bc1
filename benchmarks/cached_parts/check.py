"""That the count of ``counts_part`` is right: the ledger of runs over 4 ranks has each byte of it.

Runs begin with empty caches and end with a drain point; some caches are so small that copies have to go, or find no
room, and the rows of some tables are dealt to all ranks. Compared is every tag but the dense sums', by sender and
receiver, with what the same ids come to by ``decided`` and ``wire``: the two have to be equal.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _report import claim
from cached_parts import runs, wire
from cached_parts.decided import Cache, Ranks
from cached_parts.placed import Placed
from des_parts.cells import Row, show
from on_ranks import launch

from hpcrec.types import Ints

BATCH, WIDTH, STEPS = 128, 16, 30
SPLIT = (2, 11)  # tables whose rows all ranks have
# Staleness, cache, capacity: that of the product's default; one beyond which copies go; one that no step's rows fit in.
ARMS = (
    (10, "lru", 0.1),
    (100, "lfu", 0.1),
    (1, "lru", 2500),
    (10, "lightlfu", 2500),
    (0, "lightlfu", 2500),
    (300, "lru", 600),
)
QUICK_ARMS = ARMS[3:4]


def measure(cache: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and the claim."""
    arms = QUICK_ARMS if quick else ARMS
    data = runs.prepared(cache, runs.RANKS * BATCH * STEPS)
    split = [f"embedding.tables.f{t}.shard=row" for t in SPLIT]
    own = [["exchange.form=rows"], *(runs.cached(*arm) for arm in arms)]
    jobs = [runs.job(data, BATCH, WIDTH, STEPS, [STEPS], [*split, *of]) for of in own]
    placed = Placed(runs.ROWS, runs.RANKS, WIDTH, SPLIT)
    steps = asked(placed, BATCH, STEPS)
    rows, errors = list[Row](), list[int]()
    for arm, found in zip((None, *arms), launch.local(jobs, ranks=runs.RANKS), strict=True):
        told = dict(zip(found["tags"], np.array(found["bytes_MTRR"][0], np.int64), strict=True))
        counted = wire.by_tag(messages(placed, steps, arm))
        about: Row = {"part": "check", "form": "rows" if arm is None else "cached"}
        if arm is not None:
            about |= dict(zip(("staleness", "cache", "capacity"), arm, strict=True))
        for tag, bytes_RR in counted.items():
            np.fill_diagonal(bytes_RR, 0)
            errors.append(int(np.abs(bytes_RR - told[tag]).sum()))
            about |= {f"{tag}_counted": int(bytes_RR.sum()), f"{tag}_ledger": int(told[tag].sum())}
        rows.append(about)
        show(about)
    unit = f"bytes in {len(jobs)} runs of {STEPS} steps that the ledger has and the count has not, or the other way"
    return rows, [claim("het.count_error", sum(errors), unit, "<= 0")]


def asked(placed: Placed, batch: int, steps: int) -> list[list[Ints]]:
    """Distinct rows of each step and rank, of the data set's samples."""
    n = runs.RANKS * batch * steps
    assert n <= runs.CHUNK, "which are one chunk"
    rows = np.stack([placed.numbers(t, runs.ids_of(t, n, 0)) for t in range(len(placed.rows))])
    of_steps = rows.reshape(len(rows), steps, runs.RANKS, batch)
    return [[np.unique(of_steps[:, t, rank]) for rank in range(runs.RANKS)] for t in range(steps)]


def messages(placed: Placed, steps: Sequence[Sequence[Ints]], arm: tuple[int, str, float] | None) -> list[wire.Message]:
    """What crosses in them."""
    n = placed.ranks
    asked = np.array([[np.bincount(placed.owner[rows], minlength=n) for rows in of_ranks] for of_ranks in steps])
    requests = np.array([[placed.request_bytes(rows) for rows in of_ranks] for of_ranks in steps])
    if arm is None:
        return wire.of_rows(asked, requests, WIDTH)
    staleness, cache, capacity = arm
    places = capacity if isinstance(capacity, int) else math.ceil(capacity * placed.total)
    empty = [Cache.empty(places, cache, 1) for _ in range(n)]
    found = Ranks(placed.owner, empty, [staleness]).run(steps, drained=True)
    moved = found.sent[..., 0], found.pushed[..., 0]
    return wire.of_cached(asked, requests, *moved, WIDTH, staleness=staleness, entries=placed.entries)
