"""``hpcrec.launch``: results by rank, errors with their traceback, training on all ranks."""

import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import hpcrec
from hpcrec.errors import ConfigError, RankError
from hpcrec.launcher.mpirun import run_command
from tests.api import clicks


def test_results_are_by_rank_and_errors_are_raised(tmp_path: Path) -> None:
    def told(base: int, folder: Path) -> tuple[int, int]:  # of no module: handed over by value
        from hpcrec.comm.library import MPI

        (folder / f"{MPI.COMM_WORLD.rank}").touch()
        return base + MPI.COMM_WORLD.rank, os.getpid()

    given = hpcrec.launch(told, 10, tmp_path, ranks=2)
    assert [number for number, _ in given] == [10, 11] and len({os.getpid(), *(pid for _, pid in given)}) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]

    def breaks() -> None:
        from hpcrec.comm.library import MPI

        if MPI.COMM_WORLD.rank == 1:
            raise KeyError("mine")
        MPI.COMM_WORLD.Barrier()

    with pytest.raises(RankError, match=r"breaks failed on rank 1 of 2:\n(.|\n)*KeyError: 'mine'") as found:
        hpcrec.launch(breaks, ranks=2)
    assert isinstance(found.value.__cause__, KeyError)


def test_a_rank_that_exits_ends_the_others_and_is_told_of() -> None:
    def leaves() -> None:
        from hpcrec.comm.library import MPI

        if MPI.COMM_WORLD.rank == 1:
            raise SystemExit(0)
        MPI.COMM_WORLD.Barrier()

    with pytest.raises(RankError, match=r"leaves failed on rank 1 of 2:\n(.|\n)*SystemExit: 0"):
        hpcrec.launch(leaves, ranks=2)


def test_stderr_need_not_be_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert hpcrec.launch(len, "three", ranks=1) == [5]


def test_a_configuration_that_one_rank_cannot_read_ends_all(
    files: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = clicks.sections(files, tmp_path / "run", dense={"reducer": "mpi"})
    given["run"]["folder"] = str(tmp_path / "run")
    (tmp_path / "script.py").write_text(f"""
import hpcrec
from hpcrec.comm.library import MPI
hpcrec.train({given!r}, train={{"stepz": 1}} if MPI.COMM_WORLD.rank == 1 else {{}})
""")
    program = (sys.executable, "-u", str(tmp_path / "script.py"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert run_command(2, [], environment=environment, program=program) == 2
    assert "train.stepz is not a key" in capfd.readouterr().err


def test_what_cannot_be_launched_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 is no function"):
        hpcrec.launch(3)
    with pytest.raises(ConfigError, match="cannot be pickled"):
        hpcrec.launch(print, threading.Lock(), ranks=1)
    with pytest.raises(ConfigError, match="-n is 0"):
        hpcrec.launch(print, ranks=0)


def test_launched_ranks_train_together_after_a_run_here(files: dict[str, str], tmp_path: Path) -> None:
    """With the run of one rank in this process first, which has started MPI by then."""

    def trained(sections: dict[str, Any]) -> tuple[str, list[float], int]:
        run = hpcrec.train(**sections)
        return run.status, [line["loss"] for line in run.history if "loss" in line], run.summary["topology"]["ranks"]

    wanted = {"dense": {"reducer": "mpi"}, "train": {"steps": 3, "log_every": 1}}
    here = hpcrec.train(**clicks.sections(files, tmp_path / "one", **wanted))
    given = hpcrec.launch(trained, clicks.sections(files, tmp_path / "two", **wanted), ranks=2)
    losses = [line["loss"] for line in here.history if "loss" in line]
    assert given[0] == given[1] and given[0][0] == "finished" and given[0][2] == 2
    assert given[0][1] == pytest.approx(losses, rel=1e-5)
