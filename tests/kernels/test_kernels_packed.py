"""Packed numbers: native = reference bit for bit, in as many bytes as the definition says, and what is refused."""

import numpy as np
import pytest
from all_backends import DEVICES, same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hpcrec import kernels

SIZES = (0, 1, 7, 8, 9, 127, 128, 129, 256, 1000)


@st.composite
def numbers_of(draw) -> np.ndarray:
    n, bits = draw(st.sampled_from(SIZES)), draw(st.integers(0, 64))
    low, high = (0, 2**bits - 1) if bits < 64 else (-(2**63), 2**63 - 1)
    return draw(arrays.arrays(np.int64, n, elements=st.integers(low, min(high, 2**63 - 1))))


def width_of(words: list[int]) -> int:
    bits = max(words).bit_length()
    return bits if bits <= 56 else 64


def bytes_of(numbers: np.ndarray) -> int:
    """One byte a block of 128, and of each word as many bits as the block's largest takes: up to 56, else 64."""
    words = numbers.view(np.uint64)
    blocks = [words[i : i + 128].tolist() for i in range(0, len(words), 128)]
    return sum(1 + -(-len(block) * width_of(block) // 8) for block in blocks)


def round_trip(numbers: np.ndarray, *, rising: bool, n_bytes: int) -> np.ndarray:
    """What comes out again, the same from both backends, and the same bytes between."""

    def run() -> tuple[np.ndarray, np.ndarray]:
        packed = np.full(n_bytes, 0xAA, np.uint8)
        kernels.pack_numbers(numbers, packed, rising=rising)
        return packed, kernels.unpack_numbers(packed, len(numbers), rising=rising)

    return same_from_all(run, threads=(1,))[1]


@settings(max_examples=150, deadline=None)
@given(numbers_of())
def test_numbers_come_back(numbers):
    for backend in ("native", "reference", *DEVICES):
        kernels.use(backend)
        assert kernels.packed_bytes(numbers)[0] == bytes_of(numbers)
    np.testing.assert_array_equal(round_trip(numbers, rising=False, n_bytes=bytes_of(numbers)), numbers)


@settings(max_examples=150, deadline=None)
@given(numbers_of())
def test_rising_numbers_come_back_in_the_bytes_of_their_gaps(numbers):
    for some in (np.unique(numbers), numbers):  # those that do not rise come back too, and take more
        n_bytes = bytes_of(np.diff(some, prepend=-1) - 1)
        for backend in ("native", "reference", *DEVICES):
            kernels.use(backend)
            assert kernels.packed_bytes(some) == (bytes_of(some), n_bytes)
        np.testing.assert_array_equal(round_trip(some, rising=True, n_bytes=n_bytes), some)


@pytest.mark.parametrize("bits", range(65))
def test_every_width(bits):
    rng = np.random.default_rng(bits)
    numbers = rng.integers(0, 2**bits, 300, dtype=np.uint64, endpoint=False) if bits else np.zeros(300, np.uint64)
    numbers[[0, 140, 299]] = 2**bits - 1
    numbers, bits = numbers.view(np.int64), bits if bits <= 56 else 64
    assert bytes_of(numbers) == 3 + 2 * 16 * bits + -(-44 * bits // 8)
    np.testing.assert_array_equal(round_trip(numbers, rising=False, n_bytes=bytes_of(numbers)), numbers)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 400), st.booleans())
def test_any_bytes_are_refused_or_numbers(raw, n, rising):
    packed, ended = np.frombuffer(raw, np.uint8), []
    for backend in ("native", "reference", *DEVICES):
        kernels.use(backend)
        try:
            ended.append(kernels.unpack_numbers(packed, n, rising=rising).tolist())
        except ValueError as error:
            assert backend in DEVICES or f"its {len(raw)} bytes are not {n} numbers" in str(error)
            ended.append(None)
    assert all(other == ended[0] for other in ended)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_refusals(backend):
    kernels.use(backend)
    three = np.array([2**56 - 1, 0, 1])
    assert kernels.packed_bytes(three) == (22, 25)
    for n_bytes in (0, 1, 21, 23, 99):
        with pytest.raises(ValueError, match=f"do not take the {n_bytes} bytes"):
            kernels.pack_numbers(three, np.zeros(n_bytes, np.uint8), rising=False)
    with pytest.raises(ValueError, match="do not take the 22 bytes"):
        kernels.pack_numbers(three, np.zeros(22, np.uint8), rising=True)
    with pytest.raises(ValueError, match="are not 129 numbers"):
        kernels.unpack_numbers(np.zeros(1, np.uint8), 129, rising=False)
    for width in (57, 63, 65, 255):
        with pytest.raises(ValueError, match="are not 1 numbers"):
            kernels.unpack_numbers(np.array([width] + [0] * 8, np.uint8), 1, rising=False)


@pytest.mark.parametrize("n", [128 * 4096 - 1, 128 * 4096 + 1, 128 * 9000])
def test_more_blocks_than_a_device_adds_up_at_a_time(n):
    numbers = np.cumsum(np.random.default_rng(n).integers(0, 9, n) ** 4)
    n_bytes = kernels.packed_bytes(numbers)[1]
    np.testing.assert_array_equal(round_trip(numbers, rising=True, n_bytes=n_bytes), numbers)


@pytest.mark.parametrize("backend", DEVICES)
def test_refusals_of_a_device(backend):
    kernels.use(backend)
    three = np.array([2**56 - 1, 0, 1])
    for n_bytes in (0, 1, 21, 23, 99):
        with pytest.raises(ValueError, match="numbers do not take the"):
            kernels.pack_numbers(three, np.zeros(n_bytes, np.uint8), rising=False)
    with pytest.raises(ValueError, match="numbers do not take the 1 bytes of out"):
        kernels.pack_numbers(three[:0], np.zeros(1, np.uint8), rising=False)
    for width in (57, 63, 65, 255):
        with pytest.raises(ValueError, match="packed: the bytes are not so many numbers"):
            kernels.unpack_numbers(np.array([width] + [0] * 8, np.uint8), 1, rising=False)
