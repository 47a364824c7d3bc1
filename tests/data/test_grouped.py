"""The order for groups: each has its own samples in every epoch, whoever reads it and however."""

from pathlib import Path

import numpy as np
import pytest

from hpcrec.data.gather import join_bags
from hpcrec.data.grouped import GroupedOrder
from hpcrec.data.loader import Loader
from hpcrec.data.order import GlobalOrder
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError

RULES = {"seed": 5, "chunk": 8, "window": 3}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("groups", [2, 3])
def test_a_group_has_the_same_samples_in_every_epoch_and_nobody_else_does(groups: int, shuffle: bool) -> None:
    samples, batch = 101, 12
    order = GroupedOrder(samples, batch, groups, **RULES, shuffle=shuffle)
    each, share = samples // groups, batch // groups
    assert (order.samples, order.n_batches) == (each * groups, -(-each // share))
    seen = []
    for epoch in range(3):
        by_group = [[] for _ in range(groups)]
        for t in range(order.n_batches):
            start, stop = order.batch_range(t)
            numbers = order.positions(epoch, start, stop).reshape(groups, -1)
            for group, mine in enumerate(numbers):
                by_group[group] += mine.tolist()
        for group, mine in enumerate(by_group):
            assert sorted(mine) == list(range(group * each, (group + 1) * each))
            alone = GlobalOrder(each, share, **RULES, shuffle=shuffle).positions(epoch, 0, each)
            assert [n - group * each for n in mine] == alone.tolist()
        seen.append(by_group)
    assert (seen[0] == seen[1]) == (not shuffle)
    whole = order.positions(1, 0, order.samples)
    assert order.positions(1, 7, 31).tolist() == whole[7:31].tolist()
    assert order.batch_range(order.n_batches - 1)[1] == order.samples


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_readers_have_what_stands_in_the_order(data_file: Path, shuffle: bool, prefetch: int) -> None:
    """Each dense rank its part, from the middle of an epoch into the next; groups' ids joined are the whole batch's."""
    with DataSet(data_file) as dataset:
        order = GroupedOrder(dataset.samples, 300, 2, seed=9, chunk=64, window=4, shuffle=shuffle)
        loaders = {
            of: [Loader(dataset, order, part=p, parts=of, prefetch=prefetch) for p in range(of)] for of in (2, 4)
        }
        everything = dataset.read_ranges([(0, dataset.samples)], loaders[2][0].features)
        first, n = order.n_batches - 3, 6
        batches = {of: [list(one.batches(0, first, n)) for one in some] for of, some in loaders.items()}
        for number in range(n):
            parts = {of: [one[number] for one in some] for of, some in batches.items()}
            epoch, t = divmod(first + number, order.n_batches)
            wanted = order.positions(epoch, *order.batch_range(t))
            for some in parts.values():
                assert all((b.epoch, b.index, b.size) == (epoch, t, len(wanted)) for b in some)
                assert np.concatenate([b.label for b in some]).tolist() == everything.label[wanted].tolist()
                ends = [b.start + len(b.label) for b in some]
                assert [b.start for b in some] == [0, *ends[:-1]] and ends[-1] == len(wanted)
            joined = [join_bags([b.bags for b in some]) for some in parts.values()]
            for name in ("ids", "offsets", "weights"):
                np.testing.assert_array_equal(getattr(joined[0], name), getattr(joined[1], name))


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 samples are too few for 3 groups"):
        GroupedOrder(2, 6, 3, **RULES, shuffle=True)
