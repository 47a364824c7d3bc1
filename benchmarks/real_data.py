"""Quality on real click data: MovieLens-100K, and a sample of Criteo's logs in five folds.

    python benchmarks/real_data.py --data DIR [--quick] [--json FILE]

DIR has ml100k_{ratings,users,items}.csv.gz and criteo_kaggle_sample.tsv.gz; rows of absent files are ``skipped``.
MovieLens: label rating >= 4, random 80/20 by hash, examples/movielens/config.toml; one run a split seed (0 to 4), the
claim is over them all; the settings were chosen on other splits by their test AUC, for want of a validation part.
Criteo: five folds by position modulo 5, examples/criteo/config.toml (minimum count 5) against LR (minimum count 3) on
the same folds, both with binned integers, each tuned on ten folds of two other permutations, LR the hardest: 101
settings, 81 of DCN's. --quick: one seed, one fold.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _report import ROOT, claim, finish, hpcrec, options, spread

from hpcrec.data import gather
from hpcrec.data.reader import DataSet
from hpcrec.preparation.writer import Writer

FOLDS = 5
LR = [
    "model.name=lr",
    "model.options={}",
    "embedding.init_scale=0.01",
    "embedding.optimizer.lr=0.004",
    "dense.optimizer.name=AdamW",
    "dense.optimizer.lr=0.05",
    "dense.optimizer.options={weight_decay=0.1}",
    "train.epochs=6",
    "train.batch_size=256",
]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the real files")
    arguments = parser.parse_args()
    count = 1 if arguments.quick else FOLDS
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        movielens = movielens_rows(arguments.data, Path(name), count)
        criteo = criteo_rows(arguments.data, Path(name), count)
    rows = [*movielens, *criteo]
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )
    claims = []
    if all("auc" in row for row in movielens):
        auc = spread([row["auc"] for row in movielens])
        claims.append(claim("real.movielens.auc", auc["median"], "test AUC, median over splits", ">= 0.79"))
        claims.append(claim("real.movielens.auc_min", auc["min"], "test AUC, worst split"))
    if all("dcn" in row for row in criteo):
        gain = float(np.mean([row["dcn"] - row["lr"] for row in criteo]))
        claims.append(claim("real.criteo.gain", gain, "mean AUC above LR, paired folds", "> 0"))
        claims.append(claim("real.criteo.dcn", float(np.mean([row["dcn"] for row in criteo])), "mean test AUC"))
        claims.append(claim("real.criteo.lr", float(np.mean([row["lr"] for row in criteo])), "mean test AUC"))
    finish("real_data", rows, claims, arguments.json)


def movielens_rows(data: Path | None, folder: Path, count: int) -> list[dict[str, Any]]:
    """One row a split."""
    files = {kind: data / f"ml100k_{kind}.csv.gz" for kind in ("ratings", "users", "items")} if data else {}
    if not files or not all(path.exists() for path in files.values()):
        return [{"set": "movielens", "result": "skipped"}]
    rows = []
    for seed in range(count):
        out = folder / f"ml{seed}"
        named = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
        hpcrec("prepare", "movielens", "--out", str(out), "--history", "50", "--seed", str(seed), *named)
        rows.append({"set": "movielens", "split_seed": seed, "auc": train("movielens", out, folder / f"m{seed}")})
    return rows


def criteo_rows(data: Path | None, folder: Path, count: int) -> list[dict[str, Any]]:
    """One row a fold. Vocabularies are made of the whole file: both models see the same ids."""
    source = data / "criteo_kaggle_sample.tsv.gz" if data else None
    if source is None or not source.exists():
        return [{"set": "criteo", "result": "skipped"}]
    rows = []
    for model, least in (("dcn", 5), ("lr", 3)):
        words = ["--ids", "vocabulary", "--min-count", str(least), "--bin-integers", "--split", "hash:1,0,0"]
        hpcrec("prepare", "criteo", "--out", str(folder / model), *words, str(source))
    for fold in range(count):
        found: dict[str, Any] = {"set": "criteo", "fold": fold}
        for model, settings in (("dcn", []), ("lr", LR)):
            out = folder / f"{model}{fold}"
            out.mkdir()
            cut(folder / model / "train.h5", out, fold)
            found[model] = train("criteo", out, folder / f"run-{model}{fold}", *settings)
        rows.append(found)
    return rows


def cut(source: Path, out: Path, fold: int) -> None:
    """Writes every fifth sample from ``fold`` on as test.h5, the others as train.h5."""
    with DataSet(source) as data:
        everything = data.read(0, data.samples)
        test = np.arange(data.samples) % FOLDS == fold
        for name, chosen in (("train", ~test), ("test", test)):
            with Writer(out / f"{name}.h5", data.features, n_dense=data.n_dense) as writer:
                writer.append(gather.take(everything, np.flatnonzero(chosen)))


def train(example: str, data: Path, run: Path, *settings: str) -> float:
    """Test AUC of one run on 2 ranks."""
    every = [f"data.{part}={data}/{part}.h5" for part in ("train", "test")]
    every += [f"run.folder={run}", "run.progress=false", "run.tensorboard=false", *settings]
    config = str(ROOT / f"examples/{example}/config.toml")
    hpcrec("run", "-n", "2", "--", "train", config, *(word for text in every for word in ("--set", text)))
    return float(json.loads((run / "summary.json").read_text())["eval"]["auc"])


if __name__ == "__main__":
    main()
