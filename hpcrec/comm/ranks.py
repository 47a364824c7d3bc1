"""Ranks that work together on files, as `collectives.Collectives` shows them, or one process alone. Imports no MPI."""

from typing import Any, Protocol


class Ranks(Protocol):
    """Who works on it; ``comm.collectives.Collectives`` is one."""

    rank: int
    size: int

    def allgather(self, thing: Any) -> list[Any]:
        """Small Python objects from every rank, in rank order."""

    def bcast(self, thing: Any, root: int = 0) -> Any:
        """A small Python object from ``root``."""

    def comes_on(self) -> None:
        """Says that work on files, for which the other ranks wait, has come on; until this rank's next collective."""


class Alone:
    """One process, without MPI."""

    rank, size = 0, 1

    def allgather(self, thing: Any) -> list[Any]:
        """See `Ranks`."""
        return [thing]

    def bcast(self, thing: Any, root: int = 0) -> Any:
        """See `Ranks`."""
        del root
        return thing

    def comes_on(self) -> None:
        """See `Ranks`."""
