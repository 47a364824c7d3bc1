"""Feeds one rank its part of each batch of the global order, read and assembled off the critical path.

Two background threads: one reads windows of the order from the data set (the only one of them that touches the files),
one picks the samples of this part out of them; one thread does both where there is nothing to pick. Knows nothing of
MPI: `part` of `parts` is all it is told.

Memory: two windows (one being picked from, one being read; each `order.chunk * order.window_chunks` samples of the
chosen features) and `prefetch + 1` parts of batches. Every part reads every window: shuffled samples of a part lie all
over it. In file order, a part reads just its share of each batch where the files let it (`DataSet.plain`), and what was
read is the batch: `prefetch + 2` parts of batches are all the memory. An owner that reads its own features (`features`,
`ids_only`) reads only their columns.

Where batches are dealt by affinity (`data.affinity`), a part makes each batch whole, one at a time, with the features
that are looked at besides its own, and takes its samples; and it begins with the first batch of the window.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from hpcrec.data import gather
from hpcrec.data.affinity import Affinity, Dealer
from hpcrec.data.grouped import Order
from hpcrec.data.layout import Columns
from hpcrec.data.order import Share, Window
from hpcrec.data.prefetch import Prefetch
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError
from hpcrec.types import Batch

WEIGHT = ("weight",)  # what a training batch has of the optional columns


@dataclass(frozen=True)
class _Task:
    """One batch to make: positions ``[start, stop)`` of `epoch` are this part's share of batch `index`.

    The share begins ``offset`` samples into the whole batch, which has ``size``. Where batches are dealt by affinity,
    the positions are the whole batch's, and the share is of the samples as they are dealt.
    """

    epoch: int
    index: int
    size: int
    offset: int
    start: int
    stop: int
    samples: int


class Loader:
    """Batches of a data set for one part of the global order.

    Parameters
    ----------
    dataset : DataSet
    order : Order
        Over the data set's samples.
    part, parts : int
        This rank is number `part` of `parts` that share each batch; of an order of groups, a multiple of these.
    features : tuple of str, optional
        What the bags hold, in this order; all features of the data set by default. May be empty.
    prefetch : int
        Batches made ahead; 0 makes each one when it is asked for, without threads.
    ids_only : bool
        Read features alone: batches have labels and dense inputs without columns, [B, 0], and no weights of samples.
    affinity : Affinity, optional
        By what batches are dealt to its parts, of which this is one; or the only part, which then has the samples of
        all of them, part after part. As the order has them by default. Not of an order of groups.
    optional : tuple of str
        What a batch has of the optional columns, where the data set has them: ``weight``, and ``group`` for metrics.

    Attributes
    ----------
    exact : bool
        Whether it reads just its share of each batch, instead of windows.
    load_wait_s : float
        Seconds that consumers have waited for batches.

    Raises
    ------
    ConfigError
        When the order is not over this data set, or `part` is not one of `parts`.
    DataError
        When a feature is not in the data set; from the iterator, when a file cannot be read.
    """

    def __init__(
        self,
        dataset: DataSet,
        order: Order,
        *,
        part: int = 0,
        parts: int = 1,
        features: tuple[str, ...] | None = None,
        prefetch: int = 4,
        ids_only: bool = False,
        affinity: Affinity | None = None,
        optional: tuple[str, ...] = WEIGHT,
    ) -> None:
        assert affinity is None or (parts in (1, affinity.parts) and order.groups == 1), (parts, order.groups)
        if order.dataset_samples != dataset.samples:
            raise ConfigError(
                f"loader: the order has {order.dataset_samples} samples, {dataset.path} has {dataset.samples}."
            )
        if not 0 <= part < parts:
            raise ConfigError(f"loader: part {part} of {parts}; it must be in [0, {parts}).")
        if prefetch < 0:
            raise ConfigError(f"loader: prefetch is {prefetch}; it must be 0 or more.")
        self.dataset, self.order, self.part, self.parts, self.prefetch = dataset, order, part, parts, prefetch
        self.features = tuple(f.name for f in dataset.features) if features is None else tuple(features)
        for name in self.features:
            dataset.feature(name)
        self.ids_only, self.affinity, self.optional = ids_only, affinity, optional
        self.read_features = tuple(dict.fromkeys((*self.features, *(affinity.features if affinity else ()))))
        reads_shares = affinity is None and not order.shuffle
        self.exact = reads_shares and dataset.plain(self.features, optional, ids_only=ids_only)
        self.load_wait_s = 0.0

    @property
    def share(self) -> Share:
        """What it reads of each batch."""
        return self.order.share(self.part, self.parts)

    def batches(self, epoch: int = 0, index: int = 0, n: int | None = None) -> "BatchStream":
        """Batches from number `index` of `epoch` on, through later epochs.

        Parameters
        ----------
        epoch, index : int
            `index` may equal the batches of an epoch: the stream then starts with the next one.
        n : int, optional
            Batches in all; endless by default.

        Returns
        -------
        BatchStream
            An iterator of `Batch`, to be closed (or dropped) by its user. Batches may be kept: each has arrays of its
            own.
        """
        if epoch < 0 or not 0 <= index <= self.order.n_batches:
            raise ConfigError(
                f"loader: batch {index} of epoch {epoch}; epochs start at 0 and have {self.order.n_batches} batches."
            )
        position = epoch * self.order.n_batches + index
        return BatchStream(self, position, None if n is None else position + n)

    def tasks(self, first: int, end: int | None) -> Iterator[_Task]:
        """What to make for batches number ``[first, end)``, counted through all epochs."""
        share = self.share
        while end is None or first < end:
            epoch, index = divmod(first, self.order.n_batches)
            size, offset, start, stop = share.of_batch(index)
            samples = stop - start
            if self.affinity is not None:
                start, stop = share.order.batch_range(index)
            yield _Task(epoch, index, size, offset, start, stop, samples)
            first += 1

    def begins(self, first: int) -> int:
        """The batch from which on all have to be dealt for number `first`: that which begins first in its window."""
        epoch, index = divmod(first, self.order.n_batches)
        order = self.share.order
        window = order.window(epoch, order.window_of(epoch, order.batch_range(index)[0]))
        return epoch * order.n_batches + -(-window.start // order.batch_size)


class BatchStream:
    """An iterator of batches that owns its threads; a context manager. Made by `Loader.batches`."""

    def __init__(self, loader: Loader, first: int, end: int | None) -> None:
        self._loader = loader
        begin = first if loader.affinity is None else loader.begins(first)
        reading = _read_windows(loader, loader.tasks(begin, end))
        # What is read exactly needs no picking worth a thread.
        windows = Prefetch(reading, 1) if loader.prefetch and not loader.exact else reading
        making = _make_batches(loader, loader.tasks(begin, end), windows)
        if begin < first:
            making = _behind(making, first - begin)
        self._batches = Prefetch(making, loader.prefetch) if loader.prefetch else making

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self._loader.load_wait_s += time.perf_counter() - began

    def close(self) -> None:
        """Stop reading; returns when the threads are gone. No batch comes after."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _Loaded:
    """A window of `epoch`, in memory."""

    epoch: int
    window: Window
    columns: Columns

    def holds(self, epoch: int, position: int) -> bool:
        return epoch == self.epoch and self.window.start <= position < self.window.stop

    def take(self, start: int, stop: int) -> Columns:
        """What stands at positions ``[start, stop)``: copies, or all of `columns` where that is the same."""
        low, high = start - self.window.start, stop - self.window.start
        order = self.window.permutation
        if order is not None:
            return gather.take(self.columns, order[low:high])
        return self.columns if high - low == self.columns.samples else gather.cut(self.columns, low, high)


def _read_windows(loader: Loader, tasks: Iterator[_Task]) -> Generator[_Loaded]:
    """Each window that `tasks` need, once a stretch, in the order in which they need it; or just what each needs."""
    order, epoch, end = loader.share.order, -1, 0  # of the window read last
    for task in tasks:
        if loader.exact:
            if task.start < task.stop:
                samples = (order.first + task.start, order.first + task.stop)
                window = Window(task.start, task.stop, (samples,), None)
                yield _load(loader, task.epoch, window)
            continue
        position = task.start if task.epoch != epoch else max(task.start, end)
        while position < task.stop:
            window = order.window(task.epoch, order.window_of(task.epoch, position))
            yield _load(loader, task.epoch, window)
            epoch, end = task.epoch, window.stop
            position = end


def _load(loader: Loader, epoch: int, window: Window) -> _Loaded:
    return _Loaded(epoch, window, _read(loader, window.ranges))


def _read(loader: Loader, ranges: Sequence[tuple[int, int]]) -> Columns:
    return loader.dataset.read_ranges(ranges, loader.read_features, loader.optional, ids_only=loader.ids_only)


def _behind(making: Generator[Batch], n: int) -> Generator[Batch]:
    """Without the first ``n``, which are made for what follows from them."""
    with closing(making):
        for _ in range(n):
            next(making)
        yield from making


def _make_batches(
    loader: Loader, tasks: Iterator[_Task], windows: Generator[_Loaded] | Prefetch[_Loaded]
) -> Generator[Batch]:
    """One batch a task, picked from the windows as they come."""
    loaded: _Loaded | None = None
    dealer = None if loader.affinity is None else Dealer(loader.affinity, loader.share.order)
    nothing = _read(loader, [(0, 0)])  # gives an empty part its shapes
    try:
        for task in tasks:
            parts = []
            position = task.start
            while position < task.stop:
                if loaded is None or not loaded.holds(task.epoch, position):
                    loaded = None  # let the old window go before the next one is waited for
                    loaded = next(windows)
                stop = min(task.stop, loaded.window.stop)
                parts.append(loaded.take(position, stop))
                position = stop
                if stop == loaded.window.stop:
                    loaded = None  # a batch may have its arrays, and nobody else
            columns, positions = gather.join(parts or [nothing]), None
            if dealer is not None:
                positions = dealer.order(task.epoch, task.index, columns)[task.offset : task.offset + task.samples]
                columns = gather.take(_own(loader, columns), positions)
            yield Batch(
                epoch=task.epoch,
                index=task.index,
                size=task.size,
                start=task.offset,
                dense=columns.dense,
                label=columns.label,
                weight=columns.weight,
                bags=gather.bags(columns, loader.features),
                group=columns.group,
                positions=positions,
            )
    finally:
        windows.close()


def _own(loader: Loader, columns: Columns) -> Columns:
    """Without the features that are only looked at."""
    return replace(columns, sparse={name: columns.sparse[name] for name in loader.features}, joined=None)
