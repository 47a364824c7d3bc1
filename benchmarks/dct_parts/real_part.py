"""AUC and bytes of both compressions together beside uncompressed runs on small sets of real clicks, 20 seeds each.

MovieLens-100K (label rating >= 4, five random splits, DeepFM, examples/movielens/config.toml) and a sample of Criteo's
logs (five folds, DCN, examples/criteo/config.toml), as ``benchmarks/real_data.py`` prepares them; seed s has split s
modulo 5. 2 ranks with both roles, form ``pooled``, float32; data and seeds are the same in all runs of a seed. Three
runs: ``whole``, uncompressed at the width of the thresholded one, settings else the example's, not searched for at that
width; ``thresholded``; and ``example``, uncompressed, as the example has it, width included, which was tuned so. What
thresholded runs differ in (``LESS_OF``) was chosen on the first split by its test AUC on seeds 100 to 102, among some
ten settings of each set.

``dct.auc_difference.<set>``, ``dct.auc_interval.<set>``: of thresholded less ``whole``, over seeds.
``dct.dense_ratio.<set>``, ``dct.exchange_ratio.<set>``: bytes of ``whole`` over those of thresholded runs, by the
ledger, ids left out. ``...example``: of ``example`` instead of ``whole``. No goals.
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
WIDTH = {"movielens": "model.width=128", "criteo": "model.width=64"}
FALLING = "embedding.init_decay=20"
DENSE = ("dense.compression=dct", "dense.dct.density=0.01", "dense.dct.every=10")
LESS_OF = {
    "movielens": (*VECTORS, *DENSE, FALLING, "embedding.init_scale=0.1"),
    "criteo": (*VECTORS, *DENSE, FALLING, "dense.optimizer.lr=0.001"),
}
VECTOR_DENSITY = "exchange.dct.density=0.0625"  # 8 elements of 128, 4 of 64
EXAMPLE = "example"


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
                for run in (EXAMPLE, WHOLE, LESS):
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
    of_run = {
        EXAMPLE: (),
        WHOLE: (WIDTH[of_set],),
        LESS: (WIDTH[of_set], *LESS_OF[of_set], VECTOR_DENSITY),
    }
    settings = (*EVERY, *of_run[run], f"train.seed={seed}")
    found = train(data, RANKS, settings, config=ROOT / f"examples/{of_set}/config.toml")
    return {"model": of_set, "seed": seed, "run": run, **found}


def claims(rows: Sequence[Row]) -> list[Row]:
    """Of each set that was there."""
    out = []
    for of_set in SETS:
        less = of(rows, of_set, LESS)
        for base, end in ((WHOLE, ""), (EXAMPLE, f".{EXAMPLE}")) if less else ():
            before = of(rows, of_set, base)
            mean, lower = interval([b["auc"] - a["auc"] for a, b in zip(before, less, strict=True)])
            out.append(claim(f"dct.auc_difference.{of_set}{end}", mean, f"of AUC, mean of {len(less)} seeds"))
            out.append(claim(f"dct.auc_interval.{of_set}{end}", lower, "of AUC, lower end of 95 %"))
            for part in ("dense", "exchange"):
                ratio = sum(r[f"{part}_bytes"] for r in before) / sum(r[f"{part}_bytes"] for r in less)
                out.append(claim(f"dct.{part}_ratio.{of_set}{end}", ratio, "times fewer bytes"))
    return out
