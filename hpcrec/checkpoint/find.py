"""Which checkpoint is taken: the newest whole one, the best, or one that was named. Knows folders, and no contents."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrec.checkpoint import damaged, files
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.comm.failure import agree
from hpcrec.comm.ranks import Alone, Ranks
from hpcrec.errors import CheckpointError, UnreadableError
from hpcrec.training.ranks import on_root

_OLDER = (
    " No checkpoint was changed. Start again when it can be read; to go on from an older one, rename {path} to a name "
    "that does not begin with step-."
)


def find_checkpoint(
    folder: Path, which: str = "last", ranks: Ranks | None = None, *, finite: bool = False
) -> Checkpoint:
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
    finite : bool
        Of ``last``, those alone whose weights and optimizer state are all finite.

    Raises
    ------
    CheckpointError
        There is none, or none that is whole; on every rank.
    UnreadableError
        Whether one is whole cannot be found out just now, for a file of it cannot be read; on every rank.
    """
    ranks = ranks or Alone()
    folder = Path(folder)
    candidates: list[Path] = on_root(ranks, lambda: files.candidates(folder, which, finite=finite))
    problems: list[str] = []
    for path in candidates:
        try:
            problem = problem_of(path, ranks)
        except UnreadableError as error:
            raise UnreadableError(f"{error}{_OLDER.format(path=path) if which == 'last' else ''}") from error
        if problem is None:
            if problems and ranks.rank == 0:
                warnings.warn(f"damaged checkpoint passed over, {path.name} used: {'; '.join(problems)}", stacklevel=2)
            return _opened(path, ranks)
        problems.append(problem)
    raise CheckpointError(f"no whole checkpoint: {'; '.join(problems)}. Start from another one, or train anew.")


def _opened(path: Path, ranks: Ranks) -> Checkpoint:
    """The same on every rank, or an error on every rank; collective."""
    found, error = None, None
    try:
        found = Checkpoint(path)
    except Exception as caught:
        error = caught
    agree(ranks, error)
    assert found is not None, "or it was an error"
    return found


def problem_of(path: Path, ranks: Ranks) -> str | None:
    """What is wrong with a checkpoint, None where it is whole; collective: each rank reads its share of the files.

    Raises
    ------
    UnreadableError
        One of its files cannot be read just now; on every rank.
    """
    try:
        manifest: dict[str, Any] = on_root(ranks, lambda: files.read_manifest(path))
    except CheckpointError as error:
        return str(error).rstrip(".")
    found = files.damage(path, manifest, ranks) or damaged.noted_damage(path, manifest, ranks)
    if found is None and (base := files.base_of(path, manifest)) is not None:
        found = on_root(ranks, lambda: base_problem(path, manifest, base)) or problem_of(base, ranks)
    return found


def base_problem(path: Path, manifest: Mapping[str, Any], base: Path) -> str | None:
    """Whether the checkpoint that one needs is there, the same as then, and needs none itself."""
    try:
        same = files.manifest_digest(base) == manifest["base"]["sha256"]
    except UnreadableError:
        raise
    except OSError as error:
        return f"{path} needs {base}, which cannot be read ({error.strerror})"
    fits = same and "base" not in files.read_manifest(base)
    return None if fits else f"{path} needs {base}, which is not the one that it was written with"
