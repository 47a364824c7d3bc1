"""Which checkpoint a run goes on from, and what becomes of damaged ones beside it. Knows no contents of checkpoints."""

import contextlib
import warnings
from pathlib import Path

from hpcrec.checkpoint import files, saved
from hpcrec.checkpoint.checkpoint import Checkpoint, find_checkpoint, remove_leftovers, steps_in
from hpcrec.checkpoint.find import problem_of
from hpcrec.comm.ranks import Ranks
from hpcrec.errors import CheckpointError
from hpcrec.training.claim import UNCLAIMED, Claim, Unclaimed
from hpcrec.training.ranks import on_root


def resumed_from(folder: Path, which: str, ranks: Ranks, claim: Claim | Unclaimed = UNCLAIMED) -> Checkpoint | None:
    """The checkpoint that a run in ``folder`` starts from, None where it starts anew; collective.

    First what a killed run left half done is undone. Under ``auto`` it is the newest whole one; where that one has
    values that are not finite, and batches were being left out when it was written, the newest of finite values.
    Damaged checkpoints that are newer than the one taken are renamed to ``damaged-step-<n>``, those that are not finite
    to ``nonfinite-step-<n>``: the run will write those steps again, and nothing is lost.

    Parameters
    ----------
    which : str
        ``auto``, ``never`` or the path of a checkpoint, as ``checkpoint.resume``.
    claim : Claim, optional
        Of the run, where others may write its folder.

    Raises
    ------
    CheckpointError
        None is whole; the one asked for is not; or a newer one in ``folder`` is, and would later be taken for this
        run's.
    UnreadableError
        Whether one is whole cannot be found out just now. No checkpoint was renamed or removed.
    """
    if which == "never":
        return None
    on_root(ranks, lambda: remove_leftovers(folder, claim, ranks.comes_on))
    if which == "auto" and not on_root(ranks, lambda: bool(steps_in(folder))):
        return None
    checkpoint = find_checkpoint(folder, "last" if which == "auto" else which, ranks)
    if checkpoint.nonfinite:
        checkpoint = _of_finite_values(folder, checkpoint, which, ranks)
    # The newest first: what it needs of an older one is asked while that has its name.
    for newer in on_root(ranks, lambda: [step for step in reversed(steps_in(folder)) if step > checkpoint.step]):
        _set_aside(folder, newer, checkpoint.step, which, ranks, claim)
    return checkpoint


def _of_finite_values(folder: Path, newest: Checkpoint, which: str, ranks: Ranks) -> Checkpoint:
    """An older one than ``newest``, which is not finite, where that was the end of training; and what is said of it."""
    files_said = ", ".join(newest.nonfinite[:3]) + (", ..." if len(newest.nonfinite) > 3 else "")
    said = f"{newest.folder} holds weights or optimizer state that are not finite ({files_said})"
    _, left_out, _ = saved.skipped(newest)
    found = newest
    if which == "auto" and left_out:
        with contextlib.suppress(CheckpointError):  # there is none
            found = find_checkpoint(folder, "last", ranks, finite=True)
    if ranks.rank == 0 and found is newest:
        warnings.warn(f"{said}; it is gone on from", stacklevel=4)
    elif ranks.rank == 0:
        warnings.warn(f"{said}, and the last {left_out} batches were left out; {found.folder.name} used", stacklevel=4)
    return found


def _set_aside(folder: Path, newer: int, step: int, which: str, ranks: Ranks, claim: Claim | Unclaimed) -> None:
    if which == "auto" and on_root(ranks, lambda: _is_of_other_values(folder, newer)):
        on_root(ranks, lambda: files.set_aside(folder, newer, claim, "nonfinite"))
        return
    problem = problem_of(files.step_folder(folder, newer), ranks)
    if problem is None:
        raise CheckpointError(
            f"checkpoint.resume is {which}, of step {step}, but {folder} has a newer checkpoint (step {newer}), which "
            "a later resume would take for this run's. Set another run.folder, or remove it."
        )
    aside = on_root(ranks, lambda: files.set_aside(folder, newer, claim))
    if ranks.rank == 0:
        warnings.warn(f"damaged checkpoint kept as {aside}: {problem}", stacklevel=4)


def _is_of_other_values(folder: Path, step: int) -> bool:
    """Whether a checkpoint that has a manifest was passed over for values that are not finite."""
    try:
        files.read_manifest(files.step_folder(folder, step))
    except CheckpointError:
        return False
    return not files.is_finite(folder, step)
