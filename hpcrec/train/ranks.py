"""What files that several ranks write together need of a communicator, without MPI: ``comm.collectives`` fits it."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from hpcrec.errors import CheckpointError

T = TypeVar("T")


class Ranks(Protocol):
    """What is needed of ``comm.collectives.Collectives``."""

    rank: int
    size: int

    def allgather(self, thing: Any) -> list[Any]:
        """Things of every rank, in rank order."""

    def bcast(self, thing: Any, root: int = 0) -> Any:
        """The thing of ``root``."""


class Alone:
    """One rank, without MPI."""

    rank = 0
    size = 1

    def allgather(self, thing: Any) -> list[Any]:
        """Its own thing."""
        return [thing]

    def bcast(self, thing: Any, root: int = 0) -> Any:
        """Its own thing."""
        del root
        return thing


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
