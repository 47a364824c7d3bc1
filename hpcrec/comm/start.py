"""The start of a program on every rank: errors end the whole job, and the launcher's MPI is ours."""

from collections.abc import Mapping

from mpi4py import MPI

from hpcrec.comm import failure
from hpcrec.comm.world import check_launch


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
    rank = start_unchecked()
    failure.watch()
    check_launch(MPI.COMM_WORLD, dict(environment))
    return rank


def start_unchecked() -> int:
    """The same for a program that looks at the launch itself, and that a signal may end at once."""
    failure.install(MPI.COMM_WORLD)
    return int(MPI.COMM_WORLD.rank)
