"""The known map: native = its definition, whatever ids come; no choice of rows finds more of them; who goes first."""

import itertools

import numpy as np
import pytest
from all_backends import assert_same_bits, same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st
from id_map_cases import BACKENDS, ints

from hpcrec import kernels

INT64 = np.iinfo(np.int64)
ANY_ID = st.integers(-3, 8) | st.sampled_from([INT64.min, INT64.max, 2**32])
ANY_BATCHES = st.lists(st.lists(ANY_ID, max_size=8).map(lambda b: np.array(b, np.int64)), max_size=24)


def told(rules: dict, batches: list[np.ndarray], between: dict[int, str]) -> tuple[np.ndarray, ...]:
    """All that a map says, batch after batch, which are foreseen as early as may be; ``between``: verbs after some."""
    m, said, foreseen = kernels.KnownMap(**rules), list[np.ndarray](), 0
    for number, ids in enumerate(batches):
        while foreseen < len(batches) and foreseen <= number + rules["window"]:
            m.foresee(batches[foreseen])
            foreseen += 1
        said += [*m.admit(ids), m.find(ids[::-1].copy()), ints(len(m), m.evicted)]
        if (verb := between.get(number)) is not None:
            getattr(m, verb)()
            foreseen = number + 1 if verb == "forget" else foreseen
    return tuple(said)


@settings(max_examples=400, deadline=None)
@given(
    st.fixed_dictionaries({"capacity": st.integers(1, 6), "window": st.integers(1, 7), "in_use": st.integers(1, 3)}),
    ANY_BATCHES,
    st.dictionaries(st.integers(0, 20), st.sampled_from(["forget", "clear"]), max_size=2),
)
def test_native_is_the_definition(rules, batches, between):
    same_from_all(lambda: told(rules, batches, between), threads=(1,))


@pytest.mark.parametrize(("window", "in_use"), [(1, 1), (13, 1), (100, 3)])
def test_native_is_the_definition_on_long_runs(window, in_use):
    rng = np.random.default_rng(window)
    batches = [np.minimum(rng.zipf(1.2, rng.integers(0, 60)), 10**12) * 7919 for _ in range(150)]
    rules = {"capacity": 150, "window": window, "in_use": in_use}
    same_from_all(lambda: told(rules, batches, {70: "forget", 110: "clear"}), threads=(1, 2))


def found_at_most(batches: list[list[int]], capacity: int) -> int:
    """The most ids that have rows when they are asked for, by a search through all sets that may have them."""
    best = {frozenset[int](): 0}
    for batch in map(frozenset, batches):
        after = dict[frozenset[int], int]()
        for rows, found in best.items():
            stays = rows & batch
            for n in range(capacity - len(stays) + 1):
                for others in itertools.combinations((rows | batch) - stays, n):
                    new = stays | frozenset(others)
                    after[new] = max(after.get(new, 0), found + len(stays))
        best = after
    return max(best.values())


def found_by(batches: list[list[int]], capacity: int) -> int:
    """The same by the map, which knows all batches."""
    m, found = kernels.KnownMap(capacity=capacity, window=max(len(batches), 1)), 0
    for ids in batches:
        m.foresee(ints(*ids))
    for ids in batches:
        found += int((m.find(ints(*dict.fromkeys(ids))) >= 0).sum())
        m.admit(ints(*ids))
    return found


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3), st.lists(st.integers(0, 4), max_size=12))
def test_nothing_finds_more_of_one_id_at_a_time(capacity, ids):
    batches = [[i] for i in ids]
    assert found_by(batches, capacity) == found_at_most(batches, capacity)


def test_little_finds_more_of_several_ids_at_a_time():
    """What one batch asks for is not told apart by later uses, and what a batch uses keeps its row through it."""
    rng, found, most = np.random.default_rng(1), 0, 0
    for _ in range(150):
        batches = [rng.integers(0, 5, rng.integers(0, 4)).tolist() for _ in range(9)]
        capacity = int(rng.integers(1, 4))
        found, most = found + found_by(batches, capacity), most + found_at_most(batches, capacity)
        assert found <= most
    assert found > 0.97 * most


def run(
    backend: str, capacity: int, batches: list[list[int]], **rules: int
) -> tuple[kernels.KnownMap, list[list[int]]]:
    kernels.use(backend)
    m = kernels.KnownMap(capacity=capacity, **rules)
    for ids in batches:
        m.foresee(ints(*ids))
    return m, [m.admit(ints(*ids)).rows.tolist() for ids in batches]


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_goes_and_who_is_let_in(backend):
    _, rows = run(backend, 2, [[1, 2], [3], [1]], window=2)
    assert rows == [[0, 1], [-1], [0]], "3 is as little asked for again as 2, which stays"
    _, rows = run(backend, 2, [[1, 2], [3], [1], [3], [2]], window=4)
    assert rows == [[0, 1], [1], [0], [1], [-1]], "2 is asked for last, and then is worth no more than 1 and 3"
    _, rows = run(backend, 1, [[4, 3, 5], [3], [4]], window=2)
    assert rows == [[-1, 0, -1], [0], [-1]], "of a batch, the one that is asked for again first"
    m, _ = run(backend, 2, [[1], [2], [1, 2], [3], [3]], window=4)
    assert (m.find(ints(1, 2, 3)).tolist(), m.evicted) == ([-1, 1, 0], 1), "of equals the least recently used"
    m, rows = run(backend, 1, [[7], [8], [8], [8]], window=3, in_use=2)
    assert rows == [[0], [-1], [0], [0]], "7 is in use still as 8 is asked for first"


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_forgotten_and_what_is_cleared(backend):
    kernels.use(backend)
    m = kernels.KnownMap(capacity=2, window=3)
    for ids in ([1, 2], [1], [3], [3]):
        m.foresee(ints(*ids))
    m.admit(ints(1, 2))
    m.forget()
    m.foresee(ints(4))
    m.foresee(ints(4, 2))
    assert m.admit(ints(4)).rows.tolist() == [0], "1 is not known to come any more, 2 is"
    m.clear()
    assert (len(m), m.find(ints(1, 2, 4)).tolist()) == (0, [-1, -1, -1])
    rows, fresh = m.admit(ints(4, 2))
    assert (rows.tolist(), fresh.tolist()) == ([0, 1], [0, 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_refused(backend):
    kernels.use(backend)
    m = kernels.KnownMap(capacity=2, window=1)
    with pytest.raises(ValueError, match="admit: no batch is foreseen"):
        m.admit(ints(1))
    m.foresee(ints(1, 2))
    m.foresee(ints(3))
    with pytest.raises(ValueError, match=r"foresee: 2 batches are foreseen .* window \+ 1, 2"):
        m.foresee(ints(4))
    for others in (ints(1), ints(1, 3), ints(1, 2, 3)):
        with pytest.raises(ValueError, match="admit: ids are not those"):
            m.admit(others)
    assert m.admit(ints(1, 2)).rows.tolist() == [0, 1]  # nothing has come of what was refused
    for wrong in ({"capacity": 0}, {"window": 0}, {"in_use": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            kernels.KnownMap(**{"capacity": 1, "window": 1, **wrong})
    with pytest.raises(ValueError, match="ids is"):
        m.foresee(np.zeros(2, np.int32))


def test_bytes_are_those_of_what_is_held():
    """A row and its id take about 40 bytes, an id of a batch that is foreseen at most 51 (39 of them once an id)."""
    kernels.use("native")
    rng = np.random.default_rng(0)
    n, window = 1 << 17, 8
    batches = rng.permutation(n).reshape(window, -1)
    m = kernels.KnownMap(capacity=n, window=window)
    for ids in batches:
        m.foresee(ids)
    foreseen = m.n_bytes
    assert 0.7 * 51 < foreseen / n < 1.3 * 51
    for ids in batches:
        m.admit(ids)
    assert len(m) == n
    assert 0.7 * 40 < (m.n_bytes - foreseen + 12 * n) / n < 1.3 * 40


def test_rows_are_those_of_a_map_of_all_where_there_is_room():
    kernels.use("native")
    rng = np.random.default_rng(2)
    batches = [rng.integers(0, 500, 90) for _ in range(20)]
    m, other = kernels.KnownMap(capacity=500, window=3), kernels.IdMap()
    for ids in batches:
        m.foresee(ids)
        rows, fresh = m.admit(ids)
        wanted, new = other.admit(ids)
        assert_same_bits((rows >= 0, fresh), (wanted >= 0, new))
