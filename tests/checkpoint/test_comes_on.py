"""Long work on files says at each MiB, or file, that it comes on: checking, removing and writing a checkpoint."""

from pathlib import Path

import numpy as np

from hpcrec.checkpoint import files
from hpcrec.checkpoint.checkpoint import CheckpointWriter, find_checkpoint, prune
from hpcrec.checkpoint.resume import resumed_from
from hpcrec.comm.ranks import Alone

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
