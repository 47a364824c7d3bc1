"""What one of several ranks does for all of them: work on files by the first rank. Imports no MPI."""

from collections.abc import Callable
from typing import TypeVar

from hpcrec.comm.failure import agree
from hpcrec.comm.ranks import Ranks
from hpcrec.errors import CheckpointError, HpcrecError, UnreadableError

T = TypeVar("T")


def on_root(ranks: Ranks, work: Callable[[], T]) -> T:
    """Does ``work`` on rank 0; every rank has its result, or raises its error.

    Raises
    ------
    CheckpointError
        ``work`` could not be done on rank 0.
    UnreadableError
        A file could not be read there just now.
    HpcrecError
        It failed there by an error that nobody foresaw, which rank 0 raises as it is.
    """
    result, unforeseen = None, None
    error: tuple[type[HpcrecError], str] | None = None
    if ranks.rank == 0:
        try:
            result = work()
        except UnreadableError as caught:
            error = UnreadableError, str(caught)
        except (OSError, CheckpointError) as caught:
            error = CheckpointError, str(caught)
        except Exception as caught:
            unforeseen = caught
    result, error, told = ranks.bcast((result, error, None if unforeseen is None else repr(unforeseen)))
    if error is not None:
        kind, text = error
        raise kind(text)
    if told is not None:
        agree(ranks, unforeseen)
    return result
