"""Ranks killed (-9) at any instant: what is left is whole, and a resumed run ends with the uninterrupted one's bits."""

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcrec.config import Config
from hpcrec.train.checkpoint import find_checkpoint, steps_in
from tests.comm.job import Job
from tests.train.launched import Fault, launch
from tests.train.runs import config_for, write_data

STEPS, EVERY = 45, 3
# Where a checkpoint changes from one state on disk to the next: (place, calls of it in a run at most).
PLACES = {
    0: [  # the rank that also publishes
        ("os:fsync", 60),
        ("pathlib:Path.rename", 20),
        ("pathlib:Path.replace", 20),
        ("shutil:rmtree", 10),
        ("hpcrec.train.checkpoint_files:write_manifest", 10),
        ("hpcrec.train.checkpoint_files:publish", 10),
        ("hpcrec.train.loop:mark_best", 5),
        ("hpcrec.train.loop:prune", 10),
    ],
    1: [
        ("os:fsync", 20),
        ("h5py:File.close", 30),
        ("hpcrec.train.checkpoint:CheckpointWriter.write_table_part", 30),
        ("hpcrec.train.checkpoint:CheckpointWriter.commit", 10),
        ("hpcrec.exchange.exchange:Exchange.gradients", STEPS),
    ],
}
KILLED = (128 + 9, 9)  # by Open MPI's launcher, by MPICH's


def config(folder: Path, run: str, mode: str, keep: int) -> Config:
    data = {name: str(folder / f"{name}.h5") for name in ("train", "validation")}
    return config_for(
        folder,
        data=data,
        topology={"mode": mode, **({"owners": 1} if mode == "split" else {})},
        model={"name": "deepfm", "options": {"dropout": 0.2}},
        embedding={"optimizer": {"name": "rowwise_adagrad", "lr": 0.1}, "tables": {"user": {"shard": "row"}}},
        dense={"reducer": "mpi", "optimizer": {"name": "Adam", "lr": 0.05}},
        schedule={"kind": "cosine", "warmup_steps": 5},
        train={"dtype": "float32", "steps": STEPS, "eval_every": 9, "early_stop": {"patience": 50}},
        checkpoint={"every": EVERY, "keep": keep},
        run={"folder": str(folder / run), "tensorboard": False, "progress": False},
    )


def values_in(file: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def take(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            found[name] = thing[()]

    with h5py.File(file, "r") as opened:
        opened.visititems(take)
    return found


def check_equal(checkpoint: Path, reference: Path) -> None:
    """Rows, dense parameters, optimizer states, position and what was measured so far, bit for bit."""
    files = sorted(str(p.relative_to(reference)) for p in reference.rglob("*.h5"))
    assert files == sorted(str(p.relative_to(checkpoint)) for p in checkpoint.rglob("*.h5"))
    assert len(files) >= 4
    for name in files:
        mine, theirs = values_in(checkpoint / name), values_in(reference / name)
        assert mine.keys() == theirs.keys() and len(theirs) >= 2, name
        for key in theirs:
            assert mine[key].dtype == theirs[key].dtype and mine[key].tobytes() == theirs[key].tobytes(), (name, key)
    states = [json.loads((folder / "state.json").read_text()) for folder in (checkpoint, reference)]
    assert [s["step"] for s in states] == [states[1]["step"]] * 2
    assert states[0]["progress"] == states[1]["progress"]


def finish(folder: Path, wanted: Config) -> None:
    job = launch(folder, wanted)
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
    place, calls = choice.choice(PLACES[min(rank, 1)])
    return was_killed(launch(folder, wanted, Fault(rank, place, choice.randint(1, calls), "kill")))


def kill_at_a_time(folder: Path, wanted: Config, choice: random.Random) -> bool:
    rank = choice.choice([0, 1, 2])
    job = launch(folder, wanted)
    try:
        job.wait_ready()
        time.sleep(0.05 + choice.random() * 2.0)
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.kill(int((folder / f"ready.pid-{rank}").read_text()), signal.SIGKILL)
    finally:
        killed = was_killed(job)
    return killed


def whole_run(folder: Path, mode: str) -> Path:
    """The uninterrupted run, which keeps every checkpoint."""
    finish(folder / "job", config(folder, f"whole-{mode}", mode, keep=1000))
    run = folder / f"whole-{mode}"
    assert steps_in(run) == list(range(EVERY, STEPS + 1, EVERY))
    return run


def chain(folder: Path, run: str, mode: str, whole: Path, kills: int, choice: random.Random) -> int:
    """Kills one run up to so often, looks at every checkpoint that is left, and lets it end; returns the kills."""
    wanted, done = config(folder, run, mode, keep=2), 0
    checkpoints = folder / run / "checkpoints"
    for number in range(kills):
        kill = kill_at_a_place if number % 2 == 0 else kill_at_a_time
        if not kill(folder / "job", wanted, choice):
            break
        done += 1
        for step in steps_in(folder / run):
            check_equal(checkpoints / f"step-{step}", whole / "checkpoints" / f"step-{step}")
        if steps_in(folder / run):
            find_checkpoint(folder / run)  # a warning would be an error: whatever has the name is whole
    finish(folder / "job", wanted)
    assert steps_in(folder / run)[-1] == STEPS
    for step in steps_in(folder / run):
        check_equal(checkpoints / f"step-{step}", whole / "checkpoints" / f"step-{step}")
    assert not [p for p in checkpoints.iterdir() if p.name.startswith((".", "damaged-"))]
    ends: list[Any] = [json.loads((r / "summary.json").read_text()) for r in (folder / run, whole)]
    assert ends[0]["eval"] == ends[1]["eval"] and ends[0]["samples"] == ends[1]["samples"]
    notes = [json.loads((r / "checkpoints/best.json").read_text()) for r in (folder / run, whole)]
    assert notes[0] == notes[1]
    return done


def data_in(folder: Path) -> None:
    write_data(folder / "train.h5", samples=300, seed=3)
    write_data(folder / "validation.h5", samples=120, seed=4)


def test_killed_at_a_place_and_at_a_time_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    data_in(tmp_path)
    whole = whole_run(tmp_path, "split")
    wanted = config(tmp_path, "killed", "split", keep=2)
    job = launch(tmp_path / "job", wanted, Fault(0, "hpcrec.train.checkpoint_files:publish", 5, "kill"))
    assert job.end(limit_s=5.0).code in KILLED
    assert steps_in(tmp_path / "killed") == [9, 12] and (tmp_path / "killed/checkpoints/.step-15.tmp").exists()
    job = launch(tmp_path / "job", wanted, Fault(2, "hpcrec.train.session:Session.run_step", 10, "kill"))
    assert job.end(limit_s=5.0).code in KILLED
    assert chain(tmp_path, "killed", "split", whole, 0, random.Random(0)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["split", "fused"])
def test_killed_at_random_instants_and_resumed_equals_uninterrupted(tmp_path: Path, mode: str) -> None:
    data_in(tmp_path)
    whole = whole_run(tmp_path, mode)
    choice, kills, runs = random.Random(7), 0, 0
    while kills < 25:
        runs += 1
        kills += chain(tmp_path, f"killed-{runs}", mode, whole, 5, choice)
    assert kills >= 25
