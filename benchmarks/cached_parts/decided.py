"""What policy ``cached`` decides in a step, without values: which copies are too old, and which gradients are pushed.

All dense ranks in one process, and several stalenesses at once, which share what is in the caches: who has room does
not depend on clocks. An owner sends a row of which nothing is known, or of which a copy lacks more ticks than the
staleness; a copy is pushed where it holds back more, where it has to go, and where it has no room. Which copy has to go
is for the product's own ``kernels.IdMap``. Knows rows by number, and their owners; knows no values and no bytes.

Legend: ``N`` rows, ``K`` rows that a rank asks for in a step, ``C`` rows that a cache has room for, ``S`` stalenesses,
``R`` ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpcrec import kernels
from hpcrec.types import Ints

UNKNOWN = -1
Pushes = list[tuple[Ints, np.ndarray]]
"""Distinct rows, and of how many ticks each is by staleness [K, S]; 0 where it is not pushed."""
REASONS = ("bound", "eviction", "no_room", "drain")


class Map(Protocol):
    """Which row has which place in a cache."""

    def admit(self, ids: Ints) -> Any:
        """Places of rows, -1 where there is none, and which of the rows were given one that they had not."""

    def find(self, ids: Ints) -> Ints:
        """Places of rows, -1 where there is none; not a use of them."""


class Fixed:
    """A cache that always has the same rows, of which there are so many."""

    def __init__(self, rows: Ints, total: int) -> None:
        self._place = np.full(total, -1, np.int64)
        self._place[rows] = np.arange(len(rows))

    def admit(self, ids: Ints) -> tuple[Ints, Ints]:
        """See ``Map``."""
        return self._place[ids], ids[:0]

    def find(self, ids: Ints) -> Ints:
        """See ``Map``."""
        return self._place[ids]


@dataclass
class Cache:
    """One rank's.

    Attributes
    ----------
    map : Map
    row : int64 [C]
        What is at each place; anything where nothing is.
    known, ticks : int32 [C, S]
        The clock of each copy, -1 where it has none, and the ticks that it holds back.
    """

    map: Map
    row: Ints
    known: np.ndarray
    ticks: np.ndarray

    @classmethod
    def of(cls, places: Map, capacity: int, stalenesses: int) -> "Cache":
        """With nothing known."""
        known = np.full((capacity, stalenesses), UNKNOWN, np.int32)
        return cls(places, np.zeros(capacity, np.int64), known, np.zeros_like(known))

    @classmethod
    def empty(cls, capacity: int, rule: str, stalenesses: int) -> "Cache":
        """That of a run's begin."""
        return cls.of(kernels.IdMap(capacity=capacity, evict=rule), capacity, stalenesses)  # type: ignore[arg-type]


@dataclass
class Decided:
    """Of some steps, with one staleness each.

    Attributes
    ----------
    sent, pushed : int64 [steps, R, R, S]
        Rows by dense rank and owner.
    misses : int64 [steps, R, S]
        Of those sent, those of which nothing was known.
    reasons : dict of str to int64 [S]
        Rows that were pushed, of all steps, by why.
    """

    sent: Ints
    pushed: Ints
    misses: Ints
    reasons: dict[str, Ints]


class Ranks:
    """Owners and dense ranks.

    Parameters
    ----------
    owner : uint8 [N]
    caches : sequence of Cache
        One a rank.
    stalenesses : sequence of int
    clock : int
        Of each row as it begins.
    rule : str
        As ``policy.rule``: ``sum`` or ``max``.
    keeps : bool
        Whether at a staleness of 0 a copy stays known after a push, so that it is too old only once another rank has
        pushed the row. The product forgets it, since only the owner has the bits of the row; this counts a rule that
        it has not.
    """

    def __init__(
        self,
        owner: np.ndarray,
        caches: Sequence[Cache],
        stalenesses: Sequence[int],
        clock: int = 0,
        rule: str = "sum",
        *,
        keeps: bool = False,
    ) -> None:
        assert rule in ("sum", "max"), rule
        self._owner, self._caches, self._keeps, self._sums = owner, list(caches), keeps, rule == "sum"
        self._until = Pushes()  # of maxima: the clocks that a step's pushes come to
        self._s = np.array(stalenesses, np.int32)
        self._clock = np.full((len(owner), len(self._s)), clock, np.int32)

    def run(
        self,
        asked: Sequence[Sequence[Ints]],
        *,
        drained: bool = False,
        watch: Callable[[int, Pushes], None] | None = None,
    ) -> Decided:
        """Steps whose ranks ask for these distinct rows.

        ``drained``: a drain point follows the last. ``watch`` is called with the number of each step and what each rank
        pushes in it.
        """
        ranks, n_s = len(self._caches), len(self._s)
        found = Decided(
            np.zeros((len(asked), ranks, ranks, n_s), np.int64),
            np.zeros((len(asked), ranks, ranks, n_s), np.int64),
            np.zeros((len(asked), ranks, n_s), np.int64),
            {reason: np.zeros(n_s, np.int64) for reason in REASONS},
        )
        for t, of_ranks in enumerate(asked):
            last = drained and t == len(asked) - 1
            pushes = [self._step(found, t, rank, rows, drain=last) for rank, rows in enumerate(of_ranks)]
            for of_rank in pushes:  # every answer comes before what is pushed is learned
                for rows, ticks in of_rank if self._sums else ():
                    _put(self._clock, rows, self._clock.take(rows, axis=0) + ticks)
                if watch is not None:
                    watch(t, of_rank)
            for rows, until in self._until:
                _put(self._clock, rows, np.maximum(self._clock.take(rows, axis=0), until))
            self._until.clear()
        return found

    def held(self, rows: Ints) -> tuple[np.ndarray, np.ndarray]:
        """Whether each rank has a copy of each of these rows, and whether that would be read now: bool [K, R].

        Of the first staleness. Nothing counts as a use.
        """
        found = np.zeros((2, len(rows), len(self._caches)), bool)
        clock = self._clock[rows, 0]
        for rank, cache in enumerate(self._caches):
            places = cache.map.find(rows)
            there = np.flatnonzero(places >= 0)
            known = cache.known[places[there], 0]
            found[0, there, rank] = True
            found[1, there, rank] = (known >= 0) & (clock[there] - known <= self._s[0])
        return found[0], found[1]

    def _step(self, found: Decided, t: int, rank: int, rows: Ints, *, drain: bool) -> Pushes:
        """One rank's."""
        cache, out = self._caches[rank], Pushes()
        places, fresh = cache.map.admit(rows)
        if len(fresh):
            new = places[fresh]
            left, ticks, knew = cache.row[new], cache.ticks.take(new, axis=0), cache.known.take(new, axis=0)
            self._push(found, t, rank, left, ticks, knew, "eviction", out)
            cache.row[new], cache.known[new], cache.ticks[new] = rows[fresh], UNKNOWN, 0
        kept = places >= 0
        if not kept.all():
            alone = rows[~kept]
            one = np.ones((len(alone), len(self._s)), np.int32)
            number = self._by_owner(alone, one)
            found.sent[t, rank] += number
            found.misses[t, rank] += number.sum(axis=0)
            self._push(found, t, rank, alone, one, self._clock.take(alone, axis=0), "no_room", out)
            rows, places = rows[kept], places[kept]
        known, clock = cache.known.take(places, axis=0), self._clock.take(rows, axis=0)
        misses = known < 0
        sent = misses | (clock - known > self._s)
        found.sent[t, rank] += self._by_owner(rows, sent)
        found.misses[t, rank] += self._by_owner(rows, misses).sum(axis=0)
        known = np.where(sent, clock, known)
        ticks = cache.ticks.take(places, axis=0) + np.int32(1)
        due = np.where(ticks > self._s, ticks, np.int32(0))
        self._push(found, t, rank, rows, due, known, "bound", out)
        if self._sums:
            known += due
        else:  # a copy ends with its push
            known[due > 0] = UNKNOWN
        if not self._keeps:
            known[:, self._s == 0] = UNKNOWN  # what all have pushed in this step is not known here
        _put(cache.known, places, known)
        _put(cache.ticks, places, ticks - due)
        if drain:
            self._push(found, t, rank, cache.row, cache.ticks, cache.known, "drain", out)
            cache.known = cache.known + cache.ticks if self._sums else np.where(cache.ticks > 0, UNKNOWN, cache.known)
            cache.ticks[:] = 0
        return out

    def _push(
        self,
        found: Decided,
        t: int,
        rank: int,
        rows: Ints,
        ticks: np.ndarray,
        known: np.ndarray,
        reason: str,
        out: Pushes,
    ) -> None:
        some = ticks > 0
        number = self._by_owner(rows, some)
        found.pushed[t, rank] += number
        found.reasons[reason] += number.sum(axis=0)
        at = np.flatnonzero(some.astype(np.float32) @ np.ones(len(self._s), np.float32))
        out.append((rows[at], ticks.take(at, axis=0)))
        if not self._sums:
            self._until.append((rows[at], np.where(some, known + ticks, 0).take(at, axis=0)))

    def _by_owner(self, rows: Ints, some: np.ndarray) -> Ints:
        """How many of them, by owner and staleness [R, S]."""
        owners = np.eye(len(self._caches), dtype=np.float32).take(self._owner.take(rows), axis=0)
        return (owners.T @ some.astype(np.float32)).astype(np.int64)  # below 2^24, exact


def _put(array: np.ndarray, at: Ints, values: np.ndarray) -> None:
    """``array[at] = values``, row by row, several times as fast."""
    whole = f"V{array.shape[1] * array.itemsize}"
    array.view(whole)[at, 0] = np.ascontiguousarray(values).view(whole)[:, 0]
