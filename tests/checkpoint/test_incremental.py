"""Checkpoints of the rows that have changed since another one: read together they are what a whole one is."""

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.checkpoint.checkpoint import Checkpoint, CheckpointWriter
from hpcrec.checkpoint.files import prune, steps_in
from hpcrec.checkpoint.find import find_checkpoint
from hpcrec.checkpoint.tools.convert import Conversion, convert
from hpcrec.checkpoint.tools.diff import diff
from hpcrec.checkpoint.tools.look import look
from hpcrec.checkpoint.tools.verify import verify
from hpcrec.comm.failure import ExitCodes
from hpcrec.config import Config
from hpcrec.errors import CheckpointError
from tests.checkpoint.test_background import CASES
from tests.devices import device_or_skip
from tests.exchange.test_auto import in_sequence
from tests.training.learned import contents
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import roles_for

STEPS, EVERY = 14, 2


def config_of(folder: Path, run: str, **sections: dict[str, Any]) -> Config:
    wanted = {**sections, "train": {"steps": STEPS, **sections.get("train", {})}}
    checkpoint = {"every": EVERY, "keep": 99, **sections.get("checkpoint", {})}
    return config_for(folder, **{**wanted, "checkpoint": checkpoint, "run": {"folder": str(folder / run)}})


def manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_text()))


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("case", [name for name in CASES if name != "thresholded"])
def test_what_changed_and_what_was_are_together_the_whole(
    folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = CASES[case]
    if "store" in sections:
        device_or_skip("emulated")
    write_data(folder / "data.h5", samples=200)
    roles = roles_for(MPI.COMM_WORLD.size)
    topology = roles[len(case) % len(roles)]
    some = {"topology": topology, "checkpoint": {"full_every": 3, "background": len(case) % 2 == 0}}
    for run, further in (("some", some), ("whole", {"topology": topology})):
        in_sequence(monkeypatch, first=2)  # copies of two tables
        assert commands.train(config_of(folder, run, **{**sections, **further})) == ExitCodes.FINISHED
    if MPI.COMM_WORLD.rank == 0:
        bases = []
        for step in range(EVERY, STEPS + 1, EVERY):
            one, other = (folder / run / f"checkpoints/step-{step}" for run in ("some", "whole"))
            assert contents(one) == contents(other), step
            bases.append(manifest(one).get("base", {}).get("step"))
        assert bases == [None, 2, 2, None, 8, 8, None]
    MPI.COMM_WORLD.Barrier()


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize(("stopped_at", "base"), [(4, None), (6, 8)])  # the first one after a start has all rows
def test_a_run_that_goes_on_from_what_changed_equals_the_uninterrupted(
    folder: Path, stopped_at: int, base: int | None
) -> None:
    write_data(folder / "data.h5", samples=200)
    sections: dict[str, Any] = {
        "topology": {"mode": "fused"},
        "checkpoint": {"full_every": 4},
        "embedding": {"optimizer": {"name": "adam", "lr": 0.05}, "tables": {"user": {"shard": "row"}}},
    }
    assert commands.train(config_of(folder, "whole", **sections)) == ExitCodes.FINISHED
    first = config_of(folder, "cut", **{**sections, "train": {"steps": stopped_at}})
    assert commands.train(first) == ExitCodes.FINISHED
    parallel_assert(manifest(folder / f"cut/checkpoints/step-{stopped_at}")["base"]["step"] == 2)
    assert commands.train(config_of(folder, "cut", **sections)) == ExitCodes.FINISHED
    last = [folder / run / f"checkpoints/step-{STEPS}" for run in ("cut", "whole")]
    if MPI.COMM_WORLD.rank == 0:
        bases = [manifest(path).get("base", {}).get("step") for path in last]
        assert bases == [base, 10]
        assert contents(last[0]) == contents(last[1])
    MPI.COMM_WORLD.Barrier()


def write(run: Path, step: int, ids: np.ndarray, value: float, base: int | None = None) -> Path:
    writer = CheckpointWriter(run, step, base=base)
    writer.begin()
    rows = np.full((len(ids), 3), value, np.float32)
    writer.write_table_part("user", 0, [(ids, rows, {})], n_ids=len(ids), rows=20, width=3, columns=(0, 3))
    writer.write_state({})
    return writer.commit()


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A whole checkpoint, and two that need it."""
    write(tmp_path, 1, np.arange(20), 1.0)
    write(tmp_path, 2, np.array([7, 3]), 2.0, base=1)
    write(tmp_path, 3, np.array([3, 19, 0]), 3.0, base=1)
    return tmp_path


def values(checkpoint: Checkpoint) -> np.ndarray:
    found = np.zeros(20)
    for block in checkpoint.table_parts("user"):
        found[block.ids] += block.rows[:, 0]
    return found


def test_rows_come_from_the_newer(three: Path) -> None:
    wanted = np.ones(20)
    wanted[[3, 19, 0]] = 3
    checkpoint = find_checkpoint(three)
    np.testing.assert_array_equal(values(checkpoint), wanted)
    assert checkpoint.base is not None and checkpoint.base.step == 1
    checkpoint.check_table("user", rows=20, width=3, states={})
    with pytest.raises(CheckpointError, match="has rows 20, the model's has 21"):
        checkpoint.check_table("user", rows=21, width=3, states={})


def test_what_is_needed_is_kept(three: Path) -> None:
    assert prune(three, 1) == [2]
    assert steps_in(three) == [1, 3]
    write(three, 4, np.arange(20), 4.0)
    assert prune(three, 1) == [1, 3]
    assert steps_in(three) == [4]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("gone", r"step-3 needs .*step-1, which cannot be read"),
        ("another", r"step-3 needs .*step-1, which is not the one that it was written with"),
        ("damaged", r"step-1/user/part-0.h5 has another checksum"),
        ("no whole one", r"step-3 needs .*step-2, which is not the one"),
    ],
)
def test_without_what_it_needs_it_is_damaged(three: Path, harm: str, message: str) -> None:
    base = three / "checkpoints/step-1"
    if harm == "gone":
        shutil.rmtree(base)
    elif harm == "another":
        write(three, 1, np.arange(20), 1.5)
    elif harm == "damaged":
        data = bytearray((base / "user/part-0.h5").read_bytes())
        data[-1] ^= 1
        (base / "user/part-0.h5").write_bytes(data)
    else:
        write(three, 3, np.array([1]), 3.0, base=2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            said = f"step {find_checkpoint(three).step}"
        except CheckpointError as error:
            said = str(error)
    assert any(re.search(message, text) for text in [said, *(str(w.message) for w in told)]), said


def test_parts_that_are_cut_otherwise_are_refused(three: Path) -> None:
    (three / "checkpoints/step-3/user/part-0.h5").rename(three / "checkpoints/step-3/user/part-1.h5")
    path = three / "checkpoints/step-3/manifest.json"
    path.write_text(path.read_text().replace("part-0", "part-1"))
    with pytest.raises(CheckpointError, match=r"part-0.h5 of table 'user' is not as in .*step-1, which it needs"):
        values(Checkpoint(three / "checkpoints/step-3"))


def test_the_tools_take_both_together(three: Path) -> None:
    newer = three / "checkpoints/step-3"
    assert verify(newer).problems == []
    assert look(newer)["base"] == 1
    assert look(newer)["tables"]["user"]["ids"] == 20
    whole = convert(newer, three / "whole", Conversion(parts=3))
    assert whole.base is None
    np.testing.assert_array_equal(values(whole), values(Checkpoint(newer)))
    assert diff(newer, three / "whole")["equal"]
    found = diff(newer, three / "checkpoints/step-2")["tables"]["user"]
    assert (found["ids"], found["rows_differ"]) == (20, 4)
    data = bytearray((three / "checkpoints/step-1/user/part-0.h5").read_bytes())
    data[-1] ^= 1
    (three / "checkpoints/step-1/user/part-0.h5").write_bytes(data)
    assert any("step-1/user/part-0.h5 has another checksum" in problem for problem in verify(newer).problems)
