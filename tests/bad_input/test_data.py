"""Training on data sets of every wrong kind: one error that says what is wrong, exit status 1, no crash."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcrec.api.commands import evaluate, predict, train
from hpcrec.comm.failure import exit_code
from hpcrec.config import load_config
from hpcrec.errors import DataError
from tests.forked import Forked


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def not_hdf5(path: Path) -> None:
    path.write_text("label,user,item\n1,2,3\n")


def absent(path: Path) -> None:
    path.unlink()


def chunk(path: Path) -> None:
    with h5py.File(path) as file:
        info = file["dense"].id.get_chunk_info(0)
    flip(path, info.byte_offset + info.size // 2)


def header(path: Path) -> None:
    flip(path, path.read_bytes().index(b"user") + 1)  # a name of a feature


def change(name: str, row: object, value: float) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file[name][row] = value

    return spoil


def no_samples(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        for name in ("label", "weight", "dense", "sparse/user/ids", "sparse/item/ids"):
            file[name].resize(0, axis=0)
        for name in ("history", "tag"):
            file[f"sparse/{name}/ids"].resize(0, axis=0)
            file[f"sparse/{name}/offsets"].resize(1, axis=0)
        file["sparse/tag/weights"].resize(0, axis=0)


def no_column(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["sparse/item/ids"]


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "absent": (absent, "train.h5: no such file"),
    "not HDF5": (not_hdf5, "train.h5: not a readable HDF5 file"),
    "cut short": (cut_short, "train.h5: not a readable HDF5 file"),
    "flipped in a chunk": (chunk, "train.h5: /dense: rows ["),
    "flipped in a header": (header, "train.h5: "),
    "column missing": (no_column, "train.h5: /sparse/item/ids: no such dataset"),
    "no samples": (no_samples, "train.h5: has no samples"),
    "id negative": (
        change("sparse/user/ids", 333, -1),
        "/sparse/user/ids: sample 333 (from 0) has -1; ids must be in [0, 40)",
    ),
    "id too large": (change("sparse/user/ids", 333, 40), "/sparse/user/ids: sample 333 (from 0) has 40"),
    "offsets fall": (change("sparse/history/offsets", 300, 0), "/sparse/history/offsets: sample 299 has offsets"),
    "dense NaN": (
        change("dense", (444, 2), np.nan),
        "/dense: sample 444 (from 0) has nan in column 2; dense inputs must be",
    ),
    "dense infinite": (change("dense", (444, 0), -np.inf), "/dense: sample 444 (from 0) has -inf in column 0"),
    "label NaN": (change("label", 555, np.nan), "/label: sample 555 (from 0) has nan; labels must be 0 or 1"),
    "label 2": (change("label", 555, 2), "/label: sample 555 (from 0) has 2.0; labels must be 0 or 1"),
    "label -1": (change("label", 5, -1), "/label: sample 5 (from 0) has -1.0; labels must be 0 or 1"),
    "weight negative": (change("weight", 17, -0.5), "/weight: sample 17 (from 0) has -0.5; weights must be"),
    "weight of an id NaN": (change("sparse/tag/weights", 17, np.nan), "/sparse/tag/weights: sample "),
}


@pytest.mark.parametrize("kind", WRONG)
def test_bad_data(config: Path, kind: str) -> None:
    spoil, message = WRONG[kind]
    spoil(config.parent / "train.h5")
    with pytest.raises(DataError) as caught:
        train(load_config(config))
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert exit_code(caught.value) == 1
    if (config.parent / "run").exists():  # else it was found before the run began
        assert json.loads((config.parent / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("kind", ["cut short", "dense NaN"])  # found when the file is opened, and in training
def test_bad_data_on_the_command_line(hpcrec: Forked, config: Path, kind: str) -> None:
    spoil, message = WRONG[kind]
    spoil(config.parent / "train.h5")
    done = hpcrec("train", config)
    assert done.code == 1, done.err
    assert message in done.err and done.err.count("hpcrec: error:") == 1 and "Traceback" not in done.err


def test_bad_data_in_evaluate_and_predict(config: Path) -> None:
    assert train(load_config(config)) == 0  # what the other tests depart from
    spoil, message = WRONG["flipped in a chunk"]
    spoil(config.parent / "train.h5")
    run, out = load_config(config), config.parent / "out.h5"
    with pytest.raises(DataError, match=re.escape(message)):
        evaluate(run, checkpoint="last")
    with pytest.raises(DataError, match=re.escape(message)):
        predict(run, data=run.data.train, out=out, checkpoint="last")
    assert not out.exists() and not list(config.parent.glob(".out*"))
