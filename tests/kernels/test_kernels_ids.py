"""Grouping, partition, hashes and initial rows: native = reference, and what the definitions promise."""

import numpy as np
import pytest
from all_backends import same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpcrec import kernels

INT64 = np.iinfo(np.int64)
PRIME = 10007


def ids_of(kind: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    return {
        "few": lambda: rng.integers(0, 5, n),
        "one": lambda: np.full(n, 42),
        "unique": lambda: rng.permutation(n),
        "skewed": lambda: np.minimum(rng.zipf(1.2, n), 10**7),
        "wide": lambda: rng.integers(INT64.min, INT64.max, n),
        "ends": lambda: rng.choice([INT64.min, -1, 0, INT64.max], n),
        "digits": lambda: rng.integers(0, 2**22 + 1, n),
    }[kind]().astype(np.int64)


KINDS = ("few", "one", "unique", "skewed", "wide", "ends", "digits")


@pytest.mark.parametrize("n", [0, 1, 2, 1000, 50_000])
@pytest.mark.parametrize("kind", KINDS)
def test_group(kind, n):
    ids = ids_of(kind, n)
    unique, segments, order = same_from_all(lambda: tuple(kernels.group(ids)))
    assert segments[0] == 0
    assert segments[-1] == n
    assert (unique[1:] > unique[:-1]).all()
    assert (ids[order] == np.repeat(unique, np.diff(segments))).all()
    assert (np.lexsort((np.arange(n), ids)) == order).all()


@pytest.mark.parametrize("n", [0, 1, 1000, 50_000])
@pytest.mark.parametrize("kind", KINDS)
def test_dedup(kind, n):
    ids = ids_of(kind, n)
    unique, inverse = same_from_all(lambda: kernels.dedup(ids))
    assert (unique == np.unique(ids)).all()
    assert (unique[inverse] == ids).all()


@pytest.mark.parametrize("kind", KINDS)
def test_sorts_on_several_threads(kind):
    n = 200_000  # fewer are sorted by one thread
    ids = ids_of(kind, n)
    unique, segments, order = same_from_all(lambda: tuple(kernels.group(ids)))
    assert (ids[order] == np.repeat(unique, np.diff(segments))).all()
    same_from_all(lambda: kernels.dedup(ids))
    part = (np.arange(n) * 7919 % 1000 if kind == "unique" else ids % 13).astype(np.int32)
    same_from_all(lambda: kernels.partition(part, 1000))


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.int64, st.integers(0, 40), elements=st.integers(INT64.min, INT64.max) | st.integers(-3, 3)))
def test_group_of_any_ids(ids):
    unique, segments, order = same_from_all(lambda: tuple(kernels.group(ids)), threads=(1,))
    assert (ids[order] == np.repeat(unique, np.diff(segments))).all()


@pytest.mark.parametrize("n", [4095, 4096, 5000])
@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1), (0, 2), (0, 1000), (0, 2**31), (2**31 - 50, 2**31 + 50), (2**32 - 50, 2**32), (2**32 - 50, 2**32 + 50),
        (0, 2**40), (2**62, 2**63 - 1), (2**63 - 9, 2**63 - 1), (-5, 5), (-(2**63), -(2**63) + 9),
        (-(2**63), 2**63 - 1),
    ],
)  # fmt: skip
def test_ids_of_few_and_many_bits(low, high, n):
    """A device sorts many ids by as many bits as they have."""
    rng = np.random.default_rng(n)
    ids = rng.integers(low, high, n, endpoint=True)
    ids[[7, n - 1]] = low, high
    offsets = np.r_[0, np.sort(rng.integers(0, n, n // 3)), n, n].astype(np.int64)
    grouping, in_bags, (distinct, inverse) = same_from_all(
        lambda: (tuple(kernels.group(ids)), tuple(kernels.group(ids, offsets)), kernels.dedup(ids))
    )
    assert (distinct == np.unique(ids)).all()
    assert (distinct[inverse] == ids).all()
    assert (in_bags[2] == np.searchsorted(offsets, grouping[2], side="right") - 1).all()


@pytest.mark.parametrize("n_bags", [7, 40, 3000])
@pytest.mark.parametrize("n", [0, 1, 6, 1000])
def test_group_names_bags_among_empty_ones(n, n_bags):
    """A bag's number may be above the number of ids."""
    rng = np.random.default_rng([n, n_bags])
    ids = rng.integers(0, 50, n)
    bags = np.sort(rng.integers(0, n_bags, n))
    offsets = np.searchsorted(bags, np.arange(n_bags + 1)).astype(np.int64)
    unique, segments, order = same_from_all(lambda: tuple(kernels.group(ids, offsets)))
    assert (unique == np.unique(ids)).all()
    by_id = np.lexsort((np.arange(n), ids))
    assert (order == bags[by_id]).all() and (ids[by_id] == np.repeat(unique, np.diff(segments))).all()


@pytest.mark.parametrize("n_parts", [1, 2, 7, 3000])
@pytest.mark.parametrize("n", [0, 1, 40_000])
def test_partition(n, n_parts):
    part = np.random.default_rng(n).integers(0, n_parts, n).astype(np.int32)
    counts, order = same_from_all(lambda: kernels.partition(part, n_parts))
    assert (counts == np.bincount(part, minlength=n_parts)).all()
    assert (np.lexsort((np.arange(n), part)) == order).all()


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_refusals(backend):
    kernels.use(backend)
    with pytest.raises(ValueError, match=r"part\[1\] is 3"):
        kernels.partition(np.array([0, 3], np.int32), 3)
    with pytest.raises(ValueError, match="part is int64"):
        kernels.partition(np.array([0, 3]), 3)
    with pytest.raises(ValueError, match=r"ids\[0\] is 10"):
        kernels.permute(np.array([10]), 10, 1)
    with pytest.raises(ValueError, match="rows is 0"):
        kernels.hash_ids(np.array([10]), 0, 1)
    with pytest.raises(ValueError, match="ids is int32"):
        kernels.dedup(np.array([1], np.int32))


@pytest.mark.parametrize("seed", [0, 1, -5, 2**64 - 1])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 10, 16, 17, 1000, 65536, PRIME])
def test_permute_is_a_bijection(rows, seed):
    ids = np.arange(rows)
    out = same_from_all(lambda: kernels.permute(ids, rows, seed))
    assert (np.sort(out) == ids).all()
    assert (same_from_all(lambda: kernels.unpermute(out, rows, seed)) == ids).all()


@pytest.mark.parametrize("rows", [2**40, 2**62, 2**63 - 1])
def test_permute_of_huge_tables(rows):
    ids = np.random.default_rng(1).integers(0, rows, 1000)
    out = same_from_all(lambda: kernels.permute(ids, rows, 3))
    assert ((out >= 0) & (out < rows)).all()
    assert (kernels.unpermute(out, rows, 3) == ids).all()


def chi_square(out: np.ndarray, rows: int, n_parts: int) -> float:
    """Against equal parts, in standard deviations above its mean: about N(0, 1) for random numbers."""
    counts = np.bincount(out * n_parts // rows, minlength=n_parts)
    expected = out.size / n_parts
    return float((((counts - expected) ** 2).sum() / expected - (n_parts - 1)) / np.sqrt(2 * (n_parts - 1)))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 64, 4096])
def test_spread_over_parts(stride, seed):
    rows = 2**26
    ids = np.arange(10_000) * stride
    for n_parts in (7, 64, 1000):
        for function in (kernels.permute, kernels.hash_ids):
            out = function(ids, rows, seed)
            assert abs(chi_square(out, rows, n_parts)) < 5
            # by remainder as by range
            assert abs(chi_square(out % n_parts, n_parts, n_parts)) < 5


def test_chi_square_sees_a_bad_spread():
    assert chi_square(np.arange(10_000), 2**26, 64) > 1000


@pytest.mark.parametrize("rows", [1, 2, 1000, 2**32 + 1, 2**63 - 1])
def test_hash(rows):
    ids = ids_of("wide", 5000)
    out = same_from_all(lambda: kernels.hash_ids(ids, rows, 9))
    wanted = [mixed(int(i) % 2**64 ^ mixed(9)) * rows >> 64 for i in ids[:100]]
    assert out[:100].tolist() == wanted
    assert rows == 1 or (out != kernels.hash_ids(ids, rows, 10)).any()


def mixed(x: int) -> int:
    """splitmix64 in Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_mix_is_splitmix64():
    # first outputs of the published generator seeded with 1234567
    assert mixed(1234567) == 6457827717110365317
    assert mixed(1234567 + 0x9E3779B97F4A7C15) == 3203168211198807973


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 3, 16, 100])
def test_init_rows(width, dtype):
    ids = ids_of("wide", 2000)
    rows = same_from_all(lambda: kernels.init_rows(7, ids, width, scale=0.25, dtype=dtype))
    assert np.abs(rows).max() <= 0.25
    part = slice(width // 3, width - width // 4)
    columns = kernels.init_rows(7, ids, part.stop - part.start, column_start=part.start, scale=0.25, dtype=dtype)
    assert (columns == rows[:, part]).all()
    assert (kernels.init_rows(7, ids[::-1].copy(), width, scale=0.25, dtype=dtype) == rows[::-1]).all()
    assert (kernels.init_rows(8, ids, width, scale=0.25, dtype=dtype) != rows).mean() > 0.99


def test_init_rows_are_uniform():
    rows = kernels.init_rows(1, np.arange(20_000), 16, scale=1.0, dtype=np.float64)
    assert abs(rows.mean()) < 5 / np.sqrt(3 * rows.size)
    assert abs(rows.var() - 1 / 3) < 5 * np.sqrt(4 / 45 / rows.size)
    assert abs(np.corrcoef(rows.T) - np.eye(16)).max() < 5 / np.sqrt(20_000)
    assert abs(np.corrcoef(rows[:-1, 0], rows[1:, 0])[0, 1]) < 5 / np.sqrt(20_000)
    assert not kernels.init_rows(1, np.arange(5), 4, scale=0.0).any()


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("offsets", "message"),
    [([0, 2], "end at 3"), ([0, 3, 2, 3], "never fall"), ([1, 3], "begin at 0"), ([], "offsets is")],
)
def test_group_refuses_bags_of_other_ids(backend, offsets, message):
    kernels.use(backend)
    with pytest.raises(ValueError, match=message):
        kernels.group(np.array([5, 4, 5]), np.array(offsets, np.int64))
