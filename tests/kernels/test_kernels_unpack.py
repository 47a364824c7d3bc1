"""Joining bags: native = reference bit for bit, the arrays are what they should be, and what is refused."""

from dataclasses import astuple

import numpy as np
import pytest
from both_backends import same_from_both

from hpcrec import kernels


def message_of(rng, pieces):
    """A message of pieces (n_bags, longest; longest 0: one id a bag), and its description."""
    parts, asked, wanted = [], [], []
    at = 0
    for n_bags, longest in pieces:
        lengths = rng.integers(0, longest + 1, n_bags).astype(np.int32) if longest else np.ones(n_bags, np.int32)
        ids = rng.integers(0, 1000, lengths.sum())
        base, value_at, gradient_at = (int(x) for x in rng.integers(0, 10**6, 3))
        raw = ids.tobytes() + (lengths.tobytes() if longest else b"")
        asked.append([at, len(ids), at + ids.nbytes if longest else -1, n_bags, base, value_at, gradient_at])
        parts.append(raw + b"\x07" * (-len(raw) % 64))
        at += len(parts[-1])
        wanted.append((ids, lengths, base, value_at, gradient_at))
    message = np.frombuffer(b"".join(parts), np.uint8)
    aligned = kernels.aligned_empty((len(message),), np.uint8)
    aligned[:] = message
    return aligned, np.array(asked, np.int64).reshape(-1, 7), wanted


@pytest.mark.parametrize(
    "pieces", [[], [(0, 0)], [(5, 0)], [(4, 3), (0, 2), (7, 0)], [(3000, 20)] * 7, [(9000, 0)] * 5]
)
def test_bags_are_joined(pieces):
    rng = np.random.default_rng(len(pieces))
    message, asked, wanted = message_of(rng, pieces)
    same_from_both(lambda: astuple(kernels.unpack(message, asked, 16)))
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
    for backend in ("native", "reference"):
        kernels.use(backend)
        found = kernels.unpack(message, asked, 4, values=False, gradients=False)
        assert found.value_start is None
        assert found.gradient_start is None


@pytest.mark.parametrize("backend", ["native", "reference"])
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
