"""When a job that failed is started again, from where, and what is said; jobs are stood in for by functions."""

import errno
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from hpcrec import again
from hpcrec.cli import main as cli
from hpcrec.comm import board
from hpcrec.comm.board import Board
from hpcrec.data.files import writing
from hpcrec.launcher.relay import Heard
from hpcrec.launcher.restarts import Run, on_several_hosts, run_attempts
from hpcrec.training import attempts

KILLED = b"prterun noticed that process rank 1 with PID 15144 on node vm exited on\nsignal 9 (Killed).\n"


class Job:
    """Attempts of a run: what each does, in turn; notes the command lines that it was started with."""

    def __init__(self, folder: Path, *works: Callable[["Job"], int]) -> None:
        self.folder, self.works = folder, list(works)
        self.lines: list[tuple[str, ...]] = []
        self.boards: list[Path] = []

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], heard: Heard) -> int:
        self.lines.append(tuple(arguments))
        self.boards.append(Path(environment[board.FOLDER]))
        self.heard = heard
        return self.works.pop(0)(self)

    def begin(self, step: int) -> None:
        attempts.begin(self.folder, attempts.now(), step, 2, ["node"], attempts.Allocation())

    def save(self, *steps: int) -> None:
        for step in steps:
            (self.folder / f"checkpoints/step-{step}").mkdir(parents=True)
            (self.folder / f"checkpoints/step-{step}/manifest.json").write_text("{}")

    def note(self, step: int | None, error: str = "", *, leaves: bool = False, rank: int = 1) -> None:
        memory = bytearray(board.SIZE_BYTES)
        mine = Board(memory, rank, 2)
        if step is not None:
            mine.set_step(step)
        if error or leaves:
            mine.end(error)
        (self.boards[-1] / f"rank-{rank}").write_bytes(memory)


def fails(step: int | None, *saved: int, code: int = 137, error: str = "", begun: int | None = 0):
    """An attempt that begins, saves checkpoints, and fails after so many steps."""

    def work(job: Job) -> int:
        if begun is not None:
            job.begin(begun)
        job.save(*saved)
        job.note(step, error)
        if code == 137:
            job.heard.tail += KILLED
        return code

    return work


def finishes(job: Job) -> int:
    job.begin(0)
    attempts.end(job.folder, 50, "finished")
    return 0


def run(tmp_path: Path, *works: Callable[[Job], int], restarts: int = 3, resume: str = "auto") -> tuple[int, Job]:
    job = Job(tmp_path / "run", *works)
    job.folder.mkdir(exist_ok=True)
    code = run_attempts(
        job.start, ("train", "x.toml"), environment={"A": "b"}, run=Run(job.folder, resume), restarts=restarts
    )
    assert not any(folder.exists() for folder in job.boards)
    return code, job


def test_a_killed_run_goes_on_from_its_checkpoint_and_each_restart_is_one_line(tmp_path, capfd) -> None:
    code, job = run(tmp_path, fails(35, 10, 30), fails(12, begun=30), finishes)
    assert code == 0 and job.lines == [("train", "x.toml")] * 3
    lines = capfd.readouterr().err.splitlines()
    (first, second) = [line for line in lines if line.startswith("hpcrec: restart")]
    assert first.startswith("hpcrec: restart 1 of 3, from the checkpoint of step 30: rank 1 was ")
    assert first.endswith("rank 1 was killed by signal 9 (SIGKILL) at step 35") and second.startswith(
        "hpcrec: restart 2 of 3, "
    )
    assert sum(line.startswith("hpcrec: error: rank 1 on ") for line in lines) == 2
    events = attempts.read(job.folder)
    assert [(e["event"], e["step"], e.get("status")) for e in events[:4]] == [
        ("begin", 0, None),
        ("end", 35, "killed"),
        ("begin", 30, None),
        ("end", 12, "killed"),
    ]
    assert events[2]["lost_steps"] == 5


@pytest.mark.parametrize("begun", [0, None])  # None: the host is lost before the attempt has begun
@pytest.mark.parametrize("earlier", [None, "finished", "killed"])
def test_a_launcher_that_loses_a_host_and_ends_with_0_has_not_finished(tmp_path, capfd, begun, earlier) -> None:
    """As Open MPI's mpirun does."""
    (tmp_path / "run").mkdir()
    if earlier is not None:
        attempts.begin(tmp_path / "run", attempts.now(), 0, 2, ["node"], attempts.Allocation())
        attempts.end(tmp_path / "run", 20, earlier)
    cut = fails(35, 30, code=0, begun=begun if earlier is None or begun is None else 20)
    assert run(tmp_path, cut, restarts=0)[0] == 137
    said = capfd.readouterr().err
    assert "ends with 0, and ranks have not left in order: it has lost a host" in said
    assert "hpcrec: error: rank 1 on " in said
    code, job = run(tmp_path, fails(35, 40, code=0, begun=30), finishes, restarts=1)
    assert code == 0 and len(job.lines) == 2


def test_a_launcher_that_ends_with_0_after_its_ranks_have_left_in_order_has_finished(tmp_path) -> None:
    def leaves(job: Job) -> int:
        job.begin(0)
        job.note(50, leaves=True)  # and could not note its end, under a full quota
        return 0

    def is_lost_later(job: Job) -> int:
        job.note(50)
        return finishes(job)

    for work in (leaves, is_lost_later):
        (tmp_path / work.__name__).mkdir()
        code, job = run(tmp_path / work.__name__, work)
        assert code == 0 and len(job.lines) == 1


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("stopped", 75), ("failed", 134), ("killed", 134)])
def test_the_record_tells_the_end_of_ranks_that_had_left_when_their_launcher_failed(
    tmp_path, capfd, status, code
) -> None:
    """Open MPI's mpirun was seen to end by signal 6 after its last rank."""

    def ends(job: Job) -> int:
        job.begin(0)
        job.note(50, leaves=True)
        job.note(50, leaves=True, rank=0)
        attempts.end(job.folder, 50, status)
        return 134

    found, job = run(tmp_path, ends, restarts=0)
    assert found == code and len(job.lines) == 1
    told = f"ends with 134, after all of them had left in order: the run is {status}" in capfd.readouterr().err
    assert told == (code != 134)


@pytest.mark.parametrize("lacks", ["a rank", "order", "its end", "an end of its own", "peace"])
def test_the_record_tells_nothing_of_ranks_that_had_not_left_in_order(tmp_path, lacks) -> None:
    def ends(job: Job) -> int:
        if lacks == "an end of its own":
            attempts.end(job.folder, 30, "finished")
        else:
            job.begin(30)
        job.note(50, leaves=lacks != "order")
        if lacks != "a rank":
            job.note(50, "it failed" if lacks == "peace" else "", leaves=True, rank=0)
        if lacks not in ("its end", "an end of its own"):
            attempts.end(job.folder, 50, "finished")
        return 134

    (tmp_path / "run").mkdir()
    attempts.begin(tmp_path / "run", attempts.now(), 0, 2, ["node"], attempts.Allocation())
    attempts.end(tmp_path / "run", 30, "stopped")
    assert run(tmp_path, ends, restarts=0)[0] == 134


def test_a_program_of_ones_own_may_leave_as_it_likes(tmp_path) -> None:
    def ends(job: Job) -> int:
        job.note(50)  # and has left by os._exit(0)
        return 0

    job = Job(tmp_path, ends)
    assert run_attempts(job.start, ("loop.py",), environment={}) == 0


def test_it_ends_after_so_many_and_without_restarts_at_the_first(tmp_path, capfd) -> None:
    code, job = run(tmp_path, *(fails(i) for i in range(1, 5)))
    assert code == 137 and len(job.lines) == 4
    said = capfd.readouterr().err
    assert "restart 3 of 3, from the beginning (nothing is saved yet): rank 1 was" in said
    assert "not started again: that was restart 3 of 3 (rank 1 was" in said
    (tmp_path / "other").mkdir()
    code, job = run(tmp_path / "other", fails(5), restarts=0)
    assert code == 137 and len(job.lines) == 1
    said = capfd.readouterr().err
    assert "hpcrec: error: rank 1 on" in said and "start" not in said


def failing_lists(monkeypatch: pytest.MonkeyPatch, folder: Path, times: Iterable[int]) -> None:
    """Folders of checkpoints cannot be listed at these times, counted from 0."""
    count, real, fails_at = itertools.count(), os.listdir, set(times)

    def listdir(path: str | Path = ".") -> list[str]:
        if Path(path) == folder and next(count) in fails_at:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(again, "PAUSES_S", (0.0, 0.0))


@pytest.mark.parametrize("resume", ["auto", "some/checkpoint"])
def test_a_file_server_that_hiccups_keeps_no_run_from_its_restart(tmp_path, monkeypatch, resume) -> None:
    (tmp_path / "run/checkpoints/step-10").mkdir(parents=True)
    failing_lists(monkeypatch, tmp_path / "run/checkpoints", range(0, 20, 2))
    code, job = run(tmp_path, fails(35, 30), finishes, resume=resume)
    assert code == 0 and job.lines[1][2:] == (() if resume == "auto" else ("--resume", "auto"))


def test_a_folder_that_cannot_be_listed_at_all_is_said_and_nothing_is_started_again(
    tmp_path, monkeypatch, capfd
) -> None:
    (tmp_path / "run/checkpoints/step-10").mkdir(parents=True)
    failing_lists(monkeypatch, tmp_path / "run/checkpoints", range(1, 99))
    code, job = run(tmp_path, fails(35, 30))
    assert code == 137 and len(job.lines) == 1
    said = capfd.readouterr().err
    assert "was killed by signal 9" in said
    assert f"hpcrec: not started again: {tmp_path}/run/checkpoints: cannot be read just now" in said


def test_an_end_that_cannot_be_noted_is_said_and_keeps_no_run_from_its_restart(tmp_path, capfd, monkeypatch) -> None:
    def full(folder: Path, *_: object, **__: object) -> None:
        with writing(folder / attempts.FILE):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def fails_on_a_full_disk(job: Job) -> int:
        monkeypatch.setattr(attempts, "end", full)
        return fails(35, 30)(job)

    def ends(job: Job) -> int:
        monkeypatch.undo()
        return finishes(job)

    code, job = run(tmp_path, fails_on_a_full_disk, ends)
    assert code == 0 and job.lines == [("train", "x.toml")] * 2
    said = capfd.readouterr().err
    assert f"hpcrec: {job.folder}/attempts.jsonl: cannot be written (Disk quota exceeded)" in said
    assert "hpcrec: restart 1 of 3, from the checkpoint of step 30: rank 1 was" in said
    assert [e.get("status") for e in attempts.read(job.folder)] == [None, "killed", None, "finished"]


@pytest.mark.parametrize("code", [0, 2, 75])
def test_what_ended_as_asked_or_cannot_be_run_is_not_started_again(tmp_path, capfd, code) -> None:
    def ends(job: Job) -> int:
        job.begin(0)
        job.note(5, leaves=True)
        return code

    found, job = run(tmp_path, ends)
    assert found == code and len(job.lines) == 1 and capfd.readouterr().err == ""


@pytest.mark.parametrize("killing", [False, True])
def test_a_run_that_was_asked_to_stop_is_not_started_again(tmp_path, capfd, killing) -> None:
    def stopped(job: Job) -> int:
        job.heard.stopping, job.heard.killing = True, killing
        return fails(5)(job)

    code, job = run(tmp_path, stopped)
    assert code == 137 and len(job.lines) == 1
    said = capfd.readouterr().err
    assert "restart" not in said and ("rank 1 on" in said) == (not killing)


def test_an_error_is_tried_again_and_ends_it_where_it_comes_back_at_the_same_step(tmp_path, capfd) -> None:
    bad = {"code": 1, "error": "train.h5 is short\nmore"}
    code, job = run(tmp_path, fails(35, 30, **bad), fails(35, begun=30, **bad))
    assert code == 1 and len(job.lines) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0] == "hpcrec: restart 1 of 3, from the checkpoint of step 30: rank 1: train.h5 is short"
    twice = "not started again: it failed twice at step 35 without a new checkpoint in between"
    assert lines[1] == f"hpcrec: {twice} (rank 1: train.h5 is short)"
    assert [e.get("status") for e in attempts.read(job.folder)] == [None, "failed", None, "failed"]


def test_other_steps_or_new_checkpoints_are_no_repetition(tmp_path, capfd) -> None:
    code, _ = run(tmp_path, fails(35), fails(34), fails(35), finishes)
    assert code == 0
    (tmp_path / "b").mkdir()
    code, _ = run(tmp_path / "b", fails(35, 10), fails(35, 20), fails(35, 30), finishes)
    assert code == 0
    (tmp_path / "c").mkdir()
    code, job = run(tmp_path / "c", fails(None, begun=None, code=3), fails(None, begun=None, code=3))
    assert code == 3 and len(job.lines) == 2
    assert "it failed twice before the first step without a new checkpoint in between" in capfd.readouterr().err
    assert attempts.read(job.folder) == []


def test_a_run_that_starts_anew_keeps_what_it_has_saved_and_only_that(tmp_path, capfd) -> None:
    old = Job(tmp_path / "run")
    old.save(40)  # of the run that this one replaces
    old.begin(0)

    def clears(job: Job) -> int:
        for path in sorted((job.folder / "checkpoints").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (job.folder / attempts.FILE).unlink()
        return fails(12, 10)(job)

    early = fails(None, begun=None)  # killed before it had cleared the folder
    code, job = run(tmp_path, early, clears, fails(13, begun=10), finishes, resume="never")
    assert code == 0
    assert [line[2:] for line in job.lines] == [(), (), ("--resume", "auto"), ("--resume", "auto")]
    said = capfd.readouterr().err
    assert (
        "restart 1 of 3, as at first (nothing is saved yet)" in said
        and "restart 2 of 3, from the checkpoint of" in said
    )


def test_a_run_from_a_given_checkpoint_starts_from_it_until_it_has_one_of_its_own(tmp_path) -> None:
    Job(tmp_path / "run").save(10)
    works = (fails(52, begun=50), fails(53, 55, begun=50), fails(56, begun=55), finishes)
    code, job = run(tmp_path, *works, resume="/elsewhere/step-50")
    assert code == 0
    assert [line[2:] for line in job.lines] == [(), (), ("--resume", "auto"), ("--resume", "auto")]


def test_boards_lie_in_the_runs_folder_where_several_hosts_need_them(tmp_path) -> None:
    job = Job(tmp_path / "run", finishes)
    (tmp_path / "run").mkdir()
    code = run_attempts(job.start, ("train",), environment={}, run=Run(job.folder, "auto"), several_hosts=True)
    assert code == 0 and job.boards[0].parent == job.folder and not job.boards[0].exists()
    plain = Job(tmp_path / "none", lambda job: 3)
    assert run_attempts(plain.start, ("evaluate",), environment={}, several_hosts=True) == 3
    assert on_several_hosts("hosts", {}) and on_several_hosts(None, {"SLURM_JOB_NUM_NODES": "2"})
    assert on_several_hosts(None, {"PBS_NODEFILE": "x"})
    assert on_several_hosts(None, {"SLURM_JOB_NUM_NODES": "1", "SLURM_HET_SIZE": "2"})  # of the first part
    assert not on_several_hosts(None, {}) and not on_several_hosts(None, {"SLURM_JOB_NUM_NODES": "1"})


def test_restarts_are_for_training_alone(tmp_path, capfd) -> None:
    own = tmp_path / "loop.py"
    own.write_text("")
    (tmp_path / "config.toml").write_text('[data]\ntrain = "train.h5"\n[run]\nfolder = "x"\n')
    for arguments in ([str(own)], ["evaluate", str(tmp_path)]):
        with pytest.raises(SystemExit) as caught:
            cli.main(["run", "-n", "2", "--restarts", "3", "--", *arguments])
        assert caught.value.code == 2
        assert "--restarts 3: only train can go on" in capfd.readouterr().err
