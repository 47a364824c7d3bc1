"""Of two jobs that would write one run, the second is refused and changes nothing; a killed one leaves it free."""

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.cli import train as commands
from hpcrec.comm.failure import exit_code
from hpcrec.comm.ranks import Alone
from hpcrec.errors import CheckpointError, ConfigError
from hpcrec.launcher.relay import Heard
from hpcrec.launcher.restarts import Run, run_attempts
from hpcrec.training import claim
from tests.training.runs import config_for, write_data

HOLDER = """
import sys, pathlib
from hpcrec.comm.ranks import Alone
from hpcrec.training.claim import claimed
with claimed(pathlib.Path(sys.argv[1]), "4711", Alone()):
    print("held", flush=True)
    sys.stdin.read()
"""
FAILED = """
import sys, pathlib
from hpcrec.comm.ranks import Alone
from hpcrec.training.claim import claimed
try:
    with claimed(pathlib.Path(sys.argv[1]), "4711", Alone()):
        raise KeyError
except KeyError:
    print("held", flush=True)
    sys.stdin.read()
"""
Lockf = Callable[[int, int], None]


@contextlib.contextmanager
def holder(run: Path, code: str = HOLDER) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed ``run``."""
    line = [sys.executable, "-c", code, str(run)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def lockf(monkeypatch: pytest.MonkeyPatch) -> Callable[[Lockf], None]:
    """Puts another function in the place of ``fcntl.lockf``."""
    return lambda other: monkeypatch.setattr(fcntl, "lockf", other)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second job waits for no other."""
    monkeypatch.setattr(claim, "WAIT_S", 0.0)
    monkeypatch.setattr(claim, "WAIT_FOR_HOST_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_second_one_is_told_whose_the_folder_is(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        found = (
            rf"{tmp_path}: another one \(job 4711, process {process.pid} on .*, since 20.*give this one a run.folder"
            rf".* if that host is gone, remove {tmp_path}/claim.json"
        )
        with pytest.raises(ConfigError, match=found), claim.claimed(tmp_path, None, Alone()):
            pass


@pytest.mark.parametrize("end", ["finishes", "is killed"])
def test_folder_is_free_once_its_holder_is_gone(tmp_path: Path, end: str) -> None:
    with holder(tmp_path) as process:
        if end == "finishes":
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(signal.SIGKILL)
        with claim.claimed(tmp_path, "4712", Alone()):
            assert json.loads((tmp_path / claim.FILE).read_text())["job"] == "4712"
    assert (tmp_path / claim.FILE).read_text() == ""


@pytest.mark.parametrize(
    ("host", "limit_s"), [(socket.gethostname(), 30.0), ("elsewhere", 180.0), (None, 30.0)], ids=["this", "other", "no"]
)
def test_another_host_is_waited_for_longer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lockf: Callable[[Lockf], None],
    host: str | None,
    limit_s: float,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    lockf(raising(errno.EAGAIN))
    told = {"job": None, "host": host, "process": 12, "since": "2027-01-15"}
    (tmp_path / claim.FILE).write_text("" if host is None else json.dumps(told))
    with pytest.raises(ConfigError, match="is writing this run"), claim.claimed(tmp_path, None, Alone()):
        pass
    assert limit_s <= clock[0] < limit_s + 1
    whose = "another one" if host is None else f"another one (process 12 on {host}, since 2027-01-15)"
    said = f"hpcrec: {tmp_path}: {whose} is writing this run; waiting up to {limit_s:g} s for its end\n"
    assert capsys.readouterr().err == said


def raising(number: int) -> Lockf:
    """A ``lockf`` that fails."""

    def fails(lock: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    return fails


@pytest.mark.usefixtures("impatient")
def test_claim_is_kept_after_an_error_until_its_process_ends(tmp_path: Path) -> None:
    with holder(tmp_path, FAILED) as process:
        with pytest.raises(ConfigError, match="job 4711"), claim.claimed(tmp_path, None, Alone()):
            pass
        process.kill()
        process.wait()
        with claim.claimed(tmp_path, "4712", Alone()):
            pass


def test_file_that_a_user_removed_is_made_anew(tmp_path: Path) -> None:
    with holder(tmp_path):
        (tmp_path / claim.FILE).unlink()  # that of a host which is lost
        with claim.claimed(tmp_path, "4712", Alone()):
            assert json.loads((tmp_path / claim.FILE).read_text())["job"] == "4712"


def test_file_removed_on_its_server_is_opened_anew(tmp_path: Path, lockf: Callable[[Lockf], None]) -> None:
    original, seen = fcntl.lockf, []

    def stale(lock: int, how: int) -> None:
        seen.append(os.fstat(lock).st_ino)
        if len(seen) == 1:
            (tmp_path / claim.FILE).unlink()
            raising(errno.ESTALE)(lock, how)
        original(lock, how)

    lockf(stale)
    with claim.claimed(tmp_path, None, Alone()):
        assert len(seen) == 2 and (tmp_path / claim.FILE).stat().st_ino == seen[1]


def test_file_removed_after_a_long_wait_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockf: Callable[[Lockf], None]
) -> None:
    # As the refusal says that it can be, of a host that is gone.
    clock, original = [0.0], fcntl.lockf

    def lost(lock: int, how: int) -> None:
        if clock[0] < 100.0:
            raising(errno.EAGAIN)(lock, how)
        if clock[0] == 100.0:
            (tmp_path / claim.FILE).unlink()
            raising(errno.ESTALE)(lock, how)
        original(lock, how)

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    lockf(lost)
    (tmp_path / claim.FILE).write_text(json.dumps({"job": None, "host": "gone", "process": 12, "since": "2027"}))
    with claim.claimed(tmp_path, "4712", Alone()):
        assert json.loads((tmp_path / claim.FILE).read_text())["job"] == "4712"
    assert 100.0 < clock[0] < 101.0


def test_lock_on_a_file_that_a_user_removes_meanwhile_is_none(tmp_path: Path, lockf: Callable[[Lockf], None]) -> None:
    original, seen = fcntl.lockf, []

    def slow(lock: int, how: int) -> None:
        seen.append(os.fstat(lock).st_ino)
        if len(seen) == 1:
            (tmp_path / claim.FILE).unlink()
        elif len(seen) == 2:
            (tmp_path / claim.FILE).rename(tmp_path / "kept")  # its number is not given again
            (tmp_path / claim.FILE).write_text("")
        original(lock, how)

    lockf(slow)
    with claim.claimed(tmp_path, None, Alone()):
        assert len(seen) == 3 and (tmp_path / claim.FILE).stat().st_ino == seen[2]


def test_next_of_several_is_waited_for_as_long_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lockf: Callable[[Lockf], None],
) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] == 20.0:
            (tmp_path / claim.FILE).write_text("")  # as between two
        if clock[0] == 25.0:
            (tmp_path / claim.FILE).write_text(json.dumps({**told, "process": 13}))

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    lockf(raising(errno.EAGAIN))
    told = {"job": "7", "host": socket.gethostname(), "process": 12, "since": "2027-01-15"}
    (tmp_path / claim.FILE).write_text(json.dumps(told))
    with pytest.raises(ConfigError, match="process 13 on"), claim.claimed(tmp_path, None, Alone()):
        pass
    assert 55 <= clock[0] < 56
    assert [line.split("process ")[1][:2] for line in capsys.readouterr().err.splitlines()] == ["12", "13"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_other_errors_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockf: Callable[[Lockf], None], number: int
) -> None:
    monkeypatch.setattr(claim, "WAIT_S", 0.0)
    lockf(raising(number))
    found = rf"{tmp_path}/claim.json: cannot be written \({os.strerror(number)}\)"
    with pytest.raises(CheckpointError, match=found), claim.claimed(tmp_path, None, Alone()):
        pass
    assert not [p for p in Path("/proc/self/fd").iterdir() if str(tmp_path) in str(os.path.realpath(p))]


def test_file_system_without_locks_is_said(tmp_path: Path, lockf: Callable[[Lockf], None]) -> None:
    lockf(raising(errno.ENOLCK))
    with pytest.warns(UserWarning, match="has no locks"), claim.claimed(tmp_path, None, Alone()):
        pass


@pytest.mark.usefixtures("impatient")
def test_claimed_folder_is_not_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    starts = []

    def start(arguments: Sequence[str], environment: Mapping[str, str], heard: Heard) -> int:
        starts.append(arguments)
        try:
            with claim.claimed(tmp_path, None, Alone()):
                return 0
        except ConfigError as error:
            return exit_code(error)

    with holder(tmp_path):
        code = run_attempts(start, ("train",), environment={}, run=Run(tmp_path, "auto"), restarts=3)
    assert code == 2 and len(starts) == 1 and capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
@pytest.mark.parallel([1, 3])
def test_run_in_a_claimed_folder_ends_on_every_rank_and_changes_nothing(folder: Path) -> None:
    write_data(folder / "data.h5", samples=60)
    config = config_for(folder, train={"steps": 2}, checkpoint={"resume": "never"}, run={"folder": str(folder / "run")})
    commands.train(config)
    world, code, refused = MPI.COMM_WORLD, 0, ""
    world.Barrier()
    with holder(folder / "run") if world.rank == 0 else contextlib.nullcontext():
        world.Barrier()
        before = files_in(folder / "run")
        world.Barrier()
        try:
            commands.train(config)
        except ConfigError as error:
            code, refused = exit_code(error), str(error)
        refusals = world.allgather(refused)
        after = files_in(folder / "run")
        world.Barrier()
    parallel_assert(code == 2 and "is writing this run" in refused and len(set(refusals)) == 1)
    parallel_assert(before == after and any(name.startswith("checkpoints/") for name in after))


def files_in(folder: Path) -> dict[str, bytes]:
    """All files below a folder, with what is in them."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
