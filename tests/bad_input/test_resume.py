"""Checkpoints that do not belong to a run, or data that is no longer the same: refused before the first step."""

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from hpcrec.api.commands import train
from hpcrec.config import load_config
from hpcrec.errors import CheckpointError
from hpcrec.preparation.schema import Column, Columns, DataSet, Writer


def rewritten(path: Path) -> None:
    """The same file but for one dense value in its middle, checksums and all."""
    with DataSet(path) as data:
        read, features, jagged = data.read(0, data.samples), data.features, ("history", "tag")
    read.dense[300, 1] += 1
    sparse = {name: Column(c.ids, c.offsets, c.weights) for name, c in read.sparse.items()}
    with Writer(path, features, n_dense=3, jagged=jagged, optional=("weight",)) as writer:
        writer.append(Columns(read.label, read.dense, sparse, weight=read.weight))


def shorter(path: Path) -> None:
    with DataSet(path) as data:
        features = data.features[:2]
        read = data.read(0, 599, [f.name for f in features])
    with Writer(path, features, n_dense=3, optional=("weight",)) as writer:
        writer.append(read)


def renamed(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.move("sparse/user", "sparse/person")
        names = [b"person", *file.attrs["feature_names"][1:]]
        del file.attrs["feature_names"]
        file.attrs["feature_names"] = names


CHANGED: dict[str, tuple[Callable[[Path], None] | None, tuple[str, ...], str]] = {
    "one value": (rewritten, (), "was written with data.train (its content) ="),
    "fewer samples and features": (shorter, (), "has table 'history', which the model has not"),
    "a feature's name": (renamed, (), "has no table 'person'"),
    "width": (None, ("model.width=6",), "has width 4, the model's has 6"),
    "row optimizer": (None, ("embedding.optimizer.name=adam",), "has optimizer states"),
    "model": (None, ("model.name=dcn",), "has "),
    "batch size": (None, ("train.batch_size=49",), "was written with train.batch_size = 50, this run has 49"),
    "seed": (None, ("train.seed=7",), "was written with train.seed = 1, this run has 7"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, whole_file: Path) -> Path:
    from tests.bad_input.conftest import CONFIG

    folder = tmp_path_factory.mktemp("finished")
    shutil.copy(whole_file, folder / "train.h5")
    (folder / "config.toml").write_text(CONFIG.format(folder=folder))
    train(load_config(folder / "config.toml", ["train.steps=3"]))
    return folder


@pytest.mark.parametrize("kind", CHANGED)
def test_resume_of_something_else(finished: Path, whole_file: Path, kind: str) -> None:
    change, overrides, message = CHANGED[kind]
    (finished / "train.h5").unlink()  # HDF5 would take a file that it has open for the same by its number
    shutil.copy(whole_file, finished / "train.h5")
    if change is not None:
        change(finished / "train.h5")
    with pytest.raises(CheckpointError) as caught:
        train(load_config(finished / "config.toml", overrides))
    assert message in str(caught.value) and "step-3" in str(caught.value)
    assert (finished / "run" / "checkpoints" / "step-3" / "manifest.json").exists()
