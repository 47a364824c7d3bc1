"""What fails on one rank alone fails on all of them, with what that rank has to say."""

import pytest
from mpi4py import MPI

from tests.together import on_every_rank


@pytest.mark.parallel([1, 2, 3, 4])
def test_an_assert_of_one_rank_fails_on_all() -> None:
    last = MPI.COMM_WORLD.size - 1
    with on_every_rank():
        assert last >= 0
    with pytest.raises(AssertionError) as caught, on_every_rank():
        assert MPI.COMM_WORLD.rank != last, "this one alone"
    told = MPI.COMM_WORLD.allgather(str(caught.value))
    assert all(f"[{last}]" in said for said in told) and "this one alone" in told[last]
