"""Thresholds and what reaches them: native = reference bit for bit, what is kept for later, and what is refused."""

import math

import numpy as np
import pytest
from all_backends import same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hpcrec import kernels

SIZES = (0, 1, 127, 128, 129, 100_003)
THREADS = (1, 2, 3, 4)
FLOATS = arrays.arrays(np.float32, st.integers(1, 200), elements=st.floats(width=32))


def gradients(rng: np.random.Generator, n: int) -> np.ndarray:
    """Heavy-tailed; some zeros, subnormals and equal magnitudes, few infinities and NaNs."""
    values = (rng.normal(size=n) ** 5).astype(np.float32)
    rare = rng.random(n)
    some = np.array([0.0, -0.0, 1e-45, -1e-40, 0.25, -0.25, 1.0], np.float32)
    values[rare < 0.2] = rng.choice(some, n)[rare < 0.2]
    values[rare > 0.999] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), n)[rare > 0.999]
    return values


def magnitudes(values: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), np.inf, np.abs(values)).astype(np.float32)


@pytest.mark.parametrize("n", [1, 127, 128, 129, 100_003, 300_007])
def test_threshold_is_the_keepth_largest(n):
    values = gradients(np.random.default_rng(n), n)
    falling = np.sort(magnitudes(values))[::-1]
    for keep in sorted({1, min(2, n), max(1, n // 1000), max(1, n // 100), (n + 1) // 2, n}):
        found = same_from_all(lambda keep=keep: (np.array(kernels.threshold_of(values, keep)),), THREADS)
        assert found[0] == falling[keep - 1], keep


@pytest.mark.parametrize("n", [200, 300_007])
def test_threshold_among_equals(n):
    for value in (0.0, -0.5, np.nan, np.inf, 1e-45):
        values = np.full(n, value, np.float32)
        for keep in (1, n // 3, n):
            found = same_from_all(lambda values=values, keep=keep: (np.array(kernels.threshold_of(values, keep)),))
            assert found[0] == magnitudes(values)[0]


@settings(max_examples=150, deadline=None)
@given(FLOATS, st.data())
def test_no_larger_threshold_keeps_as_many(values, data):
    keep = data.draw(st.integers(1, values.size))
    tau = float(same_from_all(lambda: (np.array(kernels.threshold_of(values, keep)),), (1,))[0])
    assert (magnitudes(values) >= tau).sum() >= keep
    assert (magnitudes(values) > tau).sum() < keep
    positions, _ = same_from_all(lambda: kernels.select_above(values, tau), (1,))
    assert positions.size >= keep


@pytest.mark.parametrize("n", SIZES)
def test_select_above(n):
    values = gradients(np.random.default_rng(n), n)
    for tau in (0, -0.0, 1e-45, 0.25, 3.0, np.float32(9.5), 1e300, math.inf):
        positions, chosen = same_from_all(lambda tau=tau: kernels.select_above(values, tau), THREADS)
        with np.errstate(over="ignore"):
            wanted = np.flatnonzero((np.abs(values.astype(float)) >= float(tau)) | np.isnan(values))
        np.testing.assert_array_equal(positions, wanted)
        assert (positions.dtype, chosen.dtype) == (np.int64, np.float32)
        assert chosen.tobytes() == values[wanted].tobytes()
        assert tau or positions.size == n


@pytest.mark.parametrize(("n", "width"), [(0, 3), (1, 1), (7, 1), (127, 5), (1000, 16), (3001, 64), (40, 1000)])
def test_select_largest(n, width):
    values = gradients(np.random.default_rng(n + width), n * width).reshape(n, width)
    for keep in sorted({1, min(2, width), (width + 1) // 2, width}):
        positions, chosen = same_from_all(lambda keep=keep: kernels.select_largest(values, keep), THREADS)
        assert (positions.dtype, chosen.dtype) == (np.int64, np.float32)
        assert chosen.tobytes() == values.reshape(-1)[positions].tobytes()
        assert (np.diff(positions) > 0).all()
        assert (positions.reshape(n, keep) // width == np.arange(n)[:, None]).all()
        picked = np.zeros(values.shape, bool)
        picked.reshape(-1)[positions] = True
        for vector, mine in zip(magnitudes(values), picked, strict=True):
            least = np.sort(vector)[width - keep]
            assert mine[vector > least].all()
            equals = np.flatnonzero(vector == least)
            assert mine[equals].tolist() == [i < keep - (vector > least).sum() for i in range(len(equals))]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_threshold_between_two_float32_is_not_rounded_to_one(backend):
    kernels.use(backend)
    below = np.float32(0.7)  # less than 0.7
    assert float(below) < 0.7
    values = np.array([below, np.nextafter(below, np.float32(1)), 0, 1e-45], np.float32)
    assert kernels.select_above(values, 0.7)[0].tolist() == [1]
    assert kernels.select_above(values, float(below))[0].tolist() == [0, 1]
    assert kernels.select_above(values, 1e-60)[0].tolist() == [0, 1, 3]
    assert kernels.select_above(values, 0)[0].tolist() == [0, 1, 2, 3]
    assert kernels.select_above(values, 10**400)[0].tolist() == []
    assert kernels.select_above(values, np.float16(0.5))[0].tolist() == [0, 1]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("tau", [0.0, 0.5, 20.0, math.inf])
def test_select_with_feedback(tau, n):
    rng = np.random.default_rng(n)
    gradient, before = gradients(rng, n), rng.normal(size=n).astype(np.float32)

    def run():
        residual = before.copy()
        positions, chosen = kernels.select_with_feedback(gradient, residual, tau)
        for array in (chosen, residual):
            array[np.isnan(array)] = np.nan  # whose payloads are not defined
        return positions, chosen, residual

    positions, chosen, residual = same_from_all(run, THREADS)
    total = gradient + before
    picked = ~(np.abs(total) < tau)
    np.testing.assert_array_equal(positions, np.flatnonzero(picked))
    np.testing.assert_array_equal(chosen, total[picked])
    np.testing.assert_array_equal(residual, np.where(picked, 0, total))
    assert not np.signbit(residual[picked]).any()


@settings(max_examples=100, deadline=None)
@given(FLOATS, st.floats(min_value=0, width=32), st.integers(0, 2**32))
def test_any_sum(gradient, tau, seed):
    before = gradients(np.random.default_rng(seed), gradient.size)

    def run():
        residual = before.copy()
        positions, chosen = kernels.select_with_feedback(gradient, residual, tau)
        for array in (chosen, residual):
            array[np.isnan(array)] = np.nan  # whose payloads are not defined
        return positions, chosen, residual

    positions, chosen, residual = same_from_all(run, (1,))
    assert not (np.abs(chosen) < tau).any()
    left = np.delete(residual, positions)
    assert (np.abs(left) < tau).all()


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_nothing_is_lost_over_many_steps(backend):
    kernels.use(backend)
    rng = np.random.default_rng(5)
    residual, total, sent = (np.zeros(5000, np.float32) for _ in range(3))
    for _ in range(30):
        gradient = rng.integers(-4, 5, 5000).astype(np.float32)  # whole numbers: their sums are exact
        total += gradient
        positions, chosen = kernels.select_with_feedback(gradient, residual, 9.0)
        assert 0 <= positions.size < 2500
        kernels.scatter_add(sent, positions, chosen)
    assert np.count_nonzero(sent) > 1000
    np.testing.assert_array_equal(sent + residual, total)


FIVE = np.ones(5, np.float32)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.threshold_of(FIVE, 0), "keep is 0; allowed are 1 to 5"),
        (lambda: kernels.threshold_of(FIVE, 6), "keep is 6; allowed are 1 to 5"),
        (lambda: kernels.threshold_of(FIVE[:0], 1), "values is empty"),
        (lambda: kernels.threshold_of(FIVE.astype(float), 1), r"values is float64\[5\]; needed .* float32"),
        (lambda: kernels.select_above(FIVE.astype(np.int64), 1.0), r"values is int64\[5\]"),
        (lambda: kernels.select_largest(FIVE[None], 6), "keep is 6; allowed are 1 to 5"),
        (lambda: kernels.select_largest(FIVE, 1), r"values is float32\[5\]"),
        (lambda: kernels.select_largest(np.ones((3, 0), np.float32), 1), "vectors of no values"),
        (lambda: kernels.select_above(FIVE, -1.0), "tau is -1.0; allowed are 0 and more"),
        (lambda: kernels.select_above(FIVE, math.nan), "tau is nan; allowed are 0 and more"),
        (lambda: kernels.select_with_feedback(FIVE, np.ones(4, np.float32), 1.0), r"residual is float32\[4\]"),
        (lambda: kernels.select_with_feedback(FIVE, FIVE, 1.0), "residual shares memory with gradient"),
    ],
)
def test_refusals(backend, call, message):
    kernels.use(backend)
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("bad", ["3", None, 1j])
def test_a_threshold_that_is_no_number_is_refused(bad):
    with pytest.raises(TypeError, match=r"tau is .*; it must be a number"):
        kernels.select_above(FIVE, bad)
