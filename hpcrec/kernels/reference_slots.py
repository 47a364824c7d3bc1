"""The slot map's definition, in NumPy: a set-associative hash map with a fixed number of slots.

An id belongs to the set ``hash_ids(id, sets, seed)`` and lies in one of its ``WAYS`` ways; slot = set * WAYS + way. A
slot's use is one number that falls as the slot is to go earlier: under LRU the clock of its last use, under LFU the
count of clocks at which it was used in the bits above those of that clock. Arguments have passed the checks of
``slots.py``. Knows nothing of what slots hold.
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks, reference
from hpcrec.types import Ints

WAYS = 32
NO_ID = -(2**63)  # where a slot holds no id
MOST_COUNT = 2**31 - 1  # a count goes no further
CLOCK_BITS = 32
USES: dict[str, np.dtype] = {
    "lru": np.dtype(np.int32),
    "lfu": np.dtype(np.int64),
    "lfu_aging": np.dtype(np.int64),  # of which reference_slots_aging.py has the rest
}


class SlotMap:
    """The map's state and what is done to it. Ids that a call refuses (``NO_ID``) have changed nothing but uses."""

    _choices = 1  # sets that an id may lie in

    def __init__(self, capacity: int, evict: str, seed: int) -> None:
        self._n_sets, self._counts, self._seed = capacity // WAYS, evict == "lfu", seed
        self.ids = np.full(capacity, NO_ID, np.int64)
        self.uses = np.zeros(capacity, USES[evict])

    @property
    def n_bytes(self) -> int:
        """Memory."""
        return self.ids.nbytes + self.uses.nbytes

    def find(self, ids: Ints) -> Ints:
        """Slots of ids, -1 where they have none."""
        slots = self._found(ids)
        require_ids(ids)
        return slots

    def admit(self, ids: Ints, clock: int, keep_from: int) -> tuple[Ints, Ints, int]:
        """Slots, evicted ids, and how many ids are new."""
        slots, evicted = self._found(ids), np.full_like(ids, NO_ID)
        self._use(slots, clock)
        require_ids(ids)
        n_new = 0
        missing = np.flatnonzero(slots < 0)
        sets = [self._sets(ids[missing], choice) for choice in range(self._choices)]
        for at, *its_sets in zip(missing, *sets, strict=True):
            places = np.concatenate([np.arange(one * WAYS, (one + 1) * WAYS) for one in its_sets])
            again = np.flatnonzero(self.ids[places] == ids[at])  # given twice
            place = again[0] if again.size else self._free_place(places, keep_from)
            if place is None:
                continue
            slots[at] = places[place]
            if not again.size:
                evicted[at] = self.ids[slots[at]]
                self._insert(int(slots[at]), int(ids[at]), clock)
                n_new += 1
        return slots, evicted, n_new

    def touch(self, slots: Ints, clock: int) -> None:
        """Slots are used; -1 is none."""
        good = (slots >= 0) & (slots < self.ids.size)
        self._keep(slots[good], clock)
        checks.require_below("slots", np.where(slots == -1, 0, slots), self.ids.size)

    def remove(self, ids: Ints) -> Ints:
        """Slots that are empty from now on, -1 where ids had none."""
        slots = self.find(ids)
        self.ids[slots[slots >= 0]] = NO_ID
        return slots

    def clear(self) -> None:
        """All slots are empty."""
        self.ids[:] = NO_ID

    def items(self) -> tuple[Ints, Ints]:
        """Ids and slots, in the order of slots."""
        slots = np.flatnonzero(self.ids != NO_ID).astype(np.int64)
        return self.ids[slots], slots

    def __len__(self) -> int:
        return int(np.count_nonzero(self.ids != NO_ID))

    def _sets(self, ids: Ints, choice: int = 0) -> Ints:
        return reference.hash_ids(ids, self._n_sets, self._seed + 2 * choice)

    def _found(self, ids: Ints) -> Ints:
        slots = np.full_like(ids, -1)
        for choice in range(self._choices):
            sets = self._sets(ids, choice)
            hits_KW = (self.ids.reshape(-1, WAYS)[sets] == ids[:, None]) & (ids[:, None] != NO_ID)
            slots = np.where(hits_KW.any(1), sets * WAYS + hits_KW.argmax(1), slots)
        return slots

    def _clocks(self, uses: NDArray[np.integer]) -> NDArray[np.integer]:
        return uses & (2**CLOCK_BITS - 1) if self._counts else uses

    def _use(self, slots: Ints, clock: int) -> None:
        """Slots, or -1, are used at a clock: once, however often they are there. An earlier clock changes nothing."""
        slots = np.unique(slots[slots >= 0])
        slots = slots[self._clocks(self.uses[slots]) < clock]
        counts = np.minimum((self.uses[slots] >> CLOCK_BITS) + 1, MOST_COUNT) << CLOCK_BITS if self._counts else 0
        self.uses[slots] = counts | clock

    def _keep(self, slots: Ints, clock: int) -> None:
        """What ``touch`` does: a use."""
        self._use(slots, clock)

    def _insert(self, slot: int, id_: int, clock: int) -> None:
        """An id comes to a slot that is empty, or whose id has to go."""
        self.ids[slot] = id_
        self.uses[slot] = clock | self._counts << CLOCK_BITS

    def _ranks(self, uses: NDArray[np.integer]) -> NDArray[np.integer]:
        """The least goes first."""
        return uses

    def _free_place(self, places: Ints, keep_from: int) -> int | None:
        """The first of an empty slot, else of that of least use among those not used from ``keep_from`` on."""
        empty = np.flatnonzero(self.ids[places] == NO_ID)
        if empty.size:
            return int(empty[0])
        uses = self.uses[places]
        old = np.flatnonzero(self._clocks(uses) < keep_from)
        return int(old[np.argmin(self._ranks(uses[old]))]) if old.size else None


def require_ids(ids: Ints) -> None:
    """None stands for an empty slot."""
    bad = np.flatnonzero(ids == NO_ID)
    if bad.size:
        raise ValueError(f"ids[{bad[0]}] is -2^63, which stands for an empty slot; give that id another number")
