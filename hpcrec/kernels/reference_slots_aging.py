"""The slot map whose counts of uses age and outlive a slot, and that may know ids to come: its definition, in NumPy.

An id has two sets, that of ``reference_slots.py`` and ``hash_ids(id, sets, seed + 2)``, and lies in either. The use of
a slot is, from the lowest bit on, its clock (31 bits), whether the use at it is still to be counted (1), the count
(16), and how many clocks later the last use comes that is foreseen (15). Beside the ways of a set are as many *ghosts*,
of ids whose first set it is and that have no slot, the oldest first: from the lowest bit on, the last clock that is
foreseen (15, modulo 2^15), whether one is (1), the count (4) and a tag, ``hash_ids(id, 4096, seed + 1)`` (12). A ghost
that has neither is none. Arguments have passed the checks of ``slots.py``. Knows nothing of what slots hold.
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import reference
from hpcrec.kernels.reference_slots import NO_ID, WAYS, SlotMap, require_ids
from hpcrec.types import Ints

MOST_AHEAD = 2**14 - 1  # clocks that a use may be foreseen
AGE_AFTER = 10  # ids that were given slots, by slots: then counts are halved
_SWEEP_AFTER = 2**13  # clocks
_CLOCK, _KEPT = 2**31 - 1, 2**31
_COUNT, _AHEAD = 32, 48  # lowest bits
_MOST_COUNT, _MOST_GHOST_COUNT = 2**16 - 1, 15
_LAST, _KNOWN, _GHOST_COUNT, _TAG = 2**15 - 1, 2**15, 16, 20
_N_TAGS = 2**12
_NOW, _SWEPT, _ADMITTED = range(3)


class AgingSlotMap(SlotMap):
    """A ``SlotMap`` with ``ghosts``, and ``numbers``.

    These are the latest clock, that of the last sweep of ghosts, and ids given slots since counts were halved.
    """

    _choices = 2

    def __init__(self, capacity: int, evict: str, seed: int) -> None:
        super().__init__(capacity, evict, seed)
        self.ghosts = np.zeros(capacity, np.uint32)
        self.numbers = np.zeros(3, np.int64)

    @property
    def n_bytes(self) -> int:
        """Memory."""
        return super().n_bytes + self.ghosts.nbytes

    @property
    def now(self) -> int:
        """The latest clock at which ids were admitted."""
        return int(self.numbers[_NOW])

    @property
    def foreseen(self) -> tuple[int, int]:
        """Of the slots not used at the latest clock, how many have ids that are foreseen; and how many there are."""
        clocks, empty = self.uses & _CLOCK, self.ids == NO_ID
        idle = empty | (clocks < self.now)
        known = ~empty & (clocks + (self.uses >> _AHEAD) > self.now)
        return int(np.count_nonzero(idle & known)), int(np.count_nonzero(idle))

    def admit(self, ids: Ints, clock: int, keep_from: int) -> tuple[Ints, Ints, int]:
        """See ``SlotMap``."""
        self._go_on(clock)
        slots, evicted, n_new = super().admit(ids, clock, keep_from)
        self.numbers[_ADMITTED] += n_new
        if self.numbers[_ADMITTED] >= AGE_AFTER * self.ids.size:
            self.numbers[_ADMITTED] = 0
            halved = (self.uses >> _COUNT & _MOST_COUNT) // 2
            self.uses &= ~(_MOST_COUNT << _COUNT)
            self.uses |= halved << _COUNT
            counts = (self.ghosts >> _GHOST_COUNT & _MOST_GHOST_COUNT) // 2
            self.ghosts &= np.uint32(2**32 - 1 - (_MOST_GHOST_COUNT << _GHOST_COUNT))
            self.ghosts |= counts << _GHOST_COUNT
        return slots, evicted, n_new

    def foresee(self, ids: Ints, clock: int) -> None:
        """Ids will be asked for at a clock to come."""
        require_ids(ids)
        for id_, slot in zip(ids.tolist(), self._found(ids).tolist(), strict=True):
            if slot >= 0:
                use = int(self.uses[slot])
                last = max((use & _CLOCK) + (use >> _AHEAD), clock)
                self.uses[slot] = _use(use & _CLOCK, use >> _COUNT & _MOST_COUNT, last) | use & _KEPT
                continue
            ghosts, i = self._ghost(id_)
            if i is None:
                self._add_ghost(id_, 0, clock)
            elif int(self._ahead(ghosts[i])) < clock - self.now:
                ghosts[i] = int(ghosts[i]) & ~_LAST | _KNOWN | clock & _LAST

    def clear(self) -> None:
        """All slots are empty, and nothing is known of any id."""
        super().clear()
        self.uses[:] = 0
        self.ghosts[:] = 0
        self.numbers[_ADMITTED] = 0

    def _go_on(self, clock: int) -> None:
        """What ghosts no longer foresee is taken out, before clocks of 15 bits come round."""
        self.numbers[_NOW] = max(self.now, clock)
        gone_by = self.now - int(self.numbers[_SWEPT])
        if gone_by >= _SWEEP_AFTER:
            over = (self._ahead(self.ghosts) == 0) | (gone_by > MOST_AHEAD)
            self.ghosts[over] &= np.uint32(2**32 - 1 - _KNOWN - _LAST)
            self.numbers[_SWEPT] = self.now

    def _clocks(self, uses: NDArray[np.integer]) -> NDArray[np.integer]:
        return uses & _CLOCK

    def _use(self, slots: Ints, clock: int) -> None:
        """A use counts once a clock, whatever slots are kept at."""
        slots = np.unique(slots[slots >= 0])
        uses = self.uses[slots]
        fresh = (self._clocks(uses) < clock) | ((self._clocks(uses) == clock) & (uses & _KEPT != 0))
        self._set_clock(slots[fresh], clock, 1)

    def _keep(self, slots: Ints, clock: int) -> None:
        """Slots are kept at a clock, which counts no use."""
        slots = np.unique(slots)
        slots = slots[self._clocks(self.uses[slots]) < clock]
        self._set_clock(slots, clock, 0)
        self.uses[slots] |= _KEPT

    def _set_clock(self, slots: Ints, clock: int, more: int) -> None:
        uses = self.uses[slots]
        ahead = np.maximum((uses & _CLOCK) + (uses >> _AHEAD) - clock, 0)
        counts = np.minimum((uses >> _COUNT & _MOST_COUNT) + more, _MOST_COUNT)
        self.uses[slots] = ahead << _AHEAD | counts << _COUNT | clock

    def _ranks(self, uses: NDArray[np.integer]) -> NDArray[np.integer]:
        """Those of which no use is foreseen go first, of these the fewest uses, then the least recent one.

        Of the others the one whose next use is to be expected last: the time to the last one, by how often it is used.
        """
        clocks, counts = uses & _CLOCK, uses >> _COUNT & _MOST_COUNT
        ahead = np.maximum(clocks + (uses >> _AHEAD) - self.now, 0)
        times = ahead.astype(np.float32) / np.maximum(counts, 1).astype(np.float32) * np.float32(2**14)
        known = 2**62 | (2**29 - times.astype(np.int64)) << 31
        return np.where(ahead > 0, known, counts << 32) | clocks

    def _insert(self, slot: int, id_: int, clock: int) -> None:
        count, last = 1, 0
        ghosts, i = self._ghost(id_)
        if i is not None:
            count += int(ghosts[i]) >> _GHOST_COUNT & _MOST_GHOST_COUNT
            last = self.now + int(self._ahead(ghosts[i]))
            ghosts[i] = 0
        gone, use = int(self.ids[slot]), int(self.uses[slot])
        if gone != NO_ID:
            its_count = min(use >> _COUNT & _MOST_COUNT, _MOST_GHOST_COUNT)
            self._add_ghost(gone, its_count, (use & _CLOCK) + (use >> _AHEAD))
        self.ids[slot] = id_
        self.uses[slot] = _use(clock, count, last)

    # Ghosts.

    def _ghosts_of(self, id_: int) -> NDArray[np.uint32]:
        """Those of an id's first set."""
        first = int(self._sets(np.array([id_], np.int64))[0]) * WAYS
        return self.ghosts[first : first + WAYS]

    def _tag(self, id_: int) -> int:
        return int(reference.hash_ids(np.array([id_], np.int64), _N_TAGS, self._seed + 1)[0])

    def _ghost(self, id_: int) -> tuple[NDArray[np.uint32], int | None]:
        """The ghosts of an id's first set, and which is the first that may be its own."""
        ghosts = self._ghosts_of(id_)
        something = ghosts & (_KNOWN | _MOST_GHOST_COUNT << _GHOST_COUNT) != 0
        found = np.flatnonzero((ghosts >> _TAG == self._tag(id_)) & something)
        return ghosts, int(found[0]) if found.size else None

    def _ahead(self, ghosts: NDArray[np.uint32]) -> Ints:
        """Clocks from now to the last use that is foreseen; 0: it is over, or none is."""
        ahead = (ghosts.astype(np.int64) - self.now) & _LAST
        return np.where((ghosts & _KNOWN != 0) & (ahead <= MOST_AHEAD), ahead, 0)

    def _ghost_ranks(self, ghosts: NDArray[np.uint32]) -> Ints:
        """The least goes first."""
        known = self._ahead(ghosts) > 0
        return (ghosts.astype(np.int64) >> _GHOST_COUNT & _MOST_GHOST_COUNT) + (_MOST_GHOST_COUNT + 1) * known

    def _add_ghost(self, id_: int, count: int, last: int) -> None:
        """In the place of the oldest of least rank.

        Not in that of a higher one, nor of an equal one with a use foreseen, which is the earlier.
        """
        ghosts, ghost = self._ghosts_of(id_), self._tag(id_) << _TAG | count << _GHOST_COUNT
        if last > self.now:
            ghost |= _KNOWN | min(last, self.now + MOST_AHEAD) & _LAST
        (rank,) = self._ghost_ranks(np.array([ghost], np.uint32))
        ranks = self._ghost_ranks(ghosts)
        out = int(np.argmin(ranks))
        if rank == 0 or rank < ranks[out] or (rank == ranks[out] and rank > _MOST_GHOST_COUNT):
            return
        ghosts[out:-1] = ghosts[out + 1 :].copy()
        ghosts[-1] = ghost


def _use(clock: int, count: int, last: int) -> int:
    return min(max(last - clock, 0), MOST_AHEAD) << _AHEAD | count << _COUNT | clock
