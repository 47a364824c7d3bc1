"""MpiAllreduce and DirectAllreduce: sums of dense gradients by nonblocking MPI collectives; need nothing but MPI.

The alternatives to Horovod where that is not installed. MPI moves little of a nonblocking sum while a rank computes, so
backward overlaps less than with Horovod's thread.

``MpiAllreduce`` leaves the sum to MPI. ``DirectAllreduce`` takes two exchanges: each rank is sent its part of a bucket
by all others, adds these up in the order of ranks, and sends the sum to all. That is as many bytes as MPI's ring, in
two rounds in place of 2 (R - 1): of 552 kB on 4 hosts at 100 Mbit/s MPI's own nonblocking sum took 230 ms and this 105
(``benchmarks/collectives.py``). MPI's blocking sum, which could not begin in backward, took 1.1 times as long as this
there, and 0.7 to 0.9 times at 1 Gbit/s. Where k ranks share a host, k times as many bytes leave it as a ring sends.

Which of them sums is asked for, and does not follow where ranks are: sums in another order differ in their last bits,
and a run that is requeued on other hosts is to go on as it would have. Does not know buckets or parameters.
"""

from typing import Any

import numpy as np
import torch

from hpcrec.comm.collectives import Collectives
from hpcrec.errors import ConfigError

_SUMMED_BY_MPI = (torch.float32, torch.float64)
_MOST_EXCHANGED_BYTES = 2**31 - 1  # a parameter may be larger; such an exchange counts single bytes, in 32 bits


class MpiAllreduce:
    """Sums over the ranks of ``dense``, on its communicator and under its ledger, with tag ``dense``.

    Parameters
    ----------
    dense : Collectives
        The dense ranks. Between ``start`` and ``wait`` no rank may order its other collectives on it differently.
    """

    takes_gpu = False  # see HorovodAllreduce
    name = "mpi"

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
                f"dense.reducer is '{self.name}', which sums float32 and float64 on the CPU; bucket {name} is "
                f"{flat.dtype} on {flat.device}. Set dense.reducer = 'horovod'."
            )
        return None if self._dense.size == 1 else self._started(flat)

    def _started(self, flat: torch.Tensor) -> Any:
        return self._dense.start_allreduce(flat.numpy(), "dense")

    def wait(self, handle: Any) -> None:
        """Waits for one started sum; of several, in the order of their starts."""
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


class DirectAllreduce(MpiAllreduce):
    """The same in two exchanges; what is larger than one of them moves, above 2 GiB, is left to MPI."""

    name = "direct"

    def _started(self, flat: torch.Tensor) -> Any:
        return super()._started(flat) if flat.nbytes > _MOST_EXCHANGED_BYTES else _Exchanged(self._dense, flat)


class _Exchanged:
    """A sum in two exchanges, of which the first is under way."""

    def __init__(self, dense: Collectives, flat: torch.Tensor) -> None:
        self._dense, self._flat = dense, flat.numpy()
        ends = np.arange(dense.size + 1) * self._flat.size // dense.size
        self._bytes_R = np.diff(ends) * self._flat.itemsize
        mine_R = np.full(dense.size, self._bytes_R[dense.rank])
        self._parts = dense.start_alltoallv(self._flat.view(np.uint8), self._bytes_R, mine_R, "dense")

    def wait(self) -> None:
        """Adds up this rank's part, in the order of ranks whatever they wait for, and takes those of the others."""
        self._parts.wait()
        parts = [part.view(self._flat.dtype) for part in self._parts.received]
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        sums = self._dense.start_allgatherv(total.view(np.uint8), self._bytes_R, "dense")
        sums.wait()
        np.concatenate([of.view(self._flat.dtype) for of in sums.received], out=self._flat)
