"""A user's own process: made a rank where a launcher has started several, else left as it was found.

Knows what of a process training changes (signals, torch's threads and generator, the garbage collector's list of what
stays); knows nothing of what is trained.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator, Mapping

import torch

from hpcrec.comm import failure
from hpcrec.comm.library import MPI
from hpcrec.comm.start import start
from hpcrec.comm.world import check_launch
from hpcrec.errors import HpcrecError


def ranks() -> int:
    """Ranks of the job that this process is of."""
    return int(MPI.COMM_WORLD.size)


_at_work = threading.Lock()


@contextlib.contextmanager
def taking_part(environment: Mapping[str, str], threads: int | None = None) -> Iterator[None]:
    """Work of ours in this process, on its main thread.

    Of several ranks each becomes one for good, whose errors end all of them. Alone, an error is raised and nothing
    else, and what the work has set is put back at its end.

    Parameters
    ----------
    environment : mapping
        ``os.environ``, for what the launcher says there.
    threads : int, optional
        Of torch, meanwhile.

    Raises
    ------
    HpcrecError
        It is another thread, other work of ours is under way, or the launcher started several tasks, each of which
        believes to be alone.
    """
    if threading.current_thread() is not threading.main_thread():
        raise HpcrecError(
            "hpcrec runs on the main thread of a process, where signals reach it, and this is thread "
            f"{threading.current_thread().name!r}. Call it on the main thread, or in a process of its own."
        )
    if not _at_work.acquire(blocking=False):
        raise HpcrecError(
            "hpcrec trains or predicts in this process already, and this call comes from within, as from a callback. "
            "Call it afterwards, or in a process of its own."
        )
    try:
        if ranks() > 1:
            if not failure.is_installed():
                start(environment)
            yield
        else:
            check_launch(MPI.COMM_WORLD, dict(environment))
            with _left_as_found(threads):
                yield
    finally:
        _at_work.release()


@contextlib.contextmanager
def _left_as_found(threads: int | None) -> Iterator[None]:
    torch_threads, generator, frozen = torch.get_num_threads(), torch.get_rng_state(), gc.get_freeze_count()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        failure.unwatch()
        torch.set_num_threads(torch_threads)
        torch.set_rng_state(generator)
        if not frozen:
            gc.unfreeze()  # a run's own parts were among what stays
