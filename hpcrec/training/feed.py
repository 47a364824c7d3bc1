"""What a rank reads of each batch: its part, where it is dense; ids of the whole batch, where it holds rows and reads.

And, where copies of rows are told of the steps to come, its parts of these.

Knows the data set, its order and this rank's roles; knows nothing of what is done with a batch.
"""

from contextlib import ExitStack

from hpcrec.data.affinity import Affinity
from hpcrec.data.gather import join_bags
from hpcrec.data.loader import BatchStream, Loader
from hpcrec.exchange.foresight import Sight, Window
from hpcrec.training.parts import Parts, Split
from hpcrec.types import Batch, GlobalIds


class Feed:
    """``next()`` gives the next batch's part, ids and sight, None for what this rank does not read. To be closed.

    Parameters
    ----------
    parts : Parts
    source : Split
    first, n : int
        Number of the first batch, counted through all epochs, and how many.
    affinity : Affinity, optional
        By what batches are dealt to dense ranks; by default as the order has them.
    window : int
        Batches that are read beyond each, and kept, where a step is to see those after it.
    """

    def __init__(
        self, parts: Parts, source: Split, first: int, n: int, *, affinity: Affinity | None = None, window: int = 0
    ) -> None:
        topology = parts.world.topology
        self._ranks, self._order = len(topology.dense), source.order
        opened = ExitStack()

        def stream(number: int, of: int, features: tuple[str, ...], *, ids_only: bool = False) -> BatchStream:
            loader = Loader(
                source.dataset,
                source.order,
                part=number,
                parts=of,
                features=features,
                prefetch=parts.prefetch,
                ids_only=ids_only,
                affinity=affinity,
            )
            epoch, index = divmod(first, source.order.n_batches)
            return opened.enter_context(loader.batches(epoch, index, n))

        wanted, held, groups = parts.exchange.features, parts.exchange.held, source.order.groups
        with opened:  # closed again if one cannot be opened
            self._own = stream(topology.dense_index, self._ranks, wanted) if topology.is_dense else None
            self._whole = [stream(g, groups, held, ids_only=True) for g in range(groups)] if held else []
            self._streams = opened.pop_all()
        self._window = None if self._own is None or not window else Window(self._own, window)

    def __next__(self) -> tuple[Batch | None, GlobalIds | None, Sight | None]:
        sight = None if self._window is None else next(self._window)
        own = sight.own.batch if sight is not None else None if self._own is None else next(self._own)
        if not self._whole:
            return own, None, sight
        whole = [next(stream) for stream in self._whole]
        firsts = self._order.firsts(whole[0].index, self._ranks)
        return own, GlobalIds(join_bags([one.bags for one in whole]), firsts), sight

    def close(self) -> None:
        """Stops reading."""
        self._streams.close()
