"""Long work on files says at each MiB, or file, that it comes on: checking, removing and writing a checkpoint."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcrec.checkpoint import files, saver
from hpcrec.checkpoint.checkpoint import CheckpointWriter, find_checkpoint, prune
from hpcrec.checkpoint.resume import resumed_from
from hpcrec.comm.aside import Aside
from hpcrec.comm.ranks import Alone
from hpcrec.errors import CheckpointError

MIB = 1 << 20


class Counting(Alone):
    """Counts what is said."""

    def __init__(self) -> None:
        self.said = 0

    def comes_on(self) -> None:
        self.said += 1


def save(run: Path, step: int, ranks: Counting) -> None:
    writer = CheckpointWriter(run, step, ranks, comes_on=ranks.comes_on)
    writer.begin()
    for part in range(4):
        blocks = ((np.arange(1024) + 1024 * b, np.ones((1024, 128), np.float32), {}) for b in range(8))
        writer.write_table_part("t", part, blocks, n_ids=8192, rows=32768, width=128, columns=(0, 128))
    writer.write_state({})
    writer.commit()


def test_writing_says_so_by_the_block(tmp_path: Path) -> None:
    ranks = Counting()
    save(tmp_path, 1, ranks)
    assert ranks.said >= 4 * 8


def test_checking_says_so_by_the_mib(tmp_path: Path) -> None:
    save(tmp_path, 1, Counting())
    ranks = Counting()
    assert find_checkpoint(tmp_path, "last", ranks).step == 1
    manifest = files.read_manifest(files.step_folder(tmp_path, 1))
    assert ranks.said >= sum(entry["bytes"] for entry in manifest["files"].values()) // MIB >= 16


def test_removing_says_so_by_the_file(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step, Counting())
    ranks = Counting()
    assert prune(tmp_path, 1, comes_on=ranks.comes_on) == [1]
    assert ranks.said == 6  # four parts, state and manifest
    files.step_folder(tmp_path, 2).rename(files.hidden_folder(tmp_path, 2))
    assert resumed_from(tmp_path, "auto", ranks) is None
    assert ranks.said == 12 and not files.hidden_folder(tmp_path, 2).exists()


def failing_at_state(run: Path, ranks: Counting) -> CheckpointWriter:
    """Four parts of step 1 are written, and its state is not."""
    writer = CheckpointWriter(run, 1, ranks)
    writer.begin()
    for part in range(4):
        blocks = [(np.arange(2), np.ones((2, 2), np.float32), {})]
        writer.write_table_part("t", part, blocks, n_ids=2, rows=2, width=2, columns=(0, 2))
    (writer.hidden / files.STATE).mkdir()
    writer.write_state({})
    return writer


def test_removing_what_could_not_be_committed_says_so_by_the_file_to_whoever_waits(tmp_path: Path) -> None:
    first, others = Counting(), Counting()
    writer = failing_at_state(tmp_path, first)
    assert first.said == 0
    with pytest.raises(CheckpointError, match=r"step 1 could not be written: rank 0: .*state\.json"):
        writer.commit(others)
    assert (first.said, others.said) == (0, 4) and not writer.hidden.exists()


def test_what_could_not_be_committed_and_is_not_removed_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = failing_at_state(tmp_path, Counting())

    def refused(path: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        with pytest.raises(CheckpointError, match=r"step 1 could not be written: rank 0: .*state\.json"):
            writer.commit()
    save(tmp_path, 1, Counting())
    assert find_checkpoint(tmp_path).step == 1


def test_removing_leftovers_before_steps_go_on_is_said_where_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint beside steps is begun on the communicator of the steps; the other says nothing until it works."""
    save(tmp_path, 1, Counting())
    files.step_folder(tmp_path, 1).rename(files.hidden_folder(tmp_path, 1))
    main, aside = Counting(), Aside.__new__(Aside)
    aside._tag = None  # as between two checkpoints
    world = SimpleNamespace(main=main, aside=aside)
    parts = SimpleNamespace(world=world, pipeline=SimpleNamespace(rest=lambda: None), store=None)
    begun = CheckpointWriter.begin

    class BegunError(Exception):
        pass

    def only(writer: CheckpointWriter) -> None:
        begun(writer)
        raise BegunError

    monkeypatch.setattr(CheckpointWriter, "begin", only)
    session: Any = SimpleNamespace(parts=parts, step=2)
    with pytest.raises(BegunError):
        saver.Saver(session, tmp_path, background=True, full_every=1).save({}, lambda comes_on: None)
    assert main.said == 6 and not files.hidden_folder(tmp_path, 1).exists()  # four parts, state and manifest
