"""Pooling by max: native = reference bit for bit, reference = torch, which of equals wins, and what is refused."""

import numpy as np
import pytest
import torch
from all_backends import DTYPES, WIDTHS, bags, rows_of, same_from_all, scattered_starts

from hpcrec import kernels


@pytest.mark.parametrize(("width", "dtype"), rows_of((*WIDTHS, 130, 256, 512)))
def test_native_is_reference(width, dtype):
    rng = np.random.default_rng(width)
    rows = rng.integers(-3, 3, (500, width)).astype(dtype)  # so that many are equal
    rows[rng.random(rows.shape) < 0.02] = np.nan
    n = 3000 if width <= 128 else 300
    index, offsets = bags(rng, n, 500, 6)
    starts, size = scattered_starts(rng, n, width)
    gradients = rng.standard_normal(size).astype(dtype)
    for start in (None, starts):

        def run(start=start):
            out, alone = np.full(size, 7, dtype), np.full(size, 7, dtype)
            winners = np.full((n, width), -1, np.int32)
            kernels.pooled_max(rows, index, offsets, out, out_start=start, winners=winners)
            kernels.pooled_max(rows, index, offsets, alone, out_start=start)
            back = np.full((index.size, width), 7, dtype)
            kernels.pooled_max_backward(winners, offsets, gradients, back, source_start=start)
            return out, alone, winners, back

        out, alone, winners, back = same_from_all(run)
        assert out.tobytes() == alone.tobytes(), "winners change the result"
        written = (np.arange(n) * width if start is None else start)[:, None] + np.arange(width)
        some = np.flatnonzero(np.diff(offsets))
        assert not out[written[offsets[1:] == offsets[:-1]]].any()
        won = rows[index[offsets[some, None] + winners[some]], np.arange(width)]
        np.testing.assert_array_equal(out[written[some]], won)
        untouched = np.ones(size, bool)
        untouched[written] = False
        assert (out[untouched] == 7).all()
        assert np.count_nonzero(back) == np.count_nonzero(gradients[written[some]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_torchs(dtype):
    """``EmbeddingBag(mode="max")`` and its gradient, where no two rows of a bag are equal in a column."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((100, 12)).astype(dtype) - 2  # most are negative: an empty bag's zeros must not win
    index, offsets = bags(rng, 400, 100, 7)
    gradients = rng.standard_normal((400, 12)).astype(dtype)
    out, winners = np.empty((400, 12), dtype), np.empty((400, 12), np.int32)
    kernels.pooled_max(rows, index, offsets, out.reshape(-1), winners=winners)
    back = np.empty((index.size, 12), dtype)
    kernels.pooled_max_backward(winners, offsets, gradients.reshape(-1), back)
    merged = kernels.merge(kernels.group(index), back.reshape(-1), np.arange(index.size) * 12, 12)
    weight = torch.tensor(rows, requires_grad=True)
    pooled = torch.nn.functional.embedding_bag(
        torch.from_numpy(index), weight, torch.from_numpy(offsets), mode="max", include_last_offset=True
    )
    np.testing.assert_array_equal(out, pooled.detach().numpy())
    pooled.backward(torch.from_numpy(gradients))
    np.testing.assert_allclose(merged, weight.grad.numpy()[np.unique(index)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_the_first_of_equals_wins_and_nan_exceeds_all(backend):
    kernels.use(backend)
    nan = np.nan
    rows = np.array([[1, -0.0, nan], [1, 0.0, 5], [-2, -1, nan], [-3, -1, -np.inf]], np.float32)
    out, winners = np.empty((4, 3), np.float32), np.empty((4, 3), np.int32)
    offsets = np.array([0, 2, 4, 4, 7])
    index = np.array([0, 1, 3, 2, 1, 2, 0])
    kernels.pooled_max(rows, index, offsets, out.reshape(-1), winners=winners)
    np.testing.assert_array_equal(out, [[1, 0, nan], [-2, -1, nan], [0, 0, 0], [1, 0, nan]])
    assert winners.tolist() == [[0, 0, 0], [1, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert np.signbit(out[0, 1])
    back = np.empty((7, 3), np.float32)
    kernels.pooled_max_backward(winners, offsets, np.arange(1, 13, dtype=np.float32), back)
    assert back.tolist() == [[1, 2, 3], [0, 0, 0], [0, 5, 0], [4, 0, 6], [10, 11, 0], [0, 0, 12], [0, 0, 0]]


@pytest.mark.parametrize("n_vectors", [0, 3])
def test_nothing(n_vectors):
    def run():
        out, winners = np.full(12, 7, np.float32), np.full((n_vectors, 4), 7, np.int32)
        offsets = np.zeros(n_vectors + 1, np.int64)
        kernels.pooled_max(np.empty((0, 4), np.float32), np.empty(0, np.int64), offsets, out, winners=winners)
        kernels.pooled_max_backward(winners, offsets, out, np.empty((0, 4), np.float32))
        return out, winners

    out, winners = same_from_all(run)
    assert out.tolist() == [0.0] * (4 * n_vectors) + [7.0] * (12 - 4 * n_vectors)
    assert not winners.any()


ROWS = np.zeros((5, 4), np.float32)
INDEX = np.array([0, 1, 2])
OFFSETS = np.array([0, 2, 3])


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"index": np.array([0, 1, 5])}, "index"),
        ({"offsets": np.array([0, 2, 4])}, "offsets must begin at 0, never fall and end at 3"),
        ({"out_start": np.array([0, 5])}, r"out_start\[1\] is 5"),
        ({"winners": np.zeros((2, 3), np.int32)}, r"winners is int32\[2, 3\]; needed .* int32\[2, 4\]"),
        ({"winners": np.zeros((2, 4))}, "winners is float64"),
        ({"out": ROWS.reshape(-1)}, "shares memory"),
        ({"out": np.zeros(8)}, r"needed is .* float32"),
    ],
)
def test_forward_refuses(backend, changed, message):
    kernels.use(backend)
    arguments = {"rows": ROWS, "index": INDEX, "offsets": OFFSETS, "out": np.zeros(8, np.float32)}
    with pytest.raises(ValueError, match=message):
        kernels.pooled_max(**(arguments | changed))


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"winners": np.array([[0, 1, 2, 0], [0, 0, 0, 0]], np.int32)}, "winners: a place is outside its bag"),
        ({"winners": np.array([[0, 1, -1, 0], [0, 0, 0, 0]], np.int32)}, "winners: a place is outside its bag"),
        ({"offsets": np.array([0, 4, 3])}, "offsets must begin at 0, never fall and end at 3"),
        ({"source_start": np.array([0, 5])}, r"source_start\[1\] is 5"),
        ({"gradients": np.zeros(7, np.float32)}, "source_start"),
        ({"out": np.zeros((3, 4))}, r"needed is .* float32"),
    ],
)
def test_backward_refuses(backend, changed, message):
    kernels.use(backend)
    arguments = {"winners": np.zeros((2, 4), np.int32), "offsets": OFFSETS, "gradients": np.zeros(8, np.float32)}
    with pytest.raises(ValueError, match=message):
        kernels.pooled_max_backward(**({**arguments, "out": np.zeros((3, 4), np.float32)} | changed))
