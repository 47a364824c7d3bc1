"""The definition of the id map in plain Python: dictionaries, and a search for who goes first.

A batch is a set of ids in the order of their first places: whatever it does, it does once an id. First every id that
has a row is noted as used by this batch. Then the others come, in order: those that are let in get the next row, and
where all rows are given, that of the id that goes first and was not used by this batch, nor by those before it that
are in use still. Counts are halved, where that
is due, when all this is done. Knows no rows' contents.
"""

from typing import NamedTuple

import numpy as np

from hpcrec.kernels.reference_mix import GOLDEN, WORD, mix
from hpcrec.types import Ints

LIGHT_MOST = 15  # the largest count under lightlfu
LIGHT_USES = 10  # uses a row of the capacity after which its counts are halved


class IdState(NamedTuple):
    """All that an id map knows, for a checkpoint. Lists have the id that goes first in front.

    Attributes
    ----------
    rows, ids : int64 [N]
        Rows that are given, and to which ids.
    counts, clocks : int64 [N]
        Batches that have used an id since it has its row, and the last of them. Empty without eviction.
    pending_ids, pending_counts, pending_clocks : int64 [P]
        The same of ids without a row, by the batches that have asked for them.
    clock : int
        Batches so far.
    evicted : int
        Ids that have lost their rows.
    """

    rows: Ints
    ids: Ints
    counts: Ints
    clocks: Ints
    pending_ids: Ints
    pending_counts: Ints
    pending_clocks: Ints
    clock: int
    evicted: int


class Order:
    """Ids and how they were used: [count, clock, turn] each; ``turn`` is in the order of their last uses.

    Parameters
    ----------
    by_count : bool
        Whether smaller counts go first, and earlier turns only among equal ones.
    most : int
        Where counts end.
    halve_after : int or None
        Uses after which all counts are halved; None: never.
    """

    def __init__(self, *, by_count: bool, most: int = WORD >> 32, halve_after: int | None = None) -> None:
        self.uses: dict[int, list[int]] = {}
        self._by_count, self._most, self._halve_after = by_count, most, halve_after
        self._turn = self._since_halved = 0

    def add(self, key: int, count: int, clock: int) -> None:
        """Another id, the last to go of its count."""
        self._since_halved += 1
        self._turn += 1
        self.uses[key] = [count, clock, self._turn]

    def touch(self, key: int, clock: int) -> None:
        """Once a batch."""
        count, before, _ = self.uses[key]
        if before != clock:
            self.add(key, min(count + 1, self._most), clock)

    def age(self) -> None:
        """At the end of a batch: halves all counts where it is time, down to 1 at least.

        Those that are equal then are in the order of their clocks. Of one clock, that is of one batch, the smaller
        count before goes first, and of these the earlier turn.
        """
        if self._halve_after is None or self._since_halved < self._halve_after:
            return
        order = sorted((clock, count, turn, key) for key, (count, clock, turn) in self.uses.items())
        for clock, count, _, key in order:
            self.add(key, max(1, count // 2), clock)
        self._since_halved = 0

    def listed(self) -> list[int]:
        """The first to go in front."""
        return sorted(self.uses, key=self._place)

    def take_first(self, clock: int, in_use: int = 1) -> int | None:
        """The first to go of those that the last ``in_use`` batches up to ``clock`` have not used; it is gone."""
        free = [key for key, (_, used, _) in self.uses.items() if clock - used >= in_use]
        if not free:
            return None
        first = min(free, key=self._place)
        del self.uses[first]
        return first

    def _place(self, key: int) -> tuple[int, int]:
        count, _, turn = self.uses[key]
        return count if self._by_count else 0, turn


class ReferenceRowMap:
    """What the definitions of maps share: which id has which row."""

    _row_of: dict[int, int]

    @property
    def size(self) -> int:
        """Ids that have a row."""
        return len(self._row_of)

    def find(self, ids: Ints) -> Ints:
        """Rows, or -1."""
        return np.array([self._row_of.get(i, -1) for i in ids.tolist()], np.int64)


class IdMap(ReferenceRowMap):
    """See ``hpcrec.kernels.IdMap``; arguments have passed its checks."""

    def __init__(
        self,
        capacity: int,
        evict: str | None,
        admit_from: int,
        pending: int,
        probability: float,
        seed: int,
        in_use: int = 1,
    ) -> None:
        self._capacity, self._in_use = capacity, in_use
        self._admit_from, self._most_pending = admit_from, pending
        self._probability, self._seed = probability, seed
        self._row_of: dict[int, int] = {}
        self._order = None
        if evict == "lightlfu":
            self._order = Order(by_count=True, most=LIGHT_MOST, halve_after=LIGHT_USES * capacity)
        elif evict is not None:
            self._order = Order(by_count=evict == "lfu")
        self._pending = Order(by_count=False)
        self.clock = 0
        self.evicted = 0

    @property
    def n_bytes(self) -> int:
        """As if it were as compact as the native one."""
        return 16 * len(self._row_of)

    def admit(self, ids: Ints) -> tuple[Ints, Ints]:
        """Rows of a batch, and the places of ids that it gives one to."""
        self.clock += 1
        batch: dict[int, int] = {}
        for place, i in enumerate(ids.tolist()):
            batch.setdefault(i, place)
        if self._order is not None:
            for i in batch:
                if i in self._row_of:
                    self._order.touch(i, self.clock)
        missing = [i for i in batch if i not in self._row_of]
        fresh = [batch[i] for i in missing if self._lets_in(i) and self._give_row(i)]
        if self._order is not None:
            self._order.age()
        return self.find(ids), np.array(fresh, np.int64)

    def _lets_in(self, i: int) -> bool:
        if self._admit_from > 1:
            return self._count(i) >= self._admit_from
        if self._probability >= 1.0:
            return True
        words = np.array([i], np.int64).view(np.uint64)
        own = mix(words ^ mix(np.array([self._seed], np.uint64)))
        drawn = mix(own + np.array([GOLDEN * self.clock & WORD], np.uint64))
        return bool((drawn >> np.uint64(11)).astype(np.float64)[0] * 2.0**-53 < self._probability)

    def _count(self, i: int) -> int:
        pending = self._pending
        if i in pending.uses:
            pending.touch(i, self.clock)
        elif len(pending.uses) < self._most_pending or pending.take_first(self.clock) is not None:
            pending.add(i, 1, self.clock)
        else:
            return 0
        return pending.uses[i][0]

    def _give_row(self, i: int) -> bool:
        row = len(self._row_of)
        if row == self._capacity:
            gone = None if self._order is None else self._order.take_first(self.clock, self._in_use)
            if gone is None:
                return False
            row = self._row_of.pop(gone)
            self.evicted += 1
        self._row_of[i] = row
        if self._order is not None:
            self._order.add(i, 1, self.clock)
        if self._admit_from > 1:
            self._pending.uses[i][0] = 0  # from anew if it goes
        return True

    def save(self) -> IdState:
        """Everything."""
        order, pending = self._order, self._pending
        ids = sorted(self._row_of, key=self._row_of.__getitem__) if order is None else order.listed()
        waiting = pending.listed()

        def used(of: Order | None, which: int, keys: list[int]) -> Ints:
            return np.array([of.uses[i][which] for i in keys] if of else [], np.int64)

        return IdState(
            rows=np.array([self._row_of[i] for i in ids], np.int64),
            ids=np.array(ids, np.int64),
            counts=used(order, 0, ids),
            clocks=used(order, 1, ids),
            pending_ids=np.array(waiting, np.int64),
            pending_counts=used(pending, 0, waiting),
            pending_clocks=used(pending, 1, waiting),
            clock=self.clock,
            evicted=self.evicted,
        )

    def load(self, state: IdState, *, keep_rows: bool = False) -> None:
        """Into an empty map; ids get rows in the order of the list, or those that the list has."""
        if self.clock or self._row_of:
            raise ValueError("load: the map is in use; only a new one can be loaded")
        self._take("", self._order, state.ids, state.counts, state.clocks, self._capacity, state.clock)
        rows = state.rows.tolist() if keep_rows else range(len(state.ids))
        if sorted(rows) != list(range(len(state.ids))):
            raise ValueError(f"rows are not each of 0 to {len(state.ids) - 1}, each once")
        self._row_of = dict(sorted(zip(state.ids.tolist(), rows, strict=True), key=lambda pair: pair[1]))
        if self._admit_from > 1:
            lists = state.pending_ids, state.pending_counts, state.pending_clocks
            self._take("pending_", self._pending, *lists, self._most_pending, state.clock)
        self.clock, self.evicted = state.clock, state.evicted

    @staticmethod
    def _take(name: str, order: Order | None, ids: Ints, counts: Ints, clocks: Ints, room: int, clock: int) -> None:
        if len(ids) > room:
            raise ValueError(f"{name}ids are {len(ids)}; there is room for {room}")
        if len(np.unique(ids)) < len(ids):
            raise ValueError(f"{name}ids has an id, which is there twice")
        if order is None:
            return
        for key, values, most in (("counts", counts, WORD >> 32), ("clocks", clocks, clock)):
            if len(values) and (values.min() < 0 or values.max() > most):
                raise ValueError(f"{name}{key} are {values.min()} to {values.max()}; allowed are 0 to {most}")
        for i, count, used in zip(ids.tolist(), counts.tolist(), clocks.tolist(), strict=True):
            order.add(i, count, used)
