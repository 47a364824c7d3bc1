"""Arrays as torch's tensors without a copy, the host's or a device's. Knows memory, not what is in it."""

from typing import Any

import torch
from torch import Tensor

from hpcrec import kernels


def tensor_of(array: Any) -> Tensor:
    """The same memory as a tensor."""
    return array.tensor if isinstance(array, kernels.DeviceArray) else torch.from_numpy(array)
