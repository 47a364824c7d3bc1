"""Ranks killed (-9) at any instant: what is left is whole, and a resumed run ends with the uninterrupted one's bits.

By hand after each kill, and by ``hpcrec run --restarts`` alone.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from hpcrec.checkpoint.checkpoint import find_checkpoint, steps_in
from hpcrec.comm.board import read_boards
from hpcrec.config import Config, to_toml
from hpcrec.training import attempts
from hpcrec.training.telemetry import read_metrics
from tests.comm.job import Job
from tests.counts import keep_counts, share_of
from tests.training import runs
from tests.training.launched import LITTLE_MEMORY, Fault, launch
from tests.training.learned import check_equal
from tests.training.runs import config_for, write_data

STEPS, EVERY = 45, 3
# Where a checkpoint changes from one state on disk to the next: (place, calls of it in a run at most).
PLACES = {
    0: [  # the rank that also publishes
        ("os:fsync", 60),
        ("pathlib:Path.rename", 20),
        ("pathlib:Path.replace", 20),
        ("shutil:rmtree", 10),
        ("hpcrec.checkpoint.files:write_manifest", 10),
        ("hpcrec.checkpoint.files:publish", 10),
        ("hpcrec.training.loop:mark_best", 5),
        ("hpcrec.training.loop:prune", 10),
    ],
    1: [
        ("os:fsync", 20),
        ("h5py:File.close", 30),
        ("hpcrec.checkpoint.checkpoint:CheckpointWriter.write_table_part", 30),
        ("hpcrec.checkpoint.checkpoint:CheckpointWriter.commit", 10),
        ("hpcrec.exchange.exchange:Exchange.gradients", STEPS),
    ],
}
# What the soak is run with besides, by name: keys of [checkpoint]. The uninterrupted run has the same.
WAYS_TO_SAVE: dict[str, dict[str, Any]] = {
    "plain": {},
    "incremental": {"full_every": 3},
    "waiting": {"background": False, "full_every": 2},
    "linked": {"rows": "links"},
    "leaving": {"rows": "links"},
}
# With store disk. Of the second nearly all rows leave the memory in each step, and one table is dynamic, with eviction.
ON_DISK, LEAVING = ("linked", "leaving"), "leaving"
LINKED_PLACES = {  # besides, of store disk
    0: [("os:link", 60), ("hpcrec.disk.tier:Tier.settle", 10), ("hpcrec.disk.tier:Tier.drop", 10)],
    1: [("os:link", 60), ("hpcrec.disk.lists:write_list", 10), ("hpcrec.disk.tier:Tier.take", 1)],
}
LEAVING_PLACES = [  # besides, where rows leave the memory: (place, calls of it in a run at most)
    ("hpcrec.disk.log:RowLog._write_piece", 60),
    ("hpcrec.disk.log:RowLog._clean_segment", 20),
    ("hpcrec.embedding.stores.disk:TierBacking.fetch", 2 * STEPS),
    ("hpcrec.embedding.stores.disk:TierBacking.write_back", 2 * STEPS),
]
KILLS = 3  # of a test of the soak, of which there are enough for 100 (a test may take 4 minutes)
KILLED = (128 + 9, 9)  # by Open MPI's launcher, by MPICH's


Wholes = Callable[[str, str], Path]


def soaked(*ways: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test of the soak: for both modes, these ways to save, and three seeds or a share of them."""

    def marked(test: Callable[..., None]) -> Callable[..., None]:
        for name, values in (("seed", range(share_of(3))), ("saving", ways), ("mode", ["split", "fused"])):
            test = pytest.mark.parametrize(name, values)(test)
        return pytest.mark.slow(test)

    return marked


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Wholes:
    """Uninterrupted runs, by mode and way to save; each is made once."""
    made: dict[tuple[str, str], Path] = {}

    def run(mode: str, saving: str) -> Path:
        if (mode, saving) not in made:
            folder = tmp_path_factory.mktemp("whole")
            data_in(folder, saving)
            made[mode, saving] = whole_run(folder, mode, saving)
        return made[mode, saving]

    return run


def config(folder: Path, run: str, mode: str, keep: int, saving: str = "plain") -> Config:
    data = {name: str(folder / f"{name}.h5") for name in ("train", "validation")}
    on_disk = {"name": "disk", "path": str(folder / f"{run}-rows"), "memory_bytes": 5_000_000}
    user: dict[str, Any] = {"dynamic": {"capacity": 24, "evict": "lru"}} if saving == LEAVING else {"shard": "row"}
    return config_for(
        folder,
        data=data,
        topology={"mode": mode, **({"owners": 1} if mode == "split" else {})},
        model={"name": "deepfm", "options": {"dropout": 0.2}},
        embedding={"optimizer": {"name": "rowwise_adagrad", "lr": 0.1}, "tables": {"user": user}},
        dense={"reducer": "mpi", "optimizer": {"name": "Adam", "lr": 0.05}},
        schedule={"kind": "cosine", "warmup_steps": 5},
        train={"dtype": "float32", "steps": STEPS, "eval_every": 9, "log_every": 5, "early_stop": {"patience": 50}},
        checkpoint={"every": EVERY, "keep": keep, **WAYS_TO_SAVE[saving]},
        store=on_disk if saving in ON_DISK else {},
        run={"folder": str(folder / run), "tensorboard": False, "progress": False},
    )


def leaves(wanted: Config) -> bool:
    return wanted.embedding.tables["user"].dynamic is not None


def begin(folder: Path, wanted: Config, fault: Fault | None = None) -> Job:
    return launch(folder, wanted, fault, patches=LITTLE_MEMORY if leaves(wanted) else "")


def finish(folder: Path, wanted: Config) -> None:
    job = begin(folder, wanted)
    assert job.end(limit_s=60).code == 0


def was_killed(job: Job) -> bool:
    """Waits for the end; whether it was by a kill. Nothing may be left of it."""
    try:
        _, err = job.process.communicate(timeout=120)
        assert job.process.returncode in (0, *KILLED), err
        return job.process.returncode != 0
    finally:
        job.clean()
        assert not job.alive()


def kill_at_a_place(folder: Path, wanted: Config, choice: random.Random) -> bool:
    rank = choice.choice([0, 1, 2])
    places = PLACES[min(rank, 1)] + (LINKED_PLACES[min(rank, 1)] if wanted.store.name == "disk" else [])
    places += LEAVING_PLACES if leaves(wanted) else []
    place, calls = choice.choice(places)
    return was_killed(begin(folder, wanted, Fault(rank, place, choice.randint(1, calls), "kill")))


def kill_at_a_time(folder: Path, wanted: Config, choice: random.Random) -> bool:
    rank = choice.choice([0, 1, 2])
    job = begin(folder, wanted)
    try:
        job.wait_ready()
        time.sleep(0.05 + choice.random() * 2.0)
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.kill(int((folder / f"ready.pid-{rank}").read_text()), signal.SIGKILL)
    finally:
        killed = was_killed(job)
    return killed


def whole_run(folder: Path, mode: str, saving: str = "plain") -> Path:
    """The uninterrupted run, which keeps every checkpoint."""
    finish(folder / "job", config(folder, f"whole-{mode}", mode, 1000, saving))
    run = folder / f"whole-{mode}"
    assert steps_in(run) == list(range(EVERY, STEPS + 1, EVERY))
    owners: dict[str, Any] = json.loads((run / "summary.json").read_text())["owners"]
    if saving == LEAVING:
        assert sum(owner["disk_rows_read"] for owner in owners.values()) > 5 * STEPS, "rows came back"
    return run


def chain(
    folder: Path, run: str, mode: str, whole: Path, kills: int, choice: random.Random, saving: str = "plain"
) -> int:
    """Kills one run up to so often, looks at every checkpoint that is left, and lets it end; returns the kills."""
    wanted, done = config(folder, run, mode, 2, saving), 0
    for number in range(kills):
        kill = kill_at_a_place if number % 2 == 0 else kill_at_a_time
        if not kill(folder / "job", wanted, choice):
            break
        done += 1
        check_left(folder / run, whole)
    finish(folder / "job", wanted)
    check_finished(folder / run, whole)
    return done


def check_left(run: Path, whole: Path) -> None:
    """Every checkpoint that a killed run has left is that of the uninterrupted one."""
    for step in steps_in(run):
        check_equal(run / f"checkpoints/step-{step}", whole / f"checkpoints/step-{step}")
    if steps_in(run):
        find_checkpoint(run)  # a warning would be an error: whatever has the name is whole


def check_finished(run: Path, whole: Path) -> dict[str, Any]:
    """The run has ended as the uninterrupted one has; returns its summary."""
    assert steps_in(run)[-1] == STEPS
    check_left(run, whole)
    assert not [p for p in (run / "checkpoints").iterdir() if p.name.startswith((".", "damaged-"))]
    ends: list[Any] = [json.loads((r / "summary.json").read_text()) for r in (run, whole)]
    assert ends[0]["eval"] == ends[1]["eval"] and ends[0]["samples"] == ends[1]["samples"]
    notes = [json.loads((r / "checkpoints/best.json").read_text()) for r in (run, whole)]
    assert notes[0] == notes[1]
    lines = [[(x["step"], x["loss"]) for x in read_metrics(r) if "loss" in x] for r in (run, whole)]
    assert lines[0] == lines[1] and len(lines[1]) == STEPS // 5  # steps that were done again are told once
    tries = ends[0]["attempts"]
    assert tries["number"] == len([e for e in attempts.read(run) if e["event"] == "begin"]) >= 1
    assert attempts.read(run)[-1]["status"] == ends[0]["status"] == "finished"
    assert 0 <= tries["lost_s"] < tries["total_s"] < 3600 and tries["lost_steps"] <= STEPS * tries["number"]
    return dict(ends[0])


# ---- by ``hpcrec run --restarts`` ------------------------------------------------------------------------------------


class Restarted:
    """``hpcrec run --restarts n`` on a run, and the boards of its ranks, by which they are found and killed."""

    def __init__(self, folder: Path, wanted: Config, restarts: int) -> None:
        self.run, self._boards = Path(wanted.run.folder), folder / "boards"
        self._boards.mkdir(parents=True, exist_ok=True)
        file = folder / "config.toml"
        file.write_text(to_toml(wanted))
        without_mpi = {k: v for k, v in os.environ.items() if not k.startswith(("PMIX_", "OMPI_COMM", "PRTE_MCA"))}
        line = ["run", "-n", "3", "--restarts", str(restarts), "--", "train", str(file)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hpcrec", *line],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**without_mpi, "TMPDIR": str(self._boards)},
        )
        self._killed: set[int] = set()

    def pids(self) -> dict[int, int]:
        """Processes of an attempt of which none was killed by us, by rank."""
        for folder in self._boards.glob("hpcrec-boards-*"):
            found = {rank: left.pid for rank, left in read_boards(folder).items()}
            if len(found) == 3 and not self._killed & set(found.values()):
                return found
        return {}

    def turns(self, limit_s: float = 200.0) -> Iterator[dict[int, int]]:
        """The ranks' processes, again and again, until the command ends."""
        until = time.monotonic() + limit_s
        while self.process.poll() is None:
            assert time.monotonic() < until, "nothing happens"
            if found := self.pids():
                yield found
            time.sleep(0.001)

    def kill(self, pid: int) -> bool:
        """Kills a process; says whether it still was there."""
        self._killed.add(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def kill_once_saved(self, rank: int, step: int, *, writing: bool) -> bool:
        """Kills a rank once there is a checkpoint of that step; ``writing``: while the next one is written."""
        for pids in self.turns():
            newest = max(steps_in(self.run), default=-1)
            if newest >= step and (not writing or list((self.run / "checkpoints").glob(".step-*"))):
                return self.kill(pids[rank])
        return False

    def kill_after(self, rank: int, seconds: float) -> bool:
        """Kills a rank so long after the ranks have started."""
        for pids in self.turns():
            time.sleep(seconds)
            return self.kill(pids[rank])
        return False

    def end(self) -> tuple[int, str]:
        """Waits for the end of the command; returns its exit code and what it said."""
        _, err = self.process.communicate(timeout=200)
        assert not list(self._boards.glob("hpcrec-boards-*"))
        return self.process.returncode, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves nothing behind where a test fails: mpirun ends the other ranks."""
        if self.process.poll() is None:
            self.process.kill()
            for pid in self.pids().values():
                self.kill(pid)
            self.process.communicate()


def test_a_run_that_is_killed_is_started_again_until_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    data_in(tmp_path)
    whole = whole_run(tmp_path, "split")
    wanted = config(tmp_path, "restarted", "split", keep=2)
    with Restarted(tmp_path / "job", wanted, restarts=3) as job:
        assert job.kill_once_saved(2, 9, writing=False)
        assert job.kill_once_saved(0, 21, writing=True)
        code, err = job.end()
    assert code == 0, err
    assert len(re.findall(r"hpcrec: error: rank [02] on .* was killed by signal 9 \(SIGKILL\) at step ", err)) == 2, err
    assert err.count("hpcrec: restart 1 of 3, from the checkpoint of step ") == 1
    assert err.count("hpcrec: restart 2 of 3, from the checkpoint of step ") == 1 and "restart 3" not in err
    found = check_finished(tmp_path / "restarted", whole)
    assert found["attempts"]["number"] == 3
    ends = [e["status"] for e in attempts.read(tmp_path / "restarted") if e["event"] == "end"]
    assert ends == ["killed", "killed", "finished"]
    page = (tmp_path / "restarted/report.html").read_text()
    assert "<h2>Attempts</h2>" in page and page.count("3 ranks on ") == 3


@soaked(*(way for way in WAYS_TO_SAVE if way != LEAVING))  # the command itself has no such tables
def test_killed_at_random_instants_and_started_again_equals_uninterrupted(
    tmp_path: Path, wholes: Wholes, mode: str, saving: str, seed: int
) -> None:
    data_in(tmp_path)
    whole, choice, kills, code = wholes(mode, saving), random.Random(100 + seed), 0, -1
    wanted = config(tmp_path, "restarted", mode, 2, saving)
    while code != 0:  # it gives up where it fails twice at one step, which chance may bring: then by hand
        with Restarted(tmp_path / "job", wanted, restarts=6) as job:
            for number in range(6):
                if kills == KILLS:
                    break
                rank, newest = choice.choice([0, 1, 2]), max(steps_in(job.run), default=0)
                if number % 2 == 0:
                    at = choice.randint(newest, min(newest + 3 * EVERY, STEPS))
                    kills += job.kill_once_saved(rank, at, writing=True)
                else:
                    kills += job.kill_after(rank, choice.random() * 4)
            code, err = job.end()
        assert code in (0, *KILLED), err
        if code != 0:
            assert "not started again: it failed twice" in err, err
        check_left(job.run, whole)
    check_finished(job.run, whole)
    assert kills >= 1
    keep_counts(f"kills-restarted-{mode}-{saving}-{seed}", {"kills": kills})


def data_in(folder: Path, saving: str = "plain") -> None:
    """Where rows are to leave the memory, of tables with more rows than the smallest caches have."""
    times = 40 if saving == LEAVING else 1
    with pytest.MonkeyPatch.context() as patch:
        larger = tuple(replace(feature, cardinality=times * feature.cardinality) for feature in runs.FEATURES)
        patch.setattr(runs, "FEATURES", larger)
        write_data(folder / "train.h5", samples=300, seed=3)
        write_data(folder / "validation.h5", samples=120, seed=4)


@pytest.mark.slow
def test_killed_at_a_place_and_at_a_time_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    data_in(tmp_path)
    whole = whole_run(tmp_path, "split", "incremental")
    wanted = config(tmp_path, "killed", "split", 2, "incremental")
    job = launch(tmp_path / "job", wanted, Fault(0, "hpcrec.checkpoint.files:publish", 5, "kill"))
    assert job.end(limit_s=5.0).code in KILLED
    assert steps_in(tmp_path / "killed") == [3, 9, 12]  # 9 has what changed since 3
    assert len(list((tmp_path / "killed/checkpoints").glob(".step-15.*.tmp"))) == 1
    job = launch(tmp_path / "job", wanted, Fault(2, "hpcrec.training.session:Session.run_step", 10, "kill"))
    assert job.end(limit_s=5.0).code in KILLED
    assert chain(tmp_path, "killed", "split", whole, 0, random.Random(0), "incremental") == 0


@pytest.mark.slow
def test_killed_while_files_are_linked_and_while_they_are_taken_over(tmp_path: Path) -> None:
    data_in(tmp_path)
    whole = whole_run(tmp_path, "fused", "linked")
    wanted = config(tmp_path, "killed", "fused", 2, "linked")
    steps = []
    for rank, place, call in ((0, "os:link", 8), (2, "hpcrec.disk.tier:Tier.take", 1)):
        job = launch(tmp_path / "job", wanted, Fault(rank, place, call, "kill"))
        assert job.end(limit_s=30).code in KILLED, place
        steps.append(steps_in(tmp_path / "killed"))
        check_left(tmp_path / "killed", whole)
        assert len(steps[-1]) >= 1 and list((tmp_path / "killed/checkpoints").glob("step-*/rows-1.tier/segment-*"))
    assert steps[0] == steps[1], "the second was killed as it went on from where the first had saved"
    assert chain(tmp_path, "killed", "fused", whole, 0, random.Random(0), "linked") == 0
    assert not list((tmp_path / "killed-rows").glob("*/*")), "the store's own files go with the run"


@pytest.mark.slow
def test_killed_while_rows_leave_the_memory(tmp_path: Path) -> None:
    """In a read, in a write and in cleaning, with ids of a dynamic table that lose their rows."""
    data_in(tmp_path, LEAVING)
    whole = whole_run(tmp_path, "fused", LEAVING)
    wanted = config(tmp_path, "killed", "fused", 2, LEAVING)
    for number, (place, calls) in enumerate(LEAVING_PLACES):
        job = begin(tmp_path / "job", wanted, Fault(number % 3, place, calls // 4, "kill"))
        assert job.end(limit_s=30).code in KILLED, place
        check_left(tmp_path / "killed", whole)
    assert steps_in(tmp_path / "killed")
    assert chain(tmp_path, "killed", "fused", whole, 0, random.Random(0), LEAVING) == 0


@soaked(*WAYS_TO_SAVE)
def test_killed_at_random_instants_and_resumed_equals_uninterrupted(
    tmp_path: Path, wholes: Wholes, mode: str, saving: str, seed: int
) -> None:
    data_in(tmp_path, saving)
    whole, choice, kills, tried = wholes(mode, saving), random.Random(seed), 0, 0
    while kills < KILLS:
        tried += 1
        kills += chain(tmp_path, f"killed-{tried}", mode, whole, KILLS - kills, choice, saving)
    keep_counts(f"kills-resumed-{mode}-{saving}-{seed}", {"kills": kills})
