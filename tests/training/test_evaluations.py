"""Metrics that a configuration asks for: by groups of the data, over ranks, and in all that a run writes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.build.reading import open_for_reading
from hpcrec.config import Config
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError
from hpcrec.training.calibration import Values
from hpcrec.training.measures import Measures
from hpcrec.training.metrics import Beside, evaluate
from hpcrec.training.report import text_table
from hpcrec.training.telemetry import read_metrics
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import roles_for

METRICS = ["logloss", "gauc", "ndcg@3", "recall@2", "mrr", "pr_auc", "rmse", "calibration"]
OWN = """
def accuracy(predictions, total):
    right = (predictions.probability > 0.5) == (predictions.label > 0.5)
    hits, weight = total([predictions.weight @ right, predictions.weight.sum()])
    return hits / weight

def falls(predictions, total):
    return -len(calls := seen.append(1) or seen) * 1.0

def rises(predictions, total):
    return -falls(predictions, total)

seen = []
no_function = 3
def one_argument(predictions): pass
"""


def config(folder: Path, run: str = "run", **sections: dict[str, Any]) -> Config:
    """Owners and dense ranks where there are several ranks; validated and tested on ``data.h5``."""
    data = str(folder / "data.h5")
    given: dict[str, dict[str, Any]] = {
        "topology": roles_for(MPI.COMM_WORLD.size)[-1],
        "data": {"train": data, "validation": data, "test": data},
        "train": {"steps": 6, "eval_every": 3},
        "run": {"folder": str(folder / run), "tensorboard": True},
    }
    return config_for(folder, **{key: {**given.get(key, {}), **sections.get(key, {})} for key in {**given, **sections}})


def own_module(folder: Path, name: str) -> None:
    if MPI.COMM_WORLD.rank == 0:
        (folder / f"{name}.py").write_text(OWN)
    MPI.COMM_WORLD.Barrier()


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_metrics_of_a_run_are_those_of_its_samples_and_in_all_that_it_writes(folder: Path, capsys: Any) -> None:
    write_data(folder / "data.h5", grouped=True)
    own_module(folder, "own_of_a_run")
    wanted = {"metrics": [*METRICS, "own_of_a_run:accuracy"], "by": ["user", "history"]}
    asked = config(folder, evaluation=wanted, model={"folder": str(folder)})
    assert commands.train(asked) == 0
    shown = capsys.readouterr()
    with open_for_reading(asked, None, "last") as session:
        found = session.evaluate("test")
        mine = [(first, logits.numpy()) for first, _, logits in session.outputs("test")]
        parts = sorted((one for rank in MPI.COMM_WORLD.allgather(mine) for one in rank), key=lambda one: one[0])
    columns = DataSet(folder / "data.h5").read(0, 70)
    assert columns.group is not None and columns.weight is not None
    values = {}
    for name in ("user", "history"):
        column = columns.sparse[name]
        each = np.ones(70, int) if column.offsets is None else np.diff(column.offsets)
        values[name] = Values(column.ids, np.repeat(np.arange(70), each))
    logits = np.concatenate([part for _, part in parts])
    measures = Measures(metrics=tuple(METRICS), by=("user", "history"))
    beside = Beside(group=columns.group, values=values)
    alone = evaluate(logits, columns.label, columns.weight, measures=measures, beside=beside)
    right = np.average((logits > 0) == (columns.label > 0.5), weights=columns.weight.astype(np.float64))
    for name, value in alone.items():
        told = found[name]
        same = told == (pytest.approx(value, abs=1e-12) if isinstance(value, float) else value)
        parallel_assert(same or "calibration_by" in name, f"{name}: {told}, alone {value}")
    for one, other in zip(found["calibration_by"]["history"], alone["calibration_by"]["history"], strict=True):
        parallel_assert(one == pytest.approx(other, abs=1e-12), f"{one} {other}")
    parallel_assert(abs(found["own_of_a_run:accuracy"] - right) < 1e-12)
    if MPI.COMM_WORLD.rank == 0:
        told = json.loads((folder / "run" / "summary.json").read_text())
        of_run = told["eval"]
        line = next(x for x in reversed(read_metrics(folder / "run")) if "validation_gauc" in x)
        board = b"".join(file.read_bytes() for file in (folder / "run" / "tensorboard").iterdir())
        page = (folder / "run" / "report.html").read_text()
        for name in (*METRICS, "own_of_a_run:accuracy", "calibration_by_decile", "calibration_by"):
            where = text_table(told) if name.startswith("calibration_by") else shown.err + shown.out
            assert of_run[name] is not None and name in where, name
            assert line[f"validation_{name}"] is not None, name
            assert f"validation_{name}".translate({ord("@"): "_", ord(":"): "_"}).encode() in board, name
            assert name in page, name
        assert "gauc_left_out" in of_run and "auc" in of_run  # the best checkpoint is best in auc
        assert "decile 10" in page and "history: none" in page and "<figcaption>gauc</figcaption>" in page
        assert b"validation_calibration_by/history/none" in board


@pytest.mark.parallel([1, 2])
def test_what_the_data_or_the_model_lack_is_refused_before_training(folder: Path) -> None:
    write_data(folder / "data.h5")
    for evaluation, words in (
        ({"metrics": ["auc", "gauc", "mrr"]}, r"gauc, mrr are by group, and .*data\.h5 has no /group .*Prepare it"),
        ({"by": ["nothing"]}, "evaluation.by names feature 'nothing', which the model does not read. Allowed: history"),
        ({"metrics": ["no_such_module:f"]}, "metric no_such_module:f: module 'no_such_module' cannot be imported"),
    ):
        with pytest.raises(ConfigError, match=words):
            commands.train(config(folder, evaluation=evaluation))
    own_module(folder, "own_refused")
    for name, words in (
        ("no_function", "metric own_refused:no_function: .* has no function 'no_function'"),
        ("one_argument", "metric own_refused:one_argument: it cannot be called with two arguments"),
    ):
        given = {"evaluation": {"metrics": [f"own_refused:{name}"]}, "model": {"folder": str(folder)}}
        with pytest.raises(ConfigError, match=words):
            commands.train(config(folder, **given))


@pytest.mark.parallel([1, 2])
@pytest.mark.in_turn
def test_training_ends_early_by_any_metric_whichever_way_it_is_better(folder: Path) -> None:
    write_data(folder / "data.h5", grouped=True)
    own_module(folder, "own_early")
    steps = {}
    for metric, higher in (("own_early:falls", False), ("own_early:falls", True), ("own_early:rises", True)):
        run = f"{metric[-5:]}-{higher}"
        stop = {"metric": metric, "higher_is_better": higher, "patience": 1}
        train = {"steps": 12, "eval_every": 3, "early_stop": stop}
        assert commands.train(config(folder, run, train=train, model={"folder": str(folder)})) == 0
        MPI.COMM_WORLD.Barrier()
        steps[run] = json.loads((folder / run / "summary.json").read_text())["steps"]
    parallel_assert(steps == {"falls-False": 12, "falls-True": 6, "rises-True": 12}, str(steps))
    stop = {"metric": "gauc", "patience": 1, "min_delta": 1.0}
    assert commands.train(config(folder, "gauc", train={"steps": 12, "eval_every": 3, "early_stop": stop})) == 0
    MPI.COMM_WORLD.Barrier()
    best = json.loads((folder / "gauc" / "checkpoints" / "best.json").read_text())
    parallel_assert((best["metric"], best["step"]) == ("gauc", 3), str(best))


def test_predict_runs_no_metric_of_ones_own(folder: Path) -> None:
    write_data(folder / "data.h5", grouped=True)
    own_module(folder, "own_predict")
    stop = {"metric": "own_predict:accuracy", "higher_is_better": True}
    train = {"steps": 6, "eval_every": 3, "early_stop": stop}
    asked = config(folder, train=train, model={"folder": str(folder)}, evaluation={"metrics": METRICS})
    assert commands.train(asked) == 0
    elsewhere = replace(asked, model=replace(asked.model, folder=str(folder / "nowhere")))
    other = replace(elsewhere.train, early_stop=replace(elsewhere.train.early_stop, metric="own_predict_gone:f"))
    plain = folder / "plain.h5"
    write_data(plain)  # has no groups, and needs none
    assert commands.predict(replace(elsewhere, train=other), data=str(plain), out=folder / "out.h5") == 70
    with h5py.File(folder / "out.h5") as file:
        assert file["prediction"].shape == (70,)


def test_evaluate_by_a_feature_from_the_command_line(folder: Path) -> None:
    write_data(folder / "data.h5")
    assert commands.train(config(folder)) == 0
    command = [sys.executable, "-m", "hpcrec", "evaluate", str(folder / "run")]
    done = subprocess.run([*command, "--by", "user", "--by", "tag"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["calibration_by"]) == {"user", "tag"}
    assert sum(one["samples"] for one in found["calibration_by"]["user"]) == found["samples"] == 70
    assert found["calibration_by"]["tag"][-1]["value"] == "none"
    assert len(found["calibration_by_decile"]) == 10
    refused = subprocess.run([*command, "--by", "usr"], capture_output=True, text=True, timeout=200)
    assert refused.returncode != 0
    assert "evaluation.by names feature 'usr'" in refused.stderr
