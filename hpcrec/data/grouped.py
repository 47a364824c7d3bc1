"""The order of samples for several groups of ranks, each of which has a part of the data set for itself.

A group's part is a range of sample numbers, the same in every epoch, in an order of its own (``data.order``). Knows no
rank: who is in which group is for the caller to say.
"""

import numpy as np

from hpcrec.data.deal import Deal, equal_parts
from hpcrec.data.order import GlobalOrder, Share
from hpcrec.errors import ConfigError
from hpcrec.types import Ints


class GroupedOrder:
    """Orders of ``groups`` equal parts of the data set, beside each other.

    Batch t is the t-th batch of each group, one after the other. Up to ``groups - 1`` samples at the end of the data
    set are in no part, so that all groups have as many.

    Parameters
    ----------
    samples, batch_size : int
        Of the data set, and of all groups together; ``batch_size`` a multiple of ``groups``.
    groups : int
    seed, chunk, window, shuffle
        As of ``GlobalOrder``.
    deal : Deal
        How the readers of a group share its batches.

    Attributes
    ----------
    orders : tuple of GlobalOrder
        By group.
    samples : int
        That an epoch has, of all groups.
    n_batches : int
        Of an epoch.
    dataset_samples : int

    Raises
    ------
    ConfigError
        Fewer samples than groups, or a size that is not positive.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        groups: int,
        *,
        seed: int,
        chunk: int,
        window: int,
        shuffle: bool,
        deal: Deal = equal_parts,
    ) -> None:
        assert batch_size % groups == 0, (batch_size, groups)
        each = samples // groups
        if not each:
            raise ConfigError(
                f"data order: {samples} samples are too few for {groups} groups, each of which has a part of its own. "
                "Set dense.codistillation.groups to fewer, or use more data."
            )
        self.orders = tuple(
            GlobalOrder(
                each,
                batch_size // groups,
                seed=seed,
                chunk=chunk,
                window=window,
                shuffle=shuffle,
                first=group * each,
                deal=deal,
            )
            for group in range(groups)
        )
        self.groups, self.samples, self.dataset_samples = groups, groups * each, samples
        self.batch_size, self.seed = batch_size, seed
        self.chunk, self.window_chunks, self.shuffle = chunk, window, shuffle
        self.n_batches = self.orders[0].n_batches

    def batch_range(self, t: int) -> tuple[int, int]:
        """Positions ``[start, stop)`` of batch ``t`` of any epoch; the last batch ends with the epoch."""
        start, stop = self.orders[0].batch_range(t)
        return start * self.groups, stop * self.groups

    def share(self, number: int, of: int) -> Share:
        """What reader ``number`` of ``of`` takes of each batch: a part of its group's. Groups divide ``of``."""
        assert of % self.groups == 0, f"{of} readers of {self.groups} groups"
        group, part = divmod(number, of // self.groups)
        return Share(self.orders[group], part, of // self.groups, group, self.groups)

    def firsts(self, t: int, of: int) -> Ints:
        """Where the share of each of ``of`` readers begins in batch ``t``, and its size: int64 [of + 1]."""
        one, size = self.orders[0].firsts(t, of // self.groups), self.batch_range(t)
        begins = np.concatenate([one[:-1] + g * int(one[-1]) for g in range(self.groups)])
        return np.append(begins, size[1] - size[0])

    def positions(self, epoch: int, start: int, stop: int) -> Ints:
        """Sample numbers that stand at positions ``[start, stop)`` of ``epoch``; int64 [stop - start]."""
        if not 0 <= start <= stop <= self.samples:
            raise IndexError(f"positions [{start}, {stop}) of an epoch of {self.samples} samples")
        parts = [np.empty(0, dtype=np.int64)]
        for t in range(start // self.batch_size, -(-stop // self.batch_size)):
            first = self.batch_range(t)[0]
            batch = np.concatenate([order.positions(epoch, *order.batch_range(t)) for order in self.orders])
            parts.append(batch[max(start - first, 0) : stop - first])
        return np.concatenate(parts)


Order = GlobalOrder | GroupedOrder
