"""Sums of gradients that are in a device's memory, by who sums tensors of the host: a copy there and one back.

Copies are in pinned memory, one a bucket, kept from step to step: a bucket is copied as it is sent, in backward, while
those before it are summed. Knows buckets' names; knows no ranks.
"""

from typing import Any

import torch

from hpcrec import kernels
from hpcrec.dense.reducer import Allreduce


class HostSums:
    """An ``Allreduce`` of tensors of a device.

    Parameters
    ----------
    sums : Allreduce
        Of tensors of the host.
    """

    def __init__(self, sums: Allreduce) -> None:
        self._sums = sums
        self._copies: dict[str, torch.Tensor] = {}
        self._threads = kernels.get_threads()

    def start(self, flat: torch.Tensor, name: str) -> Any:
        """See ``Allreduce``."""
        kernels.set_threads(self._threads)  # a GPU's backward calls from a thread of its own
        copy = self.copy_of(flat, name)
        # Waits for the gradients. Of torch's devices not all can write into memory that is there already.
        copy.copy_(flat if flat.is_cuda else flat.cpu())
        return flat, copy, self._sums.start(copy, name)

    def wait(self, handle: Any) -> None:
        """See ``Allreduce``."""
        flat, copy, started = handle
        self._sums.wait(started)
        flat.copy_(copy, non_blocking=True)  # in order with the optimizer, and with what is copied here next

    def cancel(self, handle: Any) -> None:
        """See ``Allreduce``."""
        self._sums.cancel(handle[2])

    def copy_of(self, flat: torch.Tensor, name: str) -> torch.Tensor:
        """The host's memory for a bucket."""
        held = self._copies.get(name)
        if held is None or held.shape != flat.shape or held.dtype != flat.dtype:
            held = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=flat.device.type == "cuda")
            self._copies[name] = held
        return held
