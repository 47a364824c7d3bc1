"""Bytes of a step by form of the exchange: what partial results [DES] save against a parameter server's rows.

    python benchmarks/des.py [--quick] [--json FILE] [--data DIR]

2 owners and 2 dense ranks, global batch 4,096, width 16, ids by P(rank k) ~ (k + 1)^-1.05, 4 bytes a value. Two shapes:
``onehot`` has Criteo Kaggle's 26 features with at most 1,000,000 rows each, ``multihot`` 30 features of 20 ids over
1,000,000 rows. Bytes are the ledger's, all tags, of training runs; samples/s are of the same runs, one each, and not
what is claimed. ``rows`` are deduplicated by dense rank and step, the strongest parameter server; the row ``rows, each
id`` is what papers count, by formula: the vectors of every id there and back, and no bytes of ids.

``des.saving.<shape>.<model>``: 1 - bytes of ``partial`` over those of ``rows``, owners reading ids on both sides.
"""

import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

from _report import claim, finish, trained, write_config
from _report import options as benchmark_options
from speed_parts import hpcrec_data, workload

SHAPES, MODELS = ("onehot", "multihot"), ("lr", "fm", "deepfm", "dcn", "dlrm")
FORMS, IDS = ("rows", "pooled", "partial"), ("read", "routed")
WIDTH, STEPS = 16, 12
GOALS = {
    ("multihot", "lr"): ">= 0.95",
    ("multihot", "fm"): ">= 0.95",
    ("onehot", "lr"): ">= 0.6",
    ("onehot", "fm"): ">= 0.6",
}
CONFIG = """
[data]
train = "{data}"
[model]
name = "{model}"
width = {width}
[topology]
mode = "split"
owners = 2
dense = 2
[exchange]
form = "{form}"
ids = "{ids}"
[embedding.optimizer]
name = "rowwise_adagrad"
lr = 0.0002
[dense]
reducer = "mpi"
[train]
batch_size = {batch}
steps = {steps}
[checkpoint]
resume = "never"
"""


def main() -> None:
    parser = benchmark_options(__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser())
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    steps = 4 if options.quick else STEPS
    for shape in SHAPES:
        data = hpcrec_data.prepare(f"des-{shape}", options.data / "hpcrec" / "speed")
        for model in ("lr", "fm") if options.quick else MODELS:
            for ids, form in itertools.product(("read",) if options.quick else IDS, FORMS):
                rows.append(run(data, shape, model, form, ids, steps))
                show(rows[-1])
            rows.append(each_id(shape, model))
            show(rows[-1])
    claims = []
    for shape in SHAPES:
        for model in MODELS:
            found = {
                r["form"]: r["bytes"] for r in rows if (r["shape"], r["model"], r["ids_by"]) == (shape, model, "read")
            }
            value = 1 - found["partial"] / found["rows"] if found else None
            goal = GOALS.get((shape, model))
            claims.append(claim(f"des.saving.{shape}.{model}", value, "of the bytes of rows, deduplicated", goal))
    finish("des", rows, claims, options.json)


def run(data: Path, shape: str, model: str, form: str, ids: str, steps: int) -> dict[str, Any]:
    """Bytes a step of one run, by tag, and its speed."""
    batch = workload.WORKLOADS[f"des-{shape}"].batch
    text = CONFIG.format(data=data, model=model, width=WIDTH, form=form, ids=ids, batch=batch, steps=steps)
    with tempfile.TemporaryDirectory() as name:
        summary = trained(write_config(Path(name), text), 4)
    by_tag = {tag: sum(n.values()) / steps for tag, n in summary["wire_bytes"].items()}
    tags = {tag: round(by_tag[tag]) for tag in ("ids", "values", "gradients", "dense", "control")}
    speed = summary["throughput"]["samples_per_s"]
    return {
        "shape": shape,
        "model": model,
        "ids_by": ids,
        "form": form,
        "bytes": sum(tags.values()),
        **tags,
        "samples_per_s": speed,
    }


def each_id(shape: str, model: str) -> dict[str, Any]:
    """What papers count of a parameter server."""
    w = workload.WORKLOADS[f"des-{shape}"]
    columns = {"lr": 1, "fm": WIDTH + 1, "deepfm": WIDTH + 1}.get(model, WIDTH)
    one_way = w.batch * len(w.rows) * w.ids * columns * 4
    tags = {"ids": 0, "values": one_way, "gradients": one_way, "dense": 0, "control": 0}
    return {
        "shape": shape,
        "model": model,
        "ids_by": "",
        "form": "rows, each id",
        "bytes": 2 * one_way,
        **tags,
        "samples_per_s": None,
    }


def show(r: dict[str, Any]) -> None:
    """A run on one line."""
    speed = "" if r["samples_per_s"] is None else f"{r['samples_per_s']:9.0f} samples/s"
    print(
        f"{r['shape']:9} {r['model']:7} {r['ids_by']:7} {r['form']:14} {r['bytes'] / 1e6:9.3f} MB a step {speed}",
        flush=True,
    )


if __name__ == "__main__":
    main()
