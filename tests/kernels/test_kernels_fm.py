"""Sums of a factorisation machine: the same bits from all backends, however vectors lie; torch's formula; refusals."""

import numpy as np
import pytest
from all_backends import rows_of, same_from_all

from hpcrec import kernels

FM_WIDTHS = (1, 2, 3, 4, 8, 16, 32, 64, 100, 127, 128, 130, 256, 260, 300, 512)


def laid_out(rng, order, n_samples, n_features, width, dtype):
    """[B, F, D], some elements of it huge: whole, feature by feature, cut out of something wider, or at odd places."""
    extra = {"cut": (4, 2, 4), "odd": (3, 1, 5)}.get(order, (0, 0, 0))
    shape = [n_samples + extra[0], n_features + extra[1], width + extra[2]]
    if order == "features first":
        shape[:2] = shape[1::-1]
    array = (rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 5, shape)).astype(dtype)
    if order == "features first":
        return array.transpose(1, 0, 2)
    return array[extra[0] :, extra[1] :, : width if order == "cut" else None][..., -width:]


@pytest.mark.parametrize("order", ["samples first", "features first", "cut", "odd"])
@pytest.mark.parametrize(("width", "dtype"), rows_of(FM_WIDTHS))
def test_all_backends_give_the_same_bits(width, dtype, order):
    rng = np.random.default_rng(width)
    n_samples, n_features = 300 if width <= 128 else 60, 13
    vectors = laid_out(rng, order, n_samples, n_features, width, dtype)
    assert vectors.shape == (n_samples, n_features, width)
    sums_gradient = rng.standard_normal((n_samples, width)).astype(dtype)
    squares_gradient = rng.standard_normal(n_samples).astype(dtype)

    def run():
        sums, squares = np.full((n_samples, width), np.nan, dtype), np.full(n_samples, np.nan, dtype)
        kernels.fm_sums(vectors, sums, squares)
        gradient = np.full_like(vectors, np.nan)  # lies as vectors do
        kernels.fm_sums_backward(vectors, sums_gradient, squares_gradient, gradient)
        return sums, squares, gradient

    sums, squares, gradient = same_from_all(run)
    wide = vectors.astype(np.float64)
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(sums, wide.sum(1), rtol=0, atol=tolerance * np.abs(wide).sum(1).max())
    np.testing.assert_allclose(squares, (wide**2).sum((1, 2)), rtol=tolerance)
    wanted = sums_gradient[:, None] + 2 * squares_gradient[:, None, None] * wide
    np.testing.assert_allclose(gradient, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (0, 0, 1), (1, 1, 1), (5, 1, 64), (1, 40, 16)])
def test_few_or_none(shape):
    vectors = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    def run():
        sums, squares = np.full((shape[0], shape[2]), 7, np.float32), np.full(shape[0], 7, np.float32)
        kernels.fm_sums(vectors, sums, squares)
        gradient = np.full_like(vectors, 7)
        kernels.fm_sums_backward(vectors, sums, squares, gradient)
        return sums, squares, gradient

    sums, squares, _ = same_from_all(run)
    assert (sums == vectors.sum(1)).all()
    np.testing.assert_allclose(squares, (vectors**2).sum((1, 2)), rtol=1e-6)


def test_what_is_not_finite_stays_so():
    vectors = np.ones((3, 4, 20))
    vectors[0, 1, 2], vectors[1, 3, 19], vectors[2] = np.inf, np.nan, -0.0

    def run():
        sums, squares = np.empty((3, 20)), np.empty(3)
        kernels.fm_sums(vectors, sums, squares)
        return np.isnan(sums), np.isnan(squares), np.nan_to_num(sums), np.nan_to_num(squares)

    sums_nan, squares_nan, sums, squares = same_from_all(run)
    assert squares_nan.tolist() == [False, True, False]
    assert sums_nan.sum() == 1
    assert not sums[2].any()
    assert not np.signbit(sums[2]).any()
    assert squares[0] > 1e300


ARGUMENTS = {
    "vectors": np.ones((2, 3, 4), np.float32),
    "sums": np.zeros((2, 4), np.float32),
    "squares": np.zeros(2, np.float32),
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vectors": np.ones((2, 3, 4), np.float16)}, r"vectors is float16\[2, 3, 4\]; needed is float32 or float64"),
        ({"vectors": np.ones((2, 3), np.float32)}, r"vectors is float32\[2, 3\]"),
        ({"vectors": np.ones((2, 3, 0), np.float32)}, "not empty"),
        ({"vectors": np.ones((2, 3, 8), np.float32)[:, :, ::2]}, "last axis is contiguous"),
        ({"vectors": np.ones((2, 3, 4), np.float32)[::-1]}, "vectors is"),
        ({"vectors": [[[1.0]]]}, "vectors is list"),
        ({"sums": np.zeros((2, 3), np.float32)}, r"sums is float32\[2, 3\]"),
        ({"sums": np.zeros((2, 4))}, "sums is float64"),
        ({"squares": np.zeros(3, np.float32)}, "squares is"),
        ({"sums": ARGUMENTS["vectors"][0, :2]}, "sums shares memory with vectors"),
        ({"squares": ARGUMENTS["vectors"][0, 0, :2]}, "squares shares memory with vectors"),
    ],
)
def test_forward_refuses(changed, message):
    with pytest.raises(ValueError, match=message):
        kernels.fm_sums(**(ARGUMENTS | changed))


def overlapping(shape, strides):
    return np.lib.stride_tricks.as_strided(np.zeros(100, np.float32), shape, [4 * s for s in strides])


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (np.zeros((2, 3, 5), np.float32), r"gradient is float32\[2, 3, 5\]; needed is float32\[2, 3, 4\]"),
        (np.zeros((2, 3, 4)), "gradient is float64"),
        (overlapping((2, 3, 4), (0, 4, 1)), "of vectors that lie apart"),
        (overlapping((2, 3, 4), (8, 4, 1)), "of vectors that lie apart"),
        (overlapping((2, 3, 4), (12, 3, 1)), "of vectors that lie apart"),
        (ARGUMENTS["vectors"], "gradient shares memory with vectors"),
        (np.broadcast_to(np.float32(0), (2, 3, 4)), "gradient is"),
    ],
)
def test_backward_refuses(gradient, message):
    given = ARGUMENTS["vectors"], ARGUMENTS["sums"], ARGUMENTS["squares"]
    with pytest.raises(ValueError, match=message):
        kernels.fm_sums_backward(*given, gradient)
    kernels.fm_sums_backward(*given, overlapping((2, 3, 4), (20, 5, 1)))
    kernels.fm_sums_backward(*given, overlapping((2, 3, 4), (4, 8, 1)))
