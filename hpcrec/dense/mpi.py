"""MpiAllreduce: sums of dense gradients by nonblocking MPI collectives; needs nothing but MPI.

The alternative to Horovod where that is not installed. MPI moves little of a nonblocking sum while a rank computes, so
backward overlaps less than with Horovod's thread. Does not know buckets or parameters.
"""

from typing import Any

import torch

from hpcrec.comm.collectives import Collectives
from hpcrec.errors import ConfigError

_SUMMED_BY_MPI = (torch.float32, torch.float64)


class MpiAllreduce:
    """Sums over the ranks of ``dense``, on its communicator and under its ledger, with tag ``dense``.

    Parameters
    ----------
    dense : Collectives
        The dense ranks. Between ``start`` and ``wait`` no rank may order its other collectives on it differently.
    """

    takes_gpu = False  # see HorovodAllreduce

    def __init__(self, dense: Collectives) -> None:
        self._dense = dense

    def start(self, flat: torch.Tensor, name: str) -> Any:
        """Starts the sum of ``flat`` in place.

        Raises
        ------
        ConfigError
            A tensor that MPI cannot sum: not on the CPU, or neither float32 nor float64.
        """
        if flat.device.type != "cpu" or flat.dtype not in _SUMMED_BY_MPI:
            raise ConfigError(
                f"dense.reducer is 'mpi', which sums float32 and float64 on the CPU; bucket {name} is {flat.dtype} on "
                f"{flat.device}. Set dense.reducer = 'horovod'."
            )
        return None if self._dense.size == 1 else self._dense.start_allreduce(flat.numpy(), "dense")

    def wait(self, handle: Any) -> None:
        """Waits for one started sum."""
        if handle is not None:
            handle.wait()

    def cancel(self, handle: Any) -> None:
        """The same: a started sum has to end on every rank."""
        self.wait(handle)

    def close(self) -> None:
        """Nothing to take down: the communicator belongs to ``World``."""

    def facts(self) -> dict[str, bool]:
        """As ``HorovodAllreduce.facts``."""
        return {}
