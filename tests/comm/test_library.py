"""One rank without an MPI library: what it answers, that it trains with the same bits, and when it is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrec.comm import alone
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.comm.library import one_rank
from hpcrec.config import to_toml
from hpcrec.errors import MissingError
from hpcrec.training.telemetry import read_metrics
from tests.training.learned import check_equal
from tests.training.runs import config_for, write_data

MISSING = {"MPI4PY_LIBMPI": "/no/such/libmpi.so"}
LAUNCHED = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_")


def python(*line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHED)}
    return subprocess.run([sys.executable, *line], capture_output=True, text=True, env={**kept, **environment})


def test_what_a_rank_sends_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrec.comm.collectives.MPI", alone)
    ranks = Collectives(alone.COMM_WORLD, (0,), Ledger(0, (0,)), windows=True)  # type: ignore[arg-type]
    numbers = np.arange(3, dtype=np.int64)[None]
    assert ranks.alltoall(numbers, "control").tolist() == numbers.tolist()
    sizes, message = np.array([64]), np.arange(64, dtype=np.uint8)
    assert ranks.alltoallv(message, sizes, sizes, "values", behind_bytes=64)[:64].tolist() == message.tolist()
    came = np.zeros(64, np.uint8)
    ranks.alltoallv_between(message, sizes, came, sizes, "values")
    assert came.tolist() == message.tolist()
    assert [part.tolist() for part in ranks.alltoallv_told(message, sizes, "values")] == [message.tolist()]
    values = np.array([1.5, -2.0])
    assert [ranks.allreduce(values, op=op).tolist() for op in ("sum", "max")] == [values.tolist()] * 2
    ranks.start_allreduce(values, "dense").wait()
    ranks.bcast_array(values)
    assert values.tolist() == [1.5, -2.0]
    for begun in (ranks.start_alltoall(numbers, "dense"), ranks.start_allgather(numbers[0], "dense")):
        begun.wait()
        assert begun.received.tolist() == numbers.tolist()
    odd = np.arange(5, dtype=np.uint8)
    for begun in (
        ranks.start_alltoallv(odd, np.array([5]), np.array([5]), "dense"),
        ranks.start_allgatherv(odd, np.array([5]), "dense"),
    ):
        begun.wait()
        assert [part.tolist() for part in begun.received] == [odd.tolist()]
    assert ranks.allgather({"a": 1}) == [{"a": 1}] and ranks.bcast("b") == "b"
    gathered = ranks.gather_arrays(numbers)
    assert gathered is not None and gathered[0] is numbers
    ranks.barrier()
    ranks.close()
    with pytest.raises(AttributeError, match="one rank without an MPI library has no Isend"):
        _ = alone.COMM_WORLD.Isend


def test_it_trains_with_the_bits_of_one_rank_under_mpi(tmp_path: Path) -> None:
    """Without Horovod too, for which no reducer is asked."""
    found = []
    for name, environment in (("with", {}), ("without", MISSING)):
        folder = tmp_path / name
        folder.mkdir()
        write_data(folder / "data.h5", samples=200)
        wanted = config_for(
            folder, train={"log_every": 1}, dense={"reducer": None, "optimizer": {"name": "Adam", "lr": 0.1}}
        )
        (folder / "config.toml").write_text(to_toml(wanted))
        done = python("-m", "hpcrec", "train", str(folder / "config.toml"), **environment)
        assert done.returncode == 0, done.stderr
        assert "summed by MPI" not in done.stderr
        found.append([line["loss"] for line in read_metrics(folder / "run") if "loss" in line])
    assert found[0] == found[1] and found[0]
    steps = [sorted((tmp_path / name / "run/checkpoints").glob("step-*"))[-1] for name in ("with", "without")]
    check_equal(*steps)
    told = [json.loads((tmp_path / name / "run/summary.json").read_text()) for name in ("with", "without")]
    assert told[0]["eval"] == told[1]["eval"] and "none: one rank" in json.dumps(told[1])


def test_tasks_of_a_launcher_are_not_each_a_run() -> None:
    done = python("-c", "import hpcrec.comm.library", **MISSING, OMPI_COMM_WORLD_SIZE="2")
    assert done.returncode == 1
    assert (
        "MissingError: the launcher started 2 tasks, but no MPI library can be loaded: cannot load MPI library. Load "
        "the site's MPI module, or install one: pip install 'hpcrec[mpi]'."
    ) in done.stderr
    with pytest.raises(MissingError, match="started 4 tasks"):
        one_rank({"SLURM_STEP_NUM_TASKS": "4"}, RuntimeError("cannot load MPI library"))
    assert one_rank({"SLURM_STEP_NUM_TASKS": "1"}, RuntimeError("cannot load MPI library")) is alone
