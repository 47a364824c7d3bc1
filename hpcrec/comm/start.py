"""The start of a program on every rank: errors end the whole job, the launcher's MPI is ours, memory is kept."""

import ctypes
import functools
import gc
import time
from collections.abc import Mapping

from hpcrec.comm import board, failure
from hpcrec.comm.library import MPI
from hpcrec.comm.world import check_launch

# Under Slurm's PMIx ranks leave MPI_Init one after another, and in Open MPI 5 a rank that has not yet left crashes at a
# message of one that has (its issue 12495): 10 of 60 starts of 4 ranks on 4 nodes without this wait, 0 of 60 with it.
_LATE_S = 0.3


def start(environment: Mapping[str, str]) -> int:
    """Call it first and once, on every rank; collective. Returns this rank's number.

    Parameters
    ----------
    environment : mapping
        ``os.environ``, for what the launcher says there.

    Raises
    ------
    HpcrecError
        The launcher started several tasks, each of which believes to be alone.
    """
    keep_freed_memory()
    rank = start_unchecked(environment)
    failure.watch()
    board.open_board(environment.get(board.FOLDER), rank, MPI.COMM_WORLD.size)
    check_launch(MPI.COMM_WORLD, dict(environment))
    return rank


def start_unchecked(environment: Mapping[str, str]) -> int:
    """The same for a program that looks at the launch itself, and that a signal may end at once."""
    if "SLURM_STEP_ID" in environment:
        time.sleep(_LATE_S)
    failure.install(MPI.COMM_WORLD)
    return int(MPI.COMM_WORLD.rank)


def keep_freed_memory() -> bool:
    """Has the C library keep what is freed for the next step, instead of giving it back to the system.

    A step allocates tens of MB and frees them; handed back, each page is taken, cleared and mapped anew in every step:
    a third of the time of routing 1 million ids. Arrays above 1 GiB still go back. One arena for all threads, for
    those of the other threads give back what is above 32 MB whatever is set. Returns whether it was done: not on C
    libraries other than GNU's, which is only slower.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # malloc.h
    return bool(mallopt(arena_max, 1) and mallopt(trim_threshold, 2**31 - 1) and mallopt(mmap_threshold, 2**30))


@functools.cache
def spare_what_stays() -> None:
    """Takes what lives by now (modules, mostly torch's) from the garbage collector, once a process.

    It would look through all of it again every some steps, for 1 to 2 % of the time.
    """
    gc.collect()
    gc.freeze()
