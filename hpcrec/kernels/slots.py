"""A map of 64-bit ids to a fixed number of slots, on the host or a device: what a cache of rows is found by.

The map says which id has which slot; what is in the slots is known above. It is set-associative: an id can lie in 32
slots alone, chosen by its hash, so that it is found by one read of 256 bytes and inserted without a chain. Some sets
are full before the map is: of ids for three quarters of the slots, one in two hundred finds no empty slot in its set.
Under ``lfu_aging`` an id has two such sets: the second is read where it is not in the first.
Shapes: K ids of a call.
"""

from typing import Any, Literal, NamedTuple

from hpcrec.kernels import checks, native, native_slots, reference_slots, reference_slots_aging
from hpcrec.kernels.backend import active
from hpcrec.kernels.device import Device
from hpcrec.kernels.device_array import DeviceArray
from hpcrec.kernels.reference_mix import WORD
from hpcrec.kernels.reference_slots import NO_ID, USES, WAYS
from hpcrec.kernels.reference_slots_aging import MOST_AHEAD
from hpcrec.types import Ints

__all__ = ["MOST_AHEAD", "MOST_CLOCK", "MOST_SLOTS", "NO_ID", "WAYS", "Placed", "SlotMap"]
MOST_CLOCK = 2**31 - 1
MOST_SLOTS = 2**36  # sets have numbers of 31 bits
MOST_IDS = 2**31 - 1  # of one call of admit: missing ones are numbered and sorted


class Placed(NamedTuple):
    """What ids were given.

    Attributes
    ----------
    slots : int64 [K]
        The slot of each id; -1 where its set has no room.
    evicted : int64 [K]
        The id that had to go from that slot; ``NO_ID`` where none had to.
    n_new : int
        Ids that had no slot and were given one.
    """

    slots: Any
    evicted: Any
    n_new: int


class SlotMap:
    """Which id has which slot, and which id has to go where there is no more room.

    Arrays are the host's, or those of the device that has the map's memory; results are of the kind that was given.
    They are the same bits on every device: nothing depends on the order of threads. One call at a time; on a GPU calls
    are in the order of torch's current stream, and wait for what they return.

    A use has a clock, the number of the step, say. Clocks of calls may come in any order: a use before the slot's last
    one changes nothing. A count is of clocks: uses of a slot at one clock count once.

    Parameters
    ----------
    capacity : int
        Slots, a multiple of 32 up to ``MOST_SLOTS``; 12 bytes each, 16 under ``lfu``, 20 under ``lfu_aging``.
    evict : str
        Which id loses its slot: of its set ``lru`` takes the least recently used, ``lfu`` the one that was used at the
        fewest clocks since it has its slot, and of these the least recently used; ``lfu_aging``, of the host only,
        one that is not foreseen, and of these the one of the fewest uses by counts that age and outlive a slot: see
        the notes. Of equals the lowest slot; under ``lfu_aging``, one of an id's first set before those of its second.
    seed : int
        Of the hash that spreads ids over sets; -2^63 to 2^64 - 1, taken modulo 2^64.
    device : Device or None
        Where the map is; None: on the host, by native kernels, or by their definition in NumPy, many times slower,
        where that is the backend in use or the native module is not built.

    Raises
    ------
    ValueError
        An argument that is not allowed.

    Notes
    -----
    Under ``lfu_aging`` counts end at 65,535, and all are halved, rounded down, when 10 times as many ids as there are
    slots were given slots since the last halving: so a count is of some of the last uses, and most ids that stay have
    more than one. An id that loses its slot leaves a *ghost*, a tag of 12 bits and its count up to 15, to which its
    uses are added when it comes again. A set has 32 ghosts: of more, the fewest uses go first, the oldest of them.
    Only ``admit`` counts; slots that ``touch`` is told of are kept, and no more. Where ids are alike but for how often
    they are asked for, those that stay tend to the best fixed choice.

    ``foresee`` tells of ids to come. Those that are foreseen at a clock after the latest one of ``admit`` go after all
    others, the first of them the one whose last such clock, divided by its count, is the farthest: no more than that
    clock is noted of an id, with its slot or in a ghost. Where so many clocks are foreseen that 92 % of the slots not
    in use are (``foreseen``), that is nearly as good as to know when each comes next: by Belady's rule an id would have
    gone anyway that is not asked for within them. Fewer are worse, and so are many more, by which ids that come late
    are as good as those that come soon. ``python benchmarks/tiers.py --parts stays`` has the figures.

    Sources: [BELADY] for what goes first; counts that are halved at intervals: J. T. Robinson and M. V. Devarakonda,
    Data cache management using frequency-based replacement (1990); ghosts: N. Megiddo and D. S. Modha, ARC: a
    self-tuning, low overhead replacement cache (2003).
    """

    def __init__(
        self,
        capacity: int,
        *,
        evict: Literal["lru", "lfu", "lfu_aging"],
        seed: int,
        device: Device | None,
    ) -> None:
        capacity = checks.whole("capacity", capacity, WAYS, MOST_SLOTS)
        if capacity % WAYS:
            raise ValueError(f"capacity is {capacity}; it must be a multiple of {WAYS}")
        if evict not in USES:
            raise ValueError(f"evict is {evict!r}; allowed are lru, lfu and lfu_aging")
        if evict == "lfu_aging" and device is not None:
            raise ValueError(
                "evict is 'lfu_aging'; on a device allowed are lru and lfu. Take device=None, or one of these"
            )
        seed = checks.whole("seed", seed, -checks.LARGEST - 1, WORD) & WORD
        self._capacity = capacity
        self._device = device
        self._evict = evict
        self._map: Any
        if device is not None:
            self._map = device.slot_map(capacity, evict, seed)
        else:  # native: in runs on a device too
            by_definition = active() == "reference" or not native.available()
            if evict == "lfu_aging":
                aging = reference_slots_aging if by_definition else native_slots
                self._map = aging.AgingSlotMap(capacity, evict, seed)
            else:
                self._map = (reference_slots if by_definition else native_slots).SlotMap(capacity, evict, seed)

    @property
    def capacity(self) -> int:
        """Slots."""
        return self._capacity

    @property
    def n_bytes(self) -> int:
        """Memory of the map; what is in the slots is not counted."""
        return int(self._map.n_bytes)

    @property
    def foreseen(self) -> float:
        """Of the slots that are not used at the latest clock of ``admit``, the share whose ids are foreseen after it.

        Under ``lfu_aging`` alone. 1 where all are used. It looks at all slots: a microsecond for 4,000.
        """
        self._require_aging("foreseen")
        foreseen, idle = self._map.foreseen
        return foreseen / idle if idle else 1.0

    def __len__(self) -> int:
        """Ids that have a slot."""
        return len(self._map)

    def find(self, ids: Ints) -> Ints:
        """Slots [K] of int64 ids [K], -1 where an id has none. Ids may repeat. Changes nothing.

        Raises
        ------
        ValueError
            An id is -2^63, which stands for an empty slot, or an array is not what is needed; so in all calls.
        """
        return self._map.find(self._taken("ids", ids))

    def admit(self, ids: Ints, clock: int, keep_from: int | None = None) -> Placed:
        """Finds ids, and gives slots to those that have none.

        First, all ids that have a slot are used. Then those that have none, in the order of the call, take the lowest
        empty slot of their set, or of the first of their sets that has one, else that of the id that has to go. Ids
        used in this call never have to. A repeated id counts once and has the slot of the first; ids had better not
        repeat, since those of a set are inserted one after the other.

        Parameters
        ----------
        ids : int64 [K]
            At most 2^31 - 1.
        clock : int
            Of this use, 0 to ``MOST_CLOCK``.
        keep_from : int, optional
            No id goes that was used at this clock or later; at most ``clock``. Left out: ``clock``.

        Raises
        ------
        ValueError
            As in ``find``: then no id was inserted, but ids that have a slot may count as used.
        """
        clock = checks.whole("clock", clock, 0, MOST_CLOCK)
        keep_from = clock if keep_from is None else checks.whole("keep_from", keep_from, 0, clock)
        taken = self._taken("ids", ids)
        checks.whole("number of ids", len(taken), 0, MOST_IDS)
        slots, evicted, n_new = self._map.admit(taken, clock, keep_from)
        return Placed(slots, evicted, n_new)

    def touch(self, slots: Ints, clock: int) -> None:
        """Slots [K] are used at a clock, as ``find`` gives them: -1 is left out. They may repeat.

        Under ``lfu_aging`` they are kept at the clock, and no use is counted.

        Raises
        ------
        ValueError
            A slot is not of this map; the others count as used.
        """
        self._map.touch(self._taken("slots", slots), checks.whole("clock", clock, 0, MOST_CLOCK))

    def foresee(self, ids: Ints, clock: int) -> None:
        """Ids [K] will be asked for at a clock to come; under ``lfu_aging`` alone. They may repeat.

        Nothing is wrong if they are not: then they stay until that clock in vain.

        Parameters
        ----------
        ids : int64 [K]
        clock : int
            Of ``admit``: at least 1 and at most ``MOST_AHEAD`` after the latest one that it was given. In rising order.

        Raises
        ------
        ValueError
            As in ``find``; the rule is another; or the clock is not to come, or too far ahead.
        """
        self._require_aging("foresee")
        now = self._map.now
        clock = checks.whole("clock", clock, now + 1, min(now + MOST_AHEAD, MOST_CLOCK))
        self._map.foresee(self._taken("ids", ids), clock)

    def remove(self, ids: Ints) -> Ints:
        """Takes their slots from ids [K], which may repeat; returns these slots [K], -1 where an id had none."""
        return self._map.remove(self._taken("ids", ids))

    def clear(self) -> None:
        """No id has a slot any more, and under ``lfu_aging`` nothing is known of any."""
        self._map.clear()

    def items(self) -> tuple[Ints, Ints]:
        """Ids [N] that have a slot and their slots [N], ascending; in the memory that has the map."""
        return self._map.items()

    def _require_aging(self, call: str) -> None:
        if self._evict != "lfu_aging":
            raise ValueError(f"{call}: evict is {self._evict!r}; only lfu_aging chooses by ids to come")

    def _taken(self, name: str, array: Ints) -> Ints:
        """An argument, of the host or of the map's device."""
        if isinstance(array, DeviceArray) and array.device is not self._device:
            raise ValueError(f"{name} is an array of another device than the map's; np.asarray() brings it to the host")
        return checks.ints(name, array)
