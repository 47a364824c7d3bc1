"""Groups in whole jobs: each with a Horovod of its own, and one that was stopped between two exchanges and goes on."""

from pathlib import Path
from typing import Any

import pytest

from hpcrec.config import Config
from tests.training.launched import Fault, launch
from tests.training.learned import check_equal
from tests.training.runs import config_for, write_data

STEPS = 9


def config_of(folder: Path, run: str, reducer: str, **sections: Any) -> Config:
    rules = {"groups": 2, "burn_in_steps": 2, "every": 3}
    optimizer = {"name": "Adam", "lr": 0.01}
    return config_for(
        folder,
        data={"validation": str(folder / "data.h5")},
        dense={"reducer": reducer, "optimizer": optimizer, "bucket_bytes": 800, "codistillation": rules},
        train={"steps": STEPS, "batch_size": 16, "dtype": "float32", "eval_every": 4},
        checkpoint={"every": 4, "keep": 9, "background": False},  # whole when its step ends, however soon the kill
        run={"folder": str(folder / run)},
        **sections,
    )


def finish(folder: Path, config: Config) -> Path:
    ended = launch(folder, config, ranks=4).end(limit_s=60)
    assert ended.code == 0, ended.err
    return Path(config.run.folder) / "checkpoints" / f"step-{STEPS}"


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True])
def test_groups_sum_by_horovod_as_by_mpi(tmp_path: Path, split: bool) -> None:
    """Sums of two ranks have one order, so to the bit; with roles apart a group is one rank."""
    write_data(tmp_path / "data.h5")
    roles = {"topology": {"mode": "split"}} if split else {}
    by_mpi = finish(tmp_path / "job", config_of(tmp_path, "mpi", "mpi", **roles))
    by_horovod = finish(tmp_path / "job", config_of(tmp_path, "horovod", "horovod", **roles))
    check_equal(by_horovod, by_mpi)
    names = {path.name for path in by_mpi.glob("*.h5")}
    assert names == {"dense.h5", "dense-group-1.h5", "snapshot-0.h5", "snapshot-1.h5"}


@pytest.mark.slow
def test_killed_between_two_exchanges_and_gone_on_with(tmp_path: Path) -> None:
    """After the checkpoint of step 4, which is between the exchanges before steps 2 and 5."""
    write_data(tmp_path / "data.h5")
    whole = finish(tmp_path / "job", config_of(tmp_path, "whole", "mpi"))
    config = config_of(tmp_path, "killed", "mpi")
    fault = Fault(3, "hpcrec.training.session:Session.default_losses", 7, "kill")
    assert launch(tmp_path / "job", config, fault, ranks=4).end(limit_s=60).code != 0
    assert (tmp_path / "killed/checkpoints/step-4").exists()
    check_equal(finish(tmp_path / "job", config), whole)
