"""Which ways there are to sum dense gradients, by the name that ``dense.reducer`` gives them.

Knows what has to be installed for each; nothing of gradients.
"""

from collections.abc import Callable
from typing import Any

import torch

from hpcrec.comm.collectives import Collectives
from hpcrec.dense.horovod import HorovodAllreduce, import_horovod
from hpcrec.dense.mpi import DirectAllreduce, MpiAllreduce
from hpcrec.errors import ConfigError, MissingError


class OneRank:
    """Sums over one dense rank: what it has. Needs no library."""

    takes_gpu = True  # see HorovodAllreduce

    def start(self, flat: torch.Tensor, name: str) -> None:
        """Nothing is to be added to ``flat``."""

    def wait(self, handle: Any) -> None:
        """The sum is there."""

    def cancel(self, handle: Any) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing to take down."""

    def facts(self) -> dict[str, bool]:
        """As ``HorovodAllreduce.facts``."""
        return {}


Sums = HorovodAllreduce | MpiAllreduce | OneRank
REDUCERS: dict[str, Callable[[Collectives], HorovodAllreduce | MpiAllreduce]] = {
    "horovod": HorovodAllreduce,
    "mpi": MpiAllreduce,
    "direct": DirectAllreduce,
}


def reducer_at_hand(dense: Collectives, *, threads: bool) -> tuple[str, str]:
    """What is taken where ``dense.reducer`` is unset, and why that is not Horovod, if it is not; collective.

    Parameters
    ----------
    dense : Collectives
        The dense ranks. One alone needs no reducer, and looks for none.
    threads : bool
        Whether MPI lets two threads of a rank communicate at once, as Horovod's does beside others.
    """
    if dense.size == 1:
        return "horovod", ""
    why = "" if threads else "this MPI library does not let two threads communicate at once (MPI_THREAD_MULTIPLE)"
    if threads:
        try:
            import_horovod()
        except MissingError as error:
            why = str(error)
    reasons = [reason for reason in dense.allgather(why) if reason]
    return ("mpi", reasons[0]) if reasons else ("horovod", "")


def make_allreduce(name: str, dense: Collectives) -> Sums:
    """The way called ``name``, on the dense ranks; collective over them. On one of them there is nothing to add.

    Raises
    ------
    ConfigError
        No such way.
    MissingError
        Horovod is asked for and not installed.
    """
    if name not in REDUCERS:
        raise ConfigError(f"dense.reducer is {name!r}. Allowed: {', '.join(map(repr, REDUCERS))}.")
    return REDUCERS[name](dense) if dense.size > 1 else OneRank()
