"""Checkpoints that are written while training goes on hold what there was when they were asked for, bit for bit."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.checkpoint import files, saver
from hpcrec.checkpoint.files import steps_in
from hpcrec.checkpoint.find import find_checkpoint
from hpcrec.checkpoint.tools.diff import diff
from hpcrec.comm.failure import ExitCodes
from hpcrec.config import Config
from hpcrec.data import hdf5_filled
from hpcrec.embedding import frozen, held_rows, store
from hpcrec.embedding.frozen import FrozenRows
from hpcrec.errors import CheckpointError, OutputError
from hpcrec.models.deepfm import DeepFM, DeepFMOptions
from hpcrec.training import loop
from hpcrec.training.session import Session
from tests.devices import device_or_skip
from tests.embedding.frozen_arrays import frozen_arrays
from tests.exchange.test_auto import in_sequence
from tests.training.learned import values_in
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import roles_for

STEPS = 14
CASES: dict[str, dict[str, Any]] = {
    "wide before its vectors": {"model": {"name": "deepfm"}},
    "vectors before wide": {"model": {"name": "tests.checkpoint.test_background:narrow_last"}},
    "split by rows": {"embedding": {"tables": {"user": {"shard": "row"}, "item": {"shard": "row"}}}},
    "split by columns": {
        "embedding": {
            "tables": {"user": {"shard": "column"}, "item": {"shard": "column"}},
            "optimizer": {"name": "rowwise_adagrad", "lr": 0.1},
        }
    },
    "adam, folded": {
        "model": {"name": "deepfm"},
        "exchange": {"form": "partial"},
        "embedding": {"optimizer": {"name": "adam", "lr": 0.01}},
        "dense": {"optimizer": {"name": "Adam", "lr": 0.01}},
    },
    "replicated": {"embedding": {"tables": {t: {"shard": "replicate"} for t in ("user", "item")}}},
    "chosen copies": {
        "model": {"name": "deepfm"},
        "exchange": {"form": "auto", "auto_steps": 1},
        "embedding": {"optimizer": {"name": "adam", "lr": 0.1}},
    },
    "dynamic": {"embedding": {"tables": {"user": {"dynamic": {"capacity": 12, "evict": "lru"}}}}},
    "thresholded": {"dense": {"compression": "dct", "dct": {"density": 0.3}}, "train": {"dtype": "float32"}},
    "on a device": {"store": {"name": "gpu", "device": "emulated"}},
    "cached by a device": {"store": {"name": "gpu", "device": "emulated", "memory_bytes": 6000}},
}


def narrow_last(features: Any, n_dense: int, **options: Any) -> DeepFM:
    """DeepFM whose tables of one column come last: a step of the vectors' rows steps theirs in the same pass."""
    model = DeepFM(features, n_dense, options=DeepFMOptions(hidden=(8,)), **options)
    model.operators = dict(reversed(model.operators.items()))
    return model


def config_of(folder: Path, run: str, background: bool, **sections: dict[str, Any]) -> Config:
    wanted = {**sections, "train": {"steps": STEPS, **sections.get("train", {})}}
    return config_for(
        folder,
        **{
            **wanted,
            "checkpoint": {"every": 4, "keep": 99, "background": background},
            "run": {"folder": str(folder / run)},
        },
    )


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_what_is_written_beside_steps_is_what_there_was(
    folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = CASES[case]
    if "store" in sections:
        device_or_skip("emulated")
    write_data(folder / "data.h5")
    size = MPI.COMM_WORLD.size
    topology = roles_for(size)[len(case) % len(roles_for(size))]
    kept, behind = [0], [0]
    in_sequence(monkeypatch, first=2)  # copies of two tables
    with monkeypatch.context() as patched:
        slow_down(patched, kept, behind)
        done = commands.train(config_of(folder, "beside", True, topology=topology, **sections))
    assert done == ExitCodes.FINISHED
    in_sequence(monkeypatch, first=2)
    assert commands.train(config_of(folder, "waiting", False, topology=topology, **sections)) == ExitCodes.FINISHED
    parallel_assert(max(MPI.COMM_WORLD.allgather(behind[0])) >= 2, msg="no step was made while one was written")
    parallel_assert(max(MPI.COMM_WORLD.allgather(kept[0])) > 0, msg="no row changed while it was written")
    for step in (4, 8, 12, STEPS):
        same_files(*(folder / run / f"checkpoints/step-{step}" for run in ("beside", "waiting")))
        parallel_assert(not list((folder / f"beside/checkpoints/step-{step}").glob("kept*")))


def slow_down(patched: pytest.MonkeyPatch, kept: list[int], behind: list[int]) -> None:
    """Blocks of few rows, each taken after a while, so that steps come between; and hardly any memory for copies."""
    take, keep = FrozenRows.take, FrozenRows.keep
    write, wait, waited_for = saver.Saver._write, saver.Saver.wait, threading.Event()

    def slowly(self: FrozenRows, rows: Any) -> Any:
        time.sleep(0.002)
        return take(self, rows)

    def counted(self: FrozenRows, rows: Any) -> None:
        before = int(self._wanted.sum())
        keep(self, rows)
        kept[0] += before - int(self._wanted.sum())

    def waiting(self: saver.Saver, *given: Any) -> None:
        until_s = time.monotonic() + 5
        while self._session.step < given[0].step + 2 and self._session.step < STEPS and time.monotonic() < until_s:
            if waited_for.wait(0.001):  # then no step comes
                break
        behind[0] += self._session.step >= given[0].step + 2
        write(self, *given)

    def noted(self: saver.Saver) -> bool:
        waited_for.set()
        try:
            return wait(self)
        finally:
            waited_for.clear()

    patched.setattr(held_rows, "EXPORT_BYTES", 200)
    patched.setattr(store, "KEPT_BYTES", 600)
    patched.setattr(FrozenRows, "take", slowly)
    patched.setattr(FrozenRows, "keep", counted)
    patched.setattr(saver.Saver, "_write", waiting)
    patched.setattr(saver.Saver, "wait", noted)


def same_files(one: Path, other: Path) -> None:
    files = sorted(str(p.relative_to(other)) for p in other.rglob("*.h5"))
    assert len(files) >= 3 and files == sorted(str(p.relative_to(one)) for p in one.rglob("*.h5"))
    for name in files:
        mine, theirs = values_in(one / name), values_in(other / name)
        assert mine.keys() == theirs.keys()
        for key in theirs:
            assert mine[key].dtype == theirs[key].dtype and mine[key].tobytes() == theirs[key].tobytes(), (name, key)
    mine, theirs = (json.loads((path / "state.json").read_text()) for path in (one, other))
    for unlike in ("ran_on", "wire_bytes", "wire_messages"):
        del mine[unlike], theirs[unlike]
    assert mine == theirs
    assert find_checkpoint(one.parent.parent, str(one)).step == theirs["step"]


class Full:
    """The last rank's disk takes nothing while ``while_`` holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, while_: Callable[[], bool]) -> None:
        self.refused, pwrite = 0, hdf5_filled.os.pwrite

        def refuses(*given: Any) -> int:
            if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1 and while_():
                self.refused += 1
                raise OSError(28, "No space left on device")
            return pwrite(*given)

        monkeypatch.setattr(hdf5_filled.os, "pwrite", refuses)


def retries(run: Path) -> list[tuple[int, int]]:
    """When a checkpoint was known to have failed, and after which step it was tried again."""
    lines = map(json.loads, (run / "attempts.jsonl").read_text().splitlines())
    return [(line["step"], line["due_at"]) for line in lines if line["event"] == "retry"]


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("background", [True, False])
def test_without_a_checkpoint_for_three_intervals_the_run_ends_on_every_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    """On every rank after the same step; earlier checkpoints are whole."""
    write_data(folder / "data.h5")
    full = Full(monkeypatch, (folder / "run/checkpoints/step-2").exists)
    config = config_of(folder, "run", background, topology={"mode": "fused"})
    config = replace(config, checkpoint=replace(config.checkpoint, every=2))
    with pytest.raises(
        CheckpointError, match=rf"rank {MPI.COMM_WORLD.size - 1}: .*No space left.*for 3 times checkpoint"
    ):
        commands.train(config)
    assert full.refused > 0 or MPI.COMM_WORLD.rank < MPI.COMM_WORLD.size - 1
    tries = retries(folder / "run")
    assert 4 <= tries[0][0] <= 6 and tries[-1][0] - tries[0][0] < 6
    assert all(later > known for (known, _), (later, _) in itertools.pairwise(tries))
    assert find_checkpoint(folder / "run").step == 2
    assert sorted(p.name for p in (folder / "run/checkpoints").glob("step-*")) == ["step-2"]


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("full_every", [1, 3])  # 3: the one that fails would have been a base, or needed one
def test_one_that_fails_is_tried_again_as_a_whole_one_and_changes_no_bit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, background: bool, full_every: int
) -> None:
    write_data(folder / "data.h5")

    def config(name: str) -> Config:
        made = config_of(folder, name, background, topology={"mode": "fused"})
        return replace(made, checkpoint=replace(made.checkpoint, full_every=full_every, keep=20))

    assert commands.train(config("whole")) == ExitCodes.FINISHED
    saved = folder / "run/checkpoints"
    with monkeypatch.context() as patched:
        full = Full(patched, lambda: (saved / "step-4").exists() and full.refused < 1)
        assert commands.train(config("run")) == ExitCodes.FINISHED
    ((known, due_at),) = retries(folder / "run")
    assert 8 <= known <= 12 and known < due_at <= STEPS
    steps = sorted(int(p.name.removeprefix("step-")) for p in saved.glob("step-*"))
    assert steps == sorted({4, due_at, 12, STEPS})
    assert "base" not in json.loads((saved / f"step-{min(due_at, 12)}/manifest.json").read_text())
    assert diff(saved / f"step-{STEPS}", folder / f"whole/checkpoints/step-{STEPS}")["equal"]


def evaluated_once(folder: Path, background: bool, every: int, steps: int) -> Config:
    """The evaluation after step 4 is the best, and stays it: no other is better by 1."""
    data = {name: str(folder / "data.h5") for name in ("train", "validation")}
    train = {"steps": steps, "eval_every": 4, "early_stop": {"patience": 9, "min_delta": 1.0}}
    config = config_of(folder, "run", background, topology={"mode": "fused"}, data=data, train=train)
    return replace(config, checkpoint=replace(config.checkpoint, every=every, keep_best=True))


def best_step(run: Path) -> int:
    return int(json.loads((run / "checkpoints/best.json").read_text())["step"])


@pytest.mark.parallel([1, 3])
def test_the_best_is_noted_where_the_checkpoint_before_it_is_found_to_have_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of step 3 is still being written when step 4 is evaluated, or is known to have failed."""
    write_data(folder / "data.h5")
    # Of the checkpoint, and not what is written beside it before.
    full = Full(monkeypatch, lambda: full.refused < 1 and any((folder / "run/checkpoints").glob(".step-3.*")))
    assert commands.train(evaluated_once(folder, True, every=3, steps=5)) == ExitCodes.FINISHED
    ((known, _),) = retries(folder / "run")
    assert (known, best_step(folder / "run")) == (4, 4)
    assert find_checkpoint(folder / "run", "best").step == 4


@pytest.mark.in_turn
@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("background", [True, False])
def test_the_best_is_noted_where_its_own_checkpoint_is_written_at_another_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    """The run ends with it, so the other try is the last one's. A look at the claim that fails changes nothing."""
    write_data(folder / "data.h5")
    looks, look = [0], loop.Loop._look

    def cannot_look(of: loop.Loop) -> None:
        def refuses() -> None:
            looks[0] += 1
            raise FileNotFoundError(2, "No such file or directory", str(folder / "run"))

        with monkeypatch.context() as patched:
            patched.setattr(of, "_claim", SimpleNamespace(check=refuses))
            look(of)

    monkeypatch.setattr(loop.Loop, "_look", cannot_look)
    monkeypatch.setattr(loop, "_LAST_PAUSES_S", (0.1, 0.2))
    full = Full(monkeypatch, lambda: full.refused < 1 and any((folder / "run/checkpoints").glob(".step-4.*")))
    assert commands.train(evaluated_once(folder, background, every=99, steps=4)) == ExitCodes.FINISHED
    assert best_step(folder / "run") == 4
    assert MPI.COMM_WORLD.rank > 0 or looks[0] == 1


@pytest.mark.parallel([1, 3])
def test_copies_that_cannot_be_removed_fail_a_checkpoint_and_not_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of rows that changed meanwhile, on the last rank; the second checkpoint is tried again."""
    write_data(folder / "data.h5")
    config = config_of(folder, "run", True, topology={"mode": "fused"})
    saved, close, refused = folder / "run/checkpoints", FrozenRows.close, [0]

    def refuses(self: FrozenRows) -> None:
        close(self)
        if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1 and (saved / "step-4").exists() and not refused[0]:
            refused[0] += 1
            raise OSError(116, "Stale file handle", str(saved))

    monkeypatch.setattr(FrozenRows, "close", refuses)
    assert commands.train(config) == ExitCodes.FINISHED
    ((known, due_at),) = retries(folder / "run")
    assert 8 <= known <= 12 and known < due_at <= STEPS and MPI.COMM_WORLD.allgather(refused[0])[-1] == 1
    monkeypatch.undo()
    assert commands.train(config_of(folder, "whole", True, topology={"mode": "fused"})) == ExitCodes.FINISHED
    assert diff(saved / f"step-{STEPS}", folder / f"whole/checkpoints/step-{STEPS}")["equal"]


@pytest.mark.in_turn
@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("times", [1, 2, 99])
def test_a_best_that_cannot_be_noted_is_noted_later_and_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, times: int, background: bool
) -> None:
    """Its checkpoint is whole, and none has failed. It is noted with a later one, or as the run ends, or never."""
    write_data(folder / "data.h5")
    refused, mark = [0], loop.mark_best

    def refuses(*given: Any) -> None:
        if refused[0] < times:
            refused[0] += 1
            raise OutputError(f"{folder}: cannot be written (No space left on device)")
        mark(*given)

    monkeypatch.setattr(loop, "mark_best", refuses)
    monkeypatch.setattr(loop, "_LAST_PAUSES_S", (0.1, 0.2))
    config = evaluated_once(folder, background, every=6, steps=20)
    config = replace(config, checkpoint=replace(config.checkpoint, keep=1))
    assert commands.train(config) == ExitCodes.FINISHED
    assert steps_in(folder / "run") == [4, 20] and retries(folder / "run") == []
    if times == 99:
        assert not (folder / "run/checkpoints/best.json").exists()
        assert MPI.COMM_WORLD.rank > 0 or 3 <= refused[0] < 99
    else:
        assert best_step(folder / "run") == 4
        assert MPI.COMM_WORLD.rank > 0 or refused[0] == times
    MPI.COMM_WORLD.Barrier()
    assert json.loads((folder / "run/summary.json").read_text())["eval"]["step"] == 4


@pytest.mark.in_turn
@pytest.mark.parallel([1, 3])
@pytest.mark.parametrize("background", [True, False])
def test_a_best_that_is_not_noted_yet_is_kept_where_the_checkpoint_of_a_better_one_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    """A full quota from the note of step 4, the best so far, until the checkpoint of step 8, which is better, fails."""
    write_data(folder / "data.h5")
    found = {4: 0.8, 8: 0.81, 12: 0.6, 16: 0.5}
    mark, write, refused = loop.mark_best, files.write_manifest, [0, 0]

    def refuses(*given: Any) -> None:
        if refused[1] == 0 and given[1] == 4:
            refused[0] += 1
            raise OutputError(f"{folder}: cannot be written (Disk quota exceeded)")
        mark(*given)

    def is_full(manifest: Path, *given: Any, **named: Any) -> Any:
        if ".step-8." in str(manifest) and refused[1] == 0:
            refused[1] += 1
            raise OSError(122, "Disk quota exceeded", str(manifest))
        return write(manifest, *given, **named)

    monkeypatch.setattr(loop, "mark_best", refuses)
    monkeypatch.setattr(files, "write_manifest", is_full)
    evaluate = Session.evaluate_unless_stopped

    def evaluated(self: Session, split: str, *given: Any) -> Any:
        said = evaluate(self, split, *given)
        return said | {"auc": found.get(self.step, 0.4)}

    monkeypatch.setattr(Session, "evaluate_unless_stopped", evaluated)
    config = evaluated_once(folder, background, every=0, steps=18)
    train = replace(config.train, early_stop=replace(config.train.early_stop, min_delta=0.0))
    config = replace(config, train=train, checkpoint=replace(config.checkpoint, keep=1))
    assert commands.train(config) == ExitCodes.FINISHED
    assert (best_step(folder / "run"), steps_in(folder / "run")[0]) == (4, 4)
    assert MPI.COMM_WORLD.rank > 0 or (refused[0] >= 1 and refused[1] == 1)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("full_every", [1, 2])  # 2: the one before would have been its base
def test_the_last_checkpoint_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], full_every: int
) -> None:
    write_data(folder / "data.h5")
    monkeypatch.setattr(loop, "_LAST_PAUSES_S", (0.1, 0.2))
    full = Full(monkeypatch, lambda: (folder / "run/checkpoints/step-12").exists() and full.refused < 2)
    config = config_of(folder, "run", True, topology={"mode": "fused"})
    config = replace(config, checkpoint=replace(config.checkpoint, full_every=full_every))
    assert commands.train(config) == ExitCodes.FINISHED
    said = [line for line in capfd.readouterr().err.splitlines() if "could not be written" in line]
    if MPI.COMM_WORLD.rank == 0:
        assert len(said) in (1, 2) and all(line.endswith("tried again, for it is the last one") for line in said), said
    assert find_checkpoint(folder / "run").step == STEPS
    full.refused = -(10**9)
    with pytest.raises(CheckpointError, match="No space left"):
        commands.train(replace(config, train=replace(config.train, steps=STEPS + 1)))
    assert find_checkpoint(folder / "run").step == STEPS


def test_each_row_is_given_once_as_it_was_whatever_changes_meanwhile(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for trial in range(30):
        n = int(rng.integers(1, 400))
        arrays = {"": rng.random((n, 3)), "accumulator": rng.random(n)}
        was = {name: array.copy() for name, array in arrays.items()}
        wanted = rng.random(n) < 0.8
        order = rng.permutation(np.flatnonzero(wanted)) if trial % 2 else None  # as dynamic tables, or as others
        spill = tmp_path / f"spill-{trial}"
        held = frozen_arrays(arrays, wanted.copy() if order is not None else np.ones(n, bool), spill, 500)
        total = len(order) if order is not None else n
        for start in range(0, total, 37):
            for _ in range(3):
                rows = rng.choice(n, int(rng.integers(0, n + 1)) // 2, replace=False)
                held.keep(rows)
                for array in arrays.values():
                    array[rows] += 1
            stop = min(start + 37, total)
            here: Any = slice(start, stop) if order is None else order[start:stop]
            found = held.take(here)
            for name, values in found.items():
                np.testing.assert_array_equal(values, was[name][here], err_msg=f"trial {trial}, {name}")
        held.close()
        assert not spill.exists()


def test_copies_beyond_the_budget_go_to_a_file(tmp_path: Path) -> None:
    rows = np.arange(40_000, dtype=np.float32).reshape(10_000, 4)
    was = rows.copy()
    held = frozen_arrays({"": rows}, np.ones(10_000, bool), tmp_path / "spill", 32_000)
    for start in range(0, 10_000, 500):
        numbers = np.arange(start, start + 500)
        held.keep(numbers)
        rows[numbers] = -1
    in_memory = sum(r.n_bytes for r in held._runs if isinstance(r, frozen._Run)) + held._fresh_bytes
    assert in_memory <= 32_000
    assert (tmp_path / "spill").stat().st_size >= 10_000 * 24 - 32_000
    np.testing.assert_array_equal(held.take(slice(0, 10_000))[""], was)


def test_many_runs_in_the_file_take_one_descriptor_and_one_step_takes_no_more_than_the_budget(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows, state = rng.random((60_000, 4)), rng.random(60_000)
    was = rows.copy(), state.copy()
    held = frozen_arrays({"": rows, "sum": state}, np.ones(60_000, bool), tmp_path / "spill", 8_000)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    order, most_bytes = rng.permutation(60_000), 0
    sort = held._sort

    def looked() -> None:
        nonlocal most_bytes
        most_bytes = max(most_bytes, held._fresh_bytes)
        sort()

    held._sort = looked  # type: ignore[method-assign]
    for some in np.split(order, [50_000]):  # most of them in one step
        held.keep(some)
        rows[some], state[some] = 0, 0
    assert len(held._runs) > 300 and most_bytes < 2 * 8_000 // 4 + 100
    for here in (slice(0, 30_000), np.arange(30_000, 60_000)[::-1]):
        found = held.take(here)
        np.testing.assert_array_equal(found[""], was[0][here])
        np.testing.assert_array_equal(found["sum"], was[1][here])
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before + 2


def test_copies_that_cannot_be_kept_are_told_to_the_reader_alone(tmp_path: Path) -> None:
    rows = np.zeros((1000, 4))
    held = frozen_arrays({"": rows}, np.ones(1000, bool), tmp_path / "no folder/spill", 1000)
    held.keep(np.arange(900))  # the step goes on
    held.keep(np.arange(900, 1000))
    said = r"no folder/spill.*cannot be kept there \(No such file.*background = false"
    with pytest.raises(CheckpointError, match=said):
        held.take(slice(0, 1000))
