"""Which samples of a batch each dense rank takes: equal parts, and what another function may say."""

import numpy as np
import pytest

from hpcrec.data.deal import cut, equal_parts
from hpcrec.data.grouped import GroupedOrder
from hpcrec.data.order import GlobalOrder
from hpcrec.errors import ConfigError


@pytest.mark.parametrize("size", [0, 1, 5, 8, 4096])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_equal_parts_differ_by_one_sample_at_most_the_larger_ones_first(size: int, ranks: int) -> None:
    lengths = np.diff(cut(equal_parts, size, ranks))
    assert len(lengths) == ranks and lengths.sum() == size
    assert lengths.max() - lengths.min() <= 1
    assert (np.diff(lengths) <= 0).all()


@pytest.mark.parametrize(
    "said",
    [[0, 5], [0, 3, 4, 5], [1, 3, 5], [0, 3, 4], [0, 7, 5], [0.0, 3.0, 5.0], [[0, 3, 5]], None, np.array([True, 1, 5])],
)
def test_refuses_what_are_no_parts_of_the_batch(said: object) -> None:
    wanted = r"5 samples for 2 dense ranks at .*\. Allowed: 3 whole numbers from 0 to 5, none below .* equal parts"
    if isinstance(said, np.ndarray):
        said = said.astype(bool)
    with pytest.raises(ConfigError, match=wanted):
        cut(lambda samples, parts: said, 5, 2)


def test_orders_share_batches_as_they_are_told() -> None:
    """Of an order of groups each group's, by the number of its readers."""

    def last(samples: int, parts: int) -> np.ndarray:
        return np.array([0] * parts + [samples], np.uint8)

    plain, grouped = (
        GlobalOrder(10, 4, deal=last),
        GroupedOrder(20, 8, 2, seed=0, chunk=4, window=2, shuffle=True, deal=last),
    )
    assert [plain.share(d, 3).of_batch(2) for d in range(3)] == [(2, 0, 8, 8), (2, 0, 8, 8), (2, 0, 8, 10)]
    assert plain.share(0, 1).of_batch(1) == (4, 0, 4, 8)
    assert [grouped.share(d, 4).of_batch(0) for d in range(4)] == [
        (8, 0, 0, 0),
        (8, 0, 0, 4),
        (8, 4, 0, 0),
        (8, 4, 0, 4),
    ]
