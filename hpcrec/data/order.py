"""The one global order of samples: which sample stands at which position of an epoch.

A pure function of (samples, batch size, seed, chunk, window, epoch): no state, no file, no rank. So any rank computes
any batch for any number of ranks, a resumed run goes on where it stopped, and an owner can read ahead.

Samples are cut into chunks of `chunk` consecutive samples (the last may be shorter). Each epoch permutes the chunks;
`window` consecutive chunks of that order form a window, inside which the samples are permuted. Batch t is positions
``[t * B, (t + 1) * B)``; the last batch of an epoch may be smaller. A reader thus needs no more than one window in
memory, and reads each chunk once an epoch.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from hpcrec.data import hashing
from hpcrec.data.deal import Deal, cut, equal_parts
from hpcrec.errors import ConfigError
from hpcrec.types import Ints

_CHUNKS = 0  # streams under (seed, epoch): the order of chunks, and 1 + w for the samples of window w
_KEPT_WINDOWS = 2  # permutations kept: a batch may straddle two windows


@dataclass(frozen=True)
class Share:
    """What one of several readers takes of each batch: part ``part`` of ``parts``, as ``order`` deals its batches.

    Attributes
    ----------
    order : GlobalOrder
    part, parts : int
    group, groups : int
        A whole batch is so many batches like those of ``order``, one after the other; this is number ``group`` of them.
    """

    order: "GlobalOrder"
    part: int
    parts: int
    group: int = 0
    groups: int = 1

    def of_batch(self, t: int) -> tuple[int, int, int, int]:
        """Size of the whole batch, where in it the share begins, and its positions ``[start, stop)`` in ``order``.

        Raises
        ------
        ConfigError
            The order's ``deal`` gives no parts of the batch.
        """
        start, stop = self.order.batch_range(t)
        low, high = cut(self.order.deal, stop - start, self.parts)[self.part : self.part + 2].tolist()
        return (stop - start) * self.groups, (stop - start) * self.group + low, start + low, start + high


@dataclass(frozen=True)
class Window:
    """Positions ``[start, stop)`` of an epoch and the samples that stand there.

    Attributes
    ----------
    start, stop : int
    ranges : tuple of (int, int)
        Sample numbers ``[first, end)`` of its chunks in the epoch's order, neighbours merged.
    permutation : int64 [stop - start] or None
        Position ``start + i`` holds sample ``permutation[i]`` of the concatenated ranges; None is the identity.
    """

    start: int
    stop: int
    ranges: tuple[tuple[int, int], ...]
    permutation: Ints | None

    def samples(self) -> Ints:
        """Sample numbers in the order of positions; int64 [stop - start]."""
        numbers = np.concatenate([np.arange(first, end, dtype=np.int64) for first, end in self.ranges])
        return numbers if self.permutation is None else numbers[self.permutation]


class GlobalOrder:
    """The order of `samples` samples in batches of `batch_size`, for every epoch.

    Parameters
    ----------
    samples, batch_size : int
        At least 1 each. `batch_size` is global: over all dense ranks.
    seed : int
    chunk : int
        Samples of a chunk.
    window : int
        Chunks of a window.
    shuffle : bool
        False: every epoch is file order.
    first : int
        Number of the first of these samples in the data set.
    deal : Deal
        How readers share a batch.

    Attributes
    ----------
    dataset_samples : int
        Samples of the data set that it is the order of.
    groups : int
        Parts of the data set that are read beside each other: one (``data.grouped`` has several).

    Raises
    ------
    ConfigError
        When a size is not positive.
    """

    groups = 1

    def __init__(
        self,
        samples: int,
        batch_size: int,
        *,
        seed: int = 0,
        chunk: int = 16384,
        window: int = 8,
        shuffle: bool = True,
        first: int = 0,
        deal: Deal = equal_parts,
    ) -> None:
        for name, value in (("samples", samples), ("batch_size", batch_size), ("chunk", chunk), ("window", window)):
            if value < 1:
                raise ConfigError(f"data order: {name} is {value}; it must be 1 or more.")
        self.samples, self.batch_size, self.seed, self.first = samples, batch_size, seed, first
        self.dataset_samples, self.deal = samples, deal
        self.chunk, self.window_chunks, self.shuffle = chunk, window, shuffle
        self.n_chunks = -(-samples // chunk)
        self.n_windows = -(-self.n_chunks // window)
        self.n_batches = -(-samples // batch_size)
        self._epoch: tuple[int, Ints, Ints] | None = None
        self._windows: OrderedDict[tuple[int, int], Window] = OrderedDict()
        self._lock = threading.Lock()  # a loader's thread and its owner may ask at the same time

    def batch_range(self, t: int) -> tuple[int, int]:
        """Positions ``[start, stop)`` of batch `t` of any epoch; the last batch ends with the epoch."""
        if not 0 <= t < self.n_batches:
            raise IndexError(f"batch {t} of an epoch of {self.n_batches} batches")
        start = t * self.batch_size
        return start, min(start + self.batch_size, self.samples)

    def share(self, number: int, of: int) -> Share:
        """What reader ``number`` of ``of`` takes of each batch: a contiguous part, by ``deal``."""
        return Share(self, number, of)

    def firsts(self, t: int, of: int) -> Ints:
        """Where the share of each of ``of`` readers begins in batch ``t``, and its size: int64 [of + 1]."""
        start, stop = self.batch_range(t)
        return cut(self.deal, stop - start, of)

    def window_of(self, epoch: int, position: int) -> int:
        """Number of the window that holds `position`."""
        return int(np.searchsorted(self._layout(epoch)[1], position, side="right")) - 1

    def window(self, epoch: int, w: int) -> Window:
        """Window `w` of an epoch; its permutation is kept for the next call."""
        with self._lock:
            found = self._windows.get((epoch, w))
            if found is None:
                found = self._make_window(epoch, w)
                self._windows[epoch, w] = found
                while len(self._windows) > _KEPT_WINDOWS:
                    self._windows.popitem(last=False)
            return found

    def positions(self, epoch: int, start: int, stop: int) -> Ints:
        """Sample numbers that stand at positions ``[start, stop)`` of `epoch`; int64 [stop - start]."""
        if not 0 <= start <= stop <= self.samples:
            raise IndexError(f"positions [{start}, {stop}) of an epoch of {self.samples} samples")
        parts = [np.empty(0, dtype=np.int64)]
        while start < stop:
            window = self.window(epoch, self.window_of(epoch, start))
            end = min(stop, window.stop)
            parts.append(window.samples()[start - window.start : end - window.start])
            start = end
        return np.concatenate(parts)

    def _layout(self, epoch: int) -> tuple[Ints, Ints]:
        """Chunks in the epoch's order, and the first position of each window (with the end of the last)."""
        known = self._epoch
        if known is None or known[0] != epoch:
            if self.shuffle:
                chunks = hashing.permutation(hashing.stream(self.seed, epoch, _CHUNKS), self.n_chunks)
            else:
                chunks = np.arange(self.n_chunks, dtype=np.int64)
            sizes = np.minimum(self.samples - chunks * self.chunk, self.chunk)
            ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
            starts = np.append(ends[:-1][:: self.window_chunks], ends[-1])
            known = self._epoch = (epoch, chunks, starts)
        return known[1], known[2]

    def _make_window(self, epoch: int, w: int) -> Window:
        chunks, starts = self._layout(epoch)
        ranges: list[tuple[int, int]] = []
        for number in chunks[w * self.window_chunks : (w + 1) * self.window_chunks].tolist():
            first, end = (self.first + min(n * self.chunk, self.samples) for n in (number, number + 1))
            if ranges and ranges[-1][1] == first:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((first, end))
        start, stop = int(starts[w]), int(starts[w + 1])
        order = hashing.permutation(hashing.stream(self.seed, epoch, 1 + w), stop - start) if self.shuffle else None
        return Window(start, stop, tuple(ranges), order)
