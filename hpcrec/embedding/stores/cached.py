"""Rows of a store, cached in faster memory: those of steps to come are brought while the ones before are under way.

``prefetch`` notes which rows a step wants, which ``Ahead`` brings; ``gather`` waits for them. Evaluations come between,
in the order in which they are gathered. Knows a cache and what steps ask of blocks; knows no messages and no MPI.
Source: [MTRAINS].
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked, rows_between, without_any
from hpcrec.embedding.held_rows import HeldRows
from hpcrec.embedding.store import NormSum
from hpcrec.embedding.stores.ahead import Ahead
from hpcrec.embedding.stores.cache import Backing, Cache, Moved, pieces
from hpcrec.embedding.stores.memory import MemoryStore, Worked
from hpcrec.errors import ConfigError
from hpcrec.types import Floats, Ints

_SHARE_OF_A_STEP, _SHARE_OF_A_PIECE = 4, 16  # rows that are pushed have one in so many slots, or come in pieces of that


class HeldBacking:
    """A cache's rows are those of ``HeldRows``, by block."""

    def __init__(self, held: Sequence[HeldRows]) -> None:
        self._held = held

    def columns(self, block: int) -> Mapping[str, Floats]:
        """See ``Backing``."""
        return self._held[block].columns

    def fetch(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``."""
        for some in pieces(moved):
            for b, of in some.items():
                for name, found in self._held[b].fetch(of.rows).items():
                    of.columns[name][of.places] = found

    def write_back(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``."""
        for some in pieces(moved):
            for b, of in some.items():
                self._held[b].write_back(of.rows, of.values())


class CachedStore(MemoryStore):
    """See ``Store``. A subclass says which blocks are cached, and with how many slots (``_slots``).

    Where none is, steps work on ``held``. ``window``: see ``Store``.
    """

    def __init__(self, *args: Any, window: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._window = window
        self._ahead = self._made_ahead()
        self._cache = self._ahead.cache
        self._apart = [b in self._cache for b in range(len(self.blocks))]
        self._spares: list[list[int]] = [[] for _ in self.blocks]
        for family, rows in self.dynamic.items():
            for b, part in self._parts_of(family):
                self._spares[b].append(part.base + rows.spare)
        self._crowded = set[int]()  # steps that push more rows than there is room for, and are learned in pieces
        self._n_pieces = 0
        self._waited_s = 0.0
        self._seen = 0  # number of the training step that was looked at last

    def _slots(self, block: int) -> int | None:
        """Slots of a block's cache; None where it is not cached."""
        raise NotImplementedError

    def _backing(self) -> Backing:
        """What the cache lies over."""
        return HeldBacking(self.held)

    def _made_ahead(self) -> Ahead:
        """Of the cache in which steps work."""
        return Ahead(self._made_cache(self.device, self._backing(), self._all_slots(), "memory_bytes"), self.device)

    def _all_slots(self) -> dict[int, int]:
        return {b: n for b in range(len(self.blocks)) if (n := self._slots(b)) is not None}

    def _made_cache(self, device: kernels.Device | None, backing: Backing, slots: Mapping[int, int], key: str) -> Cache:
        try:
            return Cache(device, backing, {b: (self.blocks[b].rows, n) for b, n in slots.items()})
        except MemoryError as error:
            raise ConfigError(
                f"store.{key} asks for caches of {list(slots.values())} rows, which this rank's "
                f"{'host' if device is None else 'GPU'} has no memory for: {error}. Lower it."
            ) from None

    # Steps.

    @property
    def waited_s(self) -> float:
        """See ``Store``."""
        return self._waited_s

    @property
    def looks_ahead(self) -> bool:
        """See ``Store``."""
        return bool(self._cache) and (self.device is None or self._ahead.below is not None)

    @property
    def window(self) -> int:
        """See ``Store``."""
        return self._window

    @property
    def looks_further(self) -> bool:
        """See ``Store``."""
        lowest = self._ahead.lowest
        wanted = 0 < self._window > self._seen - lowest.told
        return wanted and bool(lowest.cache) and lowest.cache.sees_little()

    def look(self, rows: Sequence[Ints]) -> None:
        """See ``Store``."""
        self._seen += 1
        cache = self._ahead.lowest.cache
        cache.look({b: rows[b] for b in cache}, self._seen)

    def look_anew(self) -> None:
        """See ``Store``."""
        self._seen = self._ahead.lowest.told

    def foresee(self, step: int, rows: Sequence[Ints]) -> None:
        """See ``Store``. Spare rows do not count: who has one now gets a row in the step."""
        spares = [np.array(self._spares[b], np.int64) for b in range(len(self.blocks))]
        known = {b: kernels.dedup(rows[b][~np.isin(rows[b], spares[b])])[0] for b in self._ahead.lowest.cache}
        self._ahead.foresee(step, known)

    def prefetch(self, step: int, asked: Sequence[Asked]) -> None:
        """See ``Store``."""
        if self._cache:
            trains = all(wanted.grouping is not None for wanted in asked)
            self._ahead.note(step, *self._distinct(asked), trains=trains)

    def _distinct(self, asked: Sequence[Asked]) -> tuple[dict[int, Any], dict[int, Any]]:
        """Rows [U], and the place of each that is asked among these [K], by cached block."""
        found = {b: kernels.dedup(asked[b].index) for b in self._cache}
        return {b: rows for b, (rows, _) in found.items()}, {b: inverse for b, (_, inverse) in found.items()}

    def extend(self, step: int, asked: Sequence[Asked]) -> None:
        """See ``Store``. Where that is more rows than the cache may have of a step, ``learn`` has them in pieces."""
        if not self._cache:
            return
        rows, inverse = self._distinct(asked)
        if self._ahead.needs(step) and self._is_crowded(rows, asked):
            self._crowded.add(step)
        else:
            with self._waits() if self._ahead.needs(step) else nullcontext():
                self._ahead.note_anew(step, rows, inverse)

    def _is_crowded(self, rows: Mapping[int, Any], asked: Sequence[Asked]) -> bool:
        whole = any(block.needs_norms for block in self.blocks) or any(of.maxima is not None for of in asked)
        return not whole and any(
            len(of) > self._cache.slots(b) // _SHARE_OF_A_STEP and self._cache.slots(b) < self.blocks[b].rows
            for b, of in rows.items()
        )

    def gather(self, step: int, asked: Sequence[Asked], values: Floats) -> None:
        """See ``Store``."""
        if self._cache and not self._ahead.needs(step):
            with self._waits() if self._ahead.noted(step).trains else nullcontext():
                self._ahead.need(step)
        super().gather(step, asked, values)
        self._ahead.start()

    def learn(
        self, step: int, asked: Sequence[Asked], gradients: Floats, norms: NormSum, *, number: int, lr_scale: float
    ) -> None:
        """See ``Store``."""
        if step in self._crowded:
            norms({})  # no block needs any, and all ranks have to call it once
            with self._ahead.still():
                self._in_pieces = True
                for some, rows in self._pieces(asked):
                    self._learn_piece(step, some, rows, gradients, number=number, lr_scale=lr_scale)
                self._in_pieces, self._squared = False, None
        else:
            super().learn(step, asked, gradients, norms, number=number, lr_scale=lr_scale)
        self._ahead.rest()

    def _pieces(self, asked: Sequence[Asked]) -> Iterator[tuple[list[Asked], dict[int, Ints]]]:
        """What is asked, some rows of each cached block at once; and these rows. Other blocks' come with the first."""
        unique = {b: np.asarray(_grouping(asked[b]).unique) for b in self._cache}
        ends = {b: np.asarray(_grouping(asked[b]).segments) for b in self._cache}
        sizes = {b: max(self._cache.slots(b) // _SHARE_OF_A_PIECE, kernels.WAYS) for b in unique}
        for n in range(max(-(-len(rows) // sizes[b]) for b, rows in unique.items())):
            some, found = [of if not n else without_any(of) for of in asked], dict[int, Ints]()
            for b, rows in unique.items():
                first = min(n * sizes[b], len(rows))
                found[b] = np.ascontiguousarray(rows[first : first + sizes[b]])
                of = ends[b][first : first + len(found[b]) + 1]
                some[b] = rows_between(asked[b], found[b], of, first, self.device)
            yield some, found

    def _learn_piece(
        self,
        step: int,
        some: Sequence[Asked],
        rows: dict[int, Ints],
        gradients: Floats,
        *,
        number: int,
        lr_scale: float,
    ) -> None:
        self._n_pieces += 1
        piece = -self._n_pieces  # no step has such a number
        inverse = {b: self._there(np.arange(len(of))) for b, of in rows.items()}
        with ExitStack() as stack:
            with self._waits():
                stack.enter_context(self._ahead.beside(piece, rows, inverse))
            if step in self._given:
                self._given[piece] = self._given[step]
            super().learn(piece, some, gradients, lambda own: own, number=number, lr_scale=lr_scale)
            self._given.pop(piece, None)

    def release(self, step: int) -> None:
        """See ``Store``."""
        super().release(step)
        self._crowded.discard(step)
        if self._cache:
            self._ahead.release(step)

    @contextmanager
    def _waits(self) -> Iterator[None]:
        """A training step waits for rows meanwhile."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._waited_s += time.perf_counter() - began_s

    def _worked(self, step: int, block: int, asked: Asked) -> Worked:
        if block not in self._cache:
            return super()._worked(step, block, asked)
        noted = self._ahead.noted(step)
        unique, inverse = noted.rows[block], noted.inverse[block]
        places = self._cache.places(step, block)
        if len(asked.index) != len(inverse):  # a part of the bags
            inverse = np.searchsorted(np.asarray(unique), np.asarray(asked.index))
        if asked.grouping is not None and len(asked.grouping.unique) != len(places):  # a part of the rows
            rows = np.asarray(asked.grouping.unique)
            some = self._there(places[np.searchsorted(np.asarray(unique), rows)])
            grouping: kernels.Grouping | None = asked.grouping._replace(unique=some)
            unique = rows
        else:
            grouping = asked.grouping and asked.grouping._replace(unique=self._there(places))
        index = self._there(places)[inverse]
        maxima = asked.maxima and replace(asked.maxima, index=index[len(index) - len(asked.maxima.index) :])
        at_places = replace(asked, index=index, grouping=grouping, maxima=maxima)
        return Worked(at_places, self._cache.rows(block), self._cache.states(block), unique)

    def _state_of(self, step: int, block: int, name: str, rows: Ints) -> Floats:
        if block not in self._cache:
            return super()._state_of(step, block, name, rows)
        at = np.searchsorted(np.asarray(self._ahead.noted(step).rows[block]), rows)
        return np.asarray(self._cache.states(block)[name][self._cache.places(step, block)[at]])

    def _there(self, array: Ints) -> Any:
        return array if self.device is None else self.device.array(array)

    def _will_change(self, step: int, works: Sequence[Worked]) -> None:
        for b, (held, work) in enumerate(zip(self.held, works, strict=True)):
            if b in self._cache:
                self._cache.changes(step, b)
            elif len(work.asked.index):
                held.will_change(work.unique)

    def load(self, *args: Any, **more: Any) -> int:
        """See ``Store``."""
        with self._ahead.still():
            return super().load(*args, **more)

    def close(self) -> None:
        """See ``Store``."""
        self._ahead.close()

    # The rows below.

    @property
    def _caches(self) -> list[Cache]:
        """The one in which steps work, and those below."""
        found, ahead = list[Cache](), cast("Ahead | None", self._ahead)
        while ahead is not None:
            found, ahead = [*found, ahead.cache], ahead.below
        return found

    def _settled(self, block: int) -> None:
        for cache in self._caches:
            if block in cache:
                cache.flush(block)

    def _cleared(self, block: int) -> None:
        for cache in self._caches:
            if block in cache:
                cache.clear(block)

    def _put(self, block: int, where: Ints, rows: Floats | float, states: Mapping[str, float]) -> None:
        *above, lowest = self._caches
        with nullcontext() if self.device is None else self._ahead.still_here():
            if block not in lowest or lowest.device is not None:  # its places are given between two steps alone
                super()._put(block, where, rows, states)
                return
            lowest.put(block, where, {"": rows, **states})
            for cache in reversed(above):
                cache.refresh(block, where)

    def _refreshed(self, block: int, rows: Ints) -> None:
        for cache in reversed(self._caches):
            if block in cache:
                cache.refresh(block, rows)

    def figures(self) -> dict[str, float]:
        """See ``Store``; how often rows were in the cache, and for how long steps have waited for the others."""
        mine = {**self._cache.counts.figures(), "rows_waited_s": self._waited_s} if self._cache else {}
        pieces = {"pushed_in_pieces": self._n_pieces} if self._n_pieces else {}
        return {**super().figures(), **mine, **pieces}


def _grouping(asked: Asked) -> kernels.Grouping:
    assert asked.grouping is not None, "it is learned from"
    return asked.grouping
