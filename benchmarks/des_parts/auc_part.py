"""AUC of ``partial`` and ``auto`` beside that of ``rows``: the same seeds, on validation data.

MovieLens' pairs, and hpcrec's synthetic clicks, whose attainable AUC is known: the row says it. Rows learn faster here
than where bytes are counted, so that models have learned something when they are judged. Forms add in another order,
and training of towers makes more of that: the same in float64 says how much of a difference is rounding, and so does
``rows`` itself on 1 owner and 3 dense ranks (``rows_elsewhere``), whose gradients are added in another order.
``des.auc_gap``, ``auto.auc_gap``: largest difference from ``rows`` over models and data, in float32;
``des.auc_gap.float64``, ``auto.auc_gap.float64``: in float64.
"""

import itertools
from dataclasses import replace
from pathlib import Path

from _report import claim
from des_parts import cells
from des_parts.cells import Row, Shape
from on_ranks import launch

from hpcrec.data.reader import DataSet

# steps: about one epoch of MovieLens, four of the synthetic clicks
SHAPES = (Shape(name="movielens", data="movielens", steps=400), Shape(name="synthetic", data="synthetic", steps=400))
DTYPES = ("float32", "float64")
QUICK_MODELS, QUICK_STEPS = ("fm",), 40
FORMS = tuple(form for form in cells.FORMS if form != "pooled")
ELSEWHERE = ("topology.owners=1", "topology.dense=3")
SETTINGS = ("embedding.optimizer.lr=0.02",)
GAP = 1e-4


def measure(data: dict[str, Path], *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    models = QUICK_MODELS if quick else cells.MODELS
    wanted, jobs = [], []
    for shape in (replace(s, steps=QUICK_STEPS) if quick else s for s in SHAPES if s.data in data):
        train = data[shape.data]
        settings = [*SETTINGS, f"data.validation={train.parent / 'validation.h5'}"]
        for model, dtype in itertools.product(models, DTYPES):
            wanted.append((shape, model, dtype))
            also = [*settings, f"train.dtype={dtype}"]
            runs = [*((form, also) for form in FORMS), ("rows", [*also, *ELSEWHERE])]
            jobs += [cells.job(shape, train, model, "read", form, settings=s, evaluate=True) for form, s in runs]
    names = (*FORMS, "rows_elsewhere")
    rows: list[Row] = []
    auc: dict[str, float] = {}
    for number, found in enumerate(launch.local(jobs)):
        auc[names[number % len(names)]] = found["auc"]
        if len(auc) < len(names):
            continue
        shape, model, dtype = wanted[len(rows)]
        rows.append(row(shape, model, dtype, auc, attainable(data[shape.data])))
        auc = {}
        cells.show(rows[-1], digits=6)
    return rows, claims(rows)


def attainable(train: Path) -> float | None:
    """The best AUC to expect of the validation data, where they know it."""
    with DataSet(train.parent / "validation.h5") as data:
        known = data.attributes.get("attainable_auc")
    return None if known is None else float(known)


def row(shape: Shape, model: str, dtype: str, auc: dict[str, float], best: float | None) -> Row:
    """One line of the table: a model's AUC by form, and how far the others are from ``rows``."""
    gaps = {f"{form}_gap": abs(value - auc["rows"]) for form, value in auc.items() if form != "rows"}
    head = {"data": shape.name, "model": model, "dtype": dtype, "steps": shape.steps}
    return {**head, **auc, **gaps, "attainable": best}


def claims(rows: list[Row]) -> list[Row]:
    """The largest gaps."""
    out = []
    for dtype, short in itertools.product(DTYPES, ("des", "auto")):
        form = "partial" if short == "des" else short
        gaps = [r[f"{form}_gap"] for r in rows if r["dtype"] == dtype]
        name = f"{short}.auc_gap" + ("" if dtype == DTYPES[0] else f".{dtype}")
        out.append(claim(name, max(gaps, default=None), "of AUC, worst", f"<= {GAP:g}"))
    return out
