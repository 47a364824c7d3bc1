"""Bytes of a step by form. They depend on seeds alone: one short run of each."""

from collections.abc import Sequence
from pathlib import Path

from _report import claim
from des_parts import cells, shapes
from des_parts.cells import Row, Shape
from on_ranks import launch

QUICK_MODELS, QUICK_STEPS = ("lr", "fm"), 4
EACH_ID = "rows, each id"
REGRET = 0.02
AUTO_GOALS = {
    **{("multihot", model): 0.687 for model in cells.MODELS},
    **{("multihot", model): 0.95 for model in ("lr", "fm")},
    **{("onehot", model): 0.6 for model in ("lr", "fm")},
}


def measure(every: Sequence[Shape], data: dict[str, Path], *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    models = QUICK_MODELS if quick else cells.MODELS
    wanted, jobs = [], []
    for shape in every:
        for model in models:
            for ids in cells.IDS if shape.claimed and not quick else cells.IDS[:1]:
                for form in cells.FORMS:
                    wanted.append((shape, model, ids, form))
                    steps = [f"train.steps={QUICK_STEPS}"] if quick else []
                    jobs.append(cells.job(shape, data[shape.data], model, ids, form, settings=steps))
    ids_a_sample = {shape.data: shapes.ids_a_sample(data[shape.data]) for shape in every}
    rows: list[Row] = []
    for (shape, model, ids, form), found in zip(wanted, launch.local(jobs), strict=True):
        tags = cells.by_tag(found)
        rows.append(row(shape, model, ids, form, tags, found["samples_per_s"]))
        progress(rows[-1])
        if form == cells.FORMS[-1]:
            rows.append(each_id(shape, model, ids_a_sample[shape.data]))
            progress(rows[-1])
    made = claims(rows)
    return rows, [item for item in made if item["value"] is not None] if quick else made


def row(shape: Shape, model: str, ids: str, form: str, tags: dict[str, int], speed: float | None) -> Row:
    """One line of the table."""
    head = {"shape": shape.name, "model": model, "ids_by": ids, "form": form}
    return {**head, "bytes": sum(tags.values()), **tags, "samples_per_s": speed}


def each_id(shape: Shape, model: str, ids_a_sample: float) -> Row:
    """What papers count of a parameter server: the vectors of every id there and back, and no bytes of ids."""
    one_way = round(shape.batch * ids_a_sample * cells.COLUMNS[model] * cells.ITEM_BYTES)
    tags = {"ids": 0, "values": one_way, "gradients": one_way, "dense": 0, "control": 0}
    return row(shape, model, "", EACH_ID, tags, None)


def claims(rows: Sequence[Row]) -> list[Row]:
    """Savings against deduplicated rows where owners read ids; the worst of ``auto`` however ids come."""
    out: list[Row] = []
    for short, form in (("des", "partial"), ("auto", "auto")):
        for shape in cells.SHAPES:
            for model in cells.MODELS:
                found = of_cell(rows, shape.name, model, "read")
                value = cells.saving(found[form], found["rows"]) if form in found else None
                least = AUTO_GOALS.get((shape.name, model))
                goal = f">= {least or 0:g}" if form == "auto" else None
                unit = "of the bytes of rows, deduplicated"
                out.append(claim(f"{short}.saving.{shape.name}.{model}", value, unit, goal))
    out.append(claim("auto.regret", regret(rows), "above the best single form, worst", f"<= {REGRET:g}"))
    return out


def of_cell(rows: Sequence[Row], shape: str, model: str, ids: str) -> dict[str, int]:
    """Bytes by form."""
    return {r["form"]: r["bytes"] for r in rows if (r["shape"], r["model"], r["ids_by"]) == (shape, model, ids)}


def regret(rows: Sequence[Row]) -> float | None:
    """Bytes of ``auto`` above those of the best single form, as a share of these; the worst, further rows included."""
    shares = []
    for shape, model, ids in dict.fromkeys((r["shape"], r["model"], r["ids_by"]) for r in rows if r["ids_by"]):
        found = of_cell(rows, shape, model, ids)
        if "auto" in found:
            shares.append(found["auto"] / min(n for form, n in found.items() if form != "auto") - 1)
    return max(shares, default=None)


def progress(r: Row) -> None:
    """A run on one line."""
    speed = "" if r["samples_per_s"] is None else f"{r['samples_per_s']:9.0f} samples/s"
    print(
        f"{r['shape']:13} {r['model']:7} {r['ids_by']:7} {r['form']:14} {r['bytes'] / 1e6:9.3f} MB a step {speed}",
        flush=True,
    )
