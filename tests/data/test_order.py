"""The global order: a permutation, made of whole windows, a pure function of seed, epoch and position."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec.data import hashing
from hpcrec.data.order import GlobalOrder
from hpcrec.errors import ConfigError

sizes = st.integers(1, 400)


@settings(max_examples=60, deadline=None)
@given(samples=sizes, batch=sizes, chunk=st.integers(1, 90), window=st.integers(1, 9), seed=st.integers(0, 2**63))
def test_every_epoch_is_a_permutation_in_windows(samples: int, batch: int, chunk: int, window: int, seed: int) -> None:
    order = GlobalOrder(samples, batch, seed=seed, chunk=chunk, window=window)
    for epoch in (0, 3):
        whole = order.positions(epoch, 0, samples)
        assert sorted(whole.tolist()) == list(range(samples))
        ranges = [order.batch_range(t) for t in range(order.n_batches)]
        assert [stop for _, stop in ranges[:-1]] == [start for start, _ in ranges[1:]]
        assert ranges[-1][1] == samples
        joined = np.concatenate([GlobalOrder(samples, batch, seed=seed, chunk=chunk, window=window).positions(epoch, *r)
                                 for r in ranges])  # fmt: skip
        np.testing.assert_array_equal(joined, whole)
        for w in range(order.n_windows):
            piece = order.window(epoch, w)
            assert piece.stop - piece.start <= chunk * window
            wanted = [s for first, end in piece.ranges for s in range(first, end)]
            assert sorted(whole[piece.start : piece.stop].tolist()) == sorted(wanted)
            assert len({s // chunk for s in wanted}) <= window


def test_epochs_and_seeds_differ_and_file_order_does_not() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return GlobalOrder(1000, 10, seed=seed, chunk=50, window=4).positions(epoch, 0, 1000).tolist()

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sum(a == b for a, b in zip(one, other, strict=True)) < 30
               for i, one in enumerate(orders) for other in orders[:i])  # fmt: skip
    plain = GlobalOrder(1000, 300, seed=5, chunk=50, window=4, shuffle=False)
    assert plain.positions(7, 0, 1000).tolist() == list(range(1000))
    assert plain.window(0, 0).ranges == ((0, 200),)
    assert (plain.n_batches, plain.batch_range(3)) == (4, (900, 1000))


def test_order_is_pinned() -> None:
    """The order is part of a run's reproducibility: these numbers may not change between releases."""
    assert hashing.mix(0) == 0xE220A8397B1DCDAF  # first output of SplitMix64 from state 0
    assert hashing.mix_array(np.array([0, 5, -1])).tolist() == [hashing.mix(0), hashing.mix(5), hashing.mix(-1)]
    assert GlobalOrder(12, 4, seed=1, chunk=2, window=3).positions(0, 0, 12).tolist() == PINNED


PINNED = [2, 3, 6, 11, 7, 10, 8, 4, 9, 5, 1, 0]


def test_refuses_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="window is 0"):
        GlobalOrder(10, 2, window=0)
    order = GlobalOrder(10, 4)
    for bad in (-1, 3):
        with pytest.raises(IndexError):
            order.batch_range(bad)
    with pytest.raises(IndexError):
        order.positions(0, 5, 11)
