"""The MPI library: mpi4py's, or, where none can be loaded, a world of one rank (``comm.alone``).

Every module of this package takes ``MPI`` from here. Knows how a missing library and a launcher show, no messages.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcrec.errors import MissingError

__all__ = ["BY_SRUN", "MPI", "launcher_tasks", "launcher_variable", "one_rank"]


BY_SRUN = "SLURM_STEP_NUM_TASKS"


def launcher_tasks(environment: Mapping[str, str]) -> int | None:
    """Tasks that the launcher says it started; None where it says nothing."""
    name = launcher_variable(environment)
    return None if name is None else int(environment[name])


def launcher_variable(environment: Mapping[str, str]) -> str | None:
    """The variable by which the launcher says how many tasks it started; None where it says nothing."""
    names = (BY_SRUN, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    return next((name for name in names if environment.get(name, "").isdigit()), None)


def one_rank(environment: Mapping[str, str], error: Exception) -> Any:
    """What stands in for a library that cannot be loaded.

    Raises
    ------
    MissingError
        A launcher has started several tasks: each would train alone and believe it is the whole run.
    """
    tasks = launcher_tasks(environment)
    if tasks is not None and tasks > 1:
        raise MissingError(
            f"the launcher started {tasks} tasks, but no MPI library can be loaded: {str(error).splitlines()[0]}. Load "
            "the site's MPI module, or install one: pip install 'hpcrec[mpi]'."
        ) from error
    from hpcrec.comm import alone

    return alone


if TYPE_CHECKING:
    from mpi4py import MPI
else:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        MPI = one_rank(os.environ, error)
