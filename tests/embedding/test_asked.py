"""Which blocks are worked on together."""

import numpy as np
import pytest

from hpcrec.embedding.asked import Asked, pairs_of
from hpcrec.embedding.blocks import Block
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
