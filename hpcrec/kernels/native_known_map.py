"""The known map of the native module, under the reference's names and signatures."""

from hpcrec.kernels.native_id_map import NativeRowMap, new_key
from hpcrec.kernels.native_module import loaded
from hpcrec.types import Ints


class KnownMap(NativeRowMap):
    """See the reference."""

    def __init__(self, capacity: int, window: int, in_use: int) -> None:
        self._map = loaded.KnownMap(capacity, window, in_use, new_key())

    def foresee(self, ids: Ints) -> None:
        """See the reference."""
        self._map.foresee(ids)

    def forget(self) -> None:
        """See the reference."""
        self._map.forget()

    def clear(self) -> None:
        """See the reference."""
        self._map.clear()
