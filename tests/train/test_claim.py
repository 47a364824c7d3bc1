"""Of two jobs that would write one run, the second is refused and changes nothing; a killed one leaves it free."""

import contextlib
import errno
import fcntl
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec import commands
from hpcrec.comm.ranks import Alone
from hpcrec.errors import CheckpointError
from hpcrec.train import claim
from tests.train.runs import config_for, write_data

HOLDER = """
import sys, pathlib
from hpcrec.comm.ranks import Alone
from hpcrec.train.claim import claimed
with claimed(pathlib.Path(sys.argv[1]), "4711", Alone()):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(run: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed ``run``."""
    line = [sys.executable, "-c", HOLDER, str(run)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_second_one_is_told_whose_the_folder_is(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        found = (
            rf"{tmp_path}: another one \(job 4711, process {process.pid} on .*, since 20.*give this one a run.folder"
        )
        with pytest.raises(CheckpointError, match=found), claim.claimed(tmp_path, None, Alone(), wait_s=0.0):
            pass


@pytest.mark.parametrize("end", ["finishes", "is killed"])
def test_folder_is_free_once_its_holder_is_gone(tmp_path: Path, end: str) -> None:
    with holder(tmp_path) as process:
        if end == "finishes":
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(signal.SIGKILL)
        with claim.claimed(tmp_path, "4712", Alone(), wait_s=20.0):
            assert json.loads((tmp_path / claim.FILE).read_text())["job"] == "4712"
    assert not (tmp_path / claim.FILE).exists()


def test_claim_of_a_removed_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = fcntl.lockf, []

    def slow(lock: int, how: int) -> None:
        if not seen:
            (tmp_path / claim.FILE).unlink()  # by a holder that ends between opening and locking here
        seen.append(lock)
        original(lock, how)

    monkeypatch.setattr(claim.fcntl, "lockf", slow)
    with claim.claimed(tmp_path, None, Alone()):
        assert len(seen) == 2 and (tmp_path / claim.FILE).exists()


def test_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(lock: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(claim.fcntl, "lockf", none)
    with pytest.warns(UserWarning, match="has no locks"), claim.claimed(tmp_path, None, Alone()):
        pass


@pytest.mark.parallel([1, 3])
def test_run_in_a_claimed_folder_ends_on_every_rank_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder / "data.h5", samples=60)
    config = config_for(folder, train={"steps": 2}, checkpoint={"resume": "never"}, run={"folder": str(folder / "run")})
    monkeypatch.setattr(commands, "claimed", lambda *given: claim.claimed(*given, wait_s=0.0))
    commands.train(config)
    world = MPI.COMM_WORLD
    before = sorted(path.name for path in (folder / "run").iterdir())
    world.Barrier()
    with holder(folder / "run") if world.rank == 0 else contextlib.nullcontext():
        world.Barrier()
        try:
            commands.train(config)
            refused = False
        except CheckpointError as error:
            refused = "is writing this run" in str(error)
        world.Barrier()
    after = sorted(path.name for path in (folder / "run").iterdir() if path.name != claim.FILE)
    parallel_assert(refused and before == after and "checkpoints" in after)
