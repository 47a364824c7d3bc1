"""Joining bags: native = reference bit for bit, the arrays are what they should be, and what is refused."""

from dataclasses import astuple

import numpy as np
import pytest
from all_backends import DEVICES, assert_same_bits, same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec import kernels

CODINGS = tuple(kernels.Coding)


def packed(numbers, *, rising=False):
    out = np.zeros(kernels.packed_bytes(numbers)[rising], np.uint8)
    kernels.pack_numbers(numbers, out, rising=rising)
    return out.tobytes()


def coded(ids, coding):
    """The bytes of ids, and how many of them a table has."""
    if coding == kernels.Coding.PLAIN:
        return ids.tobytes(), 0
    if coding == kernels.Coding.TABLE:
        distinct, places = kernels.dedup(ids)
        return packed(distinct, rising=True) + packed(places), len(distinct)
    return packed(ids, rising=coding == kernels.Coding.RISING), 0


def message_of(rng, pieces, coding=kernels.Coding.PLAIN):
    """A message of pieces (n_bags, longest; longest 0: one id a bag), and its description."""
    parts, asked, wanted = [], [], []
    at = 0
    for n_bags, longest in pieces:
        lengths = rng.integers(0, longest + 1, n_bags).astype(np.int32) if longest else np.ones(n_bags, np.int32)
        ids = rng.integers(0, 1000, lengths.sum())
        if coding == kernels.Coding.RISING:
            ids = np.cumsum(ids + 1)
        base, value_at, gradient_at = (int(x) for x in rng.integers(0, 10**6, 3))
        raw, n_distinct = coded(ids, coding)
        raw_lengths = b""
        if longest:
            raw_lengths = lengths.tobytes() if coding == kernels.Coding.PLAIN else packed(lengths.astype(np.int64))
        places = [at, len(ids), at + len(raw) if longest else -1, n_bags]
        asked.append([*places, base, value_at, gradient_at, coding, n_distinct, len(raw), len(raw_lengths)])
        raw += raw_lengths
        parts.append(raw + b"\x07" * (-len(raw) % 64))
        at += len(parts[-1])
        wanted.append((ids, lengths, base, value_at, gradient_at))
    message = np.frombuffer(b"".join(parts), np.uint8)
    aligned = kernels.aligned_empty((len(message),), np.uint8)
    aligned[:] = message
    return aligned, np.array(asked, np.int64).reshape(-1, 11), wanted


@pytest.mark.parametrize(
    "pieces", [[], [(0, 0)], [(5, 0)], [(4, 3), (0, 2), (7, 0)], [(3000, 20)] * 7, [(9000, 0)] * 5]
)
@pytest.mark.parametrize("coding", CODINGS)
def test_bags_are_joined(pieces, coding):
    rng = np.random.default_rng(len(pieces))
    message, asked, wanted = message_of(rng, pieces, coding)
    same_from_all(lambda: astuple(kernels.unpack(message, asked, 16)))
    found = kernels.unpack(message, asked, 16)
    k = v = 0
    for ids, lengths, base, value_at, gradient_at in wanted:
        assert (found.index[k : k + len(ids)] == ids + base).all()
        assert (np.diff(found.offsets)[v : v + len(lengths)] == lengths).all()
        bags = np.arange(len(lengths))
        assert (found.value_start[v : v + len(lengths)] == value_at + 16 * bags).all()
        assert (found.gradient_start[v : v + len(lengths)] == gradient_at + 16 * bags).all()
        k, v = k + len(ids), v + len(lengths)
    assert (len(found.index), found.offsets[0], found.offsets[-1]) == (k, 0, k)
    assert (len(found.value_start), len(found.gradient_start), len(found.offsets)) == (v, v, v + 1)


def test_what_is_not_wanted_is_left_out():
    message, asked, _ = message_of(np.random.default_rng(0), [(4, 3)])
    for backend in ("native", "reference", *DEVICES):
        kernels.use(backend)
        found = kernels.unpack(message, asked, 4, values=False, gradients=False)
        assert found.value_start is None
        assert found.gradient_start is None


@pytest.mark.parametrize("backend", ["native", "reference", *DEVICES])
@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        (0, -8, "its ids are not inside"),
        (0, 1, "its ids are not inside"),
        (0, 1 << 40, "its ids are not inside"),
        (1, -1, "are not inside a message"),
        (1, 1 << 60, "are not inside a message"),
        (1, 1, "do not add up"),
        (2, 1 << 50, "its lengths are not inside"),
        (2, 2, "its lengths are not inside"),
        (2, -1, "its lengths are not inside the message, or missing"),
        (3, 1 << 60, "bags are not inside a message"),
        (3, 8, "do not add up"),
    ],
)
def test_refusals(backend, column, value, error):
    kernels.use(backend)
    message, asked, _ = message_of(np.random.default_rng(1), [(9, 5)])
    asked[0, column] = value
    with pytest.raises(ValueError, match=error):
        kernels.unpack(message, asked, 4)


@pytest.mark.parametrize("backend", ["native", "reference", *DEVICES])
@pytest.mark.parametrize("coding", CODINGS[1:])
@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        (0, -8, "its ids are not inside"),
        (0, 1 << 40, "its ids are not inside"),
        (1, 1 << 60, "are not inside a message"),
        (1, 140, "damaged"),
        (2, 1 << 50, "its lengths are not inside"),
        (2, -1, "its lengths are not inside the message, or missing"),
        (3, 1 << 60, "bags are not inside a message"),
        (3, 130, "do not add up"),
        (7, 4, "its coding is not known"),
        (7, -1, "its coding is not known"),
        (9, 0, "damaged"),
        (9, -1, "its ids are not inside"),
        (9, 1 << 62, "its ids are not inside"),
        (10, 0, "do not add up"),
        (10, -1, "its lengths are not inside"),
        (10, 1 << 62, "its lengths are not inside"),
    ],
)
def test_refusals_of_what_is_packed(backend, coding, column, value, error):
    message, asked, _ = message_of(np.random.default_rng(1), [(9, 5)], coding)
    asked[0, column] = value
    kernels.use(backend)
    with pytest.raises(ValueError, match=error):
        kernels.unpack(message, asked, 4)


@pytest.mark.parametrize("backend", ["native", "reference", *DEVICES])
@pytest.mark.parametrize(
    ("n_distinct", "error"), [(0, "more rows"), (99, "more rows"), (-1, "more rows"), (2, "damaged")]
)
def test_refusals_of_tables(backend, n_distinct, error):
    message, asked, _ = message_of(np.random.default_rng(1), [(40, 0)], kernels.Coding.TABLE)
    asked[0, 8] = n_distinct
    kernels.use(backend)
    with pytest.raises(ValueError, match=error):
        kernels.unpack(message, asked, 4)


def test_claims_that_wrap_around_are_refused_before_anything_is_written():
    message, asked, _ = message_of(np.random.default_rng(1), [(40, 0)] * 5, kernels.Coding.PACKED)
    asked[:4, [1, 3]] = 1 << 62  # their sum is that of the last piece
    for backend in ("native", "reference", *DEVICES):
        kernels.use(backend)
        with pytest.raises(ValueError, match="its ids are not inside"):
            kernels.unpack(message, asked, 4)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(CODINGS), st.data())
def test_damaged_messages_are_refused_or_read_alike(seed, coding, data):
    """One byte of a message, or one number of its description, becomes another: no crash, and both backends agree."""
    message, asked, _ = message_of(np.random.default_rng(seed), [(5, 3), (3, 0), (150, 2)], coding)
    if data.draw(st.booleans()):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    else:
        at = data.draw(st.integers(0, asked.size - 1))
        near = int(asked.flat[at]) + data.draw(st.integers(-9, 9))
        asked.flat[at] = data.draw(st.sampled_from([near, 0, -1, 2**31, 2**62, -(2**63), 2**63 - 1]))
    ended = []
    for backend in ("native", "reference", *DEVICES):
        kernels.use(backend)
        try:
            with np.errstate(over="ignore"):
                ended.append(kernels.unpack(message, asked, 4))
        except ValueError:
            ended.append(None)
    for other in ended[1:]:
        assert (ended[0] is None) == (other is None)
        if ended[0] is not None:
            assert_same_bits(astuple(other), astuple(ended[0]))
