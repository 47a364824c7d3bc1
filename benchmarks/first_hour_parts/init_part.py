"""What ``hpcrec init`` drafts for both MovieLens tables of ratings, beside a map and a configuration written by hand.

By hand: users and items by vocabulary and DeepFM with the settings of examples/movielens, but for the features that
these tables do not have. Both are trained on the parts that the draft split the table into, with the same seeds.
"""

import json
import shutil
import statistics
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _report import claim, finish, hpcrec, interval

SEEDS, QUICK_SEEDS = 5, 1
MOST = 0.005  # of AUC
LABEL = ("--label", "rating", "--label-from", "4")
TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {  # file, and what are features in the map written by hand
    "ml100k": ("ml100k_ratings.csv.gz", ("user_id", "item_id")),
    "ml1m": ("ml1m_ratings_100k.csv.gz", ("user_id", "movie_id")),
}
BY_HAND = """
[model]
name = "deepfm"
width = 16
options = { hidden = [256, 128], dropout = 0.5 }
[embedding]
init_scale = 0.01
optimizer = { name = "adagrad", lr = 0.05 }
[dense]
optimizer = { name = "Adam", lr = 0.001 }
[train]
epochs = 4
batch_size = 512
"""


def run(data: Path, path: Path | None, *, quick: bool) -> None:
    """Measures both tables and writes what was found."""
    tables = list(TABLES)[:1] if quick else list(TABLES)
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as name:
        for table in tables:
            file, by_hand = TABLES[table]
            rows += _table(Path(name) / table, data / file, by_hand, QUICK_SEEDS if quick else SEEDS)
    finish("first_hour", rows, _claims(rows, quick=quick), path)


def _table(folder: Path, file: Path, by_hand: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    """A row for each seed: test AUC of the draft and of what is written by hand, on the same parts."""
    hpcrec("init", str(file), *LABEL, "--out", str(folder))
    draft = tomllib.loads((folder / "map.toml").read_text())
    hpcrec("prepare", "table", "--map", str(folder / "map.toml"), "--out", str(folder / "data"), str(file))
    own = folder / "own"
    own.mkdir()
    parts = "\n".join(f"{key} = {json.dumps(draft[key])}" for key in ("labels", "label_from", "time", "split"))
    features = "".join(f'[sparse.{feature}]\nids = "vocabulary"\n' for feature in by_hand)
    (own / "map.toml").write_text(f"{parts}\n{features}")
    hpcrec("prepare", "table", "--map", str(own / "map.toml"), "--out", str(own / "data"), str(file))
    places = "".join(f'{part} = "{own}/data/{part}.h5"\n' for part in ("train", "validation", "test"))
    (own / "run.toml").write_text(f"[data]\n{places}{BY_HAND}")
    found = []
    for seed in range(1, seeds + 1):
        auc = {"draft": _auc(folder / "run.toml", folder / "run", seed)}
        auc["by_hand"] = _auc(own / "run.toml", own / "run", seed)
        same = sorted(draft["sparse"]) == sorted(by_hand)
        found.append({"table": folder.name, "seed": seed, **auc, "same_features": same})
        print("  ".join(f"{key} {value}" for key, value in found[-1].items()), flush=True)
    return found


def _auc(config: Path, run_folder: Path, seed: int) -> float:
    shutil.rmtree(run_folder, ignore_errors=True)
    settings = [f"run.folder={run_folder}", f"train.seed={seed}", "run.progress=false", "run.tensorboard=false"]
    hpcrec("train", str(config), *(f"--set={setting}" for setting in settings))
    return float(json.loads((run_folder / "summary.json").read_text())["eval"]["auc"])


def _claims(rows: Sequence[Mapping[str, Any]], *, quick: bool) -> list[dict[str, Any]]:
    """The larger loss of both tables: means of paired seeds."""
    lost = {
        table: [row["by_hand"] - row["draft"] for row in rows if row["table"] == table]
        for table in dict.fromkeys(row["table"] for row in rows)
    }
    worst = max(lost, key=lambda table: statistics.mean(lost[table]))
    value, sure = statistics.mean(lost[worst]), interval(lost[worst])
    unit = f"of AUC less than by hand, {worst}, mean of {len(lost[worst])} seeds"
    reason = "one table alone" if quick else None
    return [claim("first_hour.init_auc_loss", value, unit, f"<= {MOST}", reason, sure=sure)]
