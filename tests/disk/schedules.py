"""Random writes to a tier, the same for the same seed, and what its rows are then."""

from collections.abc import Iterator

import numpy as np

from hpcrec.disk.tier import BlockRows, Settings, Tier, Wanted

BLOCKS = (
    BlockRows(9000, {"": (np.dtype("f4"), (16,)), "accumulator": (np.dtype("f4"), ())}),
    BlockRows(700, {"": (np.dtype("f8"), (24,)), "m": (np.dtype("f8"), (24,)), "v": (np.dtype("f8"), (24,))}),
)
SMALL = {"segment_bytes": 1 << 17, "piece_bytes": 1 << 14}


def settings(io="auto", **more) -> Settings:
    """Segments so small that they are cleaned all the time."""
    return Settings(io=io, **{**SMALL, **more})


def columns_of(block: BlockRows, n: int) -> dict[str, np.ndarray]:
    return {name: np.zeros((n, *shape), dtype) for name, (dtype, shape) in block.columns.items()}


class Model:
    """The rows in memory, and whether they were ever written."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows = [columns_of(block, block.rows) for block in BLOCKS]
        self.written = [np.zeros(block.rows, bool) for block in BLOCKS]

    def draw(self) -> dict[int, Wanted]:
        """Rows to be written next; the model has them from now on."""
        given = {}
        for b, block in enumerate(BLOCKS):
            n = block.rows // 25
            hot, other = self.rng.zipf(1.3, n) % block.rows, self.rng.integers(0, block.rows, n)
            rows = self.rng.permutation(np.unique(np.r_[hot, other]))
            values = columns_of(block, len(rows))
            for name, array in values.items():
                array[:] = self.rng.normal(size=array.shape)
                self.rows[b][name][rows] = array
            self.written[b][rows] = True
            given[b] = Wanted(rows, values)
        return given

    def check(self, tier: Tier, picked: dict[int, np.ndarray] | None = None) -> None:
        """The tier has these rows, all by default, and no others."""
        picked = picked or {b: np.arange(block.rows) for b, block in enumerate(BLOCKS)}
        into = {b: columns_of(BLOCKS[b], len(rows)) for b, rows in picked.items()}
        found = tier.read({b: Wanted(rows, into[b]) for b, rows in picked.items()}).wait()
        self.compare(picked, into, found)

    def compare(self, picked, into, found) -> None:
        for b, rows in picked.items():
            np.testing.assert_array_equal(found[b], self.written[b][rows])
            for name, array in into[b].items():
                wanted = np.where(self._wide(found[b], array), self.rows[b][name][rows], 0)
                np.testing.assert_array_equal(array, wanted)

    @staticmethod
    def _wide(found: np.ndarray, like: np.ndarray) -> np.ndarray:
        return found.reshape(-1, *[1] * (like.ndim - 1))


def writes(model: Model, tier: Tier, n: int) -> Iterator[int]:
    for i in range(n):
        tier.write(model.draw())
        yield i
