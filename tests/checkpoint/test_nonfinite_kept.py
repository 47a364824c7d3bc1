"""Checkpoints of values that are not finite: said in the manifest, kept apart, gone on from where nothing is lost."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrec.checkpoint import files
from hpcrec.checkpoint.checkpoint import CheckpointWriter, find_checkpoint, prune, steps_in
from hpcrec.checkpoint.residuals import Unsent
from hpcrec.checkpoint.resume import resumed_from
from hpcrec.comm.ranks import Alone
from hpcrec.dense.dct_choose import Counts
from hpcrec.dense.residuals import Piece, Residuals

BAD = float("inf")


def save(
    run: Path,
    step: int,
    *,
    base: int | None = None,
    row: float = 1.0,
    state: float = 1.0,
    parameter: float = 1.0,
    moment: float = 1.0,
    buffer: float = 1.0,
    unsent: float = 1.0,
    left_out: int = 0,
    dtype: Any = np.float32,
) -> None:
    writer = CheckpointWriter(run, step, base=base)
    writer.begin()
    rows, states = np.ones((4, 2), dtype), np.ones((4,), dtype)
    rows[3, 1], states[0] = row, state
    writer.write_table_part("t", 0, [(np.arange(4), rows, {"sum": states})], n_ids=4, rows=4, width=2, columns=(0, 2))
    writer.write_dense(
        {"w": np.array([1.0, parameter])}, {"w": {"moment": moment, "step": 3}}, {"b": np.array([buffer])}
    )
    left = Residuals({"w": Piece(0, np.array([unsent, 1.0]))}, {})
    writer.write_residuals(Unsent(left, Counts()), part=0, ranks=1)
    writer.write_state({"skipped_steps": left_out, "skipped_in_a_row": left_out})
    writer.commit()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_in_any_type(tmp_path: Path, value: float, dtype: Any) -> None:
    save(tmp_path, 1, row=value, dtype=dtype)
    save(tmp_path, 2, dtype=dtype)
    manifests = [files.read_manifest(files.step_folder(tmp_path, step)) for step in (1, 2)]
    assert [files.nonfinite_files(m) for m in manifests] == [["t/part-0.h5"], []]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("state", ["t/part-0.h5"]),
        ("parameter", ["dense.h5"]),
        ("moment", ["dense.h5"]),
        ("unsent", ["residuals-0.h5"]),
        ("buffer", []),  # a model may hold inf there by design: a mask
    ],
)
def test_what_is_looked_at(tmp_path: Path, where: str, names: list[str]) -> None:
    save(tmp_path, 1, **{where: BAD})  # type: ignore[arg-type]
    assert files.nonfinite_files(files.read_manifest(files.step_folder(tmp_path, 1))) == names
    assert [Path(name).name for name in find_checkpoint(tmp_path).nonfinite] == [Path(name).name for name in names]


def test_a_large_finite_value_is_finite(tmp_path: Path) -> None:
    save(tmp_path, 1, row=3e38, parameter=1e308, unsent=-1e308)
    assert find_checkpoint(tmp_path).nonfinite == ()


def test_keep_counts_finite_ones_and_keeps_the_newest_of_the_others(tmp_path: Path) -> None:
    for step in range(1, 9):
        save(tmp_path, step, row=BAD if step in (2, 5, 7, 8) else 1.0)
        prune(tmp_path, 2)
    assert steps_in(tmp_path) == [4, 6, 8]
    save(tmp_path, 9)
    prune(tmp_path, 2)
    assert steps_in(tmp_path) == [6, 8, 9]


def test_an_increment_over_a_base_that_is_not_finite_is_not(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2, row=BAD)
    save(tmp_path, 3, base=2)
    assert not files.is_finite(tmp_path, 3) and find_checkpoint(tmp_path).nonfinite
    prune(tmp_path, 1)
    assert steps_in(tmp_path) == [1, 2, 3]  # the finite one; and the newest of the others, with its base


def test_auto_takes_the_newest_finite_one_where_batches_were_left_out(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    save(tmp_path, 3, row=BAD)
    save(tmp_path, 4, parameter=BAD, left_out=2)
    with pytest.warns(
        UserWarning, match=r"not finite \(.*dense\.h5\), and the last 2 batches were left out; step-2 used"
    ):
        found = resumed_from(tmp_path, "auto", Alone())
    assert found is not None and found.step == 2
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["nonfinite-step-3", "nonfinite-step-4", "step-1", "step-2"]
    again = resumed_from(tmp_path, "auto", Alone())
    assert again is not None and again.step == 2


def test_auto_takes_the_newest_where_none_was_left_out(tmp_path: Path) -> None:
    """A weight may be infinite by design, and training go on with it."""
    save(tmp_path, 1)
    save(tmp_path, 2, parameter=BAD)
    with pytest.warns(UserWarning, match="it is gone on from"):
        found = resumed_from(tmp_path, "auto", Alone())
    assert found is not None and found.step == 2 and steps_in(tmp_path) == [1, 2]


def test_auto_takes_the_newest_where_none_is_finite(tmp_path: Path) -> None:
    save(tmp_path, 1, row=BAD, left_out=1)
    with pytest.warns(UserWarning, match="it is gone on from"):
        found = resumed_from(tmp_path, "auto", Alone())
    assert found is not None and found.step == 1


def test_a_finite_one_is_taken_in_silence_though_batches_were_left_out(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2, left_out=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = resumed_from(tmp_path, "auto", Alone())
    assert found is not None and found.step == 2


def test_finite_increments_of_a_damaged_base_are_damaged(tmp_path: Path) -> None:
    for step, base in ((2, None), (4, None), (6, 4), (8, 4)):
        save(tmp_path, step, base=base)
    rows = files.step_folder(tmp_path, 4) / "t/part-0.h5"
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged checkpoint") as caught:
        found = resumed_from(tmp_path, "auto", Alone())
    assert found is not None and found.step == 2
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["damaged-step-4", "damaged-step-6", "damaged-step-8", "step-2"]
    assert sum("damaged checkpoint kept as" in str(one.message) for one in caught) == 3
