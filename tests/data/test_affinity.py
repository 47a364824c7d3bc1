"""Dealing by affinity: a batch of the loader is the same samples, each once; any start gives the same dealing."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from hpcrec.data import affinity as product
from hpcrec.data.affinity import Affinity, Dealer, Looked
from hpcrec.data.auction import assign
from hpcrec.data.loader import Loader
from hpcrec.data.order import GlobalOrder
from hpcrec.data.reader import DataSet
from hpcrec.types import Batch

NAMES = ("terms", "user", "tags")


def owner(ids: np.ndarray) -> np.ndarray:
    """Of three parts, and of none."""
    return ids % 4 - 1


def nobody(ids: np.ndarray) -> np.ndarray:
    return np.full(len(ids), -1)


def by(parts: int, *features: str) -> Affinity:
    looked = {"user": Looked("user", 7, 3, owner), "tags": Looked("tags", 8, 1, nobody)}
    return Affinity(tuple(looked[f] for f in features or looked), parts)


def loader(path: Path, batch: int, *, shuffle: bool = True, prefetch: int = 0, **options: object) -> Loader:
    data = DataSet(path)
    order = GlobalOrder(data.samples, batch, seed=9, chunk=64, window=4, shuffle=shuffle)
    return Loader(data, order, **{"features": NAMES, "prefetch": prefetch, **options})


def numbers(batch: Batch) -> list[int]:
    """Of a batch's samples in the data set."""
    return (batch.dense[:, 0] / 3).astype(int).tolist()


@pytest.mark.parametrize(
    ("batch", "shuffle", "prefetch"), [(100, True, 2), (100, False, 0), (700, True, 0), (2, True, 0)]
)
def test_parts_are_each_sample_of_the_batch_once(data_file: Path, batch: int, shuffle: bool, prefetch: int) -> None:
    """Of sizes as the order has them, past windows and epochs; in each part they rise; whoever has all has the same."""
    plain = loader(data_file, batch, shuffle=shuffle)
    n = min(plain.order.n_batches + 2, 60)
    settings = {"shuffle": shuffle, "prefetch": prefetch, "affinity": by(3)}
    of_parts = [loader(data_file, batch, part=p, parts=3, **settings).batches(n=n) for p in range(3)]
    whole = loader(data_file, batch, ids_only=True, **settings).batches(n=n)
    moved = 0
    for expected, everything, *parts in zip(plain.batches(n=n), whole, *of_parts, strict=True):
        assert [len(of.label) for of in parts] == np.diff(plain.order.firsts(expected.index, 3)).tolist()
        assert [of.start for of in parts] == plain.order.firsts(expected.index, 3)[:-1].tolist()
        assert sorted(i for of in parts for i in numbers(of)) == sorted(numbers(expected))
        dealt = np.concatenate([of.positions for of in parts])
        assert np.array_equal(everything.positions, dealt)
        for of in parts:
            assert (np.diff(of.positions) > 0).all()
            for name in ("dense", "label", "weight"):
                assert np.array_equal(getattr(of, name), getattr(expected, name)[of.positions])
        user = everything.bags.ids[everything.bags.offsets[expected.size] : everything.bags.offsets[2 * expected.size]]
        assert np.array_equal(user, expected.bags.ids[expected.bags.offsets[expected.size] :][dealt])
        moved += int((dealt != np.arange(expected.size)).sum())
    assert moved


@pytest.mark.parametrize(("epoch", "index"), [(0, 0), (0, 5), (0, 23), (0, 24), (1, 1)])
def test_from_any_batch_on_it_is_the_same_dealing(data_file: Path, epoch: int, index: int) -> None:
    options = {"part": 1, "parts": 3, "affinity": by(3)}
    every = list(loader(data_file, 100, **options).batches(n=40))[24 * epoch + index :]
    resumed = list(loader(data_file, 100, prefetch=2, **options).batches(epoch, index, len(every)))
    for one, other in zip(every, resumed, strict=True):
        assert (one.epoch, one.index, numbers(one)) == (other.epoch, other.index, numbers(other))
        assert np.array_equal(one.bags.ids, other.bags.ids)


def test_it_is_the_rule_by_definition(data_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a table that is so small that rows meet; forgotten where a window begins."""
    monkeypatch.setattr(product, "PLACE_BITS", 9)
    rule, plain = by(3), loader(data_file, 100, features=("user", "tags"))
    had: dict[int, int] = {}
    window, seen = None, 0
    for batch, dealt in zip(
        plain.batches(n=30), loader(data_file, 100, affinity=rule, features=("user", "tags")).batches(n=30), strict=True
    ):
        start = plain.order.batch_range(batch.index)[0]
        if window != (window := (batch.epoch, plain.order.window_of(batch.epoch, start))):
            had.clear()
        scores = np.zeros((batch.size, 3), np.int64)
        ids = list(_ids(batch, rule.looked))
        places = [(i + looked.seed) * 0x9E3779B97F4A7C15 % 2**64 >> 64 - 9 for _, looked, i in ids]
        alike = Counter(places)
        for place, (sample, looked, i) in zip(places, ids, strict=True):
            weight = looked.columns * int(1024 / math.sqrt(alike[place]))
            for part, times in ((had.get(place, -1), 2), (int(looked.owner(np.array([i]))[0]), 3)):
                if part >= 0:
                    scores[sample, part] += times * weight
                    seen += 1
        part_B = assign(scores, np.diff(plain.order.firsts(batch.index, 3))).tolist()
        given: dict[int, list[int]] = {}
        for place, (sample, _, _) in zip(places, ids, strict=True):
            given.setdefault(place, []).append(part_B[sample])
        had |= {place: parts[-1] for place, parts in given.items() if had.get(place) not in parts}
        assert np.argsort(part_B, kind="stable").tolist() == dealt.positions.tolist(), batch.index
    assert seen > 1000


def _ids(batch: Batch, looked: Sequence[Looked]) -> Iterator[tuple[int, Looked, int]]:
    for f, one in enumerate(looked):
        for sample in range(batch.size):
            low, high = batch.bags.offsets[f * batch.size + sample : f * batch.size + sample + 2]
            for i in batch.bags.ids[low:high].tolist():
                yield sample, one, i


def test_samples_with_equal_ids_meet_once_they_have_been_seen(data_file: Path) -> None:
    """Of a feature that nobody owns: most samples of an id go where the id was before; by the order a third do."""
    plain = loader(data_file, 60, features=("tags",))
    alike = {}
    for name, rule in (("order", None), ("affinity", by(3, "tags"))):
        dealing = loader(data_file, 60, features=("tags",), affinity=rule)
        there, found, n = {}, 0, 0
        for batch in dealing.batches(n=39):
            cuts = plain.order.firsts(batch.index, 3)
            parts = np.repeat(np.arange(3), np.diff(cuts))
            for sample, _, i in _ids(batch, (Looked("tags", 0, 1, nobody),)):
                if i in there:
                    n, found = n + 1, found + (there[i] == parts[sample])
            for sample, _, i in _ids(batch, (Looked("tags", 0, 1, nobody),)):
                there[i] = parts[sample]
        alike[name] = found / n
    assert alike["order"] < 0.4 < 0.5 < alike["affinity"], alike


def test_one_part_has_the_batch_as_it_is(data_file: Path) -> None:
    plain, dealt = loader(data_file, 100), loader(data_file, 100, affinity=by(1))
    for one, other in zip(plain.batches(n=26), dealt.batches(n=26), strict=True):
        assert numbers(one) == numbers(other) and other.positions.tolist() == list(range(one.size))


def test_a_dealing_by_itself_needs_no_loader(data_file: Path) -> None:
    """What it is given is the whole batch, in the order's own order."""
    with DataSet(data_file) as data:
        order = GlobalOrder(data.samples, 90, seed=9, chunk=64, window=4)
        dealer = Dealer(by(2), order)
        found = dealer.order(0, 0, data.read(0, 90))
        assert sorted(found.tolist()) == list(range(90))
