"""What runs have learned, read from their checkpoints, and whether two of them are equal to rounding.

On other ranks sums have another order, so such runs are compared in float64, without dropout, whose masks are drawn by
rank.
"""

from pathlib import Path

import numpy as np
import pytest

from hpcrec.checkpoint.checkpoint import find_checkpoint
from tests.training.test_kills import values_in

TOLERANCE = 1e-9  # of the largest value of a table or parameter, in float64


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
    for part, values in theirs["eval"].items():
        assert mine["eval"][part] == pytest.approx(values, abs=1e-9), part
