"""The slot maps of the native module, under the references' names and signatures: their state is NumPy's arrays."""

import numpy as np

from hpcrec.kernels import reference_slots, reference_slots_aging
from hpcrec.kernels.memory import aligned_empty
from hpcrec.kernels.native_module import loaded
from hpcrec.types import Ints


class SlotMap(reference_slots.SlotMap):
    """See the reference. Finding takes the threads of ``set_threads``; insertion goes one after the other."""

    def __init__(self, capacity: int, evict: str, seed: int) -> None:
        self._seed = seed
        self.ids = aligned_empty((capacity,), np.int64)  # each set in as few cache lines as it can
        self.uses = aligned_empty((capacity,), reference_slots.USES[evict])
        self.ids[:], self.uses[:] = reference_slots.NO_ID, 0

    def find(self, ids: Ints) -> Ints:
        """See the reference."""
        slots = np.empty_like(ids)
        loaded.find_slots(self.ids, self._seed, self._choices, ids, slots)
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
        loaded.remove_slots(self.ids, self._seed, self._choices, ids, slots)
        return slots


class AgingSlotMap(SlotMap, reference_slots_aging.AgingSlotMap):
    """See the reference."""

    _choices = reference_slots_aging.AgingSlotMap._choices

    def __init__(self, capacity: int, evict: str, seed: int) -> None:
        SlotMap.__init__(self, capacity, evict, seed)
        self.ghosts = aligned_empty((capacity,), np.uint32)
        self.ghosts[:] = 0
        self.numbers = np.zeros(3, np.int64)

    def admit(self, ids: Ints, clock: int, keep_from: int) -> tuple[Ints, Ints, int]:
        """See the reference."""
        slots, evicted = np.empty_like(ids), np.empty_like(ids)
        n_new = loaded.admit_aging_slots(
            self.ids, self.uses, self.ghosts, self.numbers, self._seed, ids, clock, keep_from, slots, evicted
        )
        return slots, evicted, n_new

    def touch(self, slots: Ints, clock: int) -> None:
        """See the reference."""
        loaded.keep_aging_slots(self.ids, self.uses, self.ghosts, self.numbers, self._seed, slots, clock)

    def foresee(self, ids: Ints, clock: int) -> None:
        """See the reference."""
        loaded.foresee_slots(self.ids, self.uses, self.ghosts, self.numbers, self._seed, ids, clock)

    @property
    def foreseen(self) -> tuple[int, int]:
        """See the reference."""
        return loaded.count_foreseen(self.ids, self.uses, self.ghosts, self.numbers)
