"""Rising positions: scattered, gathered, written and read alike by both backends, and what is refused."""

import numpy as np
import pytest
from all_backends import same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec import kernels
from hpcrec.kernels import PositionCoding

SIZES = (0, 1, 7, 8, 63, 64, 65, 127, 128, 129, 100_003)
THREADS = (1, 2, 3, 4)
CODINGS = tuple(PositionCoding)


def some_of(rng: np.random.Generator, n: int, share: float) -> np.ndarray:
    return np.flatnonzero(rng.random(n) < share).astype(np.int64)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 1.0])
def test_scatter_expand_and_gather(share, n):
    rng = np.random.default_rng(n)
    positions = some_of(rng, n, share)
    before, values = rng.normal(size=n).astype(np.float32), rng.normal(size=positions.size).astype(np.float32)
    values[rng.random(values.size) < 0.01] = np.inf
    shuffled = rng.permutation(np.repeat(positions, 2))

    def run():
        added, expanded = before.copy(), before.copy()
        kernels.scatter_add(added, positions, values)
        kernels.expand(expanded, positions, values)
        return added, expanded, kernels.gather(before, shuffled)

    added, expanded, gathered = same_from_all(run, THREADS)
    dense = np.zeros(n, np.float32)
    dense[positions] = values
    np.testing.assert_array_equal(added, before + dense)
    np.testing.assert_array_equal(expanded, dense)
    np.testing.assert_array_equal(gathered, before[shuffled])


def written(positions: np.ndarray, n: int, coding: PositionCoding) -> np.ndarray:
    n_bytes = (n + 7) // 8 if coding == PositionCoding.MASK else kernels.packed_bytes(positions)[1]
    out = np.full(n_bytes, 0xAA, np.uint8)
    kernels.write_positions(positions, n, coding, out)
    return out


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.5, 0.97, 1.0])
def test_positions_come_back(share, n):
    positions = some_of(np.random.default_rng(n), n, share)
    for coding in CODINGS:

        def run(coding=coding):
            out = written(positions, n, coding)
            return out, kernels.read_positions(out, positions.size, n, coding)

        out, back = same_from_all(run, THREADS)
        np.testing.assert_array_equal(back, positions)
        if coding == PositionCoding.MASK:
            np.testing.assert_array_equal(
                np.flatnonzero(np.unpackbits(out, bitorder="little")), positions
            )  # and no bit behind them


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_the_smaller_coding_is_taken(backend):
    kernels.use(backend)
    rng = np.random.default_rng(0)
    taken = {}
    for share in (0.0, 0.001, 0.05, 0.3, 1.0):
        positions = some_of(rng, 10_000, share)
        sizes = {coding: written(positions, 10_000, coding).size for coding in CODINGS}
        n_bytes, coding = kernels.positions_bytes(positions, 10_000)
        assert n_bytes == sizes[coding] == min(sizes.values())
        taken[share] = coding.name
    # without a gap a number takes no bit
    assert taken == {0.0: "RISING", 0.001: "RISING", 0.05: "RISING", 0.3: "MASK", 1.0: "RISING"}
    assert kernels.positions_bytes(np.zeros(0, np.int64), 0) == (0, PositionCoding.MASK)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 330), st.integers(0, 330), st.sampled_from(CODINGS))
def test_any_bytes_are_refused_or_positions(raw, k, n, coding):
    data, ended = np.frombuffer(raw, np.uint8), []
    for backend in ("native", "reference"):
        kernels.use(backend)
        try:
            ended.append(kernels.read_positions(data, k, n, coding).tolist())
        except ValueError as error:
            assert str(error)
            ended.append(None)
    assert ended[0] == ended[1]
    if ended[0] is not None:
        assert len(ended[0]) == k
        assert ended[0] == sorted(set(ended[0]) & set(range(n)))


OUT = np.zeros(9, np.float32)
THREE = np.ones(3, np.float32)
RISING = np.array([0, 4, 8])


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([0, 4, 9], r"positions\[2\] is 9; allowed are 0 <= value < 9"),
        ([-1, 4, 8], r"positions\[0\] is -1; allowed are 0 <= value < 9"),
        ([4, 4, 8], r"positions\[1\] is 4, after 4; positions must rise"),
        ([4, 8, 5], r"positions\[2\] is 5, after 8; positions must rise"),
        ([2**63 - 1, 4, 8], r"positions\[0\] is 9223372036854775807"),
    ],
)
def test_positions_that_do_not_rise_or_are_outside(backend, positions, message):
    kernels.use(backend)
    wrong = np.array(positions)
    for function in (kernels.expand, kernels.scatter_add):
        with pytest.raises(ValueError, match=message):
            function(OUT.copy(), wrong, THREE)
    for coding in CODINGS:
        n_bytes = 2 if coding == PositionCoding.MASK else kernels.packed_bytes(wrong)[1]
        with pytest.raises(ValueError, match=message):
            kernels.write_positions(wrong, 9, coding, np.zeros(n_bytes, np.uint8))


@pytest.mark.parametrize("n_threads", THREADS)
def test_what_is_wrong_between_pieces_is_found(n_threads):
    kernels.set_threads(n_threads)
    n = 100_000
    values, out = np.ones(n, np.float32), np.zeros(n, np.float32)
    for at in (
        *range(0, n, 3125),
        1023,
        1024,
        1025,
        3125 + 1024,
        n - 1,
    ):  # where pieces and blocks begin, and elsewhere
        wrong = np.arange(n)
        wrong[at] = wrong[at - 1] if at else -1
        with pytest.raises(ValueError, match=rf"positions\[{at}\] is "):
            kernels.scatter_add(out, wrong, values)
        with pytest.raises(ValueError, match=rf"positions\[{at}\] is "):
            kernels.expand(out, wrong, values)
        with pytest.raises(ValueError, match=rf"positions\[{at}\] is "):
            kernels.write_positions(wrong, n, PositionCoding.MASK, np.zeros(n // 8, np.uint8))


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.gather(OUT, np.array([0, 9])), r"positions\[1\] is 9; allowed are 0 <= value < 9"),
        (lambda: kernels.gather(OUT, np.array([-1])), r"positions\[0\] is -1"),
        (lambda: kernels.gather(OUT.astype(float), RISING), r"values is float64\[9\]; needed .* float32"),
        (lambda: kernels.gather(OUT, RISING.astype(np.int32)), r"positions is int32\[3\]"),
        (lambda: kernels.expand(OUT, RISING, THREE[:2]), r"values is float32\[2\].* float32\[3\]"),
        (lambda: kernels.expand(OUT, RISING, OUT[:3]), "out shares memory with values"),
        (lambda: kernels.scatter_add(OUT.astype(float), RISING, THREE), r"out is float64\[9\]"),
        (lambda: kernels.write_positions(RISING, 9, 2, np.zeros(2, np.uint8)), "coding is 2; allowed are 0 to 1"),
        (lambda: kernels.write_positions(RISING, 9, 0, np.zeros(3, np.uint8)), "out is of 3 bytes; .* takes 2"),
        (lambda: kernels.write_positions(RISING, 9, 1, np.zeros(3, np.uint8)), "do not take the 3 bytes of out"),
        (lambda: kernels.write_positions(RISING, -1, 0, np.zeros(0, np.uint8)), "n is -1; allowed are 0"),
        (lambda: kernels.positions_bytes(RISING, -1), "n is -1; allowed are 0"),
        (lambda: kernels.read_positions(np.array([1, 2], np.uint8), 2, 9, 0), "not a mask of 2 of 9 positions"),
        (lambda: kernels.read_positions(np.array([1, 1], np.uint8), 3, 9, 0), "not a mask of 3 of 9 positions"),
        (lambda: kernels.read_positions(np.zeros(3, np.uint8), 0, 9, 0), "3 bytes are not a mask of 0 of 9"),
        (lambda: kernels.read_positions(np.zeros(2, np.uint8), 10, 9, 0), "not a mask of 10 of 9 positions"),
        (lambda: kernels.read_positions(np.zeros(1, np.uint8), 129, 999, 1), "1 bytes are not 129 positions"),
        (lambda: kernels.read_positions(np.zeros(1, np.uint8), 9, 8, 1), r"positions\[8\] is 8; allowed"),
    ],
)
def test_refusals(backend, call, message):
    kernels.use(backend)
    with pytest.raises(ValueError, match=message):
        call()
