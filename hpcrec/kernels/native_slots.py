"""The slot map of the native module, under the reference's names and signatures: its state is in the host's memory."""

import numpy as np

from hpcrec.kernels import reference_slots
from hpcrec.kernels.memory import aligned_empty
from hpcrec.kernels.native_module import loaded
from hpcrec.types import Ints


class SlotMap(reference_slots.SlotMap):
    """See the reference. Finding takes the threads of ``set_threads``; insertion goes one after the other."""

    def __init__(self, capacity: int, evict: str, seed: int) -> None:
        self._seed = seed
        self.ids = aligned_empty((capacity,), np.dtype(np.int64))  # each set in as few cache lines as it can
        self.uses = aligned_empty((capacity,), reference_slots.USES[evict])
        self.uses[:] = 0
        self.clear()

    def find(self, ids: Ints) -> Ints:
        """See the reference."""
        slots = np.empty_like(ids)
        loaded.find_slots(self.ids, self._seed, ids, slots)
        return slots

    def admit(self, ids: Ints, clock: int, keep_from: int) -> tuple[Ints, Ints, int]:
        """See the reference."""
        slots, evicted = np.empty_like(ids), np.empty_like(ids)
        n_new = loaded.admit_slots(self.ids, self.uses, self._seed, ids, clock, keep_from, slots, evicted)
        return slots, evicted, n_new

    def touch(self, slots: Ints, clock: int) -> None:
        """See the reference."""
        loaded.touch_slots(self.uses, slots, clock)

    def remove(self, ids: Ints) -> Ints:
        """See the reference."""
        slots = np.empty_like(ids)
        loaded.remove_slots(self.ids, self._seed, ids, slots)
        return slots
