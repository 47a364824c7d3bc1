"""Which checkpoint a run goes on from, and what becomes of damaged ones beside it. Knows no contents of checkpoints."""

import warnings
from pathlib import Path

from hpcrec.checkpoint import files
from hpcrec.checkpoint.checkpoint import Checkpoint, find_checkpoint, remove_leftovers, steps_in
from hpcrec.checkpoint.find import problem_of
from hpcrec.comm.ranks import Ranks
from hpcrec.errors import CheckpointError
from hpcrec.training.ranks import on_root


def resumed_from(folder: Path, which: str, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint that a run in ``folder`` starts from, None where it starts anew; collective.

    First what a killed run left half done is undone. Damaged checkpoints that are newer than the one taken are renamed
    to ``damaged-step-<n>``: the run will write those steps again, and nothing is lost.

    Parameters
    ----------
    which : str
        ``auto``, ``never`` or the path of a checkpoint, as ``checkpoint.resume``.

    Raises
    ------
    CheckpointError
        None is whole; the one asked for is not; or a newer one in ``folder`` is, and would later be taken for this
        run's.
    """
    if which == "never":
        return None
    on_root(ranks, lambda: remove_leftovers(folder))
    if which == "auto" and not on_root(ranks, lambda: bool(steps_in(folder))):
        return None
    checkpoint = find_checkpoint(folder, "last" if which == "auto" else which, ranks)
    for newer in on_root(ranks, lambda: [step for step in steps_in(folder) if step > checkpoint.step]):
        _set_aside(folder, newer, checkpoint.step, which, ranks)
    return checkpoint


def _set_aside(folder: Path, newer: int, step: int, which: str, ranks: Ranks) -> None:
    problem = problem_of(files.step_folder(folder, newer), ranks)
    if problem is None:
        raise CheckpointError(
            f"checkpoint.resume is {which}, of step {step}, but {folder} has a newer checkpoint (step {newer}), which "
            "a later resume would take for this run's. Set another run.folder, or remove it."
        )
    aside = on_root(ranks, lambda: files.set_aside(folder, newer))
    if ranks.rank == 0:
        warnings.warn(f"damaged checkpoint kept as {aside}: {problem}", stacklevel=4)
