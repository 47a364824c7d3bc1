"""``hpcrec predict`` on ranks: every format has the same, by the names of labels, in the order of samples."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from pyarrow import csv, parquet
from pytest_mpi import parallel_assert
from sklearn.metrics import log_loss

from hpcrec.api import commands
from hpcrec.data.predictions import Predictions
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError
from tests.training.runs import BATCH, SAMPLES, config_for, write_data


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_ranks_write_every_format_with_columns_of_the_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    data = str(folder / "data.h5")
    config = config_for(folder, train={"dtype": "float32", "steps": 3}, checkpoint={"resume": "never"})
    commands.train(config)
    logloss = commands.evaluate(config, data=data)["logloss"]
    real, pieces = Predictions.write, []

    def write(self: Predictions, first: int, found: np.ndarray) -> None:
        pieces.append(len(found))
        real(self, first, found)

    monkeypatch.setattr(Predictions, "write", write)
    for name in ("out.h5", "out.parquet", "out.csv"):
        asked = ("user", "item", "label", "weight")
        parallel_assert(commands.predict(config, data=data, out=folder / name, columns=asked) == SAMPLES)
    writers = MPI.COMM_WORLD.allgather(len(pieces) > 0)
    parallel_assert(sum(writers) == 1 and max(pieces, default=0) <= BATCH, msg="one rank writes, a batch at a time")
    with DataSet(data) as dataset:
        columns = dataset.read(0, SAMPLES)
    wanted = {
        "user": columns.sparse["user"].ids,
        "item": columns.sparse["item"].ids,
        "label": columns.label,
        "weight": columns.weight,
    }
    with h5py.File(folder / "out.h5") as file:
        found = [{name: values[()] for name, values in file.items()}]
    found += [
        table.to_pydict() for table in (parquet.read_table(folder / "out.parquet"), csv.read_csv(folder / "out.csv"))
    ]
    for file in found:
        parallel_assert(set(file) == {"prediction", *wanted})
        same = all(
            np.array_equal(np.asarray(file[name], of.dtype), of) for name, of in wanted.items() if of is not None
        )
        parallel_assert(same, msg="columns are the data's, in its order")
        predicted = np.asarray(file["prediction"], np.float32)
        parallel_assert(np.array_equal(predicted, found[0]["prediction"]))
    loss = log_loss(columns.label, found[0]["prediction"].astype(np.float64), sample_weight=columns.weight)
    parallel_assert(loss == pytest.approx(logloss, abs=1e-6))


@pytest.mark.parallel([2])
@pytest.mark.parametrize(
    ("name", "columns", "said"),
    [
        ("out.tsv", (), "ends with '.tsv'"),
        ("out.csv", ("usr",), "--columns has 'usr'"),
        ("out.csv", ("prediction",), "has"),
    ],
)
def test_all_ranks_refuse_what_is_not_allowed(folder: Path, name: str, columns: tuple[str, ...], said: str) -> None:
    write_data(folder / "data.h5")
    config = config_for(folder, train={"steps": 1}, checkpoint={"resume": "never"})
    commands.train(config)
    with pytest.raises(ConfigError, match=said):
        commands.predict(config, data=str(folder / "data.h5"), out=folder / name, columns=columns)
    MPI.COMM_WORLD.Barrier()
    parallel_assert(not (folder / name).exists() and not list(folder.glob(".out*")))
