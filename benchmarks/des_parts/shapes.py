"""Data sets of the shapes, made once in a cache. Knows the workloads' generator and hpcrec's preparation.

``onehot`` and ``multihot`` are generated. ``movielens`` and ``criteo`` come from real samples in a folder, and are
absent where that is. MovieLens' pairs have no labels: each is a sample with label 1, and its user with the item of
another pair, drawn at random until the user has not rated it, one with label 0. So both labels have the data's own
frequencies of users and items. Samples are put in random order, which the pairs, sorted by user, are not in. Criteo's
sample is cut to whole batches of 4,096.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from _report import hpcrec
from speed_parts import hpcrec_data

from hpcrec.data.reader import DataSet
from hpcrec.preparation.writer import Writer

SEED, BATCH = 1, 4096
FILES = {"movielens": "ml1m_pairs_934k.csv.gz", "criteo": "criteo_kaggle_sample.tsv.gz"}
MAP = """labels = ["label"]
[sparse.user_id]
ids = "integer"
rows = {users}
[sparse.item]
ids = "integer"
rows = {items}
"""
SYNTHETIC_SAMPLES = 400_000


def prepare(name: str, cache: Path, files: Path) -> Path | None:
    """The training data of that name in ``cache``, made unless they are there; None where what they come from is not.

    Validation data, where there are any, lie beside it as validation.h5.
    """
    if name not in FILES and name != "synthetic":
        return hpcrec_data.prepare(f"des-{name}", cache)
    folder = cache / f"des-{name}"
    if folder.exists():
        return folder / "train.h5"
    source = files / FILES.get(name, "")
    if not source.exists():
        print(f"{name}: skipped, there is no {source}; --data names the folder that has it", flush=True)
        return None
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as hidden:
        made = Path(hidden) / "made"
        MAKERS[name](source, made)
        shutil.move(made, folder)
    return folder / "train.h5"


def movielens(source: Path, folder: Path) -> None:
    """Pairs and as many that are none; a twentieth for validation."""
    pairs_N2 = np.loadtxt(source, np.int64, delimiter=",", skiprows=1)
    user_N, item_N = labelled(pairs_N2)
    label_N = (np.arange(len(user_N)) < len(pairs_N2)).astype(np.int64)
    order_N = np.random.default_rng(SEED).permutation(len(user_N))
    with tempfile.TemporaryDirectory() as name:
        table, columns = Path(name) / "pairs.csv", Path(name) / "pairs.toml"
        lines_N3 = np.stack([user_N, item_N, label_N], axis=1)[order_N]
        np.savetxt(table, lines_N3, "%d", delimiter=",", header="user_id,item,label", comments="")
        columns.write_text(MAP.format(users=user_N.max() + 1, items=item_N.max() + 1))
        words = ("--map", str(columns), "--out", str(folder), "--split", "hash:0.95,0.05,0", str(table))
        hpcrec("prepare", "table", *words)


def labelled(pairs_N2: np.ndarray, seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """Users and items of the pairs, then of as many pairs of the same users that are not among them."""
    rng = np.random.default_rng(seed)
    user_N, item_N = pairs_N2.T
    items = item_N.max() + 1
    rated = np.unique(user_N * items + item_N)
    drawn_N = rng.choice(item_N, len(item_N))
    while len(again := np.flatnonzero(np.isin(user_N * items + drawn_N, rated))):
        drawn_N[again] = rng.choice(item_N, len(again))
    return np.tile(user_N, 2), np.concatenate([item_N, drawn_N])


def criteo(source: Path, folder: Path) -> None:
    """The first samples, as many as whole batches take."""
    with tempfile.TemporaryDirectory() as name:
        hpcrec("prepare", "criteo", "--out", f"{name}/all", "--split", "hash:1,0,0", str(source))
        with DataSet(f"{name}/all/train.h5") as data:
            samples = data.read(0, data.samples // BATCH * BATCH)
            folder.mkdir()
            with Writer(folder / "train.h5", data.features, n_dense=data.n_dense) as writer:
                writer.append(samples)


def synthetic(_: Path, folder: Path) -> None:
    """Clicks of a planted truth, whose attainable AUC is known."""
    hpcrec("prepare", "synthetic", "--out", str(folder), "--samples", str(SYNTHETIC_SAMPLES))


MAKERS = {"movielens": movielens, "criteo": criteo, "synthetic": synthetic}


def ids_a_sample(path: Path) -> float:
    """Of all features together."""
    with DataSet(path) as data:
        return float(sum(feature.mean_ids for feature in data.features))
