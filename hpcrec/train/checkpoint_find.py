"""Which checkpoint is taken: the newest whole one, the best, or one that was named. Knows folders, and no contents."""

import warnings
from pathlib import Path

from hpcrec.comm.ranks import Alone, Ranks
from hpcrec.errors import CheckpointError
from hpcrec.train import checkpoint_files as files
from hpcrec.train.checkpoint_reader import Checkpoint
from hpcrec.train.ranks import on_root


def find_checkpoint(folder: Path, which: str = "last", ranks: Ranks | None = None) -> Checkpoint:
    """A checkpoint whose files are as its manifest says; collective, the ranks share the reading.

    Parameters
    ----------
    folder : Path
        A run's folder.
    which : str
        ``last`` (a damaged newer one is named in a warning and the next older taken), ``best``, or the path of a
        checkpoint's folder.
    ranks : Ranks, optional
        Collectives of the ranks that call this; one rank by default.

    Raises
    ------
    CheckpointError
        There is none, or none that is whole; on every rank.
    """
    ranks = ranks or Alone()
    folder = Path(folder)
    candidates: list[Path] = on_root(ranks, lambda: files.candidates(folder, which))
    problems: list[str] = []
    for path in candidates:
        problem = files.problem(path, ranks)
        if problem is None:
            if problems and ranks.rank == 0:
                warnings.warn(f"damaged checkpoint passed over, {path.name} used: {'; '.join(problems)}", stacklevel=2)
            return Checkpoint(path)
        problems.append(problem)
    raise CheckpointError(f"no whole checkpoint: {'; '.join(problems)}. Start from another one, or train anew.")
