"""What a rank reads of each batch: its part, where it is dense; ids of the whole batch, where it holds rows and reads.

Knows the data set, its order and this rank's roles; knows nothing of what is done with a batch.
"""

from contextlib import ExitStack

from hpcrec.data.affinity import Affinity
from hpcrec.data.gather import join_bags
from hpcrec.data.loader import BatchStream, Loader
from hpcrec.training.parts import Parts, Split
from hpcrec.types import Batch, GlobalIds


class Feed:
    """``next()`` gives the next batch's part and ids, None for what this rank does not read. To be closed.

    Parameters
    ----------
    parts : Parts
    source : Split
    first, n : int
        Number of the first batch, counted through all epochs, and how many.
    affinity : Affinity or None
        By what batches are dealt to dense ranks; None: as the order has them.
    """

    def __init__(self, parts: Parts, source: Split, first: int, n: int, affinity: Affinity | None = None) -> None:
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

    def __next__(self) -> tuple[Batch | None, GlobalIds | None]:
        own = None if self._own is None else next(self._own)
        if not self._whole:
            return own, None
        whole = [next(stream) for stream in self._whole]
        return own, GlobalIds(join_bags([one.bags for one in whole]), self._order.firsts(whole[0].index, self._ranks))

    def close(self) -> None:
        """Stops reading."""
        self._streams.close()
