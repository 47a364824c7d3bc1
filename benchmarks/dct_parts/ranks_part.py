"""Bytes and AUC of both compressions on 2, 4 and 8 ranks, beside uncompressed runs of every form.

DLRM of width 128 on the synthetic clicks as in ``quality_part``, one seed, 1,000 steps of 2,048 samples of all ranks,
262,144 test samples; all ranks of this machine, each with both roles. Bytes by the ledger, of a step and all ranks;
dense sums of thresholded runs as ``allgather`` and as ``reduce_scatter``, at the density of ``quality_part``, on 8
ranks a sixth lower: 0.03 there came to 89 times fewer bytes. ``dense_formula``: the dense bytes that
docs/dct.md's formula gives for the share of entries that was sent (``dense_density``). ``rows`` and ``auto``:
uncompressed runs of forms that send less of skewed ids than ``pooled`` does, short, for their bytes alone.

``dct.dense_ratio.<N>``, ``dct.exchange_ratio.<N>``: bytes of the uncompressed ``pooled`` run on N ranks over those of
the thresholded one, by ``reduce_scatter``. ``dct.dense_ratio_allgather.<N>``: by ``allgather``.
``dct.exchange_ratio_auto.<N>``: of the uncompressed run of form ``auto``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from _report import claim
from dct_parts import clicks
from dct_parts.quality_part import BLOCKS, OF, show
from dct_parts.runs import MODELS, Row, train

from hpcrec.dense.dct_bytes import position_bytes

DENSE_DENSITY = {8: 0.025}  # elsewhere as in ``quality_part``
MODEL, SEED, STEPS, SHORT_STEPS, EVAL_BATCHES = "dlrm", 1, 1000, 100, 128
RANKS = (2, 4, 8)
QUICK_RANKS, QUICK_STEPS, QUICK_BLOCKS, QUICK_TEST_BLOCKS = (2,), 60, 4, 1
MANY = 1_000_000  # entries of a large parameter, for what a position takes
COLLECTIVES = ("reduce_scatter", "allgather")
GOALS = {"dense": ">= 100", "exchange": ">= 20"}


def measure(cache: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    data = clicks.prepare(QUICK_BLOCKS, cache, QUICK_TEST_BLOCKS) if quick else clicks.prepare(BLOCKS, cache)
    rows: list[Row] = []
    for ranks in QUICK_RANKS if quick else RANKS:
        for run, steps, settings in runs(ranks):
            every = [*MODELS[MODEL], f"model.width={OF[MODEL].width}", f"train.seed={SEED}"]
            every.append(f"train.steps={min(steps, QUICK_STEPS) if quick else steps}")
            found = train(data, ranks, [*every, *settings], eval_batches=EVAL_BATCHES)
            row = {"ranks": ranks, "run": run, **found}
            if steps != STEPS:
                row["auc"] = row["logloss"] = None
            whole = next((r["dense_bytes"] for r in rows if (r["ranks"], r["run"]) == (ranks, "pooled")), 0.0)
            row["dense_formula"] = formula(whole, ranks, run, row["dense_density"])
            rows.append(row)
            show(row)
    return rows, claims(rows)


def runs(ranks: int) -> Iterator[tuple[str, int, Sequence[str]]]:
    """Names, steps and settings of the runs on so many ranks."""
    whole = OF[MODEL].whole
    yield "pooled", STEPS, whole
    for form in ("rows", "auto"):
        yield form, SHORT_STEPS, (*whole, f"exchange.form={form}")
    for collective in COLLECTIVES:
        density = DENSE_DENSITY.get(ranks, OF[MODEL].dense_density)
        dense = (f"dense.dct.density={density}", f"dense.dct.collective={collective}")
        yield collective, STEPS, (*OF[MODEL].thresholded(), *dense)


def formula(whole: float, ranks: int, run: str, density: float) -> float | None:
    """Bytes of thresholded dense sums of all ranks, whose whole sums take ``whole``."""
    if run not in COLLECTIVES:
        return None
    kept = round(MANY * density)
    item = 2 + 4 / 128 + position_bytes(MANY, kept) / kept  # fp16, and gaps
    thresholded = whole / 4 * density * item  # whole: 2 (N - 1) / N times 4 bytes an entry and rank
    return thresholded if run == "reduce_scatter" else thresholded * ranks / 2


def claims(rows: Sequence[Row]) -> list[Row]:
    """Of each number of ranks."""
    out = []
    for ranks in dict.fromkeys(row["ranks"] for row in rows):
        at = {row["run"]: row for row in rows if row["ranks"] == ranks}
        unit = f"times fewer bytes on {ranks} ranks"
        scattered = at["reduce_scatter"]
        for part in ("dense", "exchange"):
            ratio = at["pooled"][f"{part}_bytes"] / scattered[f"{part}_bytes"]
            out.append(claim(f"dct.{part}_ratio.{ranks}", ratio, unit, GOALS[part]))
        ratio = at["pooled"]["dense_bytes"] / at["allgather"]["dense_bytes"]
        out.append(claim(f"dct.dense_ratio_allgather.{ranks}", ratio, unit))
        ratio = at["auto"]["exchange_bytes"] / scattered["exchange_bytes"]
        out.append(claim(f"dct.exchange_ratio_auto.{ranks}", ratio, f"{unit} than form auto"))
    return out
