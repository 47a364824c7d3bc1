"""Halves: native = reference bit for bit, the error that is allowed, what is not finite, and what is refused."""

import numpy as np
import pytest
import torch
from all_backends import same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hpcrec import kernels

KINDS = ("bf16", "fp16", "fp32")
SIZES = (0, 1, 127, 128, 129, 100_003)
THREADS = (1, 2, 3, 4)
LARGEST = np.finfo(np.float32).max


def any_floats(rng: np.random.Generator, n: int) -> np.ndarray:
    """Of any magnitude, block by block and within blocks; some zeros and subnormals, few that are not finite."""
    block = np.repeat(rng.uniform(-45, 38, -(-n // 128)), 128)[:n]
    values = (rng.normal(size=n) * 10.0 ** (block - rng.integers(0, 12, n))).clip(-LARGEST, LARGEST).astype(np.float32)
    rare = rng.random(n)
    values[rare < 0.1] = rng.choice(np.array([0.0, -0.0, 1e-45, -3e-42, LARGEST], np.float32), n)[rare < 0.1]
    values[rare > 1 - 1 / 512] = rng.choice(np.array([np.nan, -np.nan, np.inf, -np.inf], np.float32), n)[
        rare > 1 - 1 / 512
    ]
    return values


def there_and_back(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The bytes, which begin at an odd address, and what is read from them."""
    n_bytes = kernels.half_bytes(values.size, kind)
    written = np.full(n_bytes + 2, 0xAA, np.uint8)
    kernels.write_halves(values, written[1:-1], kind)
    assert written[[0, -1]].tolist() == [0xAA, 0xAA]
    read = np.full(values.size + 1, 7, np.float32)
    kernels.read_halves(written[1:-1], read[:-1], kind)
    assert read[-1] == 7
    return written[1:-1], read[:-1]


def scales_of(values: np.ndarray) -> np.ndarray:
    """Of each value: the largest magnitude of its block."""
    scales = [np.full(len(b), np.abs(b).max()) for b in np.split(values, range(128, values.size, 128)) if b.size]
    return np.concatenate([*scales, np.zeros(0, np.float32)])


def assert_near(read: np.ndarray, values: np.ndarray, kind: str) -> None:
    """The documented errors; all that is not finite shows."""
    with np.errstate(invalid="ignore"):  # of signalling NaNs, and infinity less infinity
        exact, found = values.astype(np.float64), read.astype(np.float64)
        scales, error = scales_of(values).astype(np.float64), np.abs(found - exact)
    if kind == "fp32":
        assert read.tobytes() == values.tobytes()
    elif kind == "fp16":
        fine = np.isfinite(scales)
        # the quotient and the product are rounded to float32, the latter perhaps to a subnormal one
        bound = scales[fine] * (2.0**-12 + 2.0**-23) + 2.0**-149
        assert (error[fine] <= bound).all()
        assert np.isnan(read[~fine]).all()
        assert not read[scales == 0].any()
    else:
        normal = (np.abs(exact) >= 2.0**-126) & (np.abs(exact) < 2.0**127)
        assert (error[normal] <= 2.0**-8 * np.abs(exact[normal])).all()
        np.testing.assert_array_equal(np.isnan(read), np.isnan(values))
        assert (read[np.isinf(values)] == values[np.isinf(values)]).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_native_is_reference(kind, n):
    values = any_floats(np.random.default_rng(n), n)
    _, read = same_from_all(lambda: there_and_back(values, kind), THREADS)
    assert_near(read, values, kind)


@settings(max_examples=150, deadline=None)
@given(arrays.arrays(np.float32, st.integers(0, 300), elements=st.floats(width=32)), st.sampled_from(KINDS))
def test_any_values(values, kind):
    _, read = same_from_all(lambda: there_and_back(values, kind), (1,))
    assert_near(read, values, kind)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.sampled_from(KINDS), st.randoms(use_true_random=False))
def test_any_bytes_are_read_alike(n, kind, random):
    data = np.frombuffer(random.randbytes(kernels.half_bytes(n, kind)), np.uint8)

    def read():
        out = np.empty(n, np.float32)
        kernels.read_halves(data, out, kind)
        out[np.isnan(out)] = np.nan  # whose payloads are not defined
        return out

    same_from_all(read, (1,))


def test_bf16_is_torchs():
    """All upper halves of the bits, with lower ones about each tie."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    words = np.concatenate([upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    values = words.view(np.float32)
    written, _ = same_from_all(lambda: there_and_back(values, "bf16"), THREADS)
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    found, is_nan = written.copy().view(np.uint16), np.isnan(values)
    np.testing.assert_array_equal(found[~is_nan], wanted[~is_nan])
    np.testing.assert_array_equal(found[is_nan], words[is_nan] >> 16 | 0x40)


def test_fp16_of_a_scale_of_1_is_numpys():
    """All halves up to 1, the values half-way between them, and those next to both."""
    halves = np.arange(0x3C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    exact = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2])
    near = np.concatenate([exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(1))])
    values = np.concatenate([near, -near])
    values = np.insert(values, np.arange(0, values.size, 127), np.float32(1))  # one in each block, at least
    written, _ = same_from_all(lambda: there_and_back(values, "fp16"), THREADS)
    n_scales = -(-values.size // 128)
    assert (written[: 4 * n_scales].copy().view(np.float32) == 1).all()
    found = written[4 * n_scales :].copy().view(np.uint16)
    np.testing.assert_array_equal(found, values.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("scale", [1.0, -2.5, 1e-45, 3e38])
def test_every_half_is_read_as_numpy_reads_it(scale):
    halves = np.arange(2**16, dtype=np.uint16)
    scales = np.full(2**16 // 128, scale, np.float32)
    data = np.concatenate([scales.view(np.uint8), halves.view(np.uint8)])

    def read():
        out = np.empty(2**16, np.float32)
        kernels.read_halves(data, out, "fp16")
        out[np.isnan(out)] = np.nan
        return out

    with np.errstate(over="ignore", invalid="ignore"):
        wanted = halves.view(np.float16).astype(np.float32) * np.float32(scale)
    np.testing.assert_array_equal(same_from_all(read, THREADS), wanted)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_one_value_that_is_not_finite_spoils_its_block_only(backend):
    kernels.use(backend)
    for bad in (np.nan, np.inf, -np.inf):
        values = np.full(300, 0.5, np.float32)
        values[130] = bad
        written, read = there_and_back(values, "fp16")
        assert np.isnan(read[128:256]).all()
        assert (read[:128] == 0.5).all()
        assert (read[256:] == 0.5).all()
        scales = written[:12].copy().view(np.float32)
        assert np.isfinite(scales).tolist() == [True, False, True]
        assert np.isnan(scales[1]) == np.isnan(bad)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_scales_whose_inverse_is_infinite(backend):
    kernels.use(backend)
    values = np.array([1e-39, -5e-40, 3e-42, 0, 1.4e-45, -1e-39], np.float32)
    _, read = there_and_back(values, "fp16")
    assert (np.abs(read.astype(float) - values) <= 1e-39 * 2.0**-12 + 2.0**-149).all()
    assert read[[0, 3, 5]].tolist() == values[[0, 3, 5]].tolist()


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_bf16_at_its_edges(backend):
    kernels.use(backend)
    past = np.float32(1) + np.float32(2**-8)  # half-way, to the even side
    values = np.array([past, np.nextafter(past, np.float32(2)), LARGEST, 1e-45, -0.0], np.float32)
    _, read = there_and_back(values, "bf16")
    assert read.tolist() == [1.0, 1 + 2**-7, np.inf, 0.0, 0.0]
    assert np.signbit(read[4])


def test_bytes():
    assert kernels.HALF_BLOCK == 128
    assert [kernels.half_bytes(n, "bf16") for n in SIZES] == [0, 2, 254, 256, 258, 200_006]
    assert [kernels.half_bytes(n, "fp16") for n in SIZES] == [0, 6, 258, 260, 266, 200_006 + 4 * 782]
    assert [kernels.half_bytes(n, "fp32") for n in SIZES] == [0, 4, 508, 512, 516, 400_012]


FIVE = np.ones(5, np.float32)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.half_bytes(5, "fp8"), "kind is 'fp8'; allowed are bf16, fp16, fp32"),
        (lambda: kernels.half_bytes(-1, "bf16"), "n is -1; allowed are 0"),
        (lambda: kernels.write_halves(FIVE, np.zeros(10, np.uint8), "half"), "kind is 'half'"),
        (lambda: kernels.write_halves(FIVE, np.zeros(10, np.uint8), "fp16"), r"out is uint8\[10\].* uint8\[14\]"),
        (lambda: kernels.write_halves(FIVE.astype(float), np.zeros(10, np.uint8), "bf16"), r"values is float64\[5\]"),
        (lambda: kernels.write_halves(FIVE[None], np.zeros(10, np.uint8), "bf16"), r"values is float32\[1, 5\]"),
        (lambda: kernels.write_halves(FIVE[::2], np.zeros(6, np.uint8), "bf16"), "not contiguous"),
        (lambda: kernels.write_halves(FIVE, np.zeros(10, np.int8), "bf16"), r"out is int8\[10\]"),
        (lambda: kernels.write_halves(FIVE, FIVE.view(np.uint8), "fp32"), "out shares memory with values"),
        (lambda: kernels.read_halves(np.zeros(11, np.uint8), FIVE, "bf16"), r"data is uint8\[11\].* uint8\[10\]"),
        (lambda: kernels.read_halves(np.zeros(10, np.uint8), FIVE.astype(np.float16), "bf16"), "out is float16"),
        (lambda: kernels.read_halves(FIVE.view(np.uint8), FIVE, "fp32"), "out shares memory with data"),
    ],
)
def test_refusals(backend, call, message):
    kernels.use(backend)
    with pytest.raises(ValueError, match=message):
        call()
