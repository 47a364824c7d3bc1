"""One server of command lines for all tests here, and a small data set with a configuration for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import Forked
from tests.training.runs import write_data

CONFIG = """\
[data]
train = "{folder}/train.h5"
chunk = 64
[model]
name = "deepfm"
width = 4
[dense]
reducer = "mpi"
[train]
batch_size = 50
[run]
folder = "{folder}/run"
tensorboard = false
progress = false
"""


@pytest.fixture(scope="session")
def hpcrec() -> Iterator[Forked]:
    with Forked() as forked:
        yield forked


@pytest.fixture(scope="session")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "train.h5"
    write_data(path, samples=600, seed=1)
    return path


@pytest.fixture
def config(tmp_path: Path, whole_file: Path) -> Path:
    """A configuration that trains 12 steps on a copy of the data set, ``train.h5`` beside it."""
    (tmp_path / "train.h5").write_bytes(whole_file.read_bytes())
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path
