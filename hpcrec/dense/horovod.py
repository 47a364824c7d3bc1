"""HorovodAllreduce: sums of dense gradients by Horovod, on the dense ranks' communicator.

Owners never touch Horovod. Its thread moves a bucket while backward computes the next. Does not know buckets or
parameters.

Horovod packs tensors that happen to wait together into one message, and the summation order follows the packing. With
fusion threshold 0 and autotuning off each bucket travels alone, so a run gives the same bits again.

Horovod 0.28.1 cannot be initialised a second time in a process with these settings: its parameter manager keeps both
values as fixed, and the next initialisation writes past an empty vector. So it stays up between two sessions of one
process, and its own exit handler takes it down.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.failure import agree
from hpcrec.errors import HpcrecError, MissingError

# Measured by benchmarks/horovod_cycle.py at 1, 2, 5 and 10 ms, 2 ranks on 2 cores. A sum that finds the thread asleep
# takes about a cycle (1.1, 2.1, 5.1 and 10.1 ms for 2 MB in 4 buckets). The thread of an idle rank took 21, 14, 13 and
# 8 % of a core (medians of 7 launches on a machine with other work; single ones 0.2 to 77 %). 2 ms: a third less CPU
# than Horovod's own 1 ms for one more millisecond, where longer cycles wait much longer for little.
CYCLE_TIME_MS = 2.0


@dataclass
class _Running:
    """Horovod as this module initialised it, if it did: one a process."""

    comm: Any = None
    cycle_time_ms: float = 0.0
    in_use: bool = False


_running = _Running()


class HorovodAllreduce:
    """Sums over the ranks of ``dense``; reports to its ledger with tag ``dense``. Collective over ``dense``.

    There is one of these at a time; another may be made once the first is closed, for the same dense ranks. Horovod's
    settings can be given by the process environment only, so it is written here, and nowhere else in the library.

    Parameters
    ----------
    dense : Collectives
        The dense ranks; Horovod duplicates the communicator.
    cycle_time_ms : float
        How often Horovod's thread looks for tensors.

    Raises
    ------
    MissingError
        Horovod is not installed.
    HpcrecError
        Horovod already runs in this process, by someone else, for other ranks or with another cycle time.
    """

    def __init__(self, dense: Collectives, *, cycle_time_ms: float = CYCLE_TIME_MS) -> None:
        error, hvd = None, None
        try:
            hvd = import_horovod()
        except MissingError as caught:
            error = caught
        agree(dense, error)  # else the others would wait in hvd.init for the rank that has none
        self._hvd: Any = hvd
        self._dense = dense
        self._in_flight = 0
        if _running.comm is None:
            self._initialise(cycle_time_ms)
        else:
            self._check_reuse(cycle_time_ms)
        _running.in_use = True

    def _initialise(self, cycle_time_ms: float) -> None:
        if self._hvd.is_initialized():
            raise HpcrecError(
                "dense.reducer is 'horovod', but Horovod is already initialised in this process. Take hvd.init() out "
                "of the user code (hpcrec gives Horovod the dense ranks' communicator), or set dense.reducer = 'mpi'."
            )
        os.environ.update(
            HOROVOD_FUSION_THRESHOLD="0",
            HOROVOD_AUTOTUNE="0",
            HOROVOD_HIERARCHICAL_ALLREDUCE="0",
            HOROVOD_CYCLE_TIME=str(cycle_time_ms),
            HOROVOD_STALL_CHECK_DISABLE="1",  # comm.stall says it, with what else is waited for
        )
        comm = self._dense.comm.Dup()  # outlives the session's, to compare with the next one's
        self._hvd.init(comm=comm)
        assert self._hvd.size() == self._dense.size, "Horovod did not take the dense communicator"
        _running.comm, _running.cycle_time_ms = comm, cycle_time_ms

    def _check_reuse(self, cycle_time_ms: float) -> None:
        if _running.in_use:
            raise HpcrecError("Horovod is in use by another session of this process. Close that session first.")
        same_ranks = _same_ranks(self._dense.comm, _running.comm)
        if not same_ranks or cycle_time_ms != _running.cycle_time_ms or not self._hvd.is_initialized():
            raise HpcrecError(
                "dense.reducer is 'horovod', but in this process Horovod has been initialised for other dense ranks or "
                "another cycle time, or was shut down, and Horovod cannot be initialised twice in one process. Start a "
                "new process, or set dense.reducer = 'mpi'."
            )

    @property
    def takes_gpu(self) -> bool:
        """Whether it sums tensors in a GPU's memory where they are: it was built with NCCL."""
        return bool(self._hvd.nccl_built())

    def start(self, flat: torch.Tensor, name: str) -> Any:
        """Starts the sum of ``flat`` in place."""
        if self._dense.size == 1:
            return None
        self._dense.ledger.add_allreduce("dense", self._dense.ranks, flat.nbytes)
        self._in_flight += 1
        handle = self._hvd.allreduce_async_(flat, name=name, op=self._hvd.Sum)
        return handle, self._dense.lane.started()

    def wait(self, handle: Any) -> None:
        """Waits for one started sum."""
        if handle is not None:
            started, number = handle
            with self._dense.lane.waits(number, "dense"):
                self._hvd.synchronize(started)
            self._in_flight -= 1

    def cancel(self, handle: Any) -> None:
        """The same: a started sum has to end on every rank."""
        self.wait(handle)

    def close(self) -> None:
        """Waits until no dense rank has a sum in flight; collective over ``dense``, before ``World.close``.

        Horovod itself ends with the process: the first rank to leave ends it on all of them, and fails what they
        still wait for, so every rank comes here first.
        """
        assert not self._in_flight, "a sum is in flight"
        self._dense.barrier()
        _running.in_use = False

    def facts(self) -> dict[str, bool]:
        """How this Horovod was built, for ``hpcrec doctor``."""
        return {"mpi_built": bool(self._hvd.mpi_built()), "mpi_enabled": bool(self._hvd.mpi_enabled())}


def _same_ranks(comm: Any, other: Any) -> bool:
    """Whether two communicators have the same processes in the same order."""
    ranks = list(range(comm.size))
    return comm.size == other.size and comm.Get_group().Translate_ranks(ranks, other.Get_group()) == ranks


def import_horovod() -> Any:
    """``horovod.torch``.

    Raises
    ------
    MissingError
        It is not there, or was built without PyTorch.
    """
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise MissingError(
            f"horovod.torch cannot be imported ({error}). To have it, run 'make setup' in a checkout (or "
            "tools/horovod.sh, which builds Horovod alone); to do without, set dense.reducer = 'mpi'."
        ) from error
    if not hasattr(hvd, "allreduce_async_"):
        raise MissingError(
            "the installed Horovod was built without PyTorch. To have it, run tools/horovod.sh of a checkout; to do "
            "without, set dense.reducer = 'mpi'."
        )
    return hvd
