"""Calls of a device's kernels, whichever they are.

Arrays of the device (``DeviceArray``) are worked on where they are; those of the host are copied to the device, and
what was written back. Work is in the order of torch's current stream. Arrays are in torch's memory, what kernels need
between in the driver's pool. Knows which arguments a kernel writes; nothing of what it computes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrec.kernels.device_array import DeviceArray, DeviceMemory

if TYPE_CHECKING:
    from torch import Tensor

# Bits of the word in which kernels note what they refused; native/cuda/device.h has the same.
FAULTS = {
    1: "offsets (or segments) do not begin at 0, fall, or do not end at the number of ids",
    2: "an index is outside the rows",
    4: "a start leaves no room for a vector in its array",
    8: "an occurrence names a source that is not there",
    16: "a row to update is outside the table",
    32: "a part is not one of those that there are",
    64: "positions do not rise, or are outside the values",
    128: "data, or marks, are not a mask of so many positions",
    256: "target_start: vectors that are added overlap, and do not begin at one place",
    512: "winners: a place is outside its bag",
    1024: "packed: the bytes are not so many numbers",
    2048: "numbers do not take the bytes of out",
    4096: "asked: packed ids of a piece are damaged",
    8192: "asked: lengths of a piece do not add up to its ids",
    16384: "an id is -2^63, which stands for an empty slot",
    32768: "a slot is not of this map",
}
# Which arguments of a kernel it writes, by their place.
WRITTEN = {
    "pooled_gather": (3,),
    "to_half_rows": (2,),
    "from_half_rows": (1,),
    "copy_vectors": (1,),
    "pooled_max": (3, 5),
    "pooled_max_backward": (3,),
    "fm_sums": (1, 2),
    "fm_sums_backward": (3,),
    "dot_interaction": (2,),
    "dot_interaction_backward": (3, 4),
    "merge": (6,),
    "squared_norm": (1,),
    "update": (0, 10, 11),
    "merge_update": (0, 14, 15),
    "group": (2, 3, 4),
    "dedup": (1, 2),
    "partition": (1, 2),
    "permute": (4,),
    "hash_ids": (3,),
    "init_rows": (4,),
    "write_halves": (1,),
    "read_halves": (1,),
    "threshold_of": (),
    "take_largest": (3, 4),
    "mark_above": (2,),
    "mark_sum": (1, 3),
    "take_marked": (2, 3),
    "cut_marked": (0, 2, 3),
    "require_rising": (),
    "expand": (0,),
    "scatter_add": (0,),
    "gather": (2,),
    "write_mask": (2,),
    "read_mask": (2,),
    "packed_bytes": (),
    "pack_numbers": (2,),
    "unpack_numbers": (2,),
    "unpack": (3, 4, 5, 6),
    "find_slots": (3,),
    "admit_slots": (0, 1, 6, 7),
    "touch_slots": (0,),
    "remove_slots": (0, 3),
}


class _Given:
    """A tensor as a kernel takes it. What torch's ``__dlpack__`` looks at in Python, for microseconds, is known here.

    Raises
    ------
    ValueError
        It is on another device than where the kernel notes faults, or torch is to find its gradient.
    """

    __slots__ = ("_tensor",)

    def __init__(self, tensor: "Tensor", faults: "Tensor") -> None:
        if tensor.device != faults.device:
            raise ValueError(f"an array is on {tensor.device}; the kernel runs on {faults.device}")
        if tensor.requires_grad:
            raise ValueError("a tensor has requires_grad; torch would not know what a kernel does to it: detach it")
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        import torch

        return torch.to_dlpack(self._tensor)  # type: ignore[attr-defined]


class DeviceCalls(DeviceMemory):
    """Calls of a device's kernels; see ``DeviceMemory``."""

    @contextmanager
    def together(self) -> Iterator[None]:
        """Kernels that this thread calls within are queued, without a wait after each.

        Raises
        ------
        ValueError
            At the end: what they refused.
        """
        if getattr(self._local, "calls", None) is not None:
            yield
            return
        faults, self._local.calls = self._tensor(1, np.int32).zero_(), {}
        self._local.faults = faults
        try:
            yield
            called = ", ".join(self._local.calls)
        finally:
            self._local.calls = self._local.faults = None
        _refuse(called, int(faults.item()))

    def call(self, name: str, *args: Any) -> Any:
        """Runs a kernel, over copies of the host's arrays; returns what it does.

        Raises
        ------
        ValueError
            It refused something; within ``together`` that is told later.
        """
        import torch

        module = self.module()
        calls = getattr(self._local, "calls", None)
        with self.guard():
            there = [self._there(a) for a in args]
            faults = self._tensor(1, np.int32).zero_() if calls is None else self._local.faults
            stream = torch.cuda.current_stream().cuda_stream if self._place != "cpu" else 0
            given = [_Given(a, faults) if isinstance(a, torch.Tensor) else a for a in there]
            returned = getattr(module, name)(*given, stream, _Given(faults, faults))
        if calls is None:
            _refuse(name, int(faults.item()))  # waits for the kernel
        else:
            calls[name] = True
        for at in WRITTEN[name]:
            if isinstance(args[at], np.ndarray):
                self.copy_to_host(there[at], args[at])
        return returned

    def run_there(self, name: str, *tensors: "Tensor") -> None:
        """Runs a kernel on torch's tensors where they are, in the order of torch's current stream; waits for nothing.

        For kernels that can refuse no contents, whose wrapper here looks at shapes and types as ``kernels`` does.
        """
        import torch

        module = self.module()
        faults = torch.empty(1, dtype=torch.int32, device=tensors[0].device)  # such a kernel leaves it alone
        given = [_Given(tensor, faults) for tensor in tensors]
        if self._place == "cpu":
            getattr(module, name)(*given, 0, _Given(faults, faults))
            return
        with torch.cuda.device(tensors[0].device):
            getattr(module, name)(*given, torch.cuda.current_stream().cuda_stream, _Given(faults, faults))

    def _there(self, given: Any) -> Any:
        if isinstance(given, DeviceArray):
            return given.tensor
        return self.to_device(given) if isinstance(given, np.ndarray) else given


def _refuse(called: str, found: int) -> None:
    if found:
        raise ValueError(f"{called}: " + "; ".join(text for bit, text in FAULTS.items() if found & bit))
