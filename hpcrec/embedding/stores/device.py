"""Store ``gpu``: rows in a device's memory, or, where they take more than they may, in the host's and cached there.

Copies of tables are always the device's. Knows memory; what a step does with rows is for ``memory`` and ``cached``.
"""

from functools import partial
from typing import Any

from hpcrec import kernels
from hpcrec.embedding.blocks import Block, blocks_of
from hpcrec.embedding.room import bytes_of, slots_for
from hpcrec.embedding.stores.cached import CachedStore
from hpcrec.plan.memory import Elsewhere, to_gpu

MAP_BYTES = 12  # of a slot, on the device


class DeviceStore(CachedStore):
    """See ``Store``.

    Parameters
    ----------
    room_bytes : int, optional
        Of the device's memory, for rows that are not copies; default: all that they take.
    """

    def __init__(self, tables: Any, families: Any, *, room_bytes: int | None = None, **more: Any) -> None:
        own = [block for block in blocks_of(tables, families, more["rank"]) if block.kind != "replicate"]
        self._own_bytes = sum(self._bytes_of(block, more["dtype"]) for block in own)
        self._room_bytes = room_bytes if room_bytes is not None and self._own_bytes > room_bytes else None
        super().__init__(tables, families, **more)

    on_device = True
    keys = ("room_bytes",)

    @staticmethod
    def memory(memory_bytes: int | None, gpu_bytes: int | None = None) -> Elsewhere:  # noqa: ARG004
        """See ``MemoryStore``."""
        return partial(to_gpu, gpu_bytes=memory_bytes)

    @staticmethod
    def _bytes_of(block: Block, dtype: Any) -> int:
        return bytes_of(block.rows, block.width, block.spec, dtype)

    def _memory_of(self, block: Block) -> kernels.Device | None:
        cached = self._room_bytes is not None and block.kind != "replicate"
        return None if cached else self.device

    def _slots(self, block: int) -> int | None:
        of = self.blocks[block]
        if self._room_bytes is None or of.kind == "replicate":
            return None
        its_bytes = self._room_bytes * self._bytes_of(of, self.dtype) // self._own_bytes
        return slots_for(of.rows, self._bytes_of(of, self.dtype), its_bytes, MAP_BYTES)
