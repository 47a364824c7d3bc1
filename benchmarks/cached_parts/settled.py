"""Caches as they are after a long time, without the thousands of steps in which they fill.

``lru``    Ages of the last uses of all rows are drawn, by each row's chance to be asked for in a step; the youngest
           that there is room for are kept. Of a row that is kept it is drawn how often it was used since it came.
others     What the product's map has after many samples of a rank (``Past``), in batches of one size and without
           clocks: rows that come and go are asked for so seldom that these count about as many uses of theirs.
``frequent``
           The most frequent rows, by their true chance: what the best rule that never changes its mind keeps.

Phases of clocks: a copy holds back as many ticks as its uses leave, modulo the staleness and one. It lacks what the
other ranks have pushed since its last use, which follows from their own phases and how often they have used the row
since. Rows are asked for independently, and ranks alike, so that the rows of every step are in any phases: a run in
which all ranks begin them at once saves a bit more. Knows chances and rows by number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cached_parts.decided import UNKNOWN, Cache, Fixed, Map
from cached_parts.placed import Popularity

from hpcrec import kernels
from hpcrec.kernels import IdState
from hpcrec.types import Ints

CLOCK, MOST = 1 << 20, 1 << 28  # clocks as they are drawn; no age or count is above
MANY = 64  # uses, of which it is drawn how many they were


@dataclass(frozen=True)
class _Held:
    """One rank's: a map, and of its places the row and how often it was used since it came.

    ``oldest`` is the age of the row that goes first, of ``lru``.
    """

    map: Map
    rows: Ints
    uses: Ints
    oldest: int = 0


class Past:
    """Samples of each rank that maps have seen; all maps of a rank see the same.

    Parameters
    ----------
    popular : Popularity
    ranks : int
    rng : numpy Generator
    samples, batch : int
        Of each rank, in batches of a size.
    """

    def __init__(self, popular: Popularity, ranks: int, rng: np.random.Generator, *, samples: int, batch: int) -> None:
        self.batch, steps = batch, range(samples // batch)
        self._rows = [[popular.distinct(batch, rng).astype(np.int32) for _ in steps] for _ in range(ranks)]
        self._states: dict[tuple[str, int, int], tuple[IdState, Ints]] = {}

    def held(self, rule: str, rank: int, capacity: int) -> _Held:
        """A map of its own."""
        key = rule, rank, capacity
        if key not in self._states:
            place, rows, uses = self._run(rule, rank, capacity)
            if rule == "lightlfu":  # of which the product has no state
                return _Held(place, rows, uses)
            state = place.save()
            self._states[key] = state, uses[state.rows]
        state, uses = self._states[key]
        place = kernels.IdMap(capacity=capacity, evict=rule)  # type: ignore[arg-type]
        place.load(state)
        return _Held(place, state.ids, uses)

    def _run(self, rule: str, rank: int, capacity: int) -> tuple[kernels.IdMap, Ints, Ints]:
        """A map, and the rows and uses of its places."""
        place = kernels.IdMap(capacity=capacity, evict=rule)  # type: ignore[arg-type]
        rows, uses = np.zeros((2, capacity), np.int64)
        for some in self._rows[rank]:
            asked = some.astype(np.int64)
            places, fresh = place.admit(asked)
            new = places[fresh]
            uses[new], rows[new] = 0, asked[fresh]
            uses[places if places.min() >= 0 else places[places >= 0]] += 1
        return place, rows[: len(place)], uses[: len(place)]


class Settled:
    """Caches of all ranks for batches of a size.

    Parameters
    ----------
    popular : Popularity
    batch, ranks : int
    rng : numpy Generator
    """

    def __init__(self, popular: Popularity, batch: int, ranks: int, rng: np.random.Generator) -> None:
        self._rng, self._rate, self._batch = rng, popular.asked(batch), batch
        least = np.maximum(self._rate, 1e-12)
        self._age = [
            np.clip(np.ceil(rng.standard_exponential(len(least), np.float32) / least), 1, MOST).astype(np.int32)
            for _ in range(ranks)
        ]

    def caches(self, rule: str, capacity: int, stalenesses: Sequence[int], before: Past) -> list[Cache]:
        """Those of all ranks, full where what came before has filled them; clocks of rows are ``CLOCK``."""
        held = [self._held(rule, rank, capacity, before) for rank in range(len(self._age))]
        s, out = np.array(stalenesses, np.int64), []
        uses_RN = np.zeros((len(held), len(self._rate)), np.int32)
        for uses_N, of in zip(uses_RN, held, strict=True):
            uses_N[of.rows] = of.uses
        for rank, own in enumerate(held):
            lacks = np.zeros((len(own.rows), len(s)), np.int64)
            for other, of in enumerate(held):
                if other != rank:
                    lacks += self._pushed_since(rule, rank, own.rows, other, of.oldest, uses_RN[other], s)
            cache = Cache.of(own.map, capacity, len(s))
            n = len(own.rows)
            cache.row[:n], cache.ticks[:n] = own.rows, own.uses[:, None] % (s + 1)
            cache.known[:n] = CLOCK - np.minimum(lacks, CLOCK // 2)
            cache.known[:, s == 0] = UNKNOWN
            out.append(cache)
        return out

    def _held(self, rule: str, rank: int, capacity: int, before: Past) -> _Held:
        """``uses`` are at least 1."""
        rng = self._rng
        if rule == "frequent":
            rows = np.argpartition(-self._rate, capacity)[:capacity]
            return _Held(Fixed(rows, len(self._rate)), rows, rng.integers(1, MOST, capacity))
        if rule == "lru":
            age, place = self._age[rank], kernels.IdMap(capacity=capacity, evict=rule)  # type: ignore[arg-type]
            rows = np.argpartition(age, capacity)[:capacity]
            rows = rows[np.lexsort((rows, -age[rows]))]
            none, oldest = np.zeros(0, np.int64), int(age[rows].max())
            clocks = oldest + 1 - age[rows].astype(np.int64)
            place.load(IdState(np.arange(capacity), rows, clocks, clocks, none, none, none, oldest, 0))
            return _Held(place, rows, 1 + self._again(self._rate[rows] * oldest), oldest)
        found = before.held(rule, rank, capacity)
        rate, steps = self._rate[found.rows], before.batch / self._batch
        # A batch of the past is one use where several steps have used the row.
        each = steps * np.expm1(-rate) / np.expm1(-rate * steps)
        uses = np.maximum(np.floor(found.uses * each + rng.random(len(rate))).astype(np.int64), 1)
        uses = np.where(uses < MANY, uses, rng.integers(uses // 2, uses + 1))  # rows of every step are in no one phase
        return _Held(found.map, found.rows, uses)

    def _again(self, rate: np.ndarray) -> Ints:
        """Uses of rows that each use keeps until ``exp(-rate)`` is against another: geometric."""
        with np.errstate(divide="ignore"):
            gap = np.maximum(-np.log1p(-np.exp(-rate)), 1e-7)
        return np.minimum(self._rng.standard_exponential(len(rate)) / gap, MOST).astype(np.int64)

    def _pushed_since(
        self, rule: str, rank: int, rows: Ints, other: int, oldest: int, uses_N: np.ndarray, s: Ints
    ) -> Ints:
        """Ticks of each row that another rank, which has used it so often, has pushed since this one's last use [C, S].

        ``oldest`` and ``uses_N`` are the other's; 0 uses of a row that it does not keep.
        """
        mine, others, held = (array.take(rows) for array in (self._age[rank], self._age[other], uses_N))
        out = np.zeros((len(rows), len(s)), np.int64)
        if rule == "lru":  # what it does not keep has left within that time, or before
            out[(held == 0) & (others - oldest < mine)] = 1
        near = np.flatnonzero(others <= mine)  # it has used the row since
        held, since = held[near], 1 + self._rng.poisson((mine - others)[near] * self._rate.take(rows[near]))
        for i, staleness in enumerate(s.tolist()):
            over = since - 1 - held % np.int32(staleness + 1)
            pushed = np.where(over >= 0, (1 + over // (staleness + 1)) * (staleness + 1), 0)
            out[near, i] = np.where(held > 0, pushed, out[near, i] if rule == "lru" else since)
        return out
