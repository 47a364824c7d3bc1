"""Rule ``lightlfu`` of the id map: native = its definition, how counts age, and what it keeps as ids come and go."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from all_backends import same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st
from id_map_cases import BACKENDS, any_rules, ints, state_of

from hpcrec import kernels

MOST, USES = 15, 10  # as the docstring of IdMap says
ROWS = 200_000


def told(rules: dict, batches: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """All that a map says and knows, batch after batch; of each its order, so that every victim to come is the same."""
    said, m = list[np.ndarray](), kernels.IdMap(**rules)
    for ids in batches:
        state = m.admit(ids), state_of(m)
        said += [np.asarray(value) for of in state for value in of]
    return tuple(said)


BATCHES = st.lists(st.lists(st.integers(0, 9), max_size=6).map(lambda b: np.array(b, np.int64)), max_size=90)


@settings(max_examples=300, deadline=None)
@given(any_rules("lightlfu"), BATCHES)
def test_native_is_the_definition(rules, batches):
    same_from_all(lambda: told(rules, batches), threads=(1,))


@pytest.mark.parametrize("capacity", [1, 7, 40, 150])
def test_native_is_the_definition_on_long_runs(capacity):
    """Halvings enough, popularity that moves, and batches that small maps are too small for."""
    rng = np.random.default_rng(capacity)
    batches = [np.minimum(rng.zipf(1.2, rng.integers(0, 60)), 10**12) * 7919 + t // 100 * 3 for t in range(400)]
    said = same_from_all(lambda: told({"capacity": capacity, "evict": "lightlfu"}, batches), threads=(1, 2))
    counts, clocks = said[4::11], said[5::11]
    assert max(c.max(initial=0) for c in counts) == MOST
    uses = sum(int((used == t).sum()) for t, used in enumerate(clocks, 1))
    assert uses > 3 * (USES + 1) * capacity


@pytest.mark.parametrize("backend", BACKENDS)
def test_counts_end_and_are_halved(backend):
    kernels.use(backend)
    m, counts = kernels.IdMap(capacity=2, evict="lightlfu"), []
    for _ in range(2 * USES + 1):
        m.admit(ints(1, 1))
        counts += state_of(m).counts.tolist()
    assert counts == [*range(1, MOST), *[MOST] * 5, MOST // 2, MOST // 2 + 1]
    m = kernels.IdMap(capacity=1, evict="lightlfu")
    for i in range(USES):  # what comes in is a use, too
        m.admit(ints(i))
    assert (state_of(m).counts.tolist(), m.evicted) == ([1], USES - 1)  # halved, but to no less than 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_counts_that_become_equal_are_in_the_order_of_use(backend):
    kernels.use(backend)
    m = kernels.IdMap(capacity=3, evict="lightlfu")
    for batch in [[1, 2, 3]] * 9 + [[3, 1], [2]]:  # 30 uses: counts 9, 10, 10 of ids 2, 1, 3 before the last batch
        m.admit(ints(*batch))
    assert (state_of(m).counts.tolist(), state_of(m).ids.tolist()) == ([5, 5, 5], [3, 1, 2])
    assert m.admit(ints(4)).rows.tolist() == [2]  # that of 3

    m = kernels.IdMap(capacity=2, evict="lightlfu")
    for batch in [[1]] * 9 + [[2]] * 10 + [[2, 1]]:  # counts 10 and 11, of one batch, which has the greater one first
        m.admit(ints(*batch))
    assert (state_of(m).counts.tolist(), state_of(m).ids.tolist()) == ([5, 5], [1, 2])


def in_parts(first: int, n: int, batch: int) -> Iterator[np.ndarray]:
    """Ids first..first + n, without end."""
    while True:
        for at in range(first, first + n, batch):
            yield np.arange(at, at + batch)


@pytest.mark.parametrize("evict", ["lfu", "lightlfu"])
def test_rows_of_yesterday_go(evict):
    """A fill the map, are read 50 times each, and no more: three halvings and one reading of B later B have all places.

    In parts, since what a whole batch asks for gets its places under every rule.
    """
    n, batch = 1000, 100
    m, yesterday, today = kernels.IdMap(capacity=n, evict=evict), in_parts(0, n, batch), in_parts(n, n, batch)
    for _ in range(50 * n // batch):
        m.admit(next(yesterday))
    assert (m.find(np.arange(n)) >= 0).all()
    for _ in range(3 * USES * n // batch + n // batch):
        m.admit(next(today))
    kept = int((m.find(np.arange(n, 2 * n)) >= 0).sum())
    assert kept == (batch if evict == "lfu" else n)


def draws(steps: int, batch: int, moved: int) -> list[np.ndarray]:
    """Distinct ids of batches from Zipf(1.05) over ROWS; every 20 batches so many of them change their popularity."""
    rng = np.random.default_rng(0)
    share = np.cumsum(1 / np.arange(1, ROWS + 1) ** 1.05)
    share /= share[-1]
    named, out = rng.permutation(ROWS), []
    for t in range(steps):
        if t % 20 == 0:
            at = rng.choice(ROWS, moved, replace=False)
            named[at] = named[rng.permutation(at)]
        out.append(np.unique(named[np.searchsorted(share, rng.random(batch))]))
    return out


def hit_rate(evict: str, batches: list[np.ndarray], warm: int) -> float:
    m, asked, missed = kernels.IdMap(capacity=ROWS // 10, evict=evict), 0, 0
    for t, ids in enumerate(batches):
        n_fresh = len(m.admit(ids).fresh)
        if t >= warm:
            asked, missed = asked + len(ids), missed + n_fresh
    return 1 - missed / asked


def test_hit_rate_on_zipf():
    """Room for 10 % of the rows, which stay as popular as they are, or of which 2 % change places every 20 batches.

    Measured with lru, lfu and lightlfu: 0.632, 0.702, 0.691, and 0.627, 0.596, 0.666.
    """
    for moved, least_above_lru, least_above_lfu in ((0, 0.04, -0.02), (ROWS // 50, 0.02, 0.04)):
        batches = draws(1500, 2048, moved)
        lru, lfu, light = (hit_rate(evict, batches, 500) for evict in ("lru", "lfu", "lightlfu"))
        assert light > lru + least_above_lru, (moved, lru, lfu, light)
        assert light > lfu + least_above_lfu, (moved, lru, lfu, light)


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def test_ageing_costs_little_a_use():
    """Three halvings take a part of the time of the uses between them; looking at all rows more often takes many."""
    n, batch = 1 << 17, 1 << 14
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, 2 * n, batch) for _ in range(3 * USES * n // batch)]

    def run(evict: str) -> None:
        m = kernels.IdMap(capacity=n, evict=evict)
        for ids in batches:
            m.admit(ids)

    times = [[seconds_of(lambda evict=evict: run(evict)) for evict in ("lru", "lightlfu")] for _ in range(3)]
    lru, light = np.min(times, axis=0)
    assert light < 4 * lru


@pytest.mark.parametrize("backend", BACKENDS)
def test_there_is_no_state_of_it(backend):
    kernels.use(backend)
    rules = {"capacity": 4, "evict": "lightlfu"}
    m = kernels.IdMap(**rules)
    m.admit(ints(1))
    with pytest.raises(ValueError, match="save: evict is 'lightlfu'"):
        m.save()
    with pytest.raises(ValueError, match="load: evict is 'lightlfu'"):
        kernels.IdMap(**rules).load(state_of(m))
