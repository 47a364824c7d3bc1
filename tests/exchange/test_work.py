"""Which blocks are worked on together, and what is shared between blocks that were asked for the same rows."""

from dataclasses import replace

import numpy as np
import pytest

from hpcrec import kernels
from hpcrec.embedding.asked import Asked, pairs_of
from hpcrec.embedding.blocks import Block
from hpcrec.exchange.work import as_before
from hpcrec.types import OptimizerSpec

ADAGRAD = OptimizerSpec(name="rowwise_adagrad")
INDEX = np.arange(3)


def block(width, spec=ADAGRAD, total_width=None):
    return Block(width=width, total_width=total_width or width, spec=spec, kind="", parts=())


def work(index=INDEX, value_start=INDEX):
    return Asked(
        index=index, offsets=np.arange(4), value_start=value_start, weights=None, grouping=None, source_start=INDEX
    )


@pytest.mark.parametrize(
    ("blocks", "works", "wanted"),
    [
        ([block(16), block(1)], [work(), work()], {0: 1}),
        ([block(1), block(16)], [work(), work()], {1: 0}),
        ([block(16), block(1), block(8), block(1)], [work()] * 4, {0: 1, 2: 3}),
        ([block(16), block(2)], [work(), work()], {}),
        ([block(1), block(1)], [work(), work()], {}),
        ([block(16), block(1)], [work(), work(INDEX.copy())], {}),
        ([block(16), block(1, OptimizerSpec(name="adam"))], [work(), work()], {}),
        ([block(16), block(1)], [work(), work(value_start=None)], {}),
        ([block(16, total_width=32), block(1)], [work(), work()], {}),  # their norms are sums over ranks
        ([block(16), block(1, total_width=4)], [work(), work()], {}),
    ],
)
def test_a_table_of_width_1_goes_with_one_that_was_asked_alike(blocks, works, wanted):
    assert pairs_of(blocks, works, apart=[False] * len(works)) == wanted
    assert not pairs_of(blocks, works, apart=[True] * len(works))


@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_shared_is_what_would_be_read_again(weighted):
    ids, lengths = np.array([5, 0, 2, 2, 1], np.int64), np.array([2, 3], np.int32)
    message = np.concatenate([ids.view(np.uint8), lengths.view(np.uint8), np.zeros(8, np.uint8)])
    pieces = np.array([[0, 2, -1, 2, 10, 7, 40, 0, 0, 0, 0], [0, 5, 40, 2, 0, 100, 300, 0, 0, 0, 0]])

    def read(asked_PX, width):
        joined = kernels.unpack(message, asked_PX, width)
        start = np.repeat(joined.gradient_start, np.diff(joined.offsets)) if weighted else joined.gradient_start
        return Asked(
            index=joined.index,
            offsets=joined.offsets,
            value_start=joined.value_start,
            weights=np.ones(len(joined.index)) if weighted else None,
            grouping=kernels.group(joined.index, None if weighted else joined.offsets),
            source_start=start,
        )

    first, others = read(pieces, 16), pieces + np.array([0, 0, 0, 0, 0, 1000, 2000, 0, 0, 0, 0])
    found, wanted = as_before(first, others, 1, values=True), read(others, 1)
    assert found.index is first.index and found.grouping is first.grouping
    for name in ("index", "offsets", "value_start", "source_start"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
    assert as_before(first, others, 1, values=False).value_start is None
    assert as_before(replace(first, grouping=None), others, 1, values=True).source_start is first.source_start
