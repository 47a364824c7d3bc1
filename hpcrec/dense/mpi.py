"""MpiAllreduce: sums of dense gradients by nonblocking MPI collectives; needs nothing but MPI.

The alternative to Horovod where that is not installed. MPI moves little of a nonblocking sum while a rank computes, so
backward overlaps less than with Horovod's thread.

Where every dense rank is on a host of its own, a bucket is summed in two exchanges: each rank is sent its part of it by
all others, adds these up in the order of ranks, and sends the sum to all. That is as many bytes as MPI's ring, in two
rounds in place of 2 (R - 1): of 552 kB on 4 hosts at 100 Mbit/s MPI's own nonblocking sum took 230 ms and this 105
(``benchmarks/collectives.py``). MPI's blocking sum, which could not begin in backward, took 1.1 times as long as this
there, and 0.7 to 0.9 times at 1 Gbit/s. Where ranks share a host MPI sums, for of a ring's messages fewer leave the
host. Does not know buckets or parameters.
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
        The dense ranks, which all make it together. Between ``start`` and ``wait`` no rank may order its other
        collectives on it differently.
    direct : bool, optional
        Whether sums take two exchanges; default: where no two of the ranks share a host.
    """

    takes_gpu = False  # see HorovodAllreduce

    def __init__(self, dense: Collectives, *, direct: bool | None = None) -> None:
        self._dense = dense
        if direct is None:
            alone = sum(dense.ledger.same_host(dense.ranks)) == 1
            direct = all(dense.allgather(alone))
        self._direct = direct

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
        if self._dense.size == 1:
            return None
        direct = self._direct and flat.nbytes <= _MOST_EXCHANGED_BYTES
        return _Exchanged(self._dense, flat) if direct else self._dense.start_allreduce(flat.numpy(), "dense")

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
