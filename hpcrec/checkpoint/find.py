"""Which checkpoint is taken: the newest whole one, the best, or one that was named. Knows folders, and no contents."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrec.checkpoint import files
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.comm.ranks import Alone, Ranks
from hpcrec.errors import CheckpointError
from hpcrec.training.ranks import on_root


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
        problem = problem_of(path, ranks)
        if problem is None:
            if problems and ranks.rank == 0:
                warnings.warn(f"damaged checkpoint passed over, {path.name} used: {'; '.join(problems)}", stacklevel=2)
            return Checkpoint(path)
        problems.append(problem)
    raise CheckpointError(f"no whole checkpoint: {'; '.join(problems)}. Start from another one, or train anew.")


def problem_of(path: Path, ranks: Ranks) -> str | None:
    """What is wrong with a checkpoint, None where it is whole; collective: each rank reads its share of the files."""
    manifest, found = None, None
    if ranks.rank == 0:
        try:
            manifest = files.read_manifest(path)
        except CheckpointError as error:
            found = str(error).rstrip(".")
    manifest, found = ranks.bcast((manifest, found))
    found = found or files.damage(path, manifest, ranks)
    if found is None and (base := files.base_of(path, manifest)) is not None:
        found = ranks.bcast(base_problem(path, manifest, base) if ranks.rank == 0 else None) or problem_of(base, ranks)
    return found


def base_problem(path: Path, manifest: Mapping[str, Any], base: Path) -> str | None:
    """Whether the checkpoint that one needs is there, the same as then, and needs none itself."""
    try:
        same = files.manifest_digest(base) == manifest["base"]["sha256"]
    except OSError as error:
        return f"{path} needs {base}, which cannot be read ({error.strerror})"
    fits = same and "base" not in files.read_manifest(base)
    return None if fits else f"{path} needs {base}, which is not the one that it was written with"
