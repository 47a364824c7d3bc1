"""The slot map on a device, under the reference's names and signatures: its state is in torch's memory there.

Arguments are NumPy arrays, which are copied, or tensors on the device, which are not; results are tensors.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpcrec.kernels.reference_slots import NO_ID, USES

if TYPE_CHECKING:
    import torch


class SlotMap:
    """See the reference. ``call`` runs a kernel of the device, ``place`` is where torch has its memory."""

    def __init__(self, call: Callable[..., Any], place: str, capacity: int, evict: str, seed: int) -> None:
        import torch

        self._call, self._seed = call, seed
        self.ids = torch.full((capacity,), NO_ID, dtype=torch.int64, device=place)
        self.uses = torch.zeros(capacity, dtype=getattr(torch, USES[evict].name), device=place)

    def find(self, ids: Any) -> "torch.Tensor":
        """See the reference."""
        slots = self._room(ids)
        self._call("find_slots", self.ids, self._seed, ids, slots)
        return slots

    def admit(self, ids: Any, clock: int, keep_from: int) -> tuple["torch.Tensor", "torch.Tensor", int]:
        """See the reference."""
        slots, evicted = self._room(ids), self._room(ids)
        n_new = self._call("admit_slots", self.ids, self.uses, self._seed, ids, clock, keep_from, slots, evicted)
        return slots, evicted, n_new

    def touch(self, slots: Any, clock: int) -> None:
        """See the reference."""
        self._call("touch_slots", self.uses, slots, clock)

    def remove(self, ids: Any) -> "torch.Tensor":
        """See the reference."""
        slots = self._room(ids)
        self._call("remove_slots", self.ids, self._seed, ids, slots)
        return slots

    def clear(self) -> None:
        """See the reference."""
        self.ids.fill_(NO_ID)

    def items(self) -> tuple["torch.Tensor", "torch.Tensor"]:
        """See the reference."""
        slots = (self.ids != NO_ID).nonzero()[:, 0].contiguous()
        return self.ids[slots], slots

    def __len__(self) -> int:
        return int((self.ids != NO_ID).sum())

    def _room(self, ids: Any) -> "torch.Tensor":
        return self.ids.new_empty(len(ids))
