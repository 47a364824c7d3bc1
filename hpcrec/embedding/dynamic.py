"""Rows that one owner gives to ids as they come: which id has which row of a family's tables here.

One map serves all tables of a family: they are read by the same features, so an id has the same row number in all of
them, is looked up once, and comes and goes in all at once. Knows ids and row numbers; what is in the rows is for the
store, which ids a step asks for is for the exchange.
"""

from dataclasses import dataclass
from threading import Lock

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.shards import Family
from hpcrec.errors import CheckpointError
from hpcrec.kernels import IdState
from hpcrec.types import Ints

__all__ = ["DynamicFigures", "DynamicRows", "IdState"]


@dataclass(frozen=True)
class DynamicFigures:
    """Sums that may be added over owners.

    Attributes
    ----------
    rows, capacity : int
        Rows in use, and the most that there may be.
    admitted, evicted : int
        Ids that were given a row, and that lost it.
    refused : int
        Ids that a training step asked for and that got no row in it, counted once a step.
    dropped : int
        Gradients of rows that were given to another id before they came.
    map_bytes : int
        Memory of the maps.
    """

    rows: int
    capacity: int
    admitted: int
    evicted: int
    refused: int
    dropped: int
    map_bytes: int


class DynamicRows:
    """One owner's part of a family of dynamic tables.

    Parameters
    ----------
    family : Family
    number : int
        The part that this owner holds.

    Attributes
    ----------
    spare : int
        A row behind those that are given: zeros, which ids without a row are answered with.
    refused, dropped : int
        See ``DynamicFigures``.
    """

    def __init__(self, family: Family, number: int) -> None:
        self.family = family
        self.number = number
        self.spare = family.part_rows(number)
        self.refused = self.dropped = 0
        self._lives: Ints | None = None
        self._map, self._lock = self._new(), Lock()  # of the map: steps to come are looked up by another thread

    def _new(self) -> kernels.IdMap:
        rules = self.family.dynamic
        assert rules is not None, "the family is dynamic"
        return kernels.IdMap(
            capacity=self.spare,
            evict=rules.evict,
            admit_from=rules.admit_from,
            pending=max(1, rules.pending // self.family.row_parts),
            admit_probability=rules.admit_probability,
            seed=rules.seed,
        )

    @property
    def lives(self) -> Ints:
        """How often each row was given to an id since this was first asked for, int64 [rows + 1]: tells ids apart."""
        if self._lives is None:
            self._lives = np.zeros(self.spare + 1, np.int64)
        return self._lives

    def __len__(self) -> int:
        """Rows in use."""
        return len(self._map)

    def find(self, ids: Ints) -> Ints:
        """Rows of any ids [K]; ``spare`` where an id has none. Changes nothing."""
        with self._lock:
            return self._or_spare(self._map.find(ids))

    def admit(self, unique: Ints) -> tuple[Ints, Ints]:
        """Rows of the distinct ids [U] of one training step, and which of them are new to their rows.

        To be called once a step, with no ids too: what was used last, or how often, is counted in steps.

        Returns
        -------
        (int64 [U], int64 [M])
            Rows, ``spare`` where an id has none; and places in ``unique``.
        """
        with self._lock:
            found = self._map.admit(unique)
        self.refused += int(np.count_nonzero(found.rows < 0))
        if self._lives is not None:
            self._lives[found.rows[found.fresh]] += 1
        return self._or_spare(found.rows), found.fresh

    def _or_spare(self, rows: Ints) -> Ints:
        rows[rows < 0] = self.spare
        return rows

    def figures(self) -> DynamicFigures:
        """What came of it so far."""
        rows, evicted = len(self._map), self._map.evicted
        return DynamicFigures(
            rows=rows,
            capacity=self.spare,
            admitted=rows + evicted,
            evicted=evicted,
            refused=self.refused,
            dropped=self.dropped,
            map_bytes=self._map.n_bytes,
        )

    def save(self) -> IdState:
        """All that the map knows."""
        return self._map.save()

    def mine(self, ids: Ints) -> np.ndarray:
        """Which of any ids are dealt to this part, bool [K]."""
        if self.family.kind != "row":
            return np.ones(len(ids), bool)
        own: np.ndarray = self.family.deal(ids)[0] == self.number
        return own

    def load(self, state: IdState, refused: int, *, keep_rows: bool = False) -> None:
        """Goes on from a state whose ids are all this part's: those that were saved by one part, or by several, joined.

        Lists come in any order and are sorted as the rules sort them. Of more ids than there is room for, those that
        would go first lose their rows, as if evicted; of more pending ones, those that were asked for least recently
        are forgotten. With ``keep_rows`` ids have the rows that the state has.

        Raises
        ------
        CheckpointError
            An id is there twice, or no id may lose its row and there are more than there is room for.
        """
        rules, room = self.family.dynamic, self.spare
        assert rules is not None, "the family is dynamic"
        order = np.arange(len(state.ids))
        if rules.evict is not None:
            counts = state.counts if rules.evict == "lfu" else np.zeros_like(state.counts)
            order = np.lexsort((state.clocks, counts))  # stable: what one part knew of ties is kept
        over = max(0, len(order) - room)
        if over and rules.evict is None:
            raise CheckpointError(
                f"table {self.family.name!r}: {len(order)} ids of the checkpoint are part {self.number}'s, which "
                f"has room for {room} of the capacity, {self.family.rows}, and none may lose its row. Raise "
                f"embedding.tables.{rules.named or self.family.name}.dynamic.capacity, or set its evict."
            )
        order = order[over:]
        waiting = np.argsort(state.pending_clocks, kind="stable")
        waiting = waiting[max(0, len(waiting) - max(1, rules.pending // self.family.row_parts)) :]
        taken = state._replace(
            rows=np.ascontiguousarray(state.rows[order]),
            ids=np.ascontiguousarray(state.ids[order]),
            counts=state.counts[order],
            clocks=state.clocks[order],
            pending_ids=state.pending_ids[waiting],
            pending_counts=state.pending_counts[waiting],
            pending_clocks=state.pending_clocks[waiting],
            evicted=state.evicted + over,
        )
        anew = self._new()
        try:
            anew.load(taken, keep_rows=keep_rows)
        except ValueError as error:
            raise CheckpointError(f"table {self.family.name!r}: ids cannot have their rows again: {error}.") from None
        self._map, self.refused = anew, refused
        if self._lives is not None:
            self._lives += 1
