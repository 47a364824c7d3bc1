"""One suite over every store: the same steps leave the same bits as in the host's memory."""

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from hpcrec import kernels
from hpcrec.embedding.asked import Asked, with_rows
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.embedding.store import Store
from hpcrec.embedding.stores.ahead import Ahead
from hpcrec.embedding.stores.cache import Cache
from hpcrec.embedding.stores.cache_plan import CachePlan
from hpcrec.embedding.stores.device import DeviceStore
from hpcrec.embedding.stores.device_disk import DeviceDiskStore
from hpcrec.embedding.stores.disk import DiskStore, TierBacking
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.errors import ConfigError
from hpcrec.types import Dynamic, Feature, Lookup, OptimizerSpec, TableSpec
from tests.devices import device_or_skip
from tests.stand_ins.file_store import FileStore

ROWS, WIDTH, CAPACITY = 300, 4, 24
Make = Callable[..., Store]
Drawn = dict[str, tuple[np.ndarray, np.ndarray]]  # by table: lengths of bags, and their ids


def on_device(name: str, room_bytes: int | None) -> Make:
    return lambda *args, **more: DeviceStore(*args, device=device_or_skip(name), room_bytes=room_bytes, **more)


def on_disk(*args: Any, kind: Make = DiskStore, **more: Any) -> Store:
    """With the smallest caches, as the error says that asks for them."""
    make = partial(kind, *args, folder=Path(tempfile.mkdtemp(prefix="hpcrec-test-")), **more)
    with pytest.raises(ConfigError, match=r"store\.memory_bytes is 1, but .* or more") as caught:
        make(room_bytes=1)
    made = make(room_bytes=int(str(caught.value).split()[-3]))
    OPEN.callback(made.close)
    return made


def over_disk(name: str, gpu_bytes: int) -> Make:
    """Three tiers."""

    def make(*args: Any, **more: Any) -> Store:
        kind = partial(DeviceDiskStore, device=device_or_skip(name), gpu_bytes=gpu_bytes)
        return on_disk(*args, kind=kind, **more)

    return make


STORES: dict[str, Make] = {
    "gpu": on_device("cuda", None),
    "gpu cached": on_device("cuda", 4000),
    "emulated": on_device("emulated", None),
    "emulated cached": on_device("emulated", 4000),
    "file": FileStore,
    "disk": on_disk,
    "emulated over disk": over_disk("emulated", 4000),
    "gpu over disk": over_disk("cuda", 4000),
}
OPEN = ExitStack()  # stores that have files
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """What a test has left open goes with it."""
    with OPEN:
        yield


def tables_and_families(optimizer: str) -> tuple[dict[str, TableSpec], Any]:
    spec = OptimizerSpec(name=optimizer, lr=0.1)
    tables = {
        "a": TableSpec(name="a", rows=ROWS, width=WIDTH, optimizer=spec, init_scale=0.5),
        "a.wide": TableSpec(name="a.wide", rows=ROWS, width=1, optimizer=spec, init_scale=0.5),
        "b": TableSpec(name="b", rows=ROWS // 2, width=WIDTH, optimizer=spec, init_decay=1.0),
        "d": TableSpec(name="d", rows=CAPACITY, width=WIDTH, optimizer=spec, dynamic=Dynamic(evict="lru")),
        "copy": TableSpec(name="copy", rows=20, width=WIDTH, optimizer=spec),
    }
    names = (("a", "a"), ("a", "a.wide"), ("b", "b"), ("d", "d"), ("copy", "copy"))
    lookups = [Lookup(feature=f, table=t) for f, t in names]
    features = [Feature(name=f, cardinality=0 if f == "d" else tables[f].rows) for f in ("a", "b", "d", "copy")]
    placements = {"copy": Placement(kind="replicate")}
    families = build_families(tables, features, lookups, placements, owners=(0,), dense=(0,), replicate_rows=0)
    return tables, families


def made(make: Make, optimizer: str = "adagrad") -> Store:
    return make(*tables_and_families(optimizer), rank=0, seed=5, dtype=np.dtype(np.float64))


class Steps:
    """Random bags for the tables of two stores, which are told the same."""

    def __init__(self, make: Make, optimizer: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.pair = made(MemoryStore, optimizer), made(make, optimizer)
        self.under_way: list[tuple[int, list[list[Asked]], int, list[np.ndarray]]] = []
        self.n = 0

    def rows_of(self, table: str, ids: np.ndarray, store: Store, *, train: bool) -> np.ndarray:
        base = store.place(table)[1].base
        return base + (store.find("d", ids, admit=train) if table == "d" else ids)

    def read(self, *, train: bool) -> None:
        """A step is found, prefetched and gathered in both stores; the vectors are the same."""
        self.gather(self.note(train=train), train=train)

    def note(self, *, train: bool) -> tuple[int, list[list[Asked]], int]:
        """A step is found and prefetched: its number, what each store is asked, and elements of its messages."""
        return self.asks(*self.draw(), train=train)

    def draw(self) -> tuple[int, Drawn]:
        """A number, and bags."""
        number, self.n = self.n, self.n + 1
        drawn = {}
        for table, most in (("a", ROWS), ("b", ROWS // 2), ("d", 400), ("copy", 20)):
            lengths = self.rng.integers(0, 4, 25)
            drawn[table] = lengths, self.rng.zipf(1.2, int(lengths.sum())) % most
        return number, drawn

    def foresee(self, number: int, drawn: Drawn) -> None:
        """The second store is told which rows will be asked for, as far as ids have rows."""
        store = self.pair[1]
        rows = [
            np.concatenate(
                [
                    self.rows_of(t, drawn["a" if t == "a.wide" else t][1], store, train=False)
                    for t in (p.table for p in block.parts)
                ]
            ).astype(np.int64)
            for block in store.blocks
        ]
        store.foresee(number, rows)

    def asks(self, number: int, drawn: Drawn, *, train: bool) -> tuple[int, list[list[Asked]], int]:
        """What is drawn is found and prefetched."""
        both, size = [], 0
        for store in self.pair:
            asked, at = [], 0
            for block in store.blocks:
                names = [p.table for p in block.parts]
                columns = [drawn["a" if t == "a.wide" else t] for t in names]
                index = np.concatenate(
                    [self.rows_of(t, ids, store, train=train) for t, (_, ids) in zip(names, columns, strict=True)]
                ).astype(np.int64)
                lengths = np.concatenate([n for n, _ in columns])
                one, at = self.asked(store, block, index, lengths, at, train=train)
                asked.append(one)
            size = max(size, at)
            both.append(asked)
            store.prefetch(number, asked)
        return number, both, size

    def gather(self, noted: tuple[int, list[list[Asked]], int], *, train: bool) -> None:
        number, both, size = noted
        values = [self.gathered(store, number, asked, size) for store, asked in zip(self.pair, both, strict=True)]
        np.testing.assert_array_equal(*values)
        if train:
            self.under_way.append((number, both, size, values))
        else:
            for store in self.pair:
                store.release(number)

    @property
    def pieces(self) -> bool:
        """Whether the second store has fewer slots than rows."""
        cache = getattr(self.pair[1], "_cache", ())
        return any(cache.slots(b) < self.pair[1].blocks[b].rows // 2 for b in cache)

    def push(self, share: float) -> None:
        """The step that was read last learns this part of all declared rows besides, each like a bag of its own."""
        number, both, size, values = self.under_way.pop()
        rng, at = np.random.default_rng(number), size
        for block in self.pair[0].blocks:
            rows = np.flatnonzero(rng.random(block.rows) < share) if block.kind != "dynamic" else np.zeros(0, int)
            start = at + np.arange(len(rows)) * block.width
            at += len(rows) * block.width
            for store, asked in zip(self.pair, both, strict=True):
                b = self.pair[0].blocks.index(block)
                asked[b] = with_rows(asked[b], rows, start, train=True, device=store.device)
        for store, asked in zip(self.pair, both, strict=True):
            store.extend(number, asked)
        self.under_way.append((number, both, at, values))

    def asked(self, store: Store, block: Any, index: Any, lengths: Any, at: int, *, train: bool) -> tuple[Asked, int]:
        there = (lambda a: a) if store.device is None else store.device.array
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        start = at + np.arange(len(lengths)) * block.width
        grouping = kernels.group(there(index), there(offsets)) if train else None
        return (
            Asked(
                index=there(index),
                offsets=there(offsets),
                value_start=None if block.kind == "replicate" else there(start),
                weights=None,
                grouping=grouping,
                source_start=there(start),
            ),
            at + len(lengths) * block.width,
        )

    def gathered(self, store: Store, number: int, asked: list[Asked], size: int) -> np.ndarray:
        values = np.zeros(size) if store.device is None else store.device.array(np.zeros(size))
        store.gather(number, asked, values)
        return np.asarray(values).copy()

    def learn(self, *, left_out: bool = False) -> None:
        number, both, size, _ = self.under_way.pop(0)
        gradients = self.rng.normal(size=size)
        for store, asked in zip(self.pair, both, strict=True):
            given = gradients.copy() if store.device is None else store.device.array(gradients)
            if not left_out:
                store.learn(number, asked, given, lambda own: own, number=number + 1, lr_scale=0.7)
            store.release(number)

    def same(self) -> None:
        for table in self.pair[0].tables:
            wanted, found = (
                [list(map(np.copy, (i, r, *s.values()))) for i, r, s in x.export(table)] for x in self.pair
            )
            assert len(wanted) == len(found) > 0
            for want, have in zip(wanted, found, strict=True):
                for a, b in zip(want, have, strict=True):
                    np.testing.assert_array_equal(a, b, err_msg=table)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("under_way", [1, 3])
def test_steps_give_the_bits_of_main_memory(name: str, optimizer: str, under_way: int) -> None:
    s = Steps(STORES[name], optimizer, seed=under_way)
    for step in range(30):
        s.read(train=True)
        if step % 7 == 3:
            s.read(train=False)
        if len(s.under_way) == under_way:
            s.learn(left_out=step % 11 == 10)
    while s.under_way:
        s.learn()
    s.same()
    dropped = [store.dynamic["d"].figures().dropped for store in s.pair]
    assert dropped[0] == dropped[1] and (dropped[0] > 0) == (under_way > 1), dropped
    if name == "disk":
        told = s.pair[1].figures()
        assert told["disk_rows_read"] > 500 and told["cache_behind"] > 0, told  # rows left the memory, and came back


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_steps_are_noted_far_ahead(name: str, ahead: int) -> None:
    """Two are under way, others are known; evaluations come between."""
    s = Steps(STORES[name], "rowwise_adagrad", seed=ahead)
    noted = [s.note(train=True) for _ in range(ahead)]
    for step in range(25):
        noted.append(s.note(train=True))
        s.gather(noted.pop(0), train=True)
        if step % 5 == 3:
            s.read(train=False)
        if len(s.under_way) == 2:
            s.learn(left_out=step % 11 == 10)
    while s.under_way or noted:
        if noted:
            s.gather(noted.pop(0), train=True)
        s.learn()
    s.same()


def run_foreseen(s: Steps, ahead: int, then: Callable[[int], None] = lambda _: None) -> None:
    """Steps that are foreseen so many ahead; ``then`` follows each that is read, with one under way."""
    coming = []
    for step in range(30):
        coming.append(s.draw())
        s.foresee(*coming[-1])
        if len(coming) > ahead:
            s.gather(s.asks(*coming.pop(0), train=True), train=True)
            if step % 5 == 3:
                s.read(train=False)
            if len(s.under_way) == 2:
                s.learn(left_out=step % 11 == 10)
            then(step)
    while s.under_way:
        s.learn()


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("ahead", [1, 3])
def test_steps_are_foreseen_before_ids_have_rows(name: str, ahead: int) -> None:
    """Rows are found in the step itself: some ids have none before, others lose theirs meanwhile."""
    s = Steps(STORES[name], "adagrad", seed=ahead)
    run_foreseen(s, ahead)
    s.same()
    assert s.pair[0].dynamic["d"].figures().evicted > 20


@pytest.mark.parametrize("name", ["disk", "emulated over disk"])
def test_a_checkpoint_is_made_while_rows_are_brought(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk: steps to come are always being read when rows are kept; neither waits for the other for good."""
    fetch = TierBacking.fetch

    def slow(self: TierBacking, moved: Any) -> None:
        time.sleep(0.01)
        fetch(self, moved)
        time.sleep(0.01)

    monkeypatch.setattr(TierBacking, "fetch", slow)
    s = Steps(STORES[name], "adagrad", seed=2)
    with ThreadPoolExecutor(1) as apart:
        for _ in range(10):
            for _ in range(3):
                s.foresee(*s.draw())
            s.read(train=True)
            s.learn()
            kept = apart.submit(s.pair[1].keep).result(timeout=30)
            kept.settle()
            kept.drop()
    s.same()


def tiers_are_late(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """At random: the threads of the disk and of the device may be anywhere when a step needs its rows."""
    random = Random(seed)

    def late(run: Callable[..., None]) -> Callable[..., None]:
        def delayed(*args: Any) -> None:
            time.sleep(random.choice((0.0, 0.0, 0.001, 0.004)))
            run(*args)

        return delayed

    moves = ("fetch", "write_back")
    for kind, names in ((TierBacking, moves), (Cache, (*moves, "admit")), (Ahead, ("_admit", "_run"))):
        for name in names:
            monkeypatch.setattr(kind, name, late(getattr(kind, name)))


@pytest.mark.parametrize("name", ["disk", "emulated over disk"])
@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_tiers_that_are_late_at_random_leave_the_same_bits(
    name: str, ahead: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers_are_late(monkeypatch, seed)
    s = Steps(STORES[name], "rowwise_adagrad", seed=seed)
    noted = [s.note(train=True) for _ in range(ahead)]
    for step in range(25):
        noted.append(s.note(train=True))
        s.gather(noted.pop(0), train=True)
        if step % 5 == 3:
            s.read(train=False)
        if step % 9 == 5:
            s.gather(noted[-1], train=True)  # those before it have been given up
            noted = []
        if len(s.under_way) >= 2:
            s.learn(left_out=step % 11 == 10)
        if step % 8 == 7:
            s.same()
        while len(noted) < ahead:
            noted.append(s.note(train=True))
    while s.under_way:
        s.learn()
    s.same()
    told = s.pair[1].figures()
    assert ("memory_hits" in told) == (name != "disk") and told.get("memory_hits", 1) > 0
    assert told["cache_hits"] > 0 and told["disk_rows_read"] > 100, told


@pytest.mark.parametrize("name", ["disk", "emulated over disk"])
@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_tiers_that_are_late_know_what_is_foreseen_and_pushed(
    name: str, ahead: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are given rows in the step; some steps learn more rows than they asked for, few or all."""
    tiers_are_late(monkeypatch, seed)
    s = Steps(STORES[name], "sgd", seed=seed)

    def pushes(step: int) -> None:
        if step % 4 == 1:
            s.push(0.1)
        if step % 10 == 7:
            s.push(0.9)

    run_foreseen(s, ahead, pushes)
    s.same()
    told = s.pair[1].figures()
    assert s.pair[0].dynamic["d"].figures().evicted > 20 and told["disk_rows_read"] > 100
    assert told["rows_waited_s"] > 0 and told["pushed_in_pieces"] > 0, told


@pytest.mark.parametrize("name", STORES)
def test_a_row_that_another_id_got_learns_nothing_of_the_first(name: str) -> None:
    s = Steps(STORES[name], "adagrad", seed=0)
    first, second = np.arange(CAPACITY), 100 + np.arange(CAPACITY)
    for store in s.pair:
        expected = made(MemoryStore)
        expected.find("d", second, admit=True)
        steps = []
        for number, ids in enumerate((first, second)):
            asked, at = [], 0
            for block in store.blocks:
                mine = ids if block.kind == "dynamic" else ids[:0]
                index = np.asarray(s.rows_of("d", mine, store, train=True) if len(mine) else mine, np.int64)
                one, at = s.asked(store, block, index, np.ones(len(mine), np.int64), at, train=True)
                asked.append(one)
            store.prefetch(number, asked)
            s.gathered(store, number, asked, at)
            steps.append((asked, at))
        asked, at = steps[0]
        given = np.ones(at) if store.device is None else store.device.array(np.ones(at))
        store.learn(0, asked, given, lambda own: own, number=1, lr_scale=1.0)
        for number in (0, 1):
            store.release(number)
        found, fresh = (dict(rows_by_id(x)) for x in (store, expected))
        assert found.keys() == fresh.keys() == set(second.tolist())
        assert all(np.array_equal(found[i], fresh[i]) for i in found)
        assert store.dynamic["d"].figures().dropped == CAPACITY


def rows_by_id(store: Store) -> Iterator[tuple[int, np.ndarray]]:
    for ids, rows, states in store.export("d"):
        for i, number in enumerate(ids.tolist()):
            yield number, np.concatenate([rows[i], *(np.ravel(of[i]) for of in states.values())])


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("seed", [1, 2])
def test_steps_ask_for_more_before_they_are_read(name: str, seed: int) -> None:
    """As under ``cached``, some steps ahead, of which the next one is being brought."""
    s = Steps(STORES[name], "adagrad", seed)
    noted = [s.note(train=True) for _ in range(3)]
    for step in range(20):
        noted.append(s.note(train=True))
        number, both, size = noted.pop(0)
        rows = [s.rng.choice(block.rows, min(9, block.rows), replace=False) for block in s.pair[0].blocks]
        at, values = size, []
        starts = []
        for block, some in zip(s.pair[0].blocks, rows, strict=True):
            starts.append(at + np.arange(len(some)) * block.width)
            at += len(some) * block.width
        for store, asked in zip(s.pair, both, strict=True):
            more = [
                of
                if block.kind in ("dynamic", "replicate")
                else with_rows(of, r, start, train=False, device=store.device)
                for of, block, r, start in zip(asked, store.blocks, rows, starts, strict=True)
            ]
            store.extend(number, more)
            values.append(s.gathered(store, number, more, at))
        np.testing.assert_array_equal(*values)
        s.under_way.append((number, both, size, values))
        if step % 3 == 1:
            s.read(train=False)
        if len(s.under_way) == 2:
            s.learn(left_out=step % 7 == 6)
    while s.under_way:
        s.learn()
    s.same()


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_rows_that_are_pushed_are_learned_however_many_they_are(
    name: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step pushes most rows of every table, as a drain does; where a cache has not as many slots, in pieces."""
    behind: list[int] = []
    late = CachePlan.late
    monkeypatch.setattr(CachePlan, "late", lambda self, step: (found := late(self, step), behind.append(len(found)))[0])
    s = Steps(STORES[name], optimizer, seed=6)
    for step in range(12):
        noted = s.note(train=True)
        s.gather(noted, train=True)
        if step % 4 == 3:
            s.push(0.9)
            behind.clear()
        s.learn()
        assert not s.pieces or max(behind, default=0) <= kernels.WAYS, "of a piece"
        behind.clear()
        if step % 5 == 4:
            s.read(train=False)
        behind.clear()
    s.same()
    assert s.pieces == (s.pair[1].figures().get("pushed_in_pieces", 0) > 0)


@pytest.mark.parametrize("name", STORES)
def test_steps_that_are_only_read_overtake_others(name: str) -> None:
    """An evaluation is read before steps noted earlier, of both kinds; one that is cut short leaves some over."""
    s = Steps(STORES[name], "adagrad", seed=4)
    for _ in range(8):
        learned, beside, *evaluated = s.note(train=True), *(s.note(train=False) for _ in range(3))
        s.gather(evaluated[0], train=False)  # the other is given up
        s.gather(beside, train=False)
        s.gather(learned, train=True)
        s.learn()
    s.same()


@pytest.mark.parametrize("name", STORES)
def test_rows_are_exported_loaded_and_frozen_as_from_main_memory(name: str, tmp_path: Path) -> None:
    s = Steps(STORES[name], "adagrad", seed=9)
    for store in s.pair:
        store.track()
    for _ in range(5):
        s.read(train=True)
        s.learn()
    changed = [store.changed("a") for store in s.pair]
    np.testing.assert_array_equal(*changed)
    assert 0 < changed[0].sum() < ROWS
    kept = [[(i.copy(), r.copy()) for i, r, _ in store.export("b")] for store in s.pair]
    for number, store in enumerate(s.pair):
        store.freeze({"b": None}, tmp_path / f"{number}")
    for _ in range(5):
        s.read(train=True)
        s.learn()
    for store, before in zip(s.pair, kept, strict=True):
        for (ids, rows, _), (old_ids, old_rows) in zip(store.export("b"), before, strict=True):
            np.testing.assert_array_equal(ids, old_ids)
            np.testing.assert_array_equal(rows, old_rows)
        store.thaw()
    for store in s.pair:
        ids = np.arange(0, ROWS, 3)
        rows = np.outer(ids, np.ones(WIDTH)) / 7
        assert store.load("a", ids, rows, {}, (0, WIDTH)) == rows.size
    for _ in range(3):
        s.read(train=True)
        s.learn()
    s.same()
    for store in s.pair:
        store.close()
    assert s.pair[1].figures()["rows"] == s.pair[0].figures()["rows"]


def test_a_cache_that_forgets_a_pin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite can fail: where a step's rows lose their places before it has learned, bits differ or it stops."""
    from hpcrec.embedding.stores.cache_plan import CachePlan

    def admit(self: CachePlan, step: int, rows: Any, clock: int | None, *more: Any) -> Any:
        kept, self._pinned = self._pinned, {}
        moves = real(self, step, rows, clock)
        self._pinned = {**kept, **self._pinned}
        return moves

    real = CachePlan.admit
    monkeypatch.setattr(CachePlan, "admit", admit)
    with pytest.raises((AssertionError, ValueError, KeyError, IndexError)):
        test_steps_give_the_bits_of_main_memory("file", "adagrad", 3)
