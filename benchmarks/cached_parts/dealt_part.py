"""Bytes of runs whose batches are dealt by affinity beside those of runs in order, by the ledger. See ``cached.py``.

Fused ranks, samples of real data sets, one id a bag, rows of all tables dealt to all ranks, SGD, and under ``cached``
a tenth of the rows kept by ``lru``. A model that computes a sum: bytes do not depend on it, so that neither do they
on the machine. Counted behind steps in which copies fill; ``criteo_once`` reads each of its few samples once, in the
file's order of windows, and counts the second half. Knows settings and the ledger's rows; starts ranks.
"""

from pathlib import Path
from typing import Any

from _report import claim
from cached_parts import runs
from cached_parts.bytes_part import halves
from des_parts import shapes
from des_parts.cells import Row, show
from on_ranks import launch

from hpcrec.data.reader import DataSet

BATCH, WIDTH = 128, 64
RANKS = runs.RANKS
SETTLING, COUNTED = 150, 60
ONCE = "_once"
NAMES = ("movielens", "criteo", "criteo_once")
POLICIES: dict[str, list[str]] = {
    "sync": ["exchange.form=rows"],
    "cached 10": runs.cached(10, "lru"),
    "cached 100": runs.cached(100, "lru"),
}
DEALS = ("order", "affinity")
UNIT = "of the bytes of {} dealt in order, fewer, on {} ranks"


def measure(cache: Path, files: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    rows, claims = list[Row](), list[Row]()
    for name in NAMES:
        path = shapes.prepare(name.removesuffix(ONCE), cache, files)
        if path is None:
            continue
        found = _of(name, path, quick=quick)
        rows += found
        claims += _claims(found)
    return rows, claims


def _of(name: str, path: Path, *, quick: bool) -> list[Row]:
    """Each policy, dealt in either way."""
    with DataSet(path) as data:
        split = [f"embedding.tables.{feature.name}.shard=row" for feature in data.features]
        epoch = data.samples // (RANKS * BATCH)
    settling, counted = (SETTLING // 10, COUNTED // 10) if quick else (SETTLING, COUNTED)
    if name.endswith(ONCE):
        settling, counted = epoch // 2, epoch - epoch // 2 - 1
    marks = [settling, settling + counted // 2, settling + counted]
    arms = [(policy, deal) for policy in POLICIES for deal in DEALS]
    jobs = [_job(path, marks, [*split, *POLICIES[policy], f"data.deal={deal}"]) for policy, deal in arms]
    out, base = list[Row](), dict[str, float]()
    for (policy, deal), found in zip(arms, launch.local(jobs, ranks=RANKS), strict=True):
        first, second = (
            of / n for of, n in zip(halves(found), (marks[1] - marks[0], marks[2] - marks[1]), strict=True)
        )
        mean = (first * (marks[1] - marks[0]) + second * (marks[2] - marks[1])) / counted
        base.setdefault(policy, mean)
        out.append(
            {
                "part": "dealt",
                "data": name,
                "ranks": RANKS,
                "batch": BATCH,
                "policy": policy,
                "deal": deal,
                "kb_a_step": 1e-3 * mean,
                "halves": [1e-3 * first, 1e-3 * second],
                "saved": 1 - mean / base[policy],
                "saved_of_rows": 1 - mean / base["sync"],
            }
        )
        show(out[-1])
    return out


def _job(path: Path, marks: list[int], own: list[str]) -> dict[str, Any]:
    """A run in the order that training has, unlike those of ``runs``."""
    return runs.job(path, BATCH, WIDTH, marks[-1] + 1, marks, ["data.shuffle=true", *own])


def _claims(rows: list[Row]) -> list[Row]:
    return [
        claim(
            f"het.dealt.saved.{r['policy'].replace(' ', '_s')}.{r['data']}.{r['ranks']}",
            r["saved"],
            UNIT.format(r["policy"].replace(" ", " at s = "), r["ranks"]),
        )
        for r in rows
        if r["deal"] == "affinity"
    ]
