"""The known map of the native module, under the reference's names and signatures."""

import secrets

import numpy as np

from hpcrec.kernels.native_module import loaded
from hpcrec.types import Ints


class KnownMap:
    """See the reference."""

    def __init__(self, capacity: int, window: int, in_use: int) -> None:
        key = np.frombuffer(secrets.token_bytes(32), np.uint64)  # nothing but time depends on it
        self._map = loaded.KnownMap(capacity, window, in_use, key)

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

    def foresee(self, ids: Ints) -> None:
        """See the reference."""
        self._map.foresee(ids)

    def admit(self, ids: Ints) -> tuple[Ints, Ints]:
        """See the reference."""
        rows, fresh = np.empty_like(ids), np.empty_like(ids)
        n_fresh = self._map.admit(ids, rows, fresh)
        return rows, fresh[:n_fresh].copy()

    def forget(self) -> None:
        """See the reference."""
        self._map.forget()

    def clear(self) -> None:
        """See the reference."""
        self._map.clear()
