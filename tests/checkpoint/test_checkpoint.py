"""Checkpoints: bit for bit through any parts, whole or absent whatever kills the writer, and refused where unfit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcrec.checkpoint import reader as checkpoint_reader
from hpcrec.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    find_checkpoint,
    mark_best,
    prune,
    read_best,
    remove_leftovers,
    steps_in,
)
from hpcrec.checkpoint.files import quoted, unquoted
from hpcrec.checkpoint.resume import resumed_from
from hpcrec.comm.ranks import Alone
from hpcrec.errors import CheckpointError

ROWS, WIDTH = 1000, 6


def table(seed=0, dtype=np.float32):
    """Rows and states of a whole table, with bits that a decimal would lose."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((ROWS, WIDTH)).astype(dtype)
    rows[3, 2], rows[4, 1] = -0.0, np.float32(1e-42)
    states = {"sum_of_squares": rng.random(ROWS).astype(dtype), "moment": rng.random((ROWS, WIDTH)).astype(dtype)}
    return rows, states


def blocks(rows, states, ids, columns, size=300):
    """The part of a table that holds these ids and columns, in blocks."""
    cut = slice(*columns)
    for start in range(0, len(ids), size):
        here = ids[start : start + size]
        yield here, rows[here, cut], {n: s[here, cut] if s.ndim == 2 else s[here] for n, s in states.items()}


def save(folder, step, *, parts=(("user", 0),), seed=0, best=None):
    """A checkpoint with table ``user`` in one part and a small dense part."""
    rows, states = table(seed)
    writer = CheckpointWriter(folder, step)
    writer.begin()
    for name, part in parts:
        data = blocks(rows, states, np.arange(ROWS), (0, WIDTH))
        writer.write_table_part(name, part, data, n_ids=ROWS, rows=ROWS, width=WIDTH, columns=(0, WIDTH))
    parameters = {"top.weight": np.full((2, 3), step, np.float32)}
    writer.write_dense(parameters, {"top.weight": {"step": float(step)}}, {"top.mean": np.zeros(3, np.float32), "n": 4})
    writer.write_state({"epoch": 0})
    path = writer.commit()
    if best is not None:
        mark_best(folder, step, "auc", best)
    return path


def gathered(checkpoint, name):
    """A table put together from its parts, with how often each value was there."""
    rows = np.full((ROWS, WIDTH), np.nan, np.float32)
    states = {"sum_of_squares": np.full(ROWS, np.nan, np.float32), "moment": np.full((ROWS, WIDTH), np.nan, np.float32)}
    seen = np.zeros((ROWS, WIDTH), int)
    for block in checkpoint.table_parts(name):
        cut = slice(*block.columns)
        rows[block.ids, cut] = block.rows
        states["moment"][block.ids, cut] = block.states["moment"]
        states["sum_of_squares"][block.ids] = block.states["sum_of_squares"]
        seen[block.ids, cut] += 1
    assert (seen == 1).all()
    return rows, states


PARTITIONS = {
    "whole": [(np.arange(ROWS), (0, WIDTH))],
    "rows": [(np.arange(k, ROWS, 3)[::-1], (0, WIDTH)) for k in range(3)],
    "columns": [(np.arange(ROWS), (0, 1)), (np.arange(ROWS), (1, 4)), (np.arange(ROWS), (4, 6))],
    "with an empty part": [(np.arange(ROWS), (0, WIDTH)), (np.arange(0), (0, WIDTH))],
}


@pytest.mark.parametrize("parts", PARTITIONS.values(), ids=PARTITIONS)
def test_rows_and_states_come_back_bit_for_bit(tmp_path, parts, monkeypatch):
    monkeypatch.setattr(checkpoint_reader, "BLOCK_ROWS", 128)
    rows, states = table()
    writer = CheckpointWriter(tmp_path, 7)
    writer.begin()
    for part, (ids, columns) in enumerate(parts):
        data = blocks(rows, states, ids, columns)
        writer.write_table_part("wide/user.id", part, data, n_ids=len(ids), rows=ROWS, width=WIDTH, columns=columns)
    writer.write_state({"epoch": 2, "ledger": np.arange(3), "auc": np.float32(0.5)})
    assert writer.commit() == tmp_path / "checkpoints/step-7"
    checkpoint = find_checkpoint(tmp_path)
    assert checkpoint.step == 7
    assert checkpoint.state == {"epoch": 2, "ledger": [0, 1, 2], "auc": 0.5, "step": 7}
    assert checkpoint.tables == ("wide/user.id",)
    assert max(len(block.ids) for block in checkpoint.table_parts("wide/user.id")) == 128
    found_rows, found_states = gathered(checkpoint, "wide/user.id")
    assert found_rows.tobytes() == rows.tobytes()
    assert all(found_states[name].tobytes() == states[name].tobytes() for name in states)
    checkpoint.check_table("wide/user.id", rows=ROWS, width=WIDTH, states={"moment": (1, 1), "sum_of_squares": (1,)})


def test_dense_values_keep_their_bits_types_and_shapes(tmp_path):
    import torch

    weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    writer = CheckpointWriter(tmp_path, 1)
    writer.begin()
    writer.write_dense(
        {"a.weight": weight, "b/c.bias": np.zeros(0, np.float32)},
        {"a.weight": {"step": torch.tensor(3.0), "exp_avg": weight * 2, "lr": 0.1}, "b/c.bias": {}},
        {"running_mean": np.arange(3, dtype=np.int64), "n": 4},
    )
    writer.write_state({})
    writer.commit()
    dense = find_checkpoint(tmp_path).dense()
    assert list(dense.parameters) == ["a.weight", "b/c.bias"]
    assert dense.parameters["a.weight"].tobytes() == weight.detach().numpy().tobytes()
    assert dense.parameters["b/c.bias"].shape == (0,)
    state = dense.optimizer["a.weight"]
    assert isinstance(state["step"], np.ndarray) and state["step"].shape == () and state["step"].dtype == np.float32
    assert state["lr"] == 0.1 and isinstance(state["lr"], float)
    assert state["exp_avg"].tobytes() == (weight.detach() * 2).numpy().tobytes()
    assert dense.optimizer["b/c.bias"] == {}
    assert dense.extra["running_mean"].dtype == np.int64
    assert dense.extra["n"] == 4 and isinstance(dense.extra["n"], int)


class Rank:
    """One of several ranks of a test that runs them one after another: gathers what was handed to it before."""

    def __init__(self, rank, size, things):
        self.rank, self.size, self.things = rank, size, things

    def comes_on(self):
        """Nobody looks whether it does."""

    def allgather(self, thing):
        return self.things or [thing]

    def bcast(self, thing, root=0):
        return thing if self.rank == root else (None,) * len(thing)


def test_ranks_write_their_own_parts_and_one_failure_is_everybodys(tmp_path):
    rows, states = table()
    writers = [CheckpointWriter(tmp_path, 5, Rank(r, 2, [])) for r in range(2)]
    for writer in writers:
        writer.begin()
    for rank, writer in enumerate(writers):
        data = blocks(rows, states, np.arange(rank, ROWS, 2), (0, WIDTH))
        n_ids = len(range(rank, ROWS, 2))
        writer.write_table_part("user", rank, data, n_ids=n_ids, rows=ROWS, width=WIDTH, columns=(0, WIDTH))
    writers[1].write_state({})
    together = [(w._written, w._segments, w._failure) for w in writers]
    for writer in writers:
        writer._ranks.things = together
    assert [writer.commit() for writer in writers] == [tmp_path / "checkpoints/step-5"] * 2
    assert gathered(find_checkpoint(tmp_path), "user")[0].tobytes() == rows.tobytes()

    writers = [CheckpointWriter(tmp_path, 6, Rank(r, 2, [])) for r in range(2)]
    for writer in writers:
        writer.begin()
    (tmp_path / "checkpoints/.step-6.tmp/user").write_text("in the way")
    data = blocks(rows, states, np.arange(9), (0, 6))
    writers[1].write_table_part("user", 1, data, n_ids=9, rows=9, width=6, columns=(0, 6))
    writers[1].write_state({})
    together = [(w._written, w._segments, w._failure) for w in writers]
    for writer in writers:
        writer._ranks.things = together
        with pytest.raises(CheckpointError, match=r"step 6 could not be written: rank 1: .*part-1.h5"):
            writer.commit()
    assert steps_in(tmp_path) == [5]
    assert not (tmp_path / "checkpoints/.step-6.tmp").exists()


@pytest.mark.parametrize("name", ["a", "wide/C1", "..", ".hidden", "50%", "%2F", "dense.h5", "é ü"])
def test_names_survive_as_file_names(name):
    assert unquoted(quoted(name)) == name
    assert "/" not in quoted(name) and not quoted(name).startswith(".") and quoted(name) != "dense.h5"


def damage_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": (lambda f: damage_byte(f / "user/part-0.h5"), "user/part-0.h5 has another checksum"),
    "a short file": (lambda f: os.truncate(f / "dense.h5", 100), "dense.h5 has 100 bytes"),
    "a missing file": (lambda f: (f / "state.json").unlink(), "state.json cannot be read"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "manifest.json: cannot be read"),
    "half a manifest": (lambda f: os.truncate(f / "manifest.json", 50), "manifest.json: is not the manifest"),
    "another version": (
        lambda f: (f / "manifest.json").write_text('{"format": "x", "version": 9, "files": {}, "step": 1}'),
        "version 9",
    ),
}


@pytest.mark.parametrize(("harm", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_newest_is_named_and_the_older_used(tmp_path, harm, message):
    save(tmp_path, 10)
    newest = save(tmp_path, 20, best=0.7)
    harm(newest)
    with pytest.warns(UserWarning, match=message.replace(".", r"\.") + ".*") as caught:
        assert find_checkpoint(tmp_path).step == 10
    assert "step-20" in str(caught[0].message) and "step-10 used" in str(caught[0].message)
    with pytest.raises(CheckpointError, match=message.replace(".", r"\.")):
        find_checkpoint(tmp_path, "best")
    with pytest.raises(CheckpointError, match=message.replace(".", r"\.")):
        find_checkpoint(tmp_path, str(newest))


def bytes_in(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("harm", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_resume_sets_damaged_newer_ones_aside_and_loses_none(tmp_path, harm, message):
    save(tmp_path, 10)
    folders, left = [save(tmp_path, 20), save(tmp_path, 30)], []
    for folder in folders:
        harm(folder)
        left.append(bytes_in(folder))
    with pytest.warns(UserWarning, match="damaged checkpoint") as caught:
        checkpoint = resumed_from(tmp_path, "auto", Alone())
    assert checkpoint is not None and checkpoint.step == 10
    told = [str(w.message) for w in caught]
    assert "step-10 used" in told[0] and all(message in text for text in told)
    kept = [text.partition(" kept as ")[2].partition(": ")[0] for text in told[1:]]
    assert kept == [str(tmp_path / f"checkpoints/damaged-step-{n}") for n in (30, 20)]
    assert [bytes_in(Path(path)) for path in reversed(kept)] == left
    assert steps_in(tmp_path) == [10]
    harm(save(tmp_path, 20))  # written again by the resumed run, and damaged again
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        resumed_from(tmp_path, "auto", Alone())
    names = {"step-10", "damaged-step-20", "damaged-step-20.2", "damaged-step-30"}
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == names
    save(tmp_path, 40)
    prune(tmp_path, 1)
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == names - {"step-10"} | {"step-40"}


def test_what_a_run_resumes_from(tmp_path):
    alone = Alone()
    assert resumed_from(tmp_path, "auto", alone) is None
    first = save(tmp_path, 10)
    newer = save(tmp_path, 20)
    assert resumed_from(tmp_path, "never", alone) is None
    assert resumed_from(tmp_path, "auto", alone).step == 20
    with pytest.raises(CheckpointError, match=r"of step 10, but .* has a newer checkpoint \(step 20\)"):
        resumed_from(tmp_path, str(first), alone)
    damage_byte(newer / "user/part-0.h5")
    with pytest.raises(CheckpointError, match=r"no whole checkpoint: .*another checksum"):
        resumed_from(tmp_path, str(newer), alone)  # asked for by name, so nothing else will do
    assert steps_in(tmp_path) == [10, 20]
    with pytest.warns(UserWarning, match=r"kept as .*damaged-step-20: .*another checksum"):
        assert resumed_from(tmp_path, str(first), alone).step == 10
    damage_byte(first / "dense.h5")
    with pytest.raises(CheckpointError, match=r"no whole checkpoint: .*another checksum"):
        resumed_from(tmp_path, "auto", alone)  # not anew: that would take the folder from what may be mended
    assert steps_in(tmp_path) == [10]


def test_a_replacement_that_was_killed_is_resumed_from(tmp_path):
    save(tmp_path, 4)
    folder = tmp_path / "checkpoints"
    (folder / "step-4").rename(folder / ".step-4.old")
    assert resumed_from(tmp_path, "auto", Alone()).step == 4


def test_last_best_and_path(tmp_path):
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        find_checkpoint(tmp_path)
    first = save(tmp_path, 9, best=0.8)
    save(tmp_path, 10)
    assert find_checkpoint(tmp_path).step == 10
    assert find_checkpoint(tmp_path, "best").step == 9
    assert find_checkpoint(Path("elsewhere"), str(first)).step == 9
    assert read_best(tmp_path) == {"step": 9, "metric": "auc", "value": 0.8}
    (tmp_path / "checkpoints/best.json").unlink()
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        find_checkpoint(tmp_path, "best")


def test_prune_keeps_the_newest_and_the_protected(tmp_path):
    for step in (2, 10, 9, 30):
        save(tmp_path, step)
    assert steps_in(tmp_path) == [2, 9, 10, 30]
    assert prune(tmp_path, 2, {2}) == [9]
    assert steps_in(tmp_path) == [2, 10, 30]
    CheckpointWriter(tmp_path, 30).prune(1)
    assert steps_in(tmp_path) == [30]


def test_of_a_checkpoint_that_is_a_link_only_the_link_goes(tmp_path):
    theirs = save(tmp_path / "other", 2)
    for step in (10, 30):
        save(tmp_path, step)
    (tmp_path / "checkpoints/step-2").symlink_to(theirs)
    assert prune(tmp_path, 1) == [2, 10]
    assert steps_in(tmp_path) == [30] and find_checkpoint(tmp_path / "other").step == 2
    (tmp_path / "checkpoints/.step-40.tmp").symlink_to(theirs)
    remove_leftovers(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-30"]
    assert find_checkpoint(tmp_path / "other").step == 2


def test_the_same_step_is_replaced_and_leftovers_go(tmp_path):
    save(tmp_path, 4, seed=1)
    save(tmp_path, 4, seed=2)
    assert gathered(find_checkpoint(tmp_path), "user")[0].tobytes() == table(2)[0].tobytes()
    folder = tmp_path / "checkpoints"
    (folder / ".step-8.tmp/user").mkdir(parents=True)
    (folder / "step-4").rename(folder / ".step-4.old")  # killed between the two renames of a replacement
    remove_leftovers(tmp_path)
    assert [p.name for p in folder.iterdir()] == ["step-4"]
    assert find_checkpoint(tmp_path).step == 4


def test_what_does_not_fit_is_named(tmp_path):
    checkpoint = Checkpoint(save(tmp_path, 3))
    states = {"moment": (1, 1), "sum_of_squares": (1,)}
    checkpoint.check_tables(["user"])
    others = {"top.mean": (3,), "n": ()}
    checkpoint.check_dense({"top.weight": (2, 3)}, others)
    checkpoint.check_dense({}, {"n": ()}, some=True)
    bad = [
        (lambda: checkpoint.check_tables(["user", "item"]), r"no table 'item'. It has: user"),
        (lambda: checkpoint.check_tables([]), r"has table 'user', which the model has not"),
        (lambda: list(checkpoint.table_parts("item")), r"no table 'item'"),
        (
            lambda: checkpoint.check_table("user", rows=ROWS, width=8, states=states),
            r"width 6, the model's has 8. Set model.width = 6",
        ),
        (
            lambda: checkpoint.check_table("user", rows=9, width=6, states=states),
            r"rows 1000.*embedding.tables.user.rows = 1000",
        ),
        (
            lambda: checkpoint.check_table("user", rows=ROWS, width=6, states={"exp_avg": (1, 1)}),
            r"states moment .*keeps exp_avg \(one number a value\)",
        ),
        (
            lambda: checkpoint.check_table("user", rows=ROWS, width=6, states={"moment": (1,), "sum_of_squares": (1,)}),
            r"moment \(one number a value\).*keeps moment \(one number a row\)",
        ),
        (
            lambda: checkpoint.check_dense({"top.weight": (2, 3), "top.bias": (2,)}, others),
            r"no dense parameter 'top.bias'",
        ),
        (lambda: checkpoint.check_dense({"top.weight": (3, 3)}, others), r"shape \[2, 3\], the model's has \[3, 3\]"),
        (lambda: checkpoint.check_dense({}, others), r"'top.weight', which the model has not"),
        (lambda: checkpoint.check_dense({}, {"a": ()}, some=True), r"no dense parameter that is not trained.*'a'"),
        (lambda: checkpoint.check_dense({}, {"n": (2,)}, some=True), r"'n' has shape \[\], the model's has \[2\]"),
        (lambda: checkpoint.check_dense({"top.weight": (2, 3)}, {"n": ()}), r"'top.mean', which the model has not"),
    ]
    for call, message in bad:
        with pytest.raises(CheckpointError, match=message):
            call()


def test_a_table_that_is_not_all_there_is_refused(tmp_path):
    rows, states = table()
    writer = CheckpointWriter(tmp_path, 1)
    writer.begin()
    data = blocks(rows, states, np.arange(ROWS - 1), (0, WIDTH))
    writer.write_table_part("user", 0, data, n_ids=ROWS - 1, rows=ROWS, width=WIDTH, columns=(0, WIDTH))
    writer.write_state({})
    checkpoint = Checkpoint(writer.commit())
    with pytest.raises(CheckpointError, match=r"hold 5994 values, the table has 1000 x 6 = 6000"):
        checkpoint.check_table("user", rows=ROWS, width=WIDTH, states={"moment": (1, 1), "sum_of_squares": (1,)})


def test_a_failed_write_leaves_the_previous_checkpoint(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(TypeError, match="JSON"):
        CheckpointWriter(tmp_path, 2).write_state({"x": object()})
    assert find_checkpoint(tmp_path).step == 1


def test_the_documented_layout_is_what_is_written(tmp_path):
    path = save(tmp_path, 1)
    assert sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()) == [
        "dense.h5", "manifest.json", "state.json", "user/part-0.h5",
    ]  # fmt: skip
    with h5py.File(path / "user/part-0.h5") as file:
        shape = {"rows": ROWS, "width": WIDTH, "column_start": 0, "column_stop": 6}
        assert dict(file.attrs) == {"table": "user", **shape, "hashed": False}
        assert file["ids"].dtype == np.int64 and file["rows"].shape == (ROWS, WIDTH)
        assert sorted(file["state"]) == ["moment", "sum_of_squares"]


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_checkpoint import save, prune
folder = Path({folder!r})
step = int(sys.argv[1])
print("ready", flush=True)
while True:
    step += 1
    save(folder, step, seed=step, parts=[("user", k) for k in range(3)], best=step)
    prune(folder, 2)
"""


def test_killed_at_any_instant_a_whole_checkpoint_is_left(tmp_path):
    save(tmp_path, 1, seed=1)
    script = WRITER.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    delays, last, torn, kills = random.Random(1), 1, 0, 0
    while kills < 6 or (kills < 40 and not (last > 1 and torn)):
        kills += 1
        process = subprocess.Popen([sys.executable, "-c", script, str(last)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.02 + delays.random() * 0.15)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        torn += any(p.name.startswith(".") for p in (tmp_path / "checkpoints").iterdir())
        checkpoint = find_checkpoint(tmp_path)  # a warning would be an error: what has the name is whole
        assert checkpoint.step >= last
        for block in checkpoint.table_parts("user"):
            assert block.rows.tobytes() == table(checkpoint.step)[0][block.ids].tobytes()
        last = checkpoint.step
    assert last > 1 and torn > 0
    remove_leftovers(tmp_path)
    assert not [p for p in (tmp_path / "checkpoints").iterdir() if p.name.startswith(".")]


def test_the_documented_program_writes_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs/checkpoint.md").read_text()
    program = text.partition("```python\n")[2].partition("```")[0]
    exec(program, {})
    checkpoint = find_checkpoint(tmp_path / "runs/mine")
    assert checkpoint.step == 0
    checkpoint.check_tables(["user"])
    checkpoint.check_table("user", rows=1000, width=16, states={"accumulator": (1,)})
    assert sum(len(block.ids) for block in checkpoint.table_parts("user")) == 1000
    with pytest.raises(CheckpointError, match=r"has no dense\.h5"):
        checkpoint.dense()
