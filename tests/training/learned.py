"""What runs have learned, read from their checkpoints, and whether two of them are equal: bit for bit, or to rounding.

On other ranks sums have another order, so such runs are compared in float64, without dropout, whose masks are drawn by
rank.
"""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcrec.checkpoint.checkpoint import find_checkpoint

TOLERANCE = 1e-9  # of the largest value of a table or parameter, in float64


def values_in(file: Path) -> dict[str, np.ndarray]:
    """All of an HDF5 file, by name."""
    found: dict[str, np.ndarray] = {}

    def take(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            found[name] = thing[()]

    with h5py.File(file, "r") as opened:
        opened.visititems(take)
    return found


def contents(folder: Path) -> dict[str, Any]:
    """Every value of every table, by id and column, from the base too; each must be there once."""
    checkpoint = find_checkpoint(folder.parent.parent, str(folder))
    out: dict[str, Any] = {}
    for table in checkpoint.tables:
        seen: dict[tuple[int, int], Any] = {}
        for block in checkpoint.table_parts(table):
            for i, number in enumerate(block.ids.tolist()):
                states = {n: s[i].tobytes() for n, s in sorted(block.states.items())}
                assert (number, block.columns[0]) not in seen, (table, number)
                seen[number, block.columns[0]] = block.rows[i].tobytes(), states
        out[table] = seen
    return out


def check_equal(checkpoint: Path, reference: Path) -> None:
    """Rows, dense parameters, optimizer states, position and what was measured so far, bit for bit."""
    files = sorted(str(p.relative_to(reference)) for p in reference.rglob("*.h5"))
    assert files == sorted(str(p.relative_to(checkpoint)) for p in checkpoint.rglob("*.h5"))
    assert len(files) >= 4
    assert contents(checkpoint) == contents(reference)
    for name in (name for name in files if "/" not in name):
        mine, theirs = values_in(checkpoint / name), values_in(reference / name)
        assert mine.keys() == theirs.keys() and len(theirs) >= 2, name
        for key in theirs:
            assert mine[key].dtype == theirs[key].dtype and mine[key].tobytes() == theirs[key].tobytes(), (name, key)
    states = [json.loads((folder / "state.json").read_text()) for folder in (checkpoint, reference)]
    assert [s["step"] for s in states] == [states[1]["step"]] * 2
    assert states[0]["progress"] == states[1]["progress"]


def learned(run: Path, step: int) -> dict[str, np.ndarray]:
    """By name: rows and states of each table in the order of ids, dense parameters and their optimizer's state."""
    folder = run / f"checkpoints/step-{step}"
    found = find_checkpoint(run, str(folder))
    out = {f"dense/{name}": values for name, values in values_in(folder / "dense.h5").items()}
    for table in found.tables:
        blocks = list(found.table_parts(table))
        assert {block.columns[0] for block in blocks} == {0}
        ids = np.concatenate([np.asarray(block.ids) for block in blocks])
        assert len(set(ids.tolist())) == len(ids) > 0
        order = np.argsort(ids)
        out[f"{table}/ids"] = ids[order]
        out[f"{table}/rows"] = np.concatenate([np.asarray(block.rows) for block in blocks])[order]
        for name in blocks[0].states:
            out[f"{table}/{name}"] = np.concatenate([np.asarray(block.states[name]) for block in blocks])[order]
    return out


def check_learned(run: Path, reference: Path, step: int) -> None:
    """Both have learned the same, to rounding, by that step."""
    mine, theirs = learned(run, step), learned(reference, step)
    assert mine.keys() == theirs.keys() and len(mine) >= 10
    for name, values in theirs.items():
        largest = max(1.0, float(np.abs(values).max()))
        np.testing.assert_allclose(mine[name], values, rtol=0, atol=TOLERANCE * largest, err_msg=name)


def check_told(mine: dict, theirs: dict) -> None:
    """Summaries of finished runs that counted the same and measured the same, to rounding."""
    for key in ("status", "steps", "samples", "skipped_steps"):
        assert mine[key] == theirs[key], key
    assert mine["status"] == "finished"
    assert leaves(mine["eval"]) == pytest.approx(leaves(theirs["eval"]), abs=1e-9)


def leaves(told: Any, name: str = "eval") -> dict[str, Any]:
    """The values of what holds others, each by its place, such as ``eval/calibration_by_decile/3/samples``."""
    if not isinstance(told, dict | list):
        return {name: told}
    parts = told.items() if isinstance(told, dict) else enumerate(told)
    return {place: value for key, part in parts for place, value in leaves(part, f"{name}/{key}").items()}
