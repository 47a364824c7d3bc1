"""What ``benchmarks/des.py`` runs: shapes of data, models, forms; and the job and the row of one of each.

Knows no files and starts nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.comm.ledger import TAGS

Row = dict[str, Any]
MODELS = ("lr", "fm", "deepfm", "dcn", "dlrm")
FORMS = ("rows", "pooled", "partial", "auto")
IDS = ("read", "routed")
CONFIG = Path(__file__).resolve().parent / "des.toml"
WIDTH, ITEM_BYTES, RANKS = 16, 4, 4  # as des.toml has them
COLUMNS = {"lr": 1, "fm": WIDTH + 1, "deepfm": WIDTH + 1, "dcn": WIDTH, "dlrm": WIDTH}  # of an id's rows


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of data.

    Attributes
    ----------
    name : str
        In tables and claims.
    data : str
        Name of the data set; several shapes may read one.
    batch : int
    steps : int
        Of a run for bytes; whole epochs where the data set has fewer batches than that.
    claimed : bool
        Whether it has claims, and runs with routed ids too.
    """

    name: str
    data: str
    batch: int = 4096
    steps: int = 12
    claimed: bool = True


SHAPES = tuple(Shape(name=name, data=name) for name in ("onehot", "multihot", "movielens", "criteo"))
FURTHER = (
    *(Shape(name=f"{name}-1.2", data=f"{name}-1.2", claimed=False) for name in ("onehot", "multihot")),
    *(
        Shape(name=f"{name}-16k", data=name, batch=16384, steps=6, claimed=False)
        for name in ("onehot", "multihot", "movielens")
    ),
)


def job(shape: Shape, data: Path, model: str, ids: str, form: str, **more: Any) -> Row:
    """A run of ``rank.train``; ``more`` are its arguments and the settings that differ, as ``settings``."""
    also: Sequence[str] = more.pop("settings", ())
    settings = [*_settings(shape, data, model, ids), f"exchange.form={form}", f"train.steps={shape.steps}", *also]
    return {"kind": "train", "config": str(CONFIG), "settings": settings, **more}


def pairs_job(shape: Shape, data: Path, model: str, forms: Sequence[str], n_pairs: int, steps: int) -> Row:
    """Runs of ``rank.pairs``."""
    settings = _settings(shape, data, model, "read")
    runs = {"variants": {form: [f"exchange.form={form}"] for form in forms}, "n_pairs": n_pairs, "steps": steps}
    return {"kind": "pairs", "config": str(CONFIG), "settings": settings, **runs}


def _settings(shape: Shape, data: Path, model: str, ids: str) -> list[str]:
    return [
        f"data.train={data}",
        f"model.name={model}",
        f"exchange.ids={ids}",
        f"train.batch_size={shape.batch}",
    ]


def by_tag(found: Mapping[str, Any]) -> dict[str, int]:
    """Bytes a step of all ranks, by tag, of a row of ``rank.train``."""
    totals_T = np.array(found["bytes_TRR"]).sum(axis=(1, 2))
    return {tag: round(float(n)) for tag, n in zip(TAGS, totals_T, strict=True)}


def show(row: Row, digits: int = 3) -> None:
    """A row on one line."""
    print("  ".join(f"{k} {v:.{digits}f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)


def saving(less: float, than: float) -> float:
    """What share of ``than`` is saved."""
    return 1 - less / than
