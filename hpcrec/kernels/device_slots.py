"""The slot map on a device, under the reference's names and signatures: its state is in the device's memory."""

from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrec.kernels.reference_slots import NO_ID, USES

if TYPE_CHECKING:
    from hpcrec.kernels.device_calls import DeviceCalls


class SlotMap:
    """See the reference. Arguments are the host's arrays, which are copied, or the device's; so are results."""

    def __init__(self, device: "DeviceCalls", capacity: int, evict: str, seed: int) -> None:
        self._device, self._seed = device, seed
        self.ids = device.empty(capacity, np.int64)
        self.uses = device.zeros(capacity, USES[evict])
        self.clear()

    @property
    def n_bytes(self) -> int:
        """See the reference."""
        return self.ids.nbytes + self.uses.nbytes

    def find(self, ids: Any) -> Any:
        """See the reference."""
        slots = self._room(ids)
        self._device.call("find_slots", self.ids, self._seed, ids, slots)
        return slots

    def admit(self, ids: Any, clock: int, keep_from: int) -> tuple[Any, Any, int]:
        """See the reference."""
        slots, evicted = self._room(ids), self._room(ids)
        n_new = self._device.call("admit_slots", self.ids, self.uses, self._seed, ids, clock, keep_from, slots, evicted)
        return slots, evicted, n_new

    def touch(self, slots: Any, clock: int) -> None:
        """See the reference."""
        self._device.call("touch_slots", self.uses, slots, clock)

    def remove(self, ids: Any) -> Any:
        """See the reference."""
        slots = self._room(ids)
        self._device.call("remove_slots", self.ids, self._seed, ids, slots)
        return slots

    def clear(self) -> None:
        """See the reference."""
        self.ids.fill(NO_ID)

    def items(self) -> tuple[Any, Any]:
        """See the reference; the device's arrays."""
        slots = self._device.where(self.ids, NO_ID, equal=False)
        return self.ids[slots], slots

    def __len__(self) -> int:
        return len(self._device.where(self.ids, NO_ID, equal=False))

    def _room(self, ids: Any) -> Any:
        return self._device.new(ids, len(ids), np.int64)
