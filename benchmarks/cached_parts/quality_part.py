"""AUC of ``cached`` by staleness, beside that of ``sync`` (``hybrid_parts.auc_part``, whose settings are tuned for it).

Learning rates fall to 0 along a line. 4 dense ranks, which share a batch, and a copy of every row that a rank has met,
so that rows lack the most that they may: with less room rows that go come back fresh. One process computes what the
ranks would, the same up to the order of sums, and sooner (``on_ranks.one_process``; a run over ranks is beside it). The
largest staleness of ``LADDER`` that holds is sought, and what it saves is counted by the ledger in a run of as many
steps with room for ``CAPACITY`` of the rows, copies that begin empty included, beside ``sync`` with deduplicated rows
on as many ranks. ``hot_sgd`` is the bad case: few large steps, in which every rank meets the hottest rows, and no
claim. ``movielens_long_rowwise_adagrad`` has five times the steps, and no claim either: how far it is that rows of
MovieLens get few ticks in the others. Knows settings; starts nothing.
"""

from pathlib import Path
from typing import Any

import numpy as np
from _report import claim
from cached_parts.bytes_part import NOT_ROWS
from des_parts.cells import Row, show
from hybrid_parts import auc_part

from hpcrec.comm.ledger import TAGS

RANKS, CAPACITY, CACHE = 4, 0.1, "lfu"
STALENESS, LADDER, CHECKED = (10, 100), (1, 3, 10, 30, 100, 300), 100
GOAL_SAVED = 0.75
NAMES = {  # of parts: data, and the optimizer of rows
    **{f"{data}_{optimizer}": (data, optimizer) for data in auc_part.DECIDES for optimizer in auc_part.BOTH},
    "hot_sgd": ("hot", "sgd"),
    "movielens_long_rowwise_adagrad": ("movielens_long", "rowwise_adagrad"),
}
STALENESS_LONG = (1, 3, 10, 30)


def measure(cache: Path, files: Path, name: str, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, of the part of this name, and claims."""
    data, optimizer = NAMES[name]
    decides = data in auc_part.DECIDES and not quick
    arms = auc_part.Arms(
        staleness=STALENESS_LONG if data == auc_part.LONG.name else STALENESS,
        settings=_settings,
        claimed=STALENESS,
        claim="het.auc_interval.{data}.{optimizer}.s{staleness}",
        ranks=RANKS,
        by_one=True,
        ladder=LADDER if decides else (),
        optimizers=(optimizer,),
        schedule="constant" if data == "hot" else "linear",
    )
    rows, claims = auc_part.measure(cache, files, data, arms, quick=quick)
    if not rows or not decides:
        return rows, claims
    largest = auc_part.held(rows)
    rows.append(_over_ranks(cache, files, next(row for row in rows if row["staleness"] == CHECKED)))
    claims.append(claim(f"het.largest_s.{data}.{optimizer}", largest, "the AUC that holds"))
    if largest is not None:
        saved = _saved(cache, files, rows[0], largest)
        rows.append(saved)
        unit = f"of the bytes of deduplicated rows, fewer, at s = {largest}"
        claims.append(claim(f"het.bytes_saved_at_auc.{data}.{optimizer}", saved["saved"], unit, f">= {GOAL_SAVED:g}"))
    return rows, claims


def _settings(staleness: int, capacity: float = 1.0) -> list[str]:
    room = f"policy.capacity={capacity}"
    return ["policy.name=cached", f"policy.staleness={staleness}", room, f"policy.cache={CACHE}"]


def _over_ranks(cache: Path, files: Path, own: Row) -> Row:
    """The first seed's run, on ranks that exchange rows, beside what one process found."""
    (found,) = auc_part.again(cache, files, own, [_settings(own["staleness"])], RANKS)
    about = {name: own[name] for name in ("data", "optimizer", "lr", "steps", "schedule", "staleness")}
    row = {"part": "over ranks", **about, "auc": found["auc"], "auc_by_one": own["auc"][0]}
    show(row)
    return row


def _saved(cache: Path, files: Path, tuned: Row, staleness: int) -> Row:
    """What is saved by such a staleness, where settings are those of a row."""
    policies = [["exchange.form=rows"], _settings(staleness, CAPACITY)]
    plain, own = auc_part.again(cache, files, tuned, policies, RANKS)
    n_bytes = [_rows_bytes(found["bytes_TRR"]) for found in (plain, own)]
    about = {name: tuned[name] for name in ("data", "optimizer", "lr", "steps", "schedule")}
    figures = {"kb_a_step": 1e-3 * n_bytes[1], "rows_kb_a_step": 1e-3 * n_bytes[0], "auc": own["auc"]}
    row = {"part": "bytes", **about, "staleness": staleness, "capacity": CAPACITY, **figures}
    row["saved"] = 1 - n_bytes[1] / n_bytes[0]
    show(row)
    return row


def _rows_bytes(bytes_TRR: Any) -> float:
    """A step's, between ranks, of all tags that concern rows."""
    found = np.array(bytes_TRR)[[TAGS.index(tag) for tag in TAGS if tag not in NOT_ROWS]]
    return float(found.sum() - np.trace(found, axis1=1, axis2=2).sum())
