"""Which ways there are to sum dense gradients, by the name that ``dense.reducer`` gives them."""

from collections.abc import Callable

from hpcrec.comm.collectives import Collectives
from hpcrec.dense.horovod import HorovodAllreduce
from hpcrec.dense.mpi import DirectAllreduce, MpiAllreduce
from hpcrec.errors import ConfigError

REDUCERS: dict[str, Callable[[Collectives], HorovodAllreduce | MpiAllreduce]] = {
    "horovod": HorovodAllreduce,
    "mpi": MpiAllreduce,
    "direct": DirectAllreduce,
}


def make_allreduce(name: str, dense: Collectives) -> HorovodAllreduce | MpiAllreduce:
    """The way called ``name``, on the dense ranks; collective over them.

    Raises
    ------
    ConfigError
        No such way.
    MissingError
        Horovod is asked for and not installed.
    """
    if name not in REDUCERS:
        raise ConfigError(f"dense.reducer is {name!r}. Allowed: {', '.join(map(repr, REDUCERS))}.")
    return REDUCERS[name](dense)
