"""The loader: parts make up the global batch, any start gives the same stream, and threads end."""

import gc
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import cut, write

from hpcrec.data import gather, reader
from hpcrec.data.loader import Loader
from hpcrec.data.order import GlobalOrder
from hpcrec.data.prefetch import Prefetch
from hpcrec.errors import ConfigError, DataError
from hpcrec.preparation.schema import Columns, DataSet
from hpcrec.types import Bags, Batch

NAMES = ("terms", "user", "tags")


def loader(path: Path, batch: int = 100, prefetch: int = 2, **options: object) -> Loader:
    data = DataSet(path)
    order = GlobalOrder(data.samples, batch, seed=9, chunk=64, window=4)
    return Loader(data, order, **{"features": NAMES, "prefetch": prefetch, **options})


def bag(bags: Bags, feature: int, sample: int, n: int) -> tuple[list[int], list[float]]:
    low, high = bags.offsets[feature * n + sample : feature * n + sample + 2]
    return bags.ids[low:high].tolist(), bags.weights[low:high].tolist()


def assert_same(one: Batch, other: Batch) -> None:
    assert (one.epoch, one.index, one.size, one.start) == (other.epoch, other.index, other.size, other.start)
    for name in ("dense", "label", "weight"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("ids", "offsets", "weights"):
        np.testing.assert_array_equal(getattr(one.bags, name), getattr(other.bags, name))


def test_batches_hold_the_samples_of_the_order(samples: Columns, data_file: Path) -> None:
    feed = loader(data_file)
    batches = list(feed.batches(n=2 * feed.order.n_batches))
    assert len(batches) == 48 and batches[23].size == 57 and batches[24].epoch == 1
    for batch in batches[:3] + batches[22:26]:
        numbers = feed.order.positions(batch.epoch, *feed.order.batch_range(batch.index))
        np.testing.assert_array_equal(batch.label, samples.label[numbers])
        np.testing.assert_array_equal(batch.weight, samples.weight[numbers])
        np.testing.assert_array_equal(batch.dense, samples.dense[numbers])
        assert batch.bags.features == NAMES and len(batch.bags.offsets) == 3 * len(numbers) + 1
        for sample, number in enumerate(numbers.tolist()):
            one = cut(samples, number, number + 1).sparse
            for feature, name in enumerate(NAMES):
                ids, weights = bag(batch.bags, feature, sample, len(numbers))
                assert ids == one[name].ids.tolist()
                assert weights == (one[name].weights.tolist() if name == "terms" else [1.0] * len(ids))


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [100, 700, 3])
def test_parts_make_up_the_global_batch(data_file: Path, parts: int, size: int) -> None:
    n = min(loader(data_file, size).order.n_batches + 2, 40)
    whole = list(loader(data_file, size, prefetch=0).batches(n=n))
    shares = [list(loader(data_file, size, part=p, parts=parts).batches(n=n)) for p in range(parts)]
    for t, batch in enumerate(whole):
        pieces = [share[t] for share in shares]
        ends = np.cumsum([0] + [len(piece.label) for piece in pieces])
        assert [piece.start for piece in pieces] == ends[:-1].tolist() and ends[-1] == batch.size == len(batch.label)
        for name in ("dense", "label", "weight"):
            np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in pieces]), getattr(batch, name))
        for feature in range(3):
            for sample in range(batch.size):
                piece = int(np.searchsorted(ends, sample, side="right")) - 1
                place = (feature, int(sample - ends[piece]), len(pieces[piece].label))
                assert bag(pieces[piece].bags, *place) == bag(batch.bags, feature, sample, batch.size)


def test_an_empty_part_keeps_its_shapes(data_file: Path) -> None:
    feed = loader(data_file, batch=3, part=3, parts=4)
    for batch in feed.batches(n=5):
        assert batch.dense.shape == (0, 3) and batch.label.shape == (0,) and batch.weight.shape == (0,)
        assert batch.size == 3 and batch.start == 3
        assert batch.bags.ids.shape == (0,) and batch.bags.offsets.tolist() == [0] and batch.bags.weights.shape == (0,)
        assert batch.dense.dtype == np.float32 and batch.bags.ids.dtype == np.int64


@pytest.mark.parametrize(("epoch", "index"), [(0, 0), (0, 5), (0, 23), (0, 24), (1, 0), (1, 11)])
def test_resume_yields_the_identical_stream(data_file: Path, epoch: int, index: int) -> None:
    whole = list(loader(data_file, part=1, parts=2).batches(n=60))[epoch * 24 + index :]
    resumed = list(loader(data_file, part=1, parts=2).batches(epoch, index, len(whole)))
    assert len(resumed) == len(whole) == 60 - 24 * epoch - index
    for one, other in zip(whole, resumed, strict=True):
        assert_same(one, other)


def test_reads_at_most_one_window_at_once_and_each_once(data_file: Path) -> None:
    feed, reads = loader(data_file, prefetch=0), []
    real = feed.dataset.read_ranges

    def counted(ranges: list[tuple[int, int]], *options: Any, **more: Any) -> Columns:
        reads.append(sum(end - first for first, end in ranges))
        return real(ranges, *options, **more)

    feed.dataset.read_ranges = counted
    assert sum(len(batch.label) for batch in feed.batches(n=24)) == 2357
    reads = [n for n in reads if n]
    assert len(reads) == feed.order.n_windows == 10 and max(reads) == 256 and sum(reads) == 2357


def test_one_hot_and_no_features(data_file: Path) -> None:
    batch = next(loader(data_file, features=("user",)).batches())
    assert batch.bags.weights is None and batch.bags.offsets.tolist() == list(range(101))
    batch = next(loader(data_file, features=()).batches())
    assert batch.bags.offsets.tolist() == [0] and batch.dense.shape == (100, 3)


def hpcrec_threads() -> int:
    return sum(thread.name == "hpcrec-prefetch" for thread in threading.enumerate())


def test_threads_end_when_closed_dropped_or_done(data_file: Path) -> None:
    feed = loader(data_file)
    with feed.batches() as stream:
        next(stream)
        assert hpcrec_threads() == 2
    assert hpcrec_threads() == 0
    assert next(stream, None) is None
    stream = feed.batches()
    next(stream)
    del stream
    gc.collect()
    assert hpcrec_threads() == 0
    assert len(list(islice(feed.batches(n=3), 5))) == 3
    gc.collect()
    assert hpcrec_threads() == 0
    assert feed.load_wait_s > 0


def test_errors_in_the_thread_reach_the_consumer(samples: Columns, tmp_path: Path) -> None:
    import h5py

    path = write(tmp_path / "bad.h5", samples)
    with h5py.File(path, "r+") as file:
        file["sparse/user/ids"][2000] = -1
    feed = loader(path)
    seen = 0
    with pytest.raises(DataError, match=r"/sparse/user/ids: sample 2000 \(from 0\) has -1; ids must be in \[0, 1000\)"):
        for _ in feed.batches():
            seen += 1
    assert seen < 24
    assert hpcrec_threads() == 0


def test_prefetch_runs_at_most_depth_ahead() -> None:
    made: list[int] = []

    def items():
        for i in range(100):
            made.append(i)
            yield i

    ahead = Prefetch(items(), 3)
    deadline = time.monotonic() + 5
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert made == [0, 1, 2]
    assert list(ahead) == list(range(100))


def test_refuses_what_does_not_fit(data_file: Path) -> None:
    with pytest.raises(ConfigError, match="part 2 of 2"):
        loader(data_file, part=2, parts=2)
    with pytest.raises(DataError, match="no feature 'x'"):
        loader(data_file, features=("x",))
    with pytest.raises(ConfigError, match="the order has 5 samples"):
        Loader(DataSet(data_file), GlobalOrder(5, 2))
    with pytest.raises(ConfigError, match="batch 25 of epoch 0"):
        loader(data_file).batches(0, 25)


def test_take_and_join_agree_with_slicing(samples: Columns) -> None:
    rows = np.array([5, 5, 2356, 0, 1200])
    taken = gather.join([gather.take(samples, rows[:2]), gather.take(samples, rows[2:])])
    for i, row in enumerate(rows.tolist()):
        for name in NAMES:
            one, want = cut(taken_as_full(taken), i, i + 1).sparse[name], cut(samples, row, row + 1).sparse[name]
            np.testing.assert_array_equal(one.ids, want.ids)


def taken_as_full(columns: Columns) -> Columns:
    zeros = np.zeros(columns.samples, dtype=np.int64)
    return Columns(columns.label, columns.dense, columns.sparse, columns.weight, zeros, zeros)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_ids_alone_are_the_same_ids_and_nothing_else_is_read(
    data_file: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, prefetch: int
) -> None:
    """Labels, dense inputs and weights of samples could be missing: nobody asks for them."""
    whole = loader(data_file, prefetch=prefetch)
    whole.order = GlobalOrder(whole.dataset.samples, 100, seed=9, shuffle=shuffle, chunk=64, window=4)
    alone = Loader(whole.dataset, whole.order, features=NAMES, prefetch=prefetch, ids_only=True)
    expected = list(whole.batches(n=26))
    asked: set[str] = set()
    real_fill = reader._fill

    def noted(name: str, *rest: Any) -> Any:
        asked.add(name)
        return real_fill(name, *rest)

    monkeypatch.setattr(reader, "_fill", noted)
    for batch, other in zip(alone.batches(n=26), expected, strict=True):
        assert (batch.epoch, batch.index, batch.size, batch.start) == (other.epoch, other.index, other.size, 0)
        assert batch.label.shape == batch.dense.shape == (batch.size, 0) and batch.weight is None
        for name in ("ids", "offsets", "weights"):
            np.testing.assert_array_equal(getattr(batch.bags, name), getattr(other.bags, name))
    assert asked and all(name.startswith("/sparse/") for name in asked)
