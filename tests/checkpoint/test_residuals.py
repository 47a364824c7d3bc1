"""Unsent dense gradients in checkpoints: bit for bit through files, by dense rank, refused where they do not fit."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcrec.checkpoint.checkpoint import Checkpoint, CheckpointWriter
from hpcrec.checkpoint.files import MANIFEST
from hpcrec.checkpoint.residuals import Unsent, file_name
from hpcrec.dense.dct_choose import Counts
from hpcrec.dense.residuals import Piece, Residuals
from hpcrec.errors import CheckpointError

COUNTS = Counts(entries=10**12, kept=7, sent_bytes=2**40, plain_bytes=5, scheduled=4, drifted=3, sums=2, whole=1)


def unsent_of(part: int) -> Unsent:
    rng = np.random.default_rng(part)
    left = rng.standard_normal(9).astype(np.float32)
    left[:2] = -0.0, 1e-42
    first = {"top/0.weight": Piece(0, left, 0.125), "wide": Piece(0, rng.standard_normal(3))}
    return Unsent(Residuals(first, {"top/0.weight": Piece(4 + part, left[:2] * 3, 5e-324)}), COUNTS, 0.1)


def saved(folder: Path, ranks: int = 3, tables: tuple[str, ...] = ()) -> Checkpoint:
    writer = CheckpointWriter(folder, 5)
    writer.begin()
    for name in tables:
        ids = np.arange(4)
        writer.write_table_part(name, 0, [(ids, np.ones((4, 2)), {})], n_ids=4, rows=4, width=2, columns=(0, 2))
    for part in range(ranks):
        writer.write_residuals(unsent_of(part), part=part, ranks=ranks)
    writer.write_state({})
    return Checkpoint(writer.commit())


@pytest.mark.parametrize("ranks", [1, 3, 11])
def test_files_hold_every_bit(tmp_path: Path, ranks: int) -> None:
    checkpoint = saved(tmp_path, ranks)
    assert checkpoint.residual_ranks == ranks and checkpoint.tables == ()
    for part in range(ranks):
        found, wanted = checkpoint.unsent(part), unsent_of(part)
        assert (found.counts, found.density) == (COUNTS, 0.1)
        for kind in ("first", "second"):
            pieces, expected = getattr(found.residuals, kind), getattr(wanted.residuals, kind)
            assert pieces.keys() == expected.keys()
            for name, piece in pieces.items():
                assert (piece.start, piece.tau) == (expected[name].start, expected[name].tau)
                assert piece.left.dtype == expected[name].left.dtype
                assert piece.left.tobytes() == expected[name].left.tobytes()


def test_a_table_of_that_name_is_another_thing(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, 2, tables=(file_name(0), "residuals-"))
    assert checkpoint.tables == ("residuals-", file_name(0)) and checkpoint.residual_ranks == 2
    assert checkpoint.unsent(0).counts == COUNTS
    assert sum(len(block.ids) for block in checkpoint.table_parts(file_name(0))) == 4


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path).folder
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["files"][file_name(1)]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"residuals-0.h5: is of dense rank 0 of 3, .*files of 2 ranks"):
        Checkpoint(folder).unsent(0)
    whole = saved(tmp_path / "other")
    for change, said in (
        (lambda f: f["first"]["wide"].attrs.update(threshold=-1.0), r"start 0 and threshold -1.0"),
        (lambda f: f["first"]["wide"].attrs.update(threshold=1.0, start=-3), r"start -3"),
        (lambda f: f["second"]["top%2F0.weight"].write_direct(np.full(2, np.nan)), r"top%2F0.weight is float32 \[2\]"),
        (lambda f: f.attrs.pop("part"), r"is not as docs/checkpoint.md says \(KeyError"),
    ):
        with h5py.File(whole.folder / file_name(2), "r+") as file:
            change(file)
        with pytest.raises(CheckpointError, match=said):
            whole.unsent(2)
        whole = saved(tmp_path / "other")


def test_none_are_none(tmp_path: Path) -> None:
    assert saved(tmp_path, 0).residual_ranks == 0
