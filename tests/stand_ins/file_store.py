"""A store whose rows are in a mapped file, under a cache in memory that holds about one batch: a tier on disk in small.

How a store is added: a class that says where rows lie and how many are cached, and a line in ``STORES``.
"""

import tempfile
from pathlib import Path

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.blocks import Block
from hpcrec.embedding.stores.cached import CachedStore
from hpcrec.types import Floats


class FileStore(CachedStore):
    """See ``Store``."""

    slots = 64

    def _room(self, block: Block) -> tuple[Floats, dict[str, Floats]]:
        shapes = {"": (block.rows, block.width), **kernels.state_shapes(block.spec, block.rows, block.width)}
        folder = Path(tempfile.mkdtemp(prefix="hpcrec-test-rows-"))
        made = {
            name: np.asarray(np.memmap(folder / (name or "rows"), self.dtype, "w+", shape=shape))
            for name, shape in shapes.items()
        }
        for file in folder.iterdir():  # what is mapped stays until nobody has it any more
            file.unlink()
        folder.rmdir()
        if block.kind != "dynamic":
            for name, value in kernels.state_values(block.spec).items():
                made[name][:] = value
        return made.pop(""), made

    def _slots(self, block: int) -> int | None:
        return None if self.blocks[block].kind == "replicate" else self.slots
