"""MPI for a process that looks at a configuration and sends nothing: its library is loaded, and not started.

A process that starts MPI is a rank, which what launches ranks must not be; and where only a launcher may start MPI, as
on some login nodes, it would end there.
"""


def leave_unstarted() -> None:
    """Call it before anything of this package is imported that has to do with ranks. MPI cannot be used afterwards."""
    try:
        import mpi4py
    except ImportError:  # then there is one rank, and nothing to start
        return
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
