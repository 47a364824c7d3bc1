"""Asserts about what one rank has: where one fails, the test fails on all ranks, and none waits for another.

Knows pytest-mpi's ``parallel_assert``; knows nothing of what the tests test.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_mpi import parallel_assert


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
