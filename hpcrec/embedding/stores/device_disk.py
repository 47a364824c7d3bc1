"""Store ``disk`` with ``store.gpu_bytes``: rows on a disk, some of them in main memory, and of these some on a device.

Steps work on the device, one step ahead of which its rows come from main memory; there they have come from the disk,
as many steps ahead as are routed. A row that a device changes goes to its place in main memory when it leaves, or to
the disk where it has none there any more. Tables that are to be whole are in main memory, under the same cache. Knows
levels and budgets; how rows come and go is for ``ahead`` and ``cache``. Source: [MTRAINS].
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from hpcrec import kernels
from hpcrec.embedding.blocks import Block
from hpcrec.embedding.room import slots_for
from hpcrec.embedding.stores.ahead import Ahead
from hpcrec.embedding.stores.cache import Backing, Moved
from hpcrec.embedding.stores.cached import HeldBacking
from hpcrec.embedding.stores.device import MAP_BYTES
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.plan.memory import Elsewhere, to_gpu_over_disk
from hpcrec.types import Floats


class BackingByBlock:
    """A cache's rows are those of several others, by block."""

    def __init__(self, of: Mapping[int, Backing]) -> None:
        self._of = of

    def columns(self, block: int) -> Mapping[str, Floats]:
        """See ``Backing``."""
        return self._of[block].columns(block)

    def fetch(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``."""
        for backing, mine in self._dealt(moved):
            backing.fetch(mine)

    def write_back(self, moved: Mapping[int, Moved]) -> None:
        """See ``Backing``."""
        for backing, mine in self._dealt(moved):
            backing.write_back(mine)

    def _dealt(self, moved: Mapping[int, Moved]) -> list[tuple[Backing, dict[int, Moved]]]:
        backings = {id(self._of[b]): self._of[b] for b in moved}
        return [(of, {b: m for b, m in moved.items() if self._of[b] is of}) for of in backings.values()]


class DeviceDiskStore(DiskStore):
    """See ``Store``.

    Parameters
    ----------
    gpu_bytes : int
        Of the device's memory, for rows that are not copies.
    """

    def __init__(self, *args: Any, gpu_bytes: int, **more: Any) -> None:
        self._gpu_bytes = gpu_bytes
        super().__init__(*args, **more)

    on_device = True
    keys = (*DiskStore.keys, "gpu_bytes")

    @staticmethod
    def memory(memory_bytes: int | None, gpu_bytes: int | None = None) -> Elsewhere:
        """See ``MemoryStore``."""
        assert memory_bytes is not None, "config.keys asks for it"
        return partial(to_gpu_over_disk, gpu_bytes=gpu_bytes, memory_bytes=memory_bytes)

    def _memory_of(self, block: Block) -> kernels.Device | None:
        return self.device if block.kind == "replicate" else None

    def _made_ahead(self) -> Ahead:
        in_memory = self._made_cache(None, self._backing(), self._all_slots(), "memory_bytes")
        held = HeldBacking(self.held)
        own = [b for b, block in enumerate(self.blocks) if block.kind != "replicate"]
        backing = BackingByBlock({b: in_memory if b in in_memory else held for b in own})
        total = max(self._own_bytes + self._whole_bytes, 1)
        slots = {b: self._device_slots(self.blocks[b], total) for b in own}
        cache = self._made_cache(self.device, backing, slots, "gpu_bytes")
        return Ahead(cache, self.device, Ahead(in_memory, None))

    def _device_slots(self, block: Block, total: int) -> int:
        n_bytes = self._bytes_of(block)
        return slots_for(block.rows, n_bytes, self._gpu_bytes * n_bytes // total, MAP_BYTES)

    def figures(self) -> dict[str, float]:
        """See ``Store``; ``cache_hits`` is of the device, ``memory_hits`` of main memory, which all rows come to."""
        below = self._ahead.lowest.cache
        in_memory = {name.replace("cache", "memory"): of for name, of in below.counts.figures().items()}
        return {**super().figures(), **(in_memory if below else {})}
