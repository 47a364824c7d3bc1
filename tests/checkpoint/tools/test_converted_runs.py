"""Converted checkpoints of runs: gone on with, evaluated, and refused where they have not what is asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrec.api import commands
from hpcrec.checkpoint.tools.convert import Conversion, convert
from hpcrec.checkpoint.tools.diff import diff
from hpcrec.checkpoint.tools.verify import verify
from hpcrec.config import Config
from hpcrec.errors import CheckpointError
from tests.training.runs import config_for, write_data

SECTIONS: dict[str, Any] = {
    "model": {"name": "deepfm"},
    "embedding": {"optimizer": {"name": "adam", "lr": 0.1}, "tables": {"user": {"shard": "column"}}},
    "dense": {"optimizer": {"name": "Adam"}},
}


def config_of(folder: Path, run: str, steps: int = 8, **sections: Any) -> Config:
    return config_for(
        folder,
        **{**SECTIONS, **sections},
        train={"batch_size": 13, "dtype": "float64", "steps": steps},
        run={"folder": str(folder / run), "tensorboard": False, "progress": False},
    )


@pytest.mark.parallel([1])
def test_a_run_goes_on_from_a_converted_checkpoint(folder: Path) -> None:
    write_data(folder / "data.h5")
    commands.train(config_of(folder, "whole"))
    commands.train(config_of(folder, "first", steps=4))
    for number, wanted in enumerate((Conversion(parts=3), Conversion(parts=2, shard="column"))):
        out = convert(folder / "first", folder / f"converted{number}", wanted).folder
        commands.train(config_of(folder, f"on{number}", checkpoint={"resume": str(out)}))
        found = diff(folder / "whole", folder / f"on{number}")
        assert found["equal"], found
        assert not verify(folder / f"on{number}").problems


@pytest.mark.parallel([1])
def test_without_optimizer_it_is_evaluated_and_not_trained_on(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, "first", steps=4)
    commands.train(config)
    bare = convert(folder / "first", folder / "bare", Conversion(without_optimizer=True)).folder
    wanted, found = (commands.evaluate(config, checkpoint=which) for which in ("last", str(bare)))
    np.testing.assert_equal(found, wanted)
    with pytest.raises(CheckpointError, match="has optimizer states none; the model's optimizer keeps exp_avg"):
        commands.train(config_of(folder, "on", checkpoint={"resume": str(bare)}))
