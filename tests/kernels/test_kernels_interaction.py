"""Dot products of pairs: native against the NumPy definition, and that against loops; threads; refusals."""

import numpy as np
import pytest
from all_backends import DEVICES

from hpcrec import kernels

RELATIVE = {np.float32: 1e-5, np.float64: 1e-12}


def arrays(n_samples, n_block, width, dtype, with_first):
    """First vectors (or None), block, and a gradient of the output."""
    rng = np.random.default_rng((n_samples, n_block, width))
    n = n_block + with_first
    first = rng.standard_normal((n_samples, width)).astype(dtype) if with_first else None
    block = rng.standard_normal((n_samples, n_block, width)).astype(dtype)
    gradient = rng.standard_normal((n_samples, with_first * width + n * (n - 1) // 2)).astype(dtype)
    return first, block, gradient


def both(first, block, gradient):
    """Output and gradients; what a kernel leaves unwritten is NaN."""
    out = np.full_like(gradient, np.nan)
    kernels.dot_interaction(first, block, out)
    first_gradient = None if first is None else np.full_like(first, np.nan)
    block_gradient = np.full_like(block, np.nan)
    kernels.dot_interaction_backward(first, block, gradient, first_gradient, block_gradient)
    return [x for x in (out, block_gradient, first_gradient) if x is not None]


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("with_first", [True, False])
@pytest.mark.parametrize("n", [2, 3, 9, 27, 40])
@pytest.mark.parametrize("width", [1, 3, 4, 16, 63, 64, 128])
@pytest.mark.parametrize("n_samples", [0, 1, 5])
def test_native_is_the_definition(dtype, with_first, n, width, n_samples):
    given = arrays(n_samples, n - with_first, width, dtype, with_first)
    kernels.use("reference")
    wanted = both(*given)
    for backend in ("native", *DEVICES):
        kernels.use(backend)
        close(both(*given), wanted, dtype)


def close(found, wanted, dtype):
    for a, b in zip(found, wanted, strict=True):
        scale = max(1.0, np.abs(b).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=0, atol=RELATIVE[dtype] * scale)


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("with_first", [True, False])
@pytest.mark.parametrize("n", [16, 17, 28, 29, 32, 33, 64, 65, 100])
@pytest.mark.parametrize("width", [8, 15, 16, 17, 31, 32, 33, 100, 256, 512])
def test_a_device_multiplies_squares_of_any_number_of_vectors(dtype, with_first, n, width):
    """A warp has 32 vectors at a time, and 16 or 32 columns."""
    given = arrays(2, n - with_first, width, dtype, with_first)
    kernels.use("reference")
    wanted = both(*given)
    for backend in DEVICES:
        kernels.use(backend)
        close(both(*given), wanted, dtype)


@pytest.mark.parametrize("backend", ["native", "reference", *DEVICES])
def test_loops(backend):
    """Element by element, with one first vector and two of the block."""
    kernels.use(backend)
    first, block, gradient = arrays(2, 2, 3, np.float64, with_first=True)
    out, block_gradient, first_gradient = both(first, block, gradient)
    for b in range(2):
        v = [first[b], block[b, 0], block[b, 1]]
        pairs = [(1, 0), (2, 0), (2, 1)]
        np.testing.assert_allclose(out[b], [*first[b], *(v[i] @ v[j] for i, j in pairs)], rtol=0, atol=1e-12)
        wanted = np.zeros((3, 3))
        wanted[0] += gradient[b, :3]
        for g, (i, j) in zip(gradient[b, 3:], pairs, strict=True):
            wanted[i] += g * v[j]
            wanted[j] += g * v[i]
        np.testing.assert_allclose([first_gradient[b], *block_gradient[b]], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize(("n", "width"), [(27, 16), (27, 64), (5, 7)])
def test_same_bits_for_any_number_of_threads(dtype, n, width):
    given = arrays(301, n - 1, width, dtype, with_first=True)
    wanted = both(*given)
    for threads in (2, 3):
        kernels.set_threads(threads)
        for found, value in zip(both(*given), wanted, strict=True):
            assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize("backend", ["native", *DEVICES])
def test_a_sample_has_the_same_bits_in_any_batch(backend):
    kernels.use(backend)
    first, block, gradient = arrays(7, 26, 16, np.float32, with_first=True)
    whole = both(first, block, gradient)
    for part in (slice(0, 2), slice(2, 7)):
        for found, value in zip(both(first[part], block[part], gradient[part]), whole, strict=True):
            assert found.tobytes() == value[part].tobytes()


def test_refusals():
    first, block, gradient = arrays(4, 2, 3, np.float32, with_first=True)
    with pytest.raises(ValueError, match=r"out is float32\[4, 5\].*float32\[4, 6\]"):
        kernels.dot_interaction(first, block, gradient[:, :5].copy())
    with pytest.raises(ValueError, match="not contiguous"):
        kernels.dot_interaction(first, block[:, ::2], gradient)
    with pytest.raises(ValueError, match=r"first is float64\[4, 3\]"):
        kernels.dot_interaction(first.astype(np.float64), block, gradient)
    with pytest.raises(ValueError, match="1 vectors a sample"):
        kernels.dot_interaction(None, block[:, :1].copy(), gradient)
    with pytest.raises(ValueError, match="width of block is 0"):
        kernels.dot_interaction(None, np.zeros((4, 2, 0), np.float32), np.zeros((4, 1), np.float32))
    with pytest.raises(ValueError, match="give both or neither"):
        kernels.dot_interaction_backward(first, block, gradient, None, np.empty_like(block))
    gradient.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.dot_interaction(first, block, gradient)
