"""AUC and bytes of both compressions together beside the uncompressed run on small sets of real clicks, 20 seeds each.

MovieLens-100K (label rating >= 4, five random splits, DeepFM of width 16, examples/movielens/config.toml) and a
sample of Criteo's logs (five folds, DCN of width 8, examples/criteo/config.toml), as ``benchmarks/real_data.py``
prepares them; seed s has split s modulo 5. 2 ranks with both roles, form ``pooled``, float32. Of each vector one
element crosses, as fp16; dense thresholds at density 0.02, found anew every 50 steps. Both runs of a pair have the
same data, seed and settings, those of the examples, which were chosen for uncompressed runs. Vectors are narrow, and
sets so small that thresholds are seldom found: less favourable than the synthetic clicks. No goal.

``dct.auc_difference.<set>``, ``dct.auc_interval.<set>``: as of the synthetic clicks, over seeds.
``dct.dense_ratio.<set>``, ``dct.exchange_ratio.<set>``: bytes by the ledger, ids left out.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import real_data
from _report import ROOT, claim, hpcrec
from dct_parts.quality_part import LESS, VECTORS, WHOLE, interval, of, show
from dct_parts.runs import Row, train

RANKS, SEEDS, QUICK_SEEDS, SPLITS = 2, 20, 2, 5
SETS = ("movielens", "criteo")
EVERY = ("topology.mode=fused", "exchange.form=pooled", "dense.reducer=mpi")
DENSE = ("dense.compression=dct", "dense.dct.density=0.02", "dense.dct.every=50")
DENSITY = {"movielens": 1 / 16, "criteo": 1 / 8}  # of vectors


def measure(data: Path | None, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    rows: list[Row] = []
    seeds, splits = (QUICK_SEEDS, 1) if quick else (SEEDS, SPLITS)
    with tempfile.TemporaryDirectory() as name:
        prepared = prepare(data, Path(name), splits)
        for of_set in SETS:
            if of_set not in prepared:
                rows.append({"model": of_set, "run": "skipped", "result": "no files: --data names their folder"})
            for seed in range(seeds) if of_set in prepared else ():
                for run in (WHOLE, LESS):
                    rows.append(one(of_set, prepared[of_set][seed % splits], seed, run))
                    show(rows[-1])
    return rows, claims(rows)


def prepare(data: Path | None, folder: Path, splits: int) -> dict[str, list[Path]]:
    """Folders with ``train.h5`` and ``test.h5`` of each split, of the sets whose files are there."""
    found: dict[str, list[Path]] = {}
    files = {kind: data / f"ml100k_{kind}.csv.gz" for kind in ("ratings", "users", "items")} if data else {}
    if files and all(path.exists() for path in files.values()):
        found["movielens"] = [folder / f"movielens{split}" for split in range(splits)]
        named = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
        for split, out in enumerate(found["movielens"]):
            hpcrec("prepare", "movielens", "--out", str(out), "--history", "50", "--seed", str(split), *named)
    source = data / "criteo_kaggle_sample.tsv.gz" if data else None
    if source is not None and source.exists():
        words = ["--ids", "vocabulary", "--min-count", "5", "--bin-integers", "--split", "hash:1,0,0"]
        hpcrec("prepare", "criteo", "--out", str(folder / "criteo"), *words, str(source))
        found["criteo"] = [folder / f"criteo{fold}" for fold in range(splits)]
        for fold, out in enumerate(found["criteo"]):
            out.mkdir()
            real_data.cut(folder / "criteo" / "train.h5", out, fold)
    return found


def one(of_set: str, data: Path, seed: int, run: str) -> Row:
    """A row: one run."""
    less = (*VECTORS, f"exchange.dct.density={DENSITY[of_set]}", *DENSE)
    settings = (*EVERY, *(less if run == LESS else ()), f"train.seed={seed}")
    found = train(data, RANKS, settings, config=ROOT / f"examples/{of_set}/config.toml")
    return {"model": of_set, "seed": seed, "run": run, **found}


def claims(rows: Sequence[Row]) -> list[Row]:
    """Of each set that was there."""
    out = []
    for of_set in SETS:
        whole, less = (of(rows, of_set, run) for run in (WHOLE, LESS))
        if not whole:
            continue
        mean, lower = interval([b["auc"] - a["auc"] for a, b in zip(whole, less, strict=True)])
        out.append(claim(f"dct.auc_difference.{of_set}", mean, f"of AUC, mean of {len(whole)} seeds"))
        out.append(claim(f"dct.auc_interval.{of_set}", lower, "of AUC, lower end of 95 %"))
        for part in ("dense", "exchange"):
            ratio = sum(r[f"{part}_bytes"] for r in whole) / sum(r[f"{part}_bytes"] for r in less)
            out.append(claim(f"dct.{part}_ratio.{of_set}", ratio, "times fewer bytes"))
    return out
