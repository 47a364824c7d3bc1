"""Ids as rows of the blocks that hold them, for runs that are short and long, in place or not."""

import numpy as np
import pytest

from hpcrec.exchange import cells
from hpcrec.exchange.bags import Received, all_below
from hpcrec.exchange.cells import Cells, shifted


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("long_run", [1, 3, 1024])
@pytest.mark.parametrize("seed", range(5))
def test_each_run_has_its_number_added(seed: int, long_run: int, over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_LONG_RUN", long_run)
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 2 * long_run + 2, rng.integers(0, 6))
    by = rng.integers(0, 3, len(counts)) * 1000
    ids = rng.integers(0, 1000, counts.sum())
    before = ids.copy()
    found = shifted(ids, counts, by, over=over)
    np.testing.assert_array_equal(found, before + np.repeat(by, counts))
    assert over == np.shares_memory(found, ids) or not len(ids)
    if not over:
        np.testing.assert_array_equal(ids, before)


@pytest.mark.parametrize("long_run", [1, 1024])
def test_blocks_that_begin_elsewhere_have_rows_of_their_own(long_run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sender asks for one stream of 2 bags, which lies in two blocks from different rows on."""
    monkeypatch.setattr(cells, "_LONG_RUN", long_run)
    ids, one = np.array([4, 0, 2]), np.array([0])
    received = Received(one, ids, np.array([0, 1, 3]), np.array([[0, 0, 3, 2]]), None)
    asked = Cells(received, ids, one[None], one, one, (one[None] + 10, one[None] + 20))
    for base in (0, 7):
        part = asked.of(asked.those(one, np.array([[base]])), 6, gradients=True)
        assert part.index.tolist() == [base + 4, base, base + 2] and part.offsets.tolist() == [0, 1, 3]
        assert (part.value_start.tolist(), part.gradient_start.tolist()) == ([10, 16], [20, 26])
    assert ids.tolist() == [4, 0, 2]


def test_all_below() -> None:
    assert all_below(np.empty(0, np.int64), 1) and all_below(np.array([0, 8]), 9)
    assert not all_below(np.array([0, 9]), 9) and not all_below(np.array([3, -1]), 9)
    assert not all_below(np.array([-(2**63)]), 2**62) and not all_below(np.array([2**63 - 1]), 2**62)
