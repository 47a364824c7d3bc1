"""The id map: native = its definition, whatever ids come; who is let in, who goes, and how evenly ids lie."""

import threading

import numpy as np
import pytest
from all_backends import assert_same_bits, same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st
from id_map_cases import BACKENDS, any_rules, ints, state_of

from hpcrec import kernels
from hpcrec.kernels import native
from hpcrec.kernels.id_map import MOST_BATCHES, MOST_ROWS

INT64 = np.iinfo(np.int64)
WORD = 2**64 - 1


def told(rules: dict, batches: list, reload_at: int = -1) -> list:
    """All that a map says, batch after batch; at one of them it is saved and another one goes on."""
    said, m = [], kernels.IdMap(**rules)
    for number, ids in enumerate(batches):
        said += [*m.admit(ids), m.find(ids[::-1].copy()), ints(len(m), m.evicted)]
        if number == reload_at:
            state = m.save()
            m = kernels.IdMap(**rules)
            m.load(state)
    return [*said, *(np.asarray(value) for value in state_of(m))]


ANY_RULES, SAVED_RULES = any_rules(None, "lru", "lfu", "lightlfu"), any_rules(None, "lru", "lfu")
ANY_ID = st.integers(-3, 8) | st.sampled_from([INT64.min, INT64.min + 1, INT64.max, 2**32, -(2**32)])
ANY_BATCHES = st.lists(st.lists(ANY_ID, max_size=12).map(lambda b: np.array(b, np.int64)), max_size=12)


@settings(max_examples=300, deadline=None)
@given(SAVED_RULES, ANY_BATCHES, st.integers(-1, 5))
def test_native_is_the_definition(rules, batches, reload_at):
    same_from_all(lambda: tuple(told(rules, batches, reload_at)), threads=(1,))


@pytest.mark.parametrize("evict", [None, "lru", "lfu", "lightlfu"])
@pytest.mark.parametrize(("capacity", "in_use"), [(None, 1), (900, 1), (900, 3)])
def test_native_is_the_definition_on_long_runs(evict, capacity, in_use):
    rng = np.random.default_rng(3)
    batches = [np.minimum(rng.zipf(1.1, 400), 10**12) * 7919 for _ in range(20)]
    rules = {"capacity": capacity, "evict": evict, "admit_from": 2, "pending": 700, "in_use": in_use}
    same_from_all(lambda: tuple(told(rules, batches)), threads=(1, 2))


@settings(max_examples=100, deadline=None)
@given(SAVED_RULES, ANY_BATCHES, st.integers(0, 5))
def test_a_map_goes_on_as_it_was_saved(rules, batches, reload_at):
    """But for the numbers of its rows: ids have them in the order of the list that was saved."""
    before, after = told(rules, batches), told(rules, batches, reload_at)
    for batch in range(len(batches)):
        assert ((after[4 * batch] >= 0) == (before[4 * batch] >= 0)).all()
        assert (before[4 * batch + 3] == after[4 * batch + 3]).all()
    for a, b in zip(before[-8:], after[-8:], strict=True):  # ids, counts, clocks, pending ids, ...
        assert np.array_equal(a, b)


@settings(max_examples=100, deadline=None)
@given(ANY_RULES, ANY_BATCHES)
def test_rows_are_apart_and_what_a_batch_got_stays_for_it(rules, batches):
    m = kernels.IdMap(**rules)
    for ids in batches:
        before = dict(zip(state_of(m).ids.tolist(), state_of(m).rows.tolist(), strict=True))
        rows, fresh = m.admit(ids)
        assert (m.find(ids) == rows).all()  # nobody of this batch has gone
        state = state_of(m)
        assert sorted(state.rows.tolist()) == list(range(len(m)))
        assert len(set(state.ids.tolist())) == len(m) <= (rules["capacity"] or MOST_ROWS)
        new = [i for i in dict.fromkeys(ids.tolist()) if i not in before and m.find(ints(i))[0] >= 0]
        assert ids[fresh].tolist() == new
        assert all(rows[k] == before[i] for k, i in enumerate(ids.tolist()) if i in before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_numbered_as_ids_come(backend):
    kernels.use(backend)
    m = kernels.IdMap()
    rows, fresh = m.admit(ints(5, -1, 5, INT64.min, INT64.max, -1))
    assert rows.tolist() == [0, 1, 0, 2, 3, 1]
    assert fresh.tolist() == [0, 1, 3, 4]
    rows, fresh = m.admit(ints(INT64.max, 0))
    assert (rows.tolist(), fresh.tolist()) == ([3, 4], [1])
    assert m.find(ints(1, 0, 5, INT64.min + 1)).tolist() == [-1, 4, 0, -1]
    assert (len(m), m.evicted) == (5, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_least_recently_used_goes(backend):
    kernels.use(backend)
    m = kernels.IdMap(capacity=3, evict="lru")
    for batch in ([1, 2], [3], [1, 1], [4]):  # 2 is the oldest
        m.admit(ints(*batch))
    assert m.find(ints(1, 2, 3, 4)).tolist() == [0, -1, 2, 1]
    assert m.admit(ints(5, 3)).rows.tolist() == [0, 2]  # 3 is the oldest, but of this batch; then 1
    assert m.evicted == 2
    assert m.save().ids.tolist() == [4, 3, 5]  # what has a row is used before what comes gets one


@pytest.mark.parametrize("backend", BACKENDS)
def test_least_often_used_goes(backend):
    kernels.use(backend)
    m = kernels.IdMap(capacity=3, evict="lfu")
    for batch in ([1, 1, 1, 1], [2], [3], [3], [2], [2]):  # batches: 1 of id 1, 3 of 2, 2 of 3
        m.admit(ints(*batch))
    assert m.admit(ints(4)).rows.tolist() == [0]
    assert m.admit(ints(5)).rows.tolist() == [0]  # 4 was used once
    assert m.admit(ints(5)).rows.tolist() == [0]
    assert m.admit(ints(6)).rows.tolist() == [2]  # 3 and 5 were used twice, 3 longer ago
    assert m.save().counts.tolist() == [1, 2, 3]
    assert m.save().clocks.tolist() == [10, 9, 6]


@pytest.mark.parametrize("evict", ["lru", "lfu", "lightlfu"])
def test_an_id_of_the_last_batches_keeps_its_row(evict):
    """Where they take all rows there are none for others, whose turn comes when batches are no longer in use."""
    m = kernels.IdMap(capacity=2, evict=evict, in_use=2)
    assert m.admit(ints(7)).rows.tolist() == [0] and m.admit(ints(8)).rows.tolist() == [1]
    assert m.admit(ints(9)).rows.tolist() == [0], "the batch of 7 is the last but two"
    assert m.admit(ints(5, 9)).rows.tolist() == [1, 0] and m.admit(ints(6)).rows.tolist() == [-1]
    assert m.admit(ints(6)).rows.tolist() == [0 if evict == "lru" else 1], "9 counts 2"


@pytest.mark.parametrize("evict", ["lru", "lfu", "lightlfu"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_larger_than_the_map(backend, evict):
    kernels.use(backend)
    m = kernels.IdMap(capacity=3, evict=evict)
    m.admit(ints(1, 2))
    assert m.admit(ints(7, 8, 1, 9, 10, 7)).rows.tolist() == [2, 1, 0, -1, -1, 2]
    assert m.evicted == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_come_stay_without_eviction(backend):
    kernels.use(backend)
    m = kernels.IdMap(capacity=2)
    assert m.admit(ints(1, 2, 3)).rows.tolist() == [0, 1, -1]
    assert m.admit(ints(3, 2)).rows.tolist() == [-1, 1]
    assert m.evicted == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_let_in_by_count(backend):
    kernels.use(backend)
    m = kernels.IdMap(admit_from=3, pending=2)
    asked = ints(1, 1, 1)
    assert [m.admit(asked).rows.tolist() for _ in range(3)] == [[-1] * 3, [-1] * 3, [0] * 3]
    m.admit(ints(2))
    m.admit(ints(2))
    m.admit(ints(3, 4))  # 1 and 2 were asked for longer ago: forgotten
    assert m.admit(ints(2)).rows.tolist() == [-1]
    state = m.save()
    assert (state.pending_ids.tolist(), state.pending_counts.tolist()) == ([4, 2], [1, 1])
    assert m.admit(ints(5, 6, 7)).rows.tolist() == [-1] * 3  # 7 finds no place to be counted
    assert m.save().pending_ids.tolist() == [5, 6]


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_has_gone_is_counted_anew(backend):
    kernels.use(backend)
    m = kernels.IdMap(capacity=1, evict="lru", admit_from=2)
    found = [m.admit(ints(i)).rows[0] >= 0 for i in (1, 1, 2, 2, 1, 1)]
    assert found == [False, True, False, True, False, True]
    assert m.evicted == 2


@pytest.mark.parametrize("p", [0.03, 0.5])
def test_let_in_by_chance(p):
    """The share is the probability, in the first batch as in the second; draws are those of (seed, id, batch)."""
    n = 20_000
    ids = np.random.default_rng(1).integers(INT64.min, INT64.max, n)

    def first_two(seed: int) -> tuple[np.ndarray, ...]:
        m = kernels.IdMap(admit_probability=p, seed=seed)
        return m.admit(ids).rows, m.admit(np.r_[ids, ids]).rows[:n]

    first, second = same_from_all(lambda: first_two(5), threads=(1,))
    again = second[first < 0]
    for rows in (first, again):
        assert abs((rows >= 0).mean() - p) < 5 * np.sqrt(p * (1 - p) / len(rows))
    assert (kernels.IdMap(admit_probability=p, seed=5).admit(ids[::-1].copy()).rows[::-1] >= 0).tolist() == (
        first >= 0
    ).tolist()
    assert ((first_two(6)[0] >= 0) != (first >= 0)).any()


def unmixed(x: int) -> int:
    """What splitmix64 takes to x."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9)):
        y = x
        for _ in range(3):
            y = x ^ y >> shift
        x = y * pow(factor, -1, 2**64) & WORD
    y = x
    for _ in range(3):
        y = x ^ y >> 30
    return y - 0x9E3779B97F4A7C15 & WORD


def adversarial(kind: str, n: int) -> np.ndarray:
    k = np.arange(n, dtype=np.int64)
    if kind == "one segment of an unkeyed hash":
        return np.array([unmixed(i) for i in range(n)], np.uint64).view(np.int64)
    return {
        "in order": lambda: k,
        "negative": lambda: -k - 1,
        "multiples of 2^32": lambda: (k - n // 2) << 32,
        "high bits": lambda: (k % 64 + 1) << 58 | k // 64,
        "ends": lambda: np.where(k % 2, INT64.max - k, INT64.min + k),
        "progression": lambda: (k.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64),
    }[kind]()


ADVERSARIAL = (
    "one segment of an unkeyed hash", "in order", "negative", "multiples of 2^32", "high bits", "ends", "progression",
)  # fmt: skip


def test_unmixed_undoes_the_hash():
    # first outputs of the published generator seeded with 1234567
    assert unmixed(6457827717110365317) == 1234567
    assert unmixed(3203168211198807973) == 1234567 + 0x9E3779B97F4A7C15


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_adversarial_ids_lie_as_random_ones(kind):
    n = 200_000
    ids = adversarial(kind, n)
    m = kernels.IdMap()
    for first in range(0, n, 30_000):
        batch = ids[first : first + 30_000].copy()
        rows, fresh = m.admit(batch)
        assert (rows == first + np.arange(len(batch))).all() and (fresh == np.arange(len(batch))).all()
    assert (m.find(ids) == np.arange(n)).all()
    longest, fullest, segments, _ = m._map._map.spread()
    assert segments == 8192
    assert fullest < n / segments + 8 * np.sqrt(n / segments)
    assert longest <= 12


def test_no_batch_copies_the_map():
    """Growth copies a few ids for each that comes, at every size; a map copied whole would copy it in one batch."""
    n, batch = 600_000, 3_000
    m, copied = kernels.IdMap(), [0]
    ids = kernels.permute(np.arange(n), 2**63 - 1, 1)
    for first in range(0, n, batch):
        m.admit(ids[first : first + batch].copy())
        copied.append(m._map._map.spread()[3])
    per_id = np.diff(copied)[20:] / batch
    assert 1.5 < per_id.mean() < 3  # twice as many where segments are large
    assert per_id.max() < 6  # whole: 200


def test_the_measure_sees_ids_that_meet():
    """With the key known, ids of one segment can be had: the map still works, and the measure says so."""
    # times = 2^64: the high word is the id itself, so that the hash is the mixer, unkeyed
    m = native.module().IdMap(MOST_ROWS, 0, 1, 1, 1.0, 0, 1, np.array([0, 1, 0, 0], np.uint64))
    ids = adversarial("one segment of an unkeyed hash", 20_000)
    rows, fresh = np.empty_like(ids), np.empty_like(ids)
    assert m.admit(ids, rows, fresh) == len(ids)
    m.find(ids[::-1].copy(), rows)
    assert (rows[::-1] == np.arange(len(ids))).all()
    assert m.spread()[1] == len(ids)


@pytest.mark.parametrize("evict", ["lru", "lfu", "lightlfu"])
def test_many_evictions_leave_no_marks(evict):
    n, batch = 20_000, 5_000
    m = kernels.IdMap(capacity=n, evict=evict)
    m.admit(np.arange(n))
    before = m.n_bytes
    for k in range(100):
        m.admit(np.arange(batch) + n + k * batch)
    assert m.evicted == 100 * batch
    assert (len(m), m.n_bytes <= 1.1 * before) == (n, True)
    assert m._map._map.spread()[0] <= 12
    kept = np.sort(state_of(m).ids)
    if evict == "lru":
        assert (kept == np.arange(100 * batch, 100 * batch + n)).all()
    assert (m.find(kept) >= 0).all()


@pytest.mark.parametrize("evict", [None, "lru", "lfu", "lightlfu"])
def test_threads_change_nothing(evict):
    rng = np.random.default_rng(8)
    batches = [rng.integers(0, 60_000, 50_000) << 20 for _ in range(4)]

    def run() -> tuple:
        m = kernels.IdMap(capacity=40_000, evict=evict)
        return tuple(part for ids in batches for part in (*m.admit(ids), m.find(batches[0])))

    kernels.set_threads(1)
    wanted = run()
    for n in (2, 3, 5):
        kernels.set_threads(n)
        assert_same_bits(run(), wanted)
    assert len(np.unique(wanted[0])) > 30_000


def test_memory_of_an_id():
    """8 bytes, what the chunks take, and 16 where ids may go; from a million ids on (a block is 65536 of them)."""
    n = 1 << 20
    ids = np.random.default_rng(0).permutation(4 * n)[:n]
    for evict, wanted in ((None, 8), ("lru", 24), ("lfu", 24), ("lightlfu", 24)):
        m = kernels.IdMap(capacity=n if evict else None, evict=evict)
        m.admit(ids)
        assert wanted + 5.4 < m.n_bytes / n < wanted + 8.5


def test_calls_from_two_threads_wait_for_each_other():
    m, ids = kernels.IdMap(capacity=30_000, evict="lru"), np.arange(120_000)
    parts = np.split(ids, 12)

    def admit(mine: list[np.ndarray]) -> None:
        for part in mine:
            m.admit(part)
            m.find(part)

    threads = [threading.Thread(target=admit, args=(parts[t::3],)) for t in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = m.save()
    assert (len(m), m.evicted, state.clock) == (30_000, 90_000, 12)
    assert sorted(state.rows.tolist()) == list(range(30_000))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"capacity": 0}, "capacity is 0; allowed are 1 to 4294967295"),
        ({"capacity": 2**32}, "capacity is 4294967296"),
        ({"evict": "fifo"}, "evict is 'fifo'; allowed are lru, lfu, lightlfu and None"),
        ({"admit_from": 0}, "admit_from is 0"),
        ({"pending": 0}, "pending is 0"),
        ({"admit_probability": 0.0}, "admit_probability is 0.0; allowed are numbers above 0 up to 1"),
        ({"admit_probability": float("nan")}, "admit_probability is nan"),
        ({"admit_from": 2, "admit_probability": 0.5}, "one of them has to be 1"),
    ],
)
def test_rules_that_are_refused(backend, rules, message):
    kernels.use(backend)
    with pytest.raises(ValueError, match=message):
        kernels.IdMap(**rules)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lists_that_are_refused(backend):
    kernels.use(backend)
    rules = {"capacity": 4, "evict": "lru", "admit_from": 2, "pending": 2}
    m = kernels.IdMap(**rules)
    for batch in ([1, 2], [1, 2, 3], [4]):
        m.admit(ints(*batch))
    state = m.save()
    assert (state.ids.tolist(), state.pending_ids.tolist()) == ([1, 2], [2, 4])
    with pytest.raises(ValueError, match="the map is in use"):
        m.load(state)
    for change, message in (
        ({"ids": ints(1, 1)}, "there twice"),
        ({"counts": ints(1, -1)}, r"counts.* -1"),
        ({"counts": ints(1, 2**32)}, "counts"),
        ({"clocks": ints(1, 4)}, "clocks"),
        ({"clocks": ints(1)}, r"clocks is int64\[1\]; needed is .* int64\[2\]"),
        ({"ids": np.arange(5), "counts": np.arange(5), "clocks": np.zeros(5, int)}, "ids are 5; there is room for 4"),
        ({"pending_ids": ints(3, 3)}, "there twice"),
        ({"pending_clocks": ints(-1, 0)}, "pending_clocks"),
        ({"clock": MOST_BATCHES + 1}, "clock is 4294967295"),
        ({"clock": -1}, "clock is -1"),
        ({"evicted": -1}, "evicted is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.IdMap(**rules).load(state._replace(**change))
    for call in (m.find, m.admit):
        with pytest.raises(ValueError, match="ids is int32"):
            call(np.array([1], np.int32))
    kernels.IdMap(**rules).load(state)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("evict", [None, "lru", "lfu"])
def test_ids_keep_the_rows_that_a_state_has(backend, evict):
    """And go on as the map that was saved."""
    kernels.use(backend)
    rules = {"capacity": 6, "evict": evict}
    rng = np.random.default_rng(0)
    m = kernels.IdMap(**rules)
    for _ in range(20):
        m.admit(rng.integers(0, 12, 4))
    state = m.save()
    again = kernels.IdMap(**rules)
    again.load(state, keep_rows=True)
    np.testing.assert_array_equal(again.find(np.arange(12)), m.find(np.arange(12)))
    assert evict is None or state.rows.tolist() != sorted(state.rows.tolist()), "or nothing would be shown"
    for _ in range(20):
        batch = rng.integers(0, 12, 4)
        np.testing.assert_array_equal(again.admit(batch).rows, m.admit(batch).rows)
    for rows in (state.rows[:-1], np.zeros_like(state.rows), state.rows + 1, state.rows - 1):
        with pytest.raises(ValueError, match="rows"):
            kernels.IdMap(**rules).load(state._replace(rows=rows), keep_rows=True)
