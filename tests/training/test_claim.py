"""Of two attempts that would write one run one goes on, whatever locks there are; what it saved stays as it is."""

import contextlib
import errno
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec import again
from hpcrec.api import commands
from hpcrec.checkpoint import files
from hpcrec.checkpoint.checkpoint import CheckpointWriter, find_checkpoint, mark_best, prune, steps_in
from hpcrec.checkpoint.resume import resumed_from
from hpcrec.comm.failure import exit_code, unwatch
from hpcrec.comm.ranks import Alone
from hpcrec.errors import CheckpointError, ConfigError, UnreadableError
from hpcrec.launcher.relay import Heard
from hpcrec.launcher.restarts import Run, run_attempts
from hpcrec.training import attempts, claim, loop
from hpcrec.training.attempts import Allocation
from hpcrec.training.claim import Claim, Holder, Times, claimed
from tests.training.runs import config_for, write_data

OUTSIDE = Allocation()
# As in use, but shorter: the order of the times is the same.
SHORT = Times(renew_s=0.2, stale_s=3.0, watch_s=1.0, wait_s=0.3, wait_lost_s=0.6, ask_s=0.1, poll_s=0.02)
PATIENT = replace(SHORT, wait_s=60.0, wait_lost_s=60.0)
HOLDER = """
import sys, pathlib
from hpcrec.comm.ranks import Alone
from hpcrec.training.attempts import Allocation
from hpcrec.training.claim import claimed
try:
    with claimed(pathlib.Path(sys.argv[1]), Allocation("4711", 0, "other"), Alone()):
        print("held", flush=True)
        sys.stdin.read()
        if sys.argv[2:]:
            raise KeyError
except KeyError:
    print("failed", flush=True)
    sys.stdin = open(0)
    import time
    time.sleep(300)
"""


@contextlib.contextmanager
def holder(run: Path, *how: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed ``run``."""
    line = [sys.executable, "-c", HOLDER, str(run), *how]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def elsewhere(allocation: Allocation = OUTSIDE, host: str = "elsewhere") -> Holder:
    """An attempt on another machine: whether its process is there is not seen."""
    return replace(Holder.here(allocation), host=host, machine=host)


def claim_of(run: Path, allocation: Allocation = OUTSIDE, times: Times = SHORT) -> Claim:
    """Of an attempt on a machine of its own, that never ends."""
    held = claimed(run, allocation, Alone(), times=times, holder=elsewhere(allocation, f"host{random.random()}"))
    _open.append(held)
    return held.__enter__()


_open: list[contextlib.AbstractContextManager[Claim]] = []  # one that is forgotten ends, and its claim with it


def written(run: Path) -> list[Holder]:
    """What the claims in a folder say, oldest first."""
    found = sorted(run.glob("claim-*.json"), key=lambda path: int(path.stem.removeprefix("claim-")))
    return [Holder(**json.loads(path.read_text())) for path in found]


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes ``squeue`` a script with this body."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def make(body: str) -> None:
        (folder / "squeue").write_text(f"#!/bin/sh\n{body}\n")
        (folder / "squeue").chmod(0o755)

    make("exit 1")
    return make


# ---- one after the other ---------------------------------------------------------------------------------------------


def test_second_one_is_told_whose_the_folder_is(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        found = (
            rf"{tmp_path}: another one \(job 4711, process {process.pid} on .*, since 20.*give this one a run.folder"
        )
        with pytest.raises(ConfigError, match=found), claimed(tmp_path, OUTSIDE, Alone(), times=SHORT):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["claim-1.json"]


@pytest.mark.parametrize("end", ["finishes", "is killed"])
def test_folder_is_free_once_its_holder_is_gone(tmp_path: Path, end: str) -> None:
    with holder(tmp_path) as process:
        if end == "finishes":
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        else:
            process.send_signal(signal.SIGKILL)  # and not waited for: it remains as a zombie
        with claimed(tmp_path, Allocation("4712"), Alone(), times=replace(PATIENT, stale_s=1e9)) as held:
            assert [of.job for of in written(tmp_path)] == ["4712"] and held.path.name == "claim-2.json"
    assert written(tmp_path)[-1].ended is not None


def test_claim_is_kept_after_an_error_until_its_process_ends(tmp_path: Path) -> None:
    with holder(tmp_path, "fails") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        assert process.stdout.readline() == "failed\n"
        with pytest.raises(ConfigError, match="job 4711"), claimed(tmp_path, OUTSIDE, Alone(), times=SHORT):
            pass
        process.kill()
        process.wait()
        with claimed(tmp_path, OUTSIDE, Alone(), times=SHORT):
            pass


def test_an_attempt_of_the_same_process_takes_over(tmp_path: Path) -> None:
    with pytest.raises(KeyError), claimed(tmp_path, OUTSIDE, Alone()) as first:
        raise KeyError
    with claimed(tmp_path, OUTSIDE, Alone(), times=SHORT) as second:
        second.check()
        assert "another one (process" in first.lost()


def test_process_with_the_number_of_one_that_ended_is_another(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        gone = replace(Holder.here(OUTSIDE), process=other.pid, started=1)
        (tmp_path / "claim-1.json").write_text(json.dumps(asdict(gone)))
        with claimed(tmp_path, OUTSIDE, Alone(), times=SHORT) as held:
            assert held.number == 2
        other.kill()


@pytest.mark.parametrize("place", ["here", "elsewhere", "unknown"])
def test_another_host_is_waited_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    with subprocess.Popen(["sleep", "60"]) as other:
        there = {"process": other.pid, "started": claim._started(other.pid), "since": "2027-01-15"}
        of = replace(Holder.here(OUTSIDE) if place == "here" else elsewhere(), **there)
        (tmp_path / "claim-1.json").write_text("" if place == "unknown" else json.dumps(asdict(of)))
        with pytest.raises(ConfigError, match="is writing this run"), claimed(tmp_path, OUTSIDE, Alone()):
            pass
        other.kill()
    limit_s = 30.0 if place == "here" else 180.0
    assert limit_s <= clock[0] < limit_s + 1
    whose = "another one" if place == "unknown" else f"another one (process {other.pid} on {of.host}, since 2027-01-15)"
    said = f"hpcrec: {tmp_path}: {whose} is writing this run; waiting up to {limit_s:g} s for its end\n"
    assert capsys.readouterr().err == said


def test_next_of_several_is_waited_for_as_long_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, told = [0.0], elsewhere()

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] == 100.0:
            (tmp_path / "claim-2.json").write_text(json.dumps({**asdict(told), "process": 13}))

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    (tmp_path / "claim-1.json").write_text(json.dumps({**asdict(told), "process": 12}))
    with pytest.raises(ConfigError, match="process 13 on"), claimed(tmp_path, OUTSIDE, Alone()):
        pass
    assert 280 <= clock[0] < 281
    assert [line.split("process ")[1][:2] for line in capsys.readouterr().err.splitlines()] == ["12", "13"]


@pytest.mark.parametrize("place", ["before the first look", "between two looks", "in a look"])
def test_one_that_is_held_up_itself_waits_on_until_a_claim_that_nobody_renews_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Of one that was killed while it wrote its claim, which says nothing therefore."""
    clock, path, stat, looked_at, looks = [0.0], tmp_path / "claim-1.json", Path.stat, claim._looked_at, [0]
    path.touch()
    renewed_s = path.stat().st_mtime

    def of_the_server(of: Path, **named: bool) -> os.stat_result:
        found = stat(of, **named)
        if of.suffix != ".clock":
            return found
        return os.stat_result((*found[:8], renewed_s + clock[0], *found[9:]))

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if place == "between two looks" and clock[0] == 10.0:
            clock[0] += 300.0

    def look(of: Path) -> Any:
        looks[0] += 1
        if (place, looks[0]) in (("before the first look", 1), ("in a look", 3)):
            clock[0] += 300.0
        return looked_at(of)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", of_the_server)
        patch.setattr(time, "monotonic", lambda: clock[0])
        patch.setattr(time, "sleep", sleep)
        patch.setattr(claim, "_looked_at", look)
        with claimed(tmp_path, OUTSIDE, Alone()) as held:
            assert held.number == 2 and 325.0 <= clock[0] < 340.0


def test_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "write", fails)
    found = rf"{tmp_path}/claim-1.json: cannot be written \(Input/output error\)"
    with pytest.raises(CheckpointError, match=found), claimed(tmp_path, OUTSIDE, Alone()):
        pass
    assert not list(tmp_path.iterdir())  # the next one would wait for an empty claim
    assert not [p for p in Path("/proc/self/fd").iterdir() if str(tmp_path) in str(os.path.realpath(p))]


@pytest.mark.parametrize("n_failures", [1, 99])
def test_a_claim_that_cannot_be_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_failures: int
) -> None:
    with claimed(tmp_path, OUTSIDE, Alone()):
        pass
    opened, left = Path.open, [n_failures]

    def fails(path: Path, *options: Any, **others: Any) -> Any:
        if path.name == "claim-1.json" and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(path, *options, **others)

    monkeypatch.setattr(Path, "open", fails)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    if n_failures == 1:
        with claimed(tmp_path, OUTSIDE, Alone()) as held:
            assert held.number == 2
    else:
        found = f"^{tmp_path}/claim-1.json: cannot be read just now"
        with pytest.raises(UnreadableError, match=found), claimed(tmp_path, OUTSIDE, Alone()):
            pass


def test_an_end_that_cannot_be_written_leaves_the_claim_alone(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with claimed(tmp_path, OUTSIDE, Alone()):
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [path.name for path in tmp_path.iterdir()] == ["claim-1.json"]
    assert json.loads((tmp_path / "claim-1.json").read_text())["ended"] is None


# ---- without locks, without Slurm ------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["none", "one that is over"])
def test_of_many_at_once_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    # Each on a machine of its own, held up at random before it makes its claim and before it lists the folder again.
    seeds, path = random.Random(27), claim._path

    def slow(run: Path, number: int) -> Path:
        time.sleep(seeds.random() * 0.004)
        return path(run, number)

    monkeypatch.setattr(claim, "_path", slow)
    for turn in range(60):
        run, won, refused = tmp_path / str(turn), [], []
        run.mkdir()
        if first != "none":
            (run / "claim-7.json").write_text(json.dumps({**asdict(elsewhere()), "ended": "2027-01-15"}))

        def attempt(number: int, run: Path = run, won: list[Claim] = won, refused: list[str] = refused) -> None:
            time.sleep(seeds.random() * 0.004)
            try:
                won.append(claim_of(run, Allocation(cluster=str(number)), replace(SHORT, wait_lost_s=0.15)))
            except ConfigError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=attempt, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(refused)) == (1, 3)
        won[0].check()
        assert all(f"on {written(run)[-1].host}, since" in text for text in refused)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("n_failing", [1, 99])
def test_claim_that_cannot_be_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, n_failing: int
) -> None:
    mine, read, failed = claim_of(tmp_path), Path.read_bytes, itertools.count(1)

    def failing(path: Path) -> bytes:
        if path == mine.path and next(failed) <= n_failing:
            raise OSError(number, os.strerror(number), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    monkeypatch.setattr(again, "PAUSES_S", (0.0, 0.0))
    with contextlib.nullcontext() if n_failing == 1 else pytest.raises(UnreadableError, match=r"claim-1\.json"):
        mine.check()
    assert next(failed) == (3 if n_failing == 1 else 4)  # read twice, or at all three tries


def test_one_that_is_held_up_before_it_makes_its_claim_takes_nothing_over(tmp_path: Path) -> None:
    # It has seen claim 1 to be over; others have had 2, 3 since, and the files of 1 and 2 are gone.
    late = claim._Trying(tmp_path, elsewhere(), SHORT)
    for _ in range(2):
        with claimed(tmp_path, OUTSIDE, Alone()):
            pass
    with claimed(tmp_path, OUTSIDE, Alone()) as held:
        assert late._take(2) is None
        held.check()
        assert [path.name for path in tmp_path.iterdir()] == ["claim-3.json"]


def test_claim_that_is_renewed_is_kept_and_one_that_is_not_is_taken_over(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    lost = threading.Event()
    with claimed(tmp_path, OUTSIDE, Alone(), times=SHORT, holder=elsewhere(), when_lost=lost.set) as first:
        with pytest.raises(ConfigError, match="on elsewhere, since"):
            claim_of(tmp_path, times=replace(SHORT, wait_lost_s=8.0))
        assert time.monotonic() - begun_s > 8.0  # longer than ``stale_s``
        first.check()
    # One that nobody renews: a process that is stopped, a host that is gone.
    (tmp_path / "claim-2.json").write_text(json.dumps(asdict(elsewhere())))
    begun_s = time.monotonic()
    second = claim_of(tmp_path, times=PATIENT)
    assert time.monotonic() - begun_s > 2.5 and second.number == 3
    assert not lost.is_set()


def test_a_claim_that_has_ended_is_not_told_of_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is about to look whether it is lost when it ends, and gets no core for a while."""
    looking, told, lost_of = threading.Event(), threading.Event(), Claim.lost

    def late(claim: Claim) -> str:
        if threading.current_thread().name == "claim":
            looking.set()
            time.sleep(0.5)
        return lost_of(claim)

    monkeypatch.setattr(Claim, "lost", late)
    times = replace(SHORT, renew_s=0.01)
    with claimed(tmp_path, OUTSIDE, Alone(), times=times, when_lost=told.set):
        assert looking.wait(10.0)
    with claimed(tmp_path, OUTSIDE, Alone(), times=replace(SHORT, renew_s=600.0)):
        assert not told.wait(1.0)


def test_age_is_by_the_file_servers_clock_and_watched(tmp_path: Path) -> None:
    path = tmp_path / "claim-1.json"
    path.write_text(json.dumps(asdict(elsewhere())))
    ahead_s = time.time() + 1000.0
    os.utime(path, (ahead_s, ahead_s))  # renewed in the future, by the clock that a probe has too
    with pytest.raises(ConfigError, match="on elsewhere, since"):
        claim_of(tmp_path, times=replace(SHORT, wait_lost_s=5.0))
    long_ago_s = time.time() - 1000.0
    os.utime(path, (long_ago_s, long_ago_s))
    begun_s = time.monotonic()
    assert claim_of(tmp_path, times=PATIENT).number == 2
    assert time.monotonic() - begun_s >= SHORT.watch_s  # it might have been renewed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["claim-2.json"]


@pytest.mark.parametrize("place", ["clock", "claim"])
def test_one_that_is_held_up_while_the_holder_renews_its_claim_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Between its look at the claim and at the clock, and before it makes its own."""
    path, renewed, touch, opened = tmp_path / "claim-1.json", [], Path.touch, os.open
    path.write_text(json.dumps(asdict(elsewhere())))
    os.utime(path, (time.time() - 1000.0, time.time() - 1000.0))

    def renew() -> None:
        if not renewed:
            os.utime(path)
            renewed.append(time.monotonic())

    def touched(of: Path, *given: Any, **named: Any) -> None:
        if place == "clock" and of.suffix == ".clock":
            renew()
        touch(of, *given, **named)

    def made(of: Any, flags: int, *given: Any, **named: Any) -> int:
        if place == "claim" and flags & os.O_EXCL:
            renew()
        return opened(of, flags, *given, **named)

    monkeypatch.setattr(Path, "touch", touched)
    monkeypatch.setattr(os, "open", made)
    assert claim_of(tmp_path, times=PATIENT).number == 2
    assert time.monotonic() - renewed[0] >= SHORT.stale_s - 0.1


@pytest.mark.parametrize(("lost_s", "taken_s"), [(0.0, 120.0), (60.0, 60.0), (110.0, 25.0), (9000.0, 25.0)])
def test_times_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_s: float, taken_s: float) -> None:
    """A claim of a host that is lost is taken over 120 s after it was renewed, looked at for 25 s."""
    clock, path, stat = [0.0], tmp_path / "claim-1.json", Path.stat
    path.write_text(json.dumps(asdict(elsewhere())))
    renewed_s = path.stat().st_mtime

    def of_the_server(of: Path, **named: bool) -> os.stat_result:
        found = stat(of, **named)
        if of.suffix != ".clock":
            return found
        return os.stat_result((*found[:8], renewed_s + lost_s + clock[0], *found[9:]))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", of_the_server)
        patch.setattr(time, "monotonic", lambda: clock[0])
        patch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
        with claimed(tmp_path, OUTSIDE, Alone()) as held:
            assert taken_s <= clock[0] <= taken_s + 1.5 and held.number == 2  # times of files are in whole seconds here


@pytest.mark.parametrize("times", [1, 3])
def test_a_folder_that_cannot_be_listed_just_now_is_listed_again_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    left, iterdir = [times], Path.iterdir

    def refuses(path: Path) -> Iterator[Path]:
        if path == tmp_path and left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return iterdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(again, "PAUSES_S", (0.01, 0.01, 0.01))
        patch.setattr(Path, "iterdir", refuses)
        assert claim_of(tmp_path).number == 1 and left == [0]


def test_a_claim_that_could_not_be_looked_at_once_it_was_made_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the holder of the one before would take itself for overtaken, and none would go on."""
    (tmp_path / "claim-1.json").write_text(json.dumps(asdict(elsewhere())))

    def refused(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(claim, "sync", refused)
        with pytest.raises(CheckpointError, match="Input/output error"):
            claim_of(tmp_path, times=PATIENT)
    assert [path.name for path in tmp_path.glob("claim-*.json")] == ["claim-1.json"]
    assert claim_of(tmp_path, times=PATIENT).number == 2


def test_who_gives_its_claim_up_for_one_that_was_renewed_waits_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may have seen it, and end: then somebody has to go on."""
    clock, path = [0.0], tmp_path / "claim-1.json"
    path.write_text(json.dumps(asdict(elsewhere())))
    renewed, renewed_s, opened, stat = [False], path.stat().st_mtime, os.open, Path.stat

    def made(of: Any, flags: int, *given: Any, **named: Any) -> int:
        if flags & os.O_EXCL and not renewed[0]:
            renewed[0] = True
            os.utime(path, (renewed_s + clock[0], renewed_s + clock[0]))
        return opened(of, flags, *given, **named)

    def of_the_server(of: Path, **named: bool) -> os.stat_result:
        found = stat(of, **named)
        return found if of.suffix != ".clock" else os.stat_result((*found[:8], renewed_s + clock[0], *found[9:]))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", of_the_server)
        patch.setattr(os, "open", made)
        patch.setattr(time, "monotonic", lambda: clock[0])
        patch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
        with claimed(tmp_path, OUTSIDE, Alone()) as held:
            assert renewed[0] and 235.0 <= clock[0] < 245.0 and held.number == 2


def has_run(monkeypatch: pytest.MonkeyPatch, ends: str) -> Callable[[], bool]:
    """Has training runs end so; whether one has trained to its end, and is about to tell of it."""
    run, ran, summary = loop.Loop.run, [False], commands._summary

    def runs(self: loop.Loop, *given: Any) -> Any:
        return replace(run(self, *given), status=ends)

    def told(*given: Any) -> Any:
        ran[0] = True
        return summary(*given)

    monkeypatch.setattr(loop.Loop, "run", runs)
    monkeypatch.setattr(commands, "_summary", told)
    return lambda: ran[0]


@pytest.mark.in_turn
@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("ends", ["finished", "stopped"])
def test_a_look_at_the_claim_that_fails_at_the_end_changes_no_exit_status(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: str
) -> None:
    write_data(folder / "data.h5", samples=60)
    config = config_for(folder, train={"steps": 4}, checkpoint={"every": 4}, run={"folder": str(folder / "run")})
    trained = has_run(monkeypatch, ends)

    def refuses(self: Claim) -> None:
        if trained():
            raise UnreadableError(f"{self.path}: cannot be read just now")

    monkeypatch.setattr(Claim, "check", refuses)
    code = commands.train(config)
    parallel_assert(code == (75 if ends == "stopped" else 0))
    parallel_assert(not (folder / "run/summary.json").exists() and steps_in(folder / "run") == [4])
    parallel_assert(MPI.COMM_WORLD.rank > 0 or "its summary is not written" in capfd.readouterr().err)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("ends", ["finished", "stopped"])
def test_a_record_of_attempts_that_cannot_be_read_at_the_end_changes_no_exit_status(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: str
) -> None:
    write_data(folder / "data.h5", samples=60)
    config = config_for(folder, train={"steps": 4}, checkpoint={"every": 4}, run={"folder": str(folder / "run")})
    trained, read = has_run(monkeypatch, ends), Path.read_bytes

    def refuses(self: Path) -> bytes:
        if trained() and self.name == attempts.FILE:
            raise OSError(errno.ESTALE, "Stale file handle", str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refuses)
    monkeypatch.setattr(again, "PAUSES_S", (0.01, 0.01))
    code = commands.train(config)
    parallel_assert(code == (75 if ends == "stopped" else 0))
    MPI.COMM_WORLD.Barrier()
    said = json.loads((folder / "run/summary.json").read_text())
    parallel_assert(said["status"] == ends and "attempts" not in said and steps_in(folder / "run") == [4])
    parallel_assert(MPI.COMM_WORLD.rank > 0 or "The summary says nothing of attempts" in capfd.readouterr().err)


def test_a_holder_that_is_hidden_from_this_user_is_judged_by_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under ``hidepid`` for another user: it is there, and renews its claim."""
    with holder(tmp_path) as process:
        there, kill = Path.exists, os.kill

        def exists(self: Path) -> bool:
            return there(self) and self != Path(f"/proc/{process.pid}")

        def denied(number: int, signal_number: int) -> None:
            if number == process.pid and signal_number == 0:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            kill(number, signal_number)

        with monkeypatch.context() as patched:
            patched.setattr(claim, "_started", lambda _: None)
            patched.setattr(Path, "exists", exists)
            patched.setattr(os, "kill", denied)
            with (
                pytest.raises(ConfigError, match="is writing this run"),
                claimed(tmp_path, OUTSIDE, Alone(), times=SHORT),
            ):
                pass
        assert process.poll() is None


def test_file_that_was_removed_by_hand_is_a_claim_that_is_lost(tmp_path: Path) -> None:
    first = claim_of(tmp_path)
    first.path.unlink()
    assert "another one has taken this run over" in first.lost()
    second = claim_of(tmp_path)
    second.check()
    assert second.path == first.path  # the same number, another token
    with pytest.raises(ConfigError, match="has taken this run over"):
        first.check()


# ---- by what Slurm says ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("squeue")
def test_a_requeued_job_takes_over_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    claim_of(run, Allocation("7", 1), replace(SHORT, renew_s=0.01))
    claim_of(run, Allocation("7", 2), replace(SHORT, wait_lost_s=0.0)).check()
    with pytest.raises(ConfigError, match="job 7, process"):  # the earlier allocation, which has come back
        claim_of(run, Allocation("7", 1))
    with pytest.raises(ConfigError, match="job 7, process"):  # the same number, of another cluster
        claim_of(run, Allocation("7", 3, "other"))


@pytest.mark.usefixtures("squeue")
def test_next_attempt_in_an_allocation_that_has_lost_a_node_waits_for_less(tmp_path: Path) -> None:
    run, long = tmp_path / "run", replace(PATIENT, stale_s=1e9)
    run.mkdir()
    (run / "claim-1.json").write_text(json.dumps(asdict(elsewhere(Allocation("7", 1)))))
    begun_s = time.monotonic()
    assert claim_of(run, Allocation("7", 1), long).number == 2
    assert time.monotonic() - begun_s >= SHORT.watch_s
    with pytest.raises(ConfigError, match="job 7, process"):  # which is renewed
        claim_of(run, Allocation("7", 1), replace(SHORT, wait_lost_s=3.0))


@pytest.mark.parametrize(
    ("says", "over"),
    [
        ("echo '8|RUNNING'", True),
        ("echo '7|PENDING'", True),  # requeued: it has no nodes now
        ("true", True),
        ("echo '7|RUNNING'", False),
        ("echo '7|COMPLETING'", False),
        ("exit 1", False),
        ("echo '8|RUNNING'; exit 1", False),
    ],
)
def test_a_job_that_slurm_has_no_longer_has_ended(
    tmp_path: Path, squeue: Callable[[str], None], says: str, over: bool
) -> None:
    run = tmp_path / "run"
    first = claim_of(run, Allocation("7", 0, "here"), replace(SHORT, renew_s=0.01))
    squeue(says)
    with contextlib.nullcontext() if over else pytest.raises(ConfigError, match="job 7, process"):
        claim_of(run, Allocation("9", 0, "here"))
    assert bool(first.lost()) == over
    with pytest.raises(ConfigError, match="is writing this run"):
        claim_of(run, Allocation("10", 0, "another cluster"))  # whose Slurm knows neither of these jobs


def test_a_job_is_not_over_because_squeue_is_told_to_leave_it_out(
    tmp_path: Path, squeue: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    first = claim_of(run, Allocation("7", 0, "here"), replace(SHORT, renew_s=0.01))
    hidden = "case \" $* \" in *' --all '*) echo '7|RUNNING' ;; esac"
    squeue(f'[ -n "$SQUEUE_PARTITION$SQUEUE_STATES$SLURM_CLUSTERS" ] || {hidden}')
    for name, value in (("SQUEUE_PARTITION", "x"), ("SQUEUE_STATES", "PD"), ("SLURM_CLUSTERS", "another"), ("A", "")):
        with monkeypatch.context() as patched, pytest.raises(ConfigError, match="job 7, process"):
            patched.setenv(name, value)
            claim_of(run, Allocation("9", 0, "here"))
    first.check()


def test_a_job_that_slurm_has_is_waited_for_however_old_its_claim(
    tmp_path: Path, squeue: Callable[[str], None]
) -> None:
    run, long = tmp_path / "run", replace(SHORT, wait_lost_s=3.0)
    run.mkdir()
    (run / "claim-1.json").write_text(json.dumps(asdict(elsewhere(Allocation("7")))))
    os.utime(run / "claim-1.json", (1.0, 1.0))
    for state, least_s in (("RUNNING", 0.0), ("COMPLETING", long.wait_lost_s)):  # one that ends is waited for
        squeue(f"echo '7|{state}'")
        begun_s = time.monotonic()
        with pytest.raises(ConfigError, match="job 7, process"):
            claim_of(run, Allocation("9"), long)
        assert time.monotonic() - begun_s >= least_s
    squeue("exit 1")  # which says nothing: then age decides
    assert claim_of(run, Allocation("9"), long).number == 2


# ---- what a holder may not do that comes back after it was taken over ------------------------------------------------


def save(run: Path, step: int, held: Claim, text: str) -> None:
    """Writes a checkpoint that says who wrote it."""
    writer = CheckpointWriter(run, step, claim=held)
    writer.begin()
    writer.write_state({"by": text})
    writer.commit()


def saved(run: Path) -> dict[int, str]:
    """Who wrote the checkpoints that are whole."""
    return {step: find_checkpoint(run, str(files.step_folder(run, step))).state["by"] for step in steps_in(run)}


def take_over(run: Path) -> Claim:
    """As another job that does not see the first one's end."""
    path = run / f"claim-{claim._highest(run)}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "ended": "2027-01-15"}))
    return claim_of(run)


def test_temporary_folders_of_two_do_not_meet(tmp_path: Path) -> None:
    first = claim_of(tmp_path)
    one = CheckpointWriter(tmp_path, 5, claim=first)
    one.begin()
    two = CheckpointWriter(tmp_path, 5, claim=take_over(tmp_path))
    assert one.hidden != two.hidden and one.hidden.is_dir()
    assert first.token in one.hidden.name and one.hidden.name.startswith(".step-5.")
    one.write_state({"by": "first"})
    two.begin()
    two.write_state({"by": "second"})
    with pytest.raises(ConfigError, match="has taken this run over"):
        one.commit()
    two.commit()
    assert saved(tmp_path) == {5: "second"}
    assert [path.name for path in files.checkpoints_in(tmp_path).iterdir()] == ["step-5"]


@pytest.mark.parametrize("name", ["checkpoints/best.json", "config.toml"])
def test_a_text_is_not_put_in_place_of_another_ones_that_was_taken_over_while_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first, sync, waits = claim_of(tmp_path), os.fsync, [True]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("the other one's")

    def slow(descriptor: int) -> None:
        sync(descriptor)
        if waits:
            waits.clear()
            take_over(tmp_path)

    monkeypatch.setattr(os, "fsync", slow)
    with pytest.raises(ConfigError, match="has taken this run over"):
        if name == "config.toml":
            commands._clean_folder(tmp_path, config_for(tmp_path), "auto", first, lambda: None)
        else:
            mark_best(tmp_path, 20, "auc", 0.5, first)
    assert (tmp_path / name).read_text() == "the other one's"
    assert not list((tmp_path / name).parent.glob("*.part"))


@pytest.mark.parametrize("begun", [False, True])
def test_attempts_are_given_back_to_who_took_the_run_over_as_they_were_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Without them a job that is requeued would not know that it began the run. What it has begun itself stays."""
    first, rename = claim_of(tmp_path), Path.rename
    attempts.begin(tmp_path, attempts.now(), 0, 1, ["one"], attempts.Allocation("7", 0))
    told = (tmp_path / attempts.FILE).read_bytes()

    def late(path: Path, name: Path) -> Path:
        ours = path.name == attempts.FILE
        if ours and not begun:
            take_over(tmp_path)
        renamed = rename(path, name)
        if ours and begun:
            take_over(tmp_path)
            path.write_text("the other one's")
        return renamed

    monkeypatch.setattr(Path, "rename", late)
    config = config_for(tmp_path, checkpoint={"resume": "never"}, run={"folder": str(tmp_path)})
    with pytest.raises(ConfigError, match="has taken this run over"):
        commands._clean_folder(tmp_path, config, "never", first, lambda: None)
    assert (tmp_path / attempts.FILE).read_bytes() == (b"the other one's" if begun else told)
    assert begun or not list(tmp_path.glob(".attempts*"))


Act = Callable[[Path, Claim], object]
ACTS: dict[str, Act] = {
    "publish": lambda run, held: save(run, 40, held, "first"),
    "replace": lambda run, held: save(run, 30, held, "first"),
    "prune": lambda run, held: prune(run, 1, claim=held),
    "set aside": lambda run, held: files.set_aside(run, 30, held),
    "resume": lambda run, held: resumed_from(run, "auto", Alone(), held),
    "clear": files.clear,
    "mark": lambda run, held: mark_best(run, 20, "auc", 0.5, held),
    "unmark": files.unmark_best,
}


@pytest.mark.parametrize("act", ACTS)
def test_holder_that_was_held_up_at_any_look_or_after_it_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """At each look, before and after it, another attempt takes over, goes on from step 30 and saves 40."""
    look, refusals = Claim.check, 0
    for at, after in ((at, after) for at in itertools.count() for after in (False, True)):
        run, looks = tmp_path / f"{at}-{after}", itertools.count()
        first = claim_of(run)
        for step in (10, 20, 30):
            save(run, step, first, "first")
        mark_best(run, 10, "auc", 0.4, first)
        (files.checkpoints_in(run) / ".step-40.killed.tmp").mkdir()
        second: list[Claim] = []
        there: set[int] = set()

        def other(run: Path = run, second: list[Claim] = second, there: set[int] = there) -> None:
            second.append(take_over(run))
            there.update(steps_in(run))  # what the first one took away while it held the claim need not be there
            resumed_from(run, "auto", Alone(), second[0])
            save(run, 40, second[0], "second")

        def held_up(
            self: Claim,
            first: Claim = first,
            looks: Iterator[int] = looks,
            at: int = at,
            after: bool = after,
            other: Callable[[], None] = other,
        ) -> None:
            here = self == first and next(looks) == at
            if here and not after:
                other()
            look(self)
            if here and after:
                other()

        with monkeypatch.context() as patch:
            patch.setattr(Claim, "check", held_up)
            try:
                ACTS[act](run, first)
                ended = False
            except (ConfigError, CheckpointError, OSError):
                ended = True
        if not second:
            break  # there is no further look
        refusals += ended
        # Where one system call at most follows the last look, it learns of it at the next thing that it does.
        assert ended or (after and next(looks) == at + 1)
        kept = saved(run)
        assert kept[40] == "second" and there <= set(kept), (at, after, kept)
        second[0].check()
        save(run, 50, second[0], "second")
        assert saved(run) == {**kept, 50: "second"}
        assert not list(run.rglob(".*")), "it removes what the first one left"
    assert refusals > 0


SUSPENDED = """
import sys, pathlib
from hpcrec.training.claim import Claim
sys.path.insert(0, {root!r})
from tests.training.test_claim import *
run, place = pathlib.Path(sys.argv[1]), sys.argv[2]
held = claim_of(run)
for step in (10, 20, 30):
    save(run, step, held, "first")
look, looks = Claim.check, []
def suspended(self):
    looks.append(None)
    if place == "look" and len(looks) == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    look(self)
    if place == "rename" and len(looks) == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
Claim.check = suspended
try:
    save(run, 40, held, "first")
    prune(run, 2, claim=held)
except (ConfigError, CheckpointError, OSError) as error:
    print(error, flush=True)
    sys.exit(3)
"""


@pytest.mark.parametrize("place", ["look", "rename"])
def test_process_that_was_suspended_ends_before_it_renames_or_removes(tmp_path: Path, place: str) -> None:
    script = SUSPENDED.format(root=str(Path(__file__).parents[2]))
    line = [sys.executable, "-c", script, str(tmp_path), place]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        second = claim_of(tmp_path, times=PATIENT)  # nobody renews it
        found = resumed_from(tmp_path, "auto", Alone(), second)
        assert found is not None and found.step == 30
        save(tmp_path, 40, second, "second")
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 3, said
    assert place != "look" or f"{tmp_path}: another one (process {os.getpid()} on host" in said
    assert saved(tmp_path) == {10: "first", 20: "first", 30: "first", 40: "second"}
    second.check()


# ---- whole runs ------------------------------------------------------------------------------------------------------


def test_claimed_folder_is_not_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    starts = []

    def start(arguments: Sequence[str], environment: Mapping[str, str], heard: Heard) -> int:
        starts.append(arguments)
        try:
            with claimed(tmp_path, OUTSIDE, Alone(), times=replace(SHORT, wait_s=0.0)):
                return 0
        except ConfigError as error:
            return exit_code(error)

    with holder(tmp_path):
        code = run_attempts(start, ("train",), environment={}, run=Run(tmp_path, "auto"), restarts=3)
    assert code == 2 and len(starts) == 1 and capsys.readouterr().err == ""


@pytest.mark.parallel([1, 3])
def test_run_in_a_claimed_folder_ends_on_every_rank_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "claimed", partial(claimed, times=SHORT))
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


@pytest.mark.parallel([1, 3])
def test_run_that_was_taken_over_stops_on_every_rank_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "claimed", partial(claimed, times=replace(SHORT, renew_s=0.05)))
    write_data(folder / "data.h5", samples=60)
    run, world, taken = folder / "run", MPI.COMM_WORLD, {}
    config = config_for(
        folder,
        train={"steps": 100_000, "log_every": 10},
        checkpoint={"every": 1000},
        run={"folder": str(run)},
    )
    begin = attempts.begin

    def begun(*of: object) -> None:
        begin(*of)  # type: ignore[arg-type]
        take_over(run)
        taken.update(files_in(run))

    monkeypatch.setattr(attempts, "begin", begun)
    code, refused = 0, ""
    try:
        commands.train(config)
    except ConfigError as error:
        code, refused = exit_code(error), str(error)
    unwatch()  # the stop that was asked for is this run's alone; elsewhere its process ends
    refusals = world.allgather(refused)
    after = files_in(run)
    parallel_assert(code == 2 and "has taken this run over" in refused and len(set(refusals)) == 1, msg=str(refusals))
    if world.rank == 0:
        ours = {name: text for name, text in after.items() if name not in ("metrics.jsonl",)}
        taken = {name: text for name, text in taken.items() if name not in ("metrics.jsonl",)}
    parallel_assert(world.rank > 0 or ours == taken)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("last", [False, True])
def test_run_that_was_taken_over_before_a_rename_ends_naming_the_other_and_notes_no_retry(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], last: bool, background: bool
) -> None:
    """Between the look and the rename of a checkpoint, which the other one has removed. No thread looks too."""
    monkeypatch.setattr(commands, "claimed", partial(claimed, times=replace(SHORT, renew_s=600.0)))
    write_data(folder / "data.h5", samples=60)
    run, rename, taken = folder / "run", Path.rename, {}
    config = config_for(
        folder,
        train={"steps": 4 if last else 40, "log_every": 100},
        checkpoint={"every": 4, "background": background},
        run={"folder": str(run)},
    )

    def late(path: Path, name: Path) -> Path:
        if name.name == "step-4":
            take_over(run)
            shutil.rmtree(path)
            taken.update(files_in(run))
        return rename(path, name)

    monkeypatch.setattr(Path, "rename", late)
    refused = ""
    try:
        commands.train(config)
    except ConfigError as error:
        refused = str(error)
    refusals = MPI.COMM_WORLD.allgather(refused)
    parallel_assert("has taken this run over" in refused and len(set(refusals)) == 1, msg=str(refusals))
    after, said = files_in(run), capfd.readouterr()
    parallel_assert(MPI.COMM_WORLD.rank > 0 or {**after, "metrics.jsonl": b""} == {**taken, "metrics.jsonl": b""})
    parallel_assert("tried again" not in said.out + said.err)


def files_in(folder: Path) -> dict[str, bytes]:
    """All files below a folder, with what is in them."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
