"""100 trillion parameters, logically: the same traffic over few ids and over 6.25 trillion, 16 columns each.

Eight features of dynamic tables, one id a bag by P(rank k) ~ (k + 1)^-1.05 of ``IDS`` ranks in all. In one data set
the id of rank k is k; in the other they are spread over 6.25 trillion. Both have the same rows to hold: an id gets one
when it is first asked for. Runs of 2 fused ranks under ``hybrid`` take turns; each is saved, and what was saved loaded.
``persia.capacity_slowdown`` is the ratio of step times, 1 where many ids cost nothing.
"""

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from _report import claim, interval
from hybrid_parts import runs
from hybrid_parts.runs import Row
from on_ranks import launch

from hpcrec.data.layout import Column, Columns
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature

FEATURES, BATCH, BATCHES, EXPONENT = 8, 8192, 48, 1.05
IDS, LOGICAL_IDS, WIDTH = 1_000_000, 6_250_000_000_000, 16
STEPS, REPEATS, CAPACITY = 24, 7, 400_000  # of a table: more than are asked for
GOAL = 1.1


def measure(cache: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    few, many = (data(cache, name, spread) for name, spread in (("few", 1), ("many", LOGICAL_IDS // IDS)))
    repeats = 1 if quick else REPEATS
    jobs = [_job(path) for turn in range(repeats) for path in ((few, many) if turn % 2 else (many, few))]
    found = list(launch.local(jobs, ranks=2))
    of: dict[str, list[Row]] = {str(few): [], str(many): []}
    for job, row in zip(jobs, found, strict=True):
        of[job["settings"][0].removeprefix("data.train=")].append(row)
    ratios = [b["step_s"] / a["step_s"] for a, b in zip(of[str(few)], of[str(many)], strict=True)]
    rows = [_row(ids, of[str(path)]) for ids, path in ((IDS, few), (LOGICAL_IDS, many))]
    low, high = interval(ratios)
    rows[1] |= {"slowdown": statistics.median(ratios), "low": low, "high": high}
    assert rows[0]["rows"] == rows[1]["rows"], "an id each has the same rows"
    unit = "times the step over a million ids, with the same rows"
    return rows, [claim("persia.capacity_slowdown", statistics.median(ratios), unit, f"<= {GOAL:g}")]


def data(cache: Path, name: str, spread: int) -> Path:
    """A data set of the traffic, id k of a feature as k times ``spread``, and up to as much again."""
    path = cache / f"hybrid-capacity-{name}.h5"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    rng, n = np.random.default_rng(7), IDS // FEATURES
    chance = (np.arange(n) + 1.0) ** -EXPONENT
    features = [Feature(name=f"f{i}", cardinality=0) for i in range(FEATURES)]
    with Writer(path, features, n_dense=4) as writer:
        for _ in range(BATCHES):
            drawn_FB = rng.choice(n, (FEATURES, BATCH), p=chance / chance.sum())
            ids_FB = drawn_FB * spread + drawn_FB * 2_654_435_761 % spread
            sparse = {f.name: Column(ids_B) for f, ids_B in zip(features, ids_FB, strict=True)}
            label, dense = rng.integers(0, 2, BATCH).astype(np.float32), rng.standard_normal((BATCH, 4), np.float32)
            writer.append(Columns(label=label, dense=dense, sparse=sparse))
    return path


def _job(train: Path) -> Row:
    tables = [f"embedding.tables.f{i}.dynamic.capacity={CAPACITY}" for i in range(FEATURES)]
    settings = [f"model.width={WIDTH}", f"train.batch_size={BATCH}", *tables]
    return {**runs.job(train, "hybrid 2", settings, STEPS), "again_from": True}


def _row(ids: int, found: Sequence[Row]) -> Row:
    middle = partial(_median, found)
    return {
        "part": "capacity",
        "logical_ids": ids,
        "logical_parameters": ids * WIDTH,
        "step_ms": 1e3 * middle("step_s"),
        "rows": found[0]["rows"],
        "rows_bytes": found[0]["rows_bytes"],
        "checkpoint_bytes": found[0]["checkpoint_bytes"],
        "save_s": middle("save_s"),
        "load_s": middle("load_s"),
    }


def _median(found: Sequence[Row], name: str) -> float:
    return statistics.median(row[name] for row in found)
