"""Checkpoints made without a run: tables cut as one likes, a dynamic one, dense parameters, and damage to them."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcrec.checkpoint.checkpoint import CheckpointWriter
from hpcrec.checkpoint.files import entry_of
from hpcrec.checkpoint.parts import Admission
from hpcrec.checkpoint.residuals import Unsent
from hpcrec.data import checksum
from hpcrec.dense.dct_choose import Counts
from hpcrec.dense.residuals import Piece, Residuals

ROWS, WIDTH = 50, 6
DYNAMIC_IDS = np.random.default_rng(0).permutation(np.array([-(2**63), 2**63 - 1, *range(-9, 99, 3)], np.int64))


def fingerprint(path: Path) -> dict[str, Any]:
    """The entry of a file in a manifest, by what is on disk."""
    return entry_of(path.stat().st_size, checksum.of_file(path))


def values_of(seed: int, ids: np.ndarray, width: int | None) -> np.ndarray:
    """Values that depend on the id alone."""
    shape = (2**10,) if width is None else (2**10, width)
    return np.random.default_rng(seed).random(shape)[ids % 2**10].astype(np.float32)


def write(
    folder: Path, *, step: int = 7, parts: int = 2, shard: str = "row", state: dict[str, Any] | None = None
) -> Path:
    """A run folder with one checkpoint: ``user`` (adam and a state a row), ``tag@wide`` and the dynamic ``any``."""
    writer = CheckpointWriter(folder, step)
    writer.begin()
    order = np.random.default_rng(1).permutation(ROWS)
    for part in range(parts):
        if shard == "row":
            ids, columns = order[part::parts], (0, WIDTH)
        else:
            ids, columns = order, (WIDTH * part // parts, WIDTH * (part + 1) // parts)
        states = {"exp_avg": values_of(4, ids, WIDTH)[:, slice(*columns)], "sum": values_of(5, ids, None)}
        rows = values_of(3, ids, WIDTH)[:, slice(*columns)]
        writer.write_table_part(
            "user", part, [(ids, rows, states)], n_ids=len(ids), rows=ROWS, width=WIDTH, columns=columns
        )
        mine = np.array_split(DYNAMIC_IDS, parts)[part]
        place = np.searchsorted(np.sort(DYNAMIC_IDS), mine)
        blocks = [(mine[:5], values_of(6, mine[:5], 3), {}), (mine[5:], values_of(6, mine[5:], 3), {})]
        known = Admission(
            counts=place,
            clocks=place % 5,
            pending_ids=np.array([100, 101][: 2 if part == 0 else 0], np.int64),
            pending_counts=np.array([1, 2][: 2 if part == 0 else 0], np.int64),
            pending_clocks=np.array([2, 2][: 2 if part == 0 else 0], np.int64),
            clock=9,
            evicted=3 if part == 0 else 0,
            refused=1 if part == 0 else 0,
        )
        columns = (0, 3)
        shape = {"n_ids": len(mine), "rows": 99, "width": 3, "columns": columns}
        writer.write_table_part("any", part, blocks, **shape, dynamic=True, admission=known)
    ids = np.arange(9)
    wide = [(ids, values_of(8, ids, 1), {})]
    writer.write_table_part("tag/wide", 0, wide, n_ids=9, rows=9, width=1, columns=(0, 1), hashed=True)
    weight = np.random.default_rng(2).random((4, 3)).astype(np.float32)
    adam = {"step": np.float32(step), "exp_avg": weight / 2, "exp_avg_sq": weight**2}
    writer.write_dense({"top.weight": weight}, {"top.weight": adam}, {"place": np.arange(3)})
    writer.write_residuals(Unsent(Residuals({"top.weight": Piece(0, weight[0])}), Counts(), 0.1), part=0, ranks=1)
    told = {"seed": 1, "dtype": "torch.float32", "progress": {"samples": 91}, "ran_on": {"ranks": 4}}
    writer.write_state({**told, **(state or {})})
    return writer.commit()


def change(checkpoint: Path, name: str, how: Callable[[h5py.File], None]) -> None:
    """Changes a file of a checkpoint and, so that it counts as whole, its fingerprint."""
    with h5py.File(checkpoint / name, "r+") as file:
        how(file)
    renew(checkpoint, [name])


def renew(checkpoint: Path, names: Iterable[str]) -> None:
    """Makes the manifest say what these files are now; those that are gone leave it."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name in names:
        manifest["files"].pop(name, None)
        if (checkpoint / name).exists():
            manifest["files"][name] = fingerprint(checkpoint / name)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
