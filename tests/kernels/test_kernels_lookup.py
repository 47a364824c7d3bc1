"""Pooled gather and vector copy: native = reference bit for bit, reference = torch, and what is refused."""

import numpy as np
import pytest
import torch
from all_backends import DTYPES, ROWS, bags, same_from_all, scattered_starts

from hpcrec import kernels


@pytest.mark.parametrize(("width", "dtype"), ROWS)
def test_gather_native_is_reference(width, dtype):
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((500, width)).astype(dtype)
    index, offsets = bags(rng, 3000, 500, 6)
    weights = rng.standard_normal(index.size).astype(dtype)
    scale = rng.standard_normal(3000).astype(dtype)
    starts, size = scattered_starts(rng, 3000, width)
    for options in ({}, {"weights": weights}, {"scale": scale}, {"weights": weights, "scale": scale}):
        for start in (None, starts):

            def run(options=options, start=start):
                out = np.full(size, 7, dtype)
                kernels.pooled_gather(rows, index, offsets, out, out_start=start, **options)
                return out

            out = same_from_all(run)
            written = (np.arange(3000) * width if start is None else start)[:, None] + np.arange(width)
            empty = offsets[1:] == offsets[:-1]
            assert empty.any()
            assert not out[written[empty]].any()
            untouched = np.ones(size, bool)
            untouched[written] = False
            assert untouched.sum() == size - 3000 * width > 0
            assert (out[untouched] == 7).all()


def test_gather_adds_in_order_from_zero():
    rows = np.array([[1.0], [1e8], [-1e8], [-0.0]], np.float32)
    out = np.empty(3, np.float32)
    offsets = np.array([0, 3, 6, 7])
    for backend in ("native", "reference"):
        kernels.use(backend)
        kernels.pooled_gather(rows, np.array([0, 1, 2, 1, 2, 0, 3]), offsets, out)
        assert out.tolist() == [0.0, 1.0, 0.0]
        assert not np.signbit(out[2])


@pytest.mark.parametrize("n_vectors", [0, 3])
def test_gather_of_nothing(n_vectors):
    def run():
        out = np.full(12, 7, np.float32)
        kernels.pooled_gather(
            np.empty((0, 4), np.float32), np.empty(0, np.int64), np.zeros(n_vectors + 1, np.int64), out
        )
        return out

    assert same_from_all(run).tolist() == [0.0] * (4 * n_vectors) + [7.0] * (12 - 4 * n_vectors)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-12)])
@pytest.mark.parametrize("pooling", ["sum", "weighted", "mean"])
def test_gather_is_embedding_bag(pooling, dtype, tolerance):
    rng = np.random.default_rng(5)
    rows = rng.uniform(-1, 1, (100, 16)).astype(dtype)
    index, offsets = bags(rng, 400, 100, 9)
    weights = rng.uniform(-1, 1, index.size).astype(dtype)
    lengths = np.diff(offsets)
    options = {
        "sum": {},
        "weighted": {"weights": weights},
        "mean": {"scale": (1 / np.maximum(lengths, 1)).astype(dtype)},
    }[pooling]
    out = np.empty(400 * 16, dtype)
    kernels.pooled_gather(rows, index, offsets, out, **options)
    bag = torch.nn.EmbeddingBag.from_pretrained(
        torch.from_numpy(rows), mode="mean" if pooling == "mean" else "sum", include_last_offset=True
    )
    psw = torch.from_numpy(weights) if pooling == "weighted" else None
    wanted = bag(torch.from_numpy(index), torch.from_numpy(offsets), per_sample_weights=psw).numpy()
    np.testing.assert_allclose(out.reshape(400, 16), wanted, rtol=0, atol=tolerance * 9)


@pytest.mark.parametrize(("width", "dtype"), ROWS)
def test_copy_native_is_reference(width, dtype):
    rng = np.random.default_rng(width)
    n = 2000
    source_start, source_size = scattered_starts(rng, n, width)
    target_start, target_size = scattered_starts(rng, n, width)
    source = rng.standard_normal(source_size).astype(dtype)
    before = rng.standard_normal(target_size).astype(dtype)
    scale = rng.standard_normal(n).astype(dtype)
    for from_ in (None, source_start):
        for to in (None, target_start):
            for options in ({}, {"accumulate": True}, {"scale": scale}, {"accumulate": True, "scale": scale}):
                if from_ is None and to is None:
                    continue

                def run(from_=from_, to=to, options=options):
                    target = before.copy()
                    kernels.copy_vectors(source, target, width, source_start=from_, target_start=to, **options)
                    return target

                assert (same_from_all(run) != before).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 4, 8, 16, 32, 64, 100, 128, 256, 512])
def test_copy_accumulates_repeated_targets_in_order(width, dtype):
    rng = np.random.default_rng(3)
    n = 40_000 // width + 40
    source = (rng.standard_normal(n * width) * 10.0 ** rng.integers(-4, 5, n * width)).astype(dtype)
    before, scale = rng.standard_normal(40 * width + 50).astype(dtype), rng.standard_normal(n).astype(dtype)
    targets = rng.permutation(np.arange(40) * (width + 1))  # most begin at no multiple of anything
    target_start = targets[np.minimum(rng.geometric(0.3, n) - 1, 39)]
    source_start = rng.permutation(n) * width
    for options in (
        {},
        {"scale": scale},
        {"source_start": source_start},
        {"source_start": source_start, "scale": scale},
    ):

        def run(options=options):
            target = before.copy()
            kernels.copy_vectors(source, target, width, target_start=target_start, accumulate=True, **options)
            return target

        wanted = before.copy()
        for v in range(n):
            from_ = options["source_start"][v] if "source_start" in options else v * width
            x = source[from_ : from_ + width]
            wanted[target_start[v] :][:width] += options["scale"][v] * x if "scale" in options else x
        assert (same_from_all(run) == wanted).all()


def test_copy_accumulates_nothing():
    def run():
        target, none = np.full(4, 7.0), np.zeros(0, np.int64)
        kernels.copy_vectors(np.zeros(0), target, 4, source_start=none, target_start=none, accumulate=True)
        return target

    assert (same_from_all(run) == 7).all()


def test_plain_copy():
    source = np.arange(12, dtype=np.float64)
    target = np.zeros(12)
    kernels.copy_vectors(source, target, 4)
    assert (target == source).all()


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": np.array([0, 1, 9])}, r"index\[2\] is 9"),
        ({"index": np.array([0, -1, 2])}, r"index\[1\] is -1"),
        ({"index": np.array([0, 1, 2], np.int32)}, "index is int32"),
        ({"index": np.arange(6)[::2]}, "not contiguous"),
        ({"offsets": np.array([0, 3, 2, 3])}, "offsets must"),
        ({"offsets": np.array([0, 2, 2, 2])}, "end at 3"),
        ({"offsets": np.zeros(0, np.int64)}, "offsets is"),
        ({"out": np.zeros(11, np.float32)}, "do not fit"),
        ({"out": np.zeros(12)}, "out is float64"),
        ({"out_start": np.array([0, 4, 9])}, r"out_start\[2\] is 9"),
        ({"out_start": np.array([0, 4])}, "out_start is"),
        ({"weights": np.zeros(3)}, "weights is float64"),
        ({"scale": np.zeros(2, np.float32)}, "scale is"),
        ({"rows": np.zeros((9, 4), np.int64)}, "rows is int64"),
        ({"rows": np.zeros((9, 0), np.float32)}, "width of rows"),
    ],
)
def test_gather_refuses(backend, change, message):
    kernels.use(backend)
    call = {
        "rows": np.ones((9, 4), np.float32),
        "index": np.array([0, 1, 2]),
        "offsets": np.array([0, 1, 3, 3]),
        "out": np.zeros(12, np.float32),
    } | change
    with pytest.raises(ValueError, match=message):
        kernels.pooled_gather(**call)


def test_read_only_arrays():
    rows, out = np.ones((2, 4), np.float32), np.zeros(4, np.float32)
    rows.flags.writeable = False
    kernels.pooled_gather(rows, np.array([0, 1]), np.array([0, 2]), out)
    assert (out == 2).all()
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        kernels.pooled_gather(rows, np.array([0, 1]), np.array([0, 2]), out)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_copy_refuses(backend):
    kernels.use(backend)
    source, target = np.ones(12, np.float32), np.zeros(12, np.float32)
    with pytest.raises(ValueError, match=r"target_start\[1\] is 9"):
        kernels.copy_vectors(source, target, 4, target_start=np.array([0, 9]))
    with pytest.raises(ValueError, match=r"source_start\[0\] is -1"):
        kernels.copy_vectors(source, target, 4, source_start=np.array([-1, 0]))
    with pytest.raises(ValueError, match="do not fit"):
        kernels.copy_vectors(source, target, 4, target_start=np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="target shares memory with source"):
        kernels.copy_vectors(target[:8], target[4:], 4)
    with pytest.raises(ValueError, match="a multiple of width 5"):
        kernels.copy_vectors(source, target, 5)
    assert not target.any()


@pytest.mark.parametrize("shape", [(0, 4), (1,), (1000, 7), (3, 2, 5)])
def test_aligned_empty(shape):
    array = kernels.aligned_empty(shape, np.float64)
    assert (array.shape, array.dtype) == (shape, np.float64)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.size == 0 or array.ctypes.data % 64 == 0
    array[...] = 3
    assert (array == 3).all()
