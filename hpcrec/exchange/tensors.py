"""Arrays as torch's tensors without a copy, the host's or a device's; and where a model has its tensors.

Knows memory, not what is in it.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from hpcrec import kernels


def tensor_of(array: Any) -> Tensor:
    """The same memory as a tensor."""
    return array.tensor if isinstance(array, kernels.DeviceArray) else torch.from_numpy(array)


class Where(Protocol):
    """Where a model has its tensors."""

    @property
    def assembler(self) -> kernels.Device | None:
        """The device whose kernels work on what is put there, and taken; None: those of the host do."""

    def put(self, tensor: Tensor) -> Tensor:
        """A tensor of that device, or of the host, where the model is."""

    def take(self, tensor: Tensor) -> Any:
        """A tensor of the model as an array of that device, or of the host."""


class Here:
    """The host's memory."""

    assembler: kernels.Device | None = None

    def put(self, tensor: Tensor) -> Tensor:
        """Itself."""
        return tensor

    def take(self, tensor: Tensor) -> Any:
        """The same memory."""
        return tensor.detach().numpy()
