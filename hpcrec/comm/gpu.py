"""Whether this MPI library takes buffers in a GPU's memory. Knows nothing of messages."""

import ctypes

from hpcrec.comm.library import MPI


def takes_gpu_memory() -> bool:
    """What the library says of itself: Open MPI and MPICH by a function of one name; others say nothing, so False."""
    try:
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (AttributeError, OSError):
        return False
    return bool(query())
