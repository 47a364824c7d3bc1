"""What a rank reads of each batch: its part, where it is dense; ids of the whole batch, where it holds rows and reads.

And, where copies of rows are told of the steps to come, its parts of these.

Knows the data set, its order and this rank's roles; knows nothing of what is done with a batch.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from threading import Lock

from hpcrec.data.affinity import Affinity
from hpcrec.data.gather import join_bags
from hpcrec.data.loader import WEIGHT, BatchStream, Loader
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
    looks : bool
        Ids come with those of batches to come, which are read once more for it (``GlobalIds.coming``).
    columns : tuple of str
        Optional columns that a part has besides weights, for metrics.
    """

    def __init__(
        self,
        parts: Parts,
        source: Split,
        first: int,
        n: int,
        *,
        affinity: Affinity | None = None,
        window: int = 0,
        looks: bool = False,
        columns: tuple[str, ...] = (),
    ) -> None:
        topology = parts.world.topology
        self._ranks, self._order = len(topology.dense), source.order
        opened = ExitStack()

        def stream(
            number: int, of: int, features: tuple[str, ...], *, ids_only: bool = False, after: int = 0
        ) -> BatchStream:
            loader = Loader(
                source.dataset,
                source.order,
                part=number,
                parts=of,
                features=features,
                prefetch=parts.prefetch,
                ids_only=ids_only,
                affinity=affinity,
                optional=WEIGHT + columns,
            )
            epoch, index = divmod(first + after, source.order.n_batches)
            return opened.enter_context(loader.batches(epoch, index, n - after))

        wanted, held, groups = parts.exchange.features, parts.exchange.held, source.order.groups
        with opened:  # closed again if one cannot be opened
            self._own = stream(topology.dense_index, self._ranks, wanted) if topology.is_dense else None
            self._whole = [stream(g, groups, held, ids_only=True) for g in range(groups)] if held else []
            coming = [stream(g, groups, held, ids_only=True, after=1) for g in range(groups)] if held and looks else []
            self._streams = opened.pop_all()
        self._coming = self._read_later(coming, n - 1) if coming else None
        self._lock, self._closed = Lock(), False  # of what is read later, by another thread
        self._window = None if self._own is None or not window else Window(self._own, window)

    def __next__(self) -> tuple[Batch | None, GlobalIds | None, Sight | None]:
        sight = None if self._window is None else next(self._window)
        own = sight.own.batch if sight is not None else None if self._own is None else next(self._own)
        if not self._whole:
            return own, None, sight
        return own, self._ids(self._whole, self._coming), sight

    def _ids(self, streams: list[BatchStream], coming: Iterator[GlobalIds] | None = None) -> GlobalIds:
        whole = [next(stream) for stream in streams]
        firsts = self._order.firsts(whole[0].index, self._ranks)
        return GlobalIds(join_bags([one.bags for one in whole]), firsts, coming)

    def _read_later(self, streams: list[BatchStream], n: int) -> Iterator[GlobalIds]:
        for _ in range(n):
            with self._lock:
                if self._closed:
                    return
                ids = self._ids(streams)
            yield ids

    def close(self) -> None:
        """Stops reading."""
        with self._lock:
            self._closed = True
            self._streams.close()
