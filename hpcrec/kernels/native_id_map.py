"""The id map of the native module, under the reference's names and signatures."""

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.native_module import loaded
from hpcrec.kernels.reference_id_map import IdState
from hpcrec.types import Ints

_EVICT = {None: 0, "lru": 1, "lfu": 2, "lightlfu": 3}


def new_key() -> NDArray[np.uint64]:
    """By which ids lie in a map: nothing but time depends on it, no two processes share it, and nobody can know it."""
    return np.frombuffer(secrets.token_bytes(32), np.uint64)


class NativeRowMap:
    """What maps of the native module share: ``_map`` is one."""

    _map: Any

    @property
    def size(self) -> int:
        """See the reference."""
        return self._map.size

    @property
    def evicted(self) -> int:
        """See the reference."""
        return self._map.evicted

    @property
    def n_bytes(self) -> int:
        """Memory that it has asked for."""
        return self._map.n_bytes

    def find(self, ids: Ints) -> Ints:
        """See the reference."""
        rows = np.empty_like(ids)
        self._map.find(ids, rows)
        return rows

    def admit(self, ids: Ints) -> tuple[Ints, Ints]:
        """See the reference."""
        rows, fresh = np.empty_like(ids), np.empty_like(ids)
        n_fresh = self._map.admit(ids, rows, fresh)
        return rows, fresh[:n_fresh].copy()


class IdMap(NativeRowMap):
    """See the reference."""

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
        self._evicts, self._counts = evict is not None, admit_from > 1
        self._map = loaded.IdMap(capacity, _EVICT[evict], admit_from, pending, probability, seed, in_use, new_key())

    @property
    def clock(self) -> int:
        """See the reference."""
        return self._map.clock

    def save(self) -> IdState:
        """See the reference."""
        sizes = [self._map.size] * 2 + [self._map.size * self._evicts] * 2 + [self._map.n_pending] * 4
        lists = [np.empty(n, np.int64) for n in sizes]
        self._map.save(*lists)
        rows, ids, counts, clocks, _, pending_ids, pending_counts, pending_clocks = lists
        return IdState(rows, ids, counts, clocks, pending_ids, pending_counts, pending_clocks, self.clock, self.evicted)

    def load(self, state: IdState, *, keep_rows: bool = False) -> None:
        """See the reference."""
        pending = state.pending_ids, state.pending_counts, state.pending_clocks
        self._map.load(
            state.rows if keep_rows else None,
            state.ids,
            state.counts,
            state.clocks,
            *pending,
            state.clock,
            state.evicted,
        )
