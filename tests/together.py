"""What one rank has and all are told: asserts that fail on all ranks, so that none waits for another, and references.

Knows pytest-mpi's ``parallel_assert``; knows nothing of what the tests test.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mpi4py import MPI
from pytest_mpi import parallel_assert

Found = TypeVar("Found")


@contextmanager
def on_every_rank() -> Iterator[None]:
    """Collective over all ranks of the test: an ``AssertionError`` inside, of any rank, is raised on each.

    No collective may stand inside, for a rank may leave before it.
    """
    said = ""
    try:
        yield
    except AssertionError:
        said = traceback.format_exc()
    parallel_assert(not said, msg=said)


def once(call: Callable[[], Found]) -> Found:
    """Collective over all ranks: what a call gives on rank 0, on each. So ranks need not all compute a slow reference.

    An error of it is an ``AssertionError`` on all ranks. No collective may stand inside; and what the call changes is
    changed on rank 0 alone, so that it has to be asked for in the same way.
    """
    comm, found, said = MPI.COMM_WORLD, None, ""
    if comm.rank == 0:
        try:
            found = call()
        except Exception:
            said = traceback.format_exc()
    told: tuple[Any, str] = comm.bcast((found, said), root=0)
    assert not told[1], told[1]
    result: Found = told[0]
    return result
