"""Two labels, from the source to the report: each is told by its name, wherever their mean is."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from tensorboardX.proto import event_pb2

from hpcrec.data.reader import DataSet
from hpcrec.errors import DataError

MAP = 'labels = ["click", "buy"]\n[dense.price]\n[sparse.site]\nids = "integer"\nrows = 10\n'
CONFIG = """\
[data]
train = "{folder}/data/train.h5"
validation = "{folder}/data/validation.h5"
[model]
name = "deepfm"
width = 4
[dense]
reducer = "mpi"
[train]
batch_size = 32
steps = 8
eval_every = 4
log_every = 4
[run]
folder = "{folder}/run"
"""


def hpcrec(*arguments: object) -> str:
    command = [sys.executable, "-m", "hpcrec", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder, and what preparation and training said."""
    folder = tmp_path_factory.mktemp("labels")
    rng = random.Random(1)
    lines = [f"{int(rng.random() < 0.5)},{int(i % 4 == 0)},{rng.random():.3f},{i % 10}" for i in range(400)]
    (folder / "t.csv").write_text("click,buy,price,site\n" + "\n".join(lines) + "\n")
    (folder / "map.toml").write_text(MAP)
    (folder / "config.toml").write_text(CONFIG.format(folder=folder))
    split = ("--split", "order:0.8,0.2,0")
    prepared = hpcrec(
        "prepare", "table", "--map", folder / "map.toml", "--out", folder / "data", *split, folder / "t.csv"
    )
    return folder, prepared, hpcrec("train", folder / "config.toml")


def test_a_preparation_prints_the_rate_of_each(told: tuple[Path, str, str]) -> None:
    folder, prepared, _ = told
    with h5py.File(folder / "data" / "validation.h5") as file:
        click, buy = file["label"][:].mean(axis=0)
    assert f"validation.h5: 80 samples, label rates click {click:.4f}, buy {buy:.4f}\n" in prepared


def test_a_run_tells_the_metrics_of_each(told: tuple[Path, str, str]) -> None:
    folder, _, said = told
    summary = json.loads((folder / "run" / "summary.json").read_text())
    by_label = summary["eval"]["by_label"]
    assert list(by_label) == ["click", "buy"]
    whole = {"auc", "logloss", "normalized_entropy", "calibration", "calibration_by_decile"}
    assert set(by_label["buy"]) == whole
    assert summary["eval"]["auc"] == pytest.approx((by_label["click"]["auc"] + by_label["buy"]["auc"]) / 2)
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if "validation_auc" in line]
    assert len(evaluated) == 2 and all({"validation_click_auc", "validation_buy_logloss"} <= set(e) for e in evaluated)
    row = f"auc {by_label['buy']['auc']:.6g}, logloss {by_label['buy']['logloss']:.6g}"
    report = (folder / "run" / "report.html").read_text()
    assert f" label buy {row}" in " ".join(re.sub("<[^>]*>", " ", report).split()) and "validation buy" in report
    assert any(" label buy " in line and row in line for line in said.splitlines())


def test_tensorboard_has_each(told: tuple[Path, str, str]) -> None:
    (path,) = (told[0] / "run" / "tensorboard").iterdir()
    content, at, tags = path.read_bytes(), 0, set()
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        event = event_pb2.Event.FromString(content[at + 12 : at + 12 + size])
        tags |= {value.tag for value in event.summary.value}
        at += 12 + size + 4
    assert {"validation_auc", "validation_click_auc", "validation_buy_auc"} <= tags


def test_names_that_do_not_fit_the_labels_are_refused(told: tuple[Path, str, str], tmp_path: Path) -> None:
    path = tmp_path / "train.h5"
    path.write_bytes((told[0] / "data" / "train.h5").read_bytes())
    for names, fits in ((["click"], False), (["a", "a"], False), (["a", "b"], True), (None, True)):
        with h5py.File(path, "r+") as file:
            del file.attrs["label_names"]
            if names is not None:
                file.attrs["label_names"] = names
        if fits:
            assert DataSet(path).label_names == (("a", "b") if names else ("label_0", "label_1"))
        else:
            with pytest.raises(DataError, match=r"train\.h5: label_names: .*; each of the 2 labels has to have a name"):
                DataSet(path)
