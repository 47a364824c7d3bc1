"""Where a dense rank computes its model, and in what precision. Knows torch; knows no model.

``cuda``       a GPU
``emulated``   torch's lazy tensors: a device of their own to torch, computed on the host; for tests, slow

Under autocast matrix products take and give bfloat16, by torch's own list of what is safe; parameters, their gradients
and sums, and the loss are what they are without.
"""

import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hpcrec import kernels

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Place:
    """A device, and whether products are taken in bfloat16 there.

    Attributes
    ----------
    device : torch.device
    autocast : bool
    assembler : Device or None
        Whose kernels assemble the model's inputs, in its memory; None: the host's do, in its own.
    """

    device: torch.device = _HOST
    autocast: bool = False
    assembler: kernels.Device | None = None

    @property
    def is_host(self) -> bool:
        """Whether tensors are in the host's memory, where NumPy sees them."""
        return self.device.type == "cpu"

    @property
    def identity(self) -> str | None:
        """Which GPU it is, of all there are; None where it is none."""
        if self.device.type != "cuda":
            return None
        return f"{platform.node()} {torch.cuda.get_device_properties(self.device).uuid}"

    def casting(self) -> AbstractContextManager[Any]:
        """What the model and the loss run in."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()

    def seed(self, seed: int) -> None:
        """Begins torch's random numbers anew, there and in the host's memory.

        What ``torch.manual_seed`` draws, without the stack that it formats for every kind of device that was never
        used: a tenth of a short step.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):  # it seeds the current one
                torch.cuda.manual_seed(seed)

    def move(self, module: nn.Module) -> None:
        """Takes parameters and buffers there; they stay the same objects to whoever has them."""
        if self.is_host:
            return
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(self.device.type == "lazy")
        try:
            module.to(self.device)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)

    def put(self, tensor: Tensor) -> Tensor:
        """A tensor there: itself, or a copy, of one of the host through pinned memory."""
        if self.device.type == "cuda" and tensor.device.type == "cpu":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def take(self, tensor: Tensor) -> Any:
        """A tensor as an array: of the device that assembles inputs, or of the host."""
        return tensor.detach().cpu().numpy() if self.assembler is None else self.assembler.took(tensor)


def emulated() -> torch.device:
    """The device of torch's lazy tensors."""
    import torch._lazy.ts_backend

    global _lazy  # noqa: PLW0603
    if not _lazy:
        torch._lazy.ts_backend.init()
        _lazy = True
    return torch.device("lazy")


_lazy = False
