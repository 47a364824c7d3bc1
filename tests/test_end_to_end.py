"""Commands as users run them: train over ranks, stop by a signal, go on, evaluate, predict; own loops and models."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from hpcrec.data.reader import DataSet
from hpcrec.training.telemetry import SUMMARY_KEYS, read_metrics
from tests.training.runs import write_data

ROOT = Path(__file__).resolve().parent.parent
HPCREC = [sys.executable, "-m", "hpcrec"]
CONFIG = """
[data]
train = "{folder}/train.h5"
validation = "{folder}/test.h5"
test = "{folder}/test.h5"
chunk = 64
[model]
name = "deepfm"
width = 4
options = {{ dropout = 0.1 }}
[embedding]
share = {{ history = "item" }}
[topology]
mode = "split"
[train]
batch_size = 50
epochs = 6
eval_every = 40
log_every = 20
[run]
folder = "{folder}/{name}"
progress = false
"""


def hpcrec(*arguments: str, ranks: int = 0, code: int = 0, timeout: float = 120) -> str:
    launch = [*HPCREC, "run", "-n", str(ranks), "--"] if ranks else HPCREC
    done = subprocess.run([*launch, *arguments], capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("end")
    write_data(folder / "train.h5", samples=2000, seed=1)
    write_data(folder / "test.h5", samples=501, seed=2)
    for name in ("whole", "stopped"):
        (folder / f"{name}.toml").write_text(CONFIG.format(folder=folder, name=name))
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    out = hpcrec("train", str(folder / "whole.toml"), ranks=3)
    assert "finished" in out
    return folder / "whole"


def test_a_run_leaves_what_the_design_lists(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    assert set(summary) == set(SUMMARY_KEYS)
    assert (summary["status"], summary["steps"], summary["samples"]) == ("finished", 240, 12000)
    assert summary["topology"]["owners"] == [0] and summary["topology"]["dense"] == [1, 2]
    for wire in ("wire_bytes", "wire_messages"):
        assert all(summary[wire][tag]["same_host"] > 0 for tag in ("ids", "values", "gradients", "dense"))
    assert len(summary["peak_rss_bytes"]) == 3
    assert {"route", "route_wait", "forward", "owner.gather"} <= set(summary["phase_s"])
    assert (whole / "report.html").stat().st_size > 2000
    assert list((whole / "tensorboard").iterdir())
    lines = read_metrics(whole)
    assert [x["step"] for x in lines if "loss" in x] == list(range(20, 241, 20))
    assert [x["step"] for x in lines if "validation_auc" in x] == list(range(40, 241, 40))
    kept = sorted(p.name for p in (whole / "checkpoints").glob("step-*"))
    best = json.loads((whole / "checkpoints" / "best.json").read_text())["step"]
    assert f"step-{best}" in kept and "step-240" in kept and len(kept) <= 3


def test_stopped_by_a_signal_and_resumed_equals_uninterrupted(folder: Path, whole: Path) -> None:
    command = [*HPCREC, "run", "-n", "3", "--", "train", str(folder / "stopped.toml"), "--set", "data.prefetch=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:
        run, deadline = folder / "stopped", time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out = process.communicate(timeout=60)[0]
    assert process.returncode == 75, out
    stopped = json.loads((run / "summary.json").read_text())
    assert stopped["status"] == "stopped" and 20 <= stopped["steps"] < 240
    out = hpcrec("train", str(folder / "stopped.toml"), "--set", "exchange.windows=false", ranks=3)  # changes no bit
    assert f"resumed from step {stopped['steps']} of 240" in out and "not as before" not in out
    mine, theirs = (json.loads((p / "summary.json").read_text()) for p in (run, whole))
    assert mine["eval"] == theirs["eval"] and mine["samples"] == theirs["samples"]
    with h5py.File(run / "checkpoints/step-240/dense.h5") as a, h5py.File(whole / "checkpoints/step-240/dense.h5") as b:
        assert len(a["parameters"]) > 4
        for name in a["parameters"]:
            np.testing.assert_array_equal(a["parameters"][name][()], b["parameters"][name][()])
    out = hpcrec("train", str(folder / "stopped.toml"), ranks=2)  # finished: nothing is left to train
    assert "not as before, so not bit for bit: ranks was 3, is 2" in out


def test_evaluate_and_predict_agree_with_scikit_learn(folder: Path, whole: Path) -> None:
    found = json.loads(hpcrec("evaluate", str(whole), "--checkpoint", "last", ranks=2))
    out = folder / "predictions.h5"
    hpcrec("predict", str(whole), "--data", str(folder / "test.h5"), "--out", str(out), "--checkpoint", "last", ranks=2)
    with h5py.File(out) as file:
        predictions = file["prediction"][()].astype(np.float64)
    columns = DataSet(folder / "test.h5").read(0, 501)
    assert found["auc"] == pytest.approx(
        roc_auc_score(columns.label, predictions, sample_weight=columns.weight), abs=1e-6
    )
    assert found["logloss"] == pytest.approx(
        log_loss(columns.label, predictions, sample_weight=columns.weight), abs=1e-6
    )
    assert found["samples"] == 501
    alone = json.loads(hpcrec("evaluate", str(whole), "--checkpoint", "last"))  # trained split over 3 ranks
    assert alone["auc"] == pytest.approx(found["auc"], abs=1e-6)


def test_a_run_goes_on_from_another_folder_without_its_best(folder: Path, whole: Path) -> None:
    """The best checkpoint so far stays where it was, so the new run cannot end with it."""
    settings = [f"run.folder={folder / 'onwards'}", "train.epochs=7", "train.early_stop.min_delta=1.0"]
    settings += [f"checkpoint.resume={whole / 'checkpoints' / 'step-240'}", "dense.reducer=mpi"]
    hpcrec("train", str(folder / "whole.toml"), *(x for s in settings for x in ("--set", s)), ranks=3)
    summary = json.loads((folder / "onwards" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 280)
    assert summary["eval"]["auc"] is not None


def test_a_failed_run_says_so(folder: Path) -> None:
    data = folder / "bad.h5"
    write_data(data, samples=200, seed=3)
    with h5py.File(data, "r+") as file:
        file["sparse/user/ids"][150] = 10**6  # found when it is read
    settings = [f"data.train={data}", f"run.folder={folder / 'failed'}", "data.window=1", "data.shuffle=false"]
    words = [word for text in settings for word in ("--set", text)]
    command = [*HPCREC, "run", "-n", "2", "--", "train", str(folder / "whole.toml"), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 1 and "user" in done.stderr and "1000000" in done.stderr
    summary = json.loads((folder / "failed" / "summary.json").read_text())
    assert summary["status"] == "failed" and summary["eval"]["auc"] is None
    page = (folder / "failed" / "report.html").read_text()
    assert "<title>failed: failed</title>" in page and "1000000" in page and page.endswith("</html>\n")


def test_own_loop_runs_on_ranks(folder: Path) -> None:
    out = hpcrec("examples/own_loop/train.py", str(folder / "whole.toml"), "train.epochs=3", ranks=3)
    assert "step 100 of 120" in out
    assert 0.0 < float(out.split("test AUC")[1]) < 1.0


def test_horovod_and_mpi_reduce_alike(folder: Path) -> None:
    """A process can initialise Horovod for one group of dense ranks only, so these are runs of their own."""
    losses = {}
    for reducer in ("horovod", "mpi"):
        name = f"by-{reducer}"
        settings = [f"run.folder={folder / name}", f"dense.reducer={reducer}", "train.dtype=float64", "train.epochs=2"]
        settings += ["dense.bucket_bytes=4096", "train.log_every=5"]
        hpcrec("train", str(folder / "whole.toml"), *(x for s in settings for x in ("--set", s)), ranks=3)
        losses[reducer] = [x["loss"] for x in read_metrics(folder / name) if "loss" in x]
    assert len(losses["mpi"]) == 16
    np.testing.assert_allclose(losses["horovod"], losses["mpi"], rtol=0, atol=1e-12)


def test_own_model_runs_on_ranks(folder: Path) -> None:
    settings = [
        f"data.{split}={folder / name}.h5"
        for split, name in (("train", "train"), ("validation", "test"), ("test", "test"))
    ]
    settings += [f"run.folder={folder / 'own'}", "train.batch_size=100", "run.progress=false", "run.tensorboard=false"]
    hpcrec("train", "examples/own_model/config.toml", *(x for s in settings for x in ("--set", s)), ranks=2)
    found = json.loads(hpcrec("evaluate", str(folder / "own")))  # the model's module is found from the run folder
    summary = json.loads((folder / "own" / "summary.json").read_text())
    assert found["auc"] == pytest.approx(summary["eval"]["auc"], abs=1e-6)


def test_configuration_errors_come_once_and_before_any_rank_starts(folder: Path) -> None:
    done = subprocess.run(
        [*HPCREC, "run", "-n", "3", "--", "train", str(folder / "whole.toml"), "--set", "train.batchsize=3"],
        capture_output=True,
        text=True,
        env={**os.environ},
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("hpcrec: error:") == 1
    assert "train.batch_size" in done.stderr


def test_errors_that_only_ranks_can_see_come_once(folder: Path) -> None:
    done = subprocess.run(
        [*HPCREC, "run", "-n", "3", "--", "train", str(folder / "whole.toml"), "--set", "topology.owners=5"],
        capture_output=True,
        text=True,
        env={**os.environ, "LSB_DJOB_HOSTFILE": "hosts"},  # of a job of several hosts: this one does not look before
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("topology.owners is 5. Allowed: 1 to 3") == 1
    assert "Traceback" not in done.stderr
