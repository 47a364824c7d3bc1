"""All ranks of a job that has no roles, as one group. For commands that only share out work."""

from collections.abc import Mapping

from hpcrec.comm import failure
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.comm.library import MPI
from hpcrec.comm.start import start


def everyone(environment: Mapping[str, str]) -> Collectives:
    """Start MPI and give all its ranks; collective, once a process.

    A signal ends the ranks, as it does without MPI: what such a command has finished stays on disk.
    """
    start(environment)
    failure.end_by_signals()
    size = MPI.COMM_WORLD.size
    return Collectives(MPI.COMM_WORLD.Dup(), tuple(range(size)), Ledger(MPI.COMM_WORLD.rank, (0,) * size))
