"""What one of several ranks does for all of them: work on files by the first rank. Imports no MPI."""

from collections.abc import Callable
from typing import TypeVar

from hpcrec.comm.ranks import Ranks
from hpcrec.errors import CheckpointError

T = TypeVar("T")


def on_root(ranks: Ranks, work: Callable[[], T]) -> T:
    """Does ``work`` on rank 0; every rank has its result, or raises its error.

    Raises
    ------
    CheckpointError
        ``work`` failed on rank 0.
    """
    result, error = None, None
    if ranks.rank == 0:
        try:
            result = work()
        except (OSError, CheckpointError) as caught:
            error = str(caught)
    result, error = ranks.bcast((result, error))
    if error is not None:
        raise CheckpointError(error)
    return result
