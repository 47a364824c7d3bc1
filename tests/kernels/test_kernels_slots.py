"""The slot map: its definition against a model of plain Python, the kernels against the definition, refusals.

The model shares nothing with the definition: integers and lists, one id after the other.
"""

import subprocess
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from all_backends import DEVICES, assert_same_bits

from hpcrec import kernels
from hpcrec.kernels import MOST_CLOCK, MOST_SLOTS, NO_ID, SlotMap
from hpcrec.kernels.slots import WAYS

ON = [
    "reference",
    "native",
    "emulated",
    pytest.param("cuda", marks=pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU that torch can use")),
]
EVICT = ("lru", "lfu")
CAPACITIES = (32, 64, 320)
INT64 = np.iinfo(np.int64)
WORD = 2**64 - 1
NONE = np.zeros(0, np.int64)


def on(name: str) -> kernels.Device | None:
    return None if name in ("reference", "native") else kernels.device(name)  # type: ignore[arg-type]


def slot_map(where: str, capacity: int, *, evict: str, seed: int) -> SlotMap:
    """A map of the host, by the definition or native, or of a device."""
    kernels.use("reference" if where == "reference" else "native")
    made = SlotMap(capacity, evict=evict, seed=seed, device=on(where))  # type: ignore[arg-type]
    kernels.use("native")
    return made


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


class Model:
    """Lists of what ways hold: [id, count, clock]."""

    def __init__(self, capacity: int, evict: str, seed: int) -> None:
        self.sets: list[list[list | None]] = [[None] * WAYS for _ in range(capacity // WAYS)]
        self.lfu, self.key = evict == "lfu", mixed(seed)

    def place(self, id_: int) -> tuple[int, int | None]:
        number = mixed((id_ & WORD) ^ self.key) * len(self.sets) >> 64
        held = [way for way, entry in enumerate(self.sets[number]) if entry and entry[0] == id_]
        assert len(held) <= 1
        return number, held[0] if held else None

    def find(self, ids: np.ndarray) -> list[int]:
        places = [self.place(int(id_)) for id_ in ids]
        return [-1 if way is None else number * WAYS + way for number, way in places]

    def use(self, slot: int, clock: int) -> None:
        entry = self.sets[slot // WAYS][slot % WAYS]
        if entry and entry[2] < clock:
            entry[1] += 1
            entry[2] = clock

    def admit(self, ids: np.ndarray, clock: int, keep_from: int) -> tuple[list[int], list[int], int]:
        slots, evicted, n_new = self.find(ids), [NO_ID] * len(ids), 0
        for slot in slots:
            if slot >= 0:
                self.use(slot, clock)
        for at, id_ in enumerate(ids.tolist()):
            number, way = self.place(id_)
            entries = self.sets[number]
            if way is None:
                order = [((0, 0, 0, w) if e is None else (1, e[1] * self.lfu, e[2], w)) for w, e in enumerate(entries)
                         if e is None or e[2] < keep_from]  # fmt: skip
                if not order:
                    continue
                way = min(order)[3]
                if entries[way] is not None:
                    evicted[at] = entries[way][0]
                entries[way] = [id_, 1, clock]
                n_new += 1
            slots[at] = number * WAYS + way
        return slots, evicted, n_new

    def remove(self, ids: np.ndarray) -> list[int]:
        slots = self.find(ids)
        for slot in slots:
            if slot >= 0:
                self.sets[slot // WAYS][slot % WAYS] = None
        return slots

    def items(self) -> list[tuple[int, int]]:
        return [(e[0], s * WAYS + w) for s, entries in enumerate(self.sets) for w, e in enumerate(entries) if e]


def of_one_set(capacity: int, seed: int, n: int, which: int = 0) -> np.ndarray:
    """Ids that all belong to one set."""
    ids = np.arange(n * capacity // WAYS * 4 + 200, dtype=np.int64)
    return ids[kernels.hash_ids(ids, capacity // WAYS, seed=seed) == which][:n]


def state_of(m: SlotMap) -> dict[str, np.ndarray]:
    """Its raw arrays."""
    return {name: np.array(getattr(m._map, name)) for name in ("ids", "uses")}


def random_calls(rng: np.random.Generator, capacity: int, n: int = 24) -> list[tuple[str, tuple]]:
    """Calls with ids that repeat, are negative, or lie at the edges; of one set, of all, or none at all."""
    universe = np.unique(
        np.r_[
            rng.integers(-capacity, 2 * capacity, capacity),
            rng.integers(INT64.min + 1, INT64.max, capacity, endpoint=True),
            ints(0, -1, INT64.min + 1, INT64.max, 2**31, -(2**32)),
            of_one_set(capacity, 7, 50),
        ]
    )
    calls: list[tuple[str, tuple]] = []
    for step in range(n):
        size = int(rng.choice([0, 1, 31, 32, 33, capacity // 2, capacity, 300]))
        ids = rng.choice(universe, min(size, universe.size), replace=bool(rng.integers(2)))
        clock = max(0, step + int(rng.integers(-2, 3)))
        calls.append(("admit", (ids, clock, int(rng.integers(max(0, clock - 4), clock + 1)))))
        calls.append(("find", (rng.choice(universe, 2 * size),)))
        if step % 3 == 0:
            calls.append(("touch", (rng.integers(-1, capacity, size), clock + 1)))
        if step % 4 == 3:
            calls.append(("remove", (rng.choice(universe, size // 3),)))
        calls.append(("items", ()))
        if step == n // 2:
            calls.append(("clear", ()))
    return calls


def done(m: Any, name: str, args: tuple) -> Any:
    found = getattr(m, name)(*args)
    return tuple(found) if isinstance(found, tuple) else found


@pytest.mark.parametrize("backend", ["reference", "native", "emulated"])
def test_the_backend_in_use_has_the_map_of_the_host(backend: str) -> None:
    """A run whose models are on a device has its rows in the host's memory found by native kernels too."""
    kernels.use(backend)  # type: ignore[arg-type]
    implementation = type(SlotMap(32, evict="lru", seed=0, device=None)._map)
    kernels.use("native")
    its = "hpcrec.kernels.reference_slots" if backend == "reference" else "hpcrec.kernels.native_slots"
    assert implementation.__module__ == its


@pytest.mark.parametrize("evict", EVICT)
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_definition_does_what_the_model_does(capacity: int, evict: str) -> None:
    rng = np.random.default_rng(capacity)
    model, m, n_evicted = Model(capacity, evict, 7), slot_map("reference", capacity, evict=evict, seed=7), 0
    for name, args in random_calls(rng, capacity, 40):
        if name == "touch":
            slots = args[0][np.isin(args[0], m.items()[1])]  # the model knows no uses of empty slots
            m.touch(slots, args[1])
            for slot in set(slots.tolist()):
                model.use(slot, args[1])
        elif name == "clear":
            m.clear()
            model = Model(capacity, evict, 7)
            assert len(m) == 0
        elif name == "items":
            assert list(zip(*(a.tolist() for a in m.items()), strict=True)) == model.items()
            assert len(m) == len(model.items())
        elif name == "admit":
            slots, evicted, n_new = m.admit(*args)
            assert (slots.tolist(), evicted.tolist(), n_new) == model.admit(*args)
            n_evicted += int((evicted != NO_ID).sum())
        else:
            assert done(m, name, args).tolist() == done(model, name, args)
    assert n_evicted > capacity


@pytest.mark.parametrize("order", ["", "reversed"])
@pytest.mark.parametrize("evict", EVICT)
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("device", ON[1:])
def test_kernels_equal_the_definition(
    device: str, capacity: int, evict: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, in all that it returns and holds; for arrays of the host and of the device."""
    kernels.set_threads(3)
    monkeypatch.setenv("HPCREC_EMULATED_ORDER", order)
    rng = np.random.default_rng(capacity + 1)
    wanted, m = (slot_map(d, capacity, evict=evict, seed=7) for d in ("reference", device))
    for number, (name, args) in enumerate(random_calls(rng, capacity)):
        expected = done(wanted, name, args)
        if number % 2 and on(device) is not None:
            args = tuple(on(device).array(a) if isinstance(a, np.ndarray) else a for a in args)
        found = as_arrays(done(m, name, args))
        if isinstance(expected, tuple):
            assert_same_bits(found[:2], expected[:2])
            assert found[2:] == expected[2:]
        elif expected is not None:
            assert_same_bits(found, expected)
        assert_same_bits(state_of(m), state_of(wanted))
    assert len(m) == len(wanted) > capacity // 2


def as_arrays(found: Any) -> Any:
    if isinstance(found, kernels.DeviceArray):
        return np.asarray(found)
    return tuple(map(as_arrays, found)) if isinstance(found, tuple) else found


@pytest.mark.parametrize("device", ON)
def test_lru_of_one_set_is_an_ordered_dict(device: str) -> None:
    rng, m, model = np.random.default_rng(3), slot_map(device, 32, evict="lru", seed=0), OrderedDict()
    for clock in range(300):
        id_ = int(rng.zipf(1.2)) % 90
        gone = NO_ID
        if id_ in model:
            model.move_to_end(id_)
        elif len(model) == 32:
            gone = model.popitem(last=False)[0]
        fresh = id_ not in model
        model[id_] = None
        placed = m.admit(ints(id_), clock)
        assert (int(placed.evicted[0]), placed.n_new) == (gone, int(fresh))
    assert sorted(np.asarray(m.items()[0]).tolist()) == sorted(model)


@pytest.mark.parametrize("device", ON)
def test_lfu_keeps_what_was_used_at_most_clocks(device: str) -> None:
    m = slot_map(device, 32, evict="lfu", seed=0)
    m.admit(np.arange(32), 0)
    m.touch(m.find(ints(*range(31), 3)), 1)  # all but 31
    m.touch(m.find(ints(*range(30))), 2)  # all but 30, 31
    m.touch(m.find(ints(5)), 2)  # counts once a clock
    assert m.admit(ints(100), 3).evicted.tolist() == [31]
    assert m.admit(ints(101), 4).evicted.tolist() == [100]  # one use, though the latest
    assert m.admit(ints(30, 102), 5).evicted.tolist() == [NO_ID, 101]
    assert m.admit(ints(103, 104), 6).evicted.tolist() == [102, 0]  # of equals the lowest slot


@pytest.mark.parametrize("device", ON)
def test_counts_saturate(device: str) -> None:
    m = slot_map(device, 32, evict="lfu", seed=0)
    m.admit(ints(1), 0)
    m._map.uses[:1] = ((2**31 - 2) << 32) | 5
    for clock in (6, 7, MOST_CLOCK):
        m.admit(ints(1), clock)
        assert int(np.asarray(m._map.uses)[0]) == ((2**31 - 1) << 32) | clock
    placed = m.admit(np.arange(2, 34), MOST_CLOCK)
    assert (placed.slots >= 0).sum() == 31  # it is protected by its clock


@pytest.mark.parametrize("evict", EVICT)
@pytest.mark.parametrize("device", ON)
def test_rows_in_flight_are_never_evicted(device: str, evict: str) -> None:
    m = slot_map(device, 64, evict=evict, seed=1)
    ids = of_one_set(64, 1, 96)
    first = m.admit(ids[:20], 10)
    assert (first.n_new, first.evicted.tolist()) == (20, [NO_ID] * 20)
    assert np.diff(first.slots).tolist() == [1] * 19  # the lowest ways, in order
    second = m.admit(ids[20:50], 11, keep_from=10)
    assert (second.n_new, second.slots[12:].tolist()) == (12, [-1] * 18)
    third = m.admit(ids[50:90], 12, keep_from=11)  # those of clock 10 go, and no more
    assert third.n_new == 20
    assert third.evicted.tolist() == [*ids[:20].tolist(), *[NO_ID] * 20]
    assert third.slots[20:].tolist() == [-1] * 20
    assert m.find(ids[20:32]).tolist() == second.slots[:12].tolist()
    none = m.admit(ids[:5], 12, keep_from=0)  # nothing was used before clock 0
    assert (none.n_new, none.slots.tolist()) == (0, [-1] * 5)
    # What this call itself uses stays, at any clock.
    m.touch(m.items()[1], 19)
    held = np.asarray(m.items()[0])
    full = m.admit(np.r_[ids[:8], held[:30]], 20)
    assert (full.n_new, (full.slots[8:] >= 0).all()) == (2, True)
    assert not set(full.evicted.tolist()) & set(held[:30].tolist())


@pytest.mark.parametrize("evict", EVICT)
@pytest.mark.parametrize("device", ON)
def test_more_misses_than_a_set_has_ways(device: str, evict: str) -> None:
    """Runs of more than a warp takes at a time, beside sets of few; each id twice, far from each other."""
    m, model = slot_map(device, 320, evict=evict, seed=1), Model(320, evict, 1)
    many = of_one_set(320, 1, 300, which=4)
    for clock in range(1, 4):
        ids = np.r_[many, np.arange(10**6, 10**6 + 40), many[::-1]] + (clock - 1) * 10**9 * (clock > 2)
        slots, evicted, n_new = m.admit(ids, clock)
        assert (slots.tolist(), evicted.tolist(), n_new) == model.admit(ids, clock, clock)
        if clock < 3:
            assert slots[-300:].tolist() == slots[:300][::-1].tolist()
    assert len(m) == len(model.items())


@pytest.mark.parametrize("evict", EVICT)
@pytest.mark.parametrize("device", ON[1:])
def test_many_sets(device: str, evict: str) -> None:
    """Whose numbers have more than a byte; most ids are missing, some sets overflow."""
    kernels.set_threads(3)
    rng, capacity = np.random.default_rng(5), 32 * 600
    wanted, m = (slot_map(d, capacity, evict=evict, seed=2**63) for d in ("reference", device))
    for clock in (1, 2):
        ids = rng.choice(10**5, 14000, replace=False).astype(np.int64) - 5 * 10**4
        expected, found = wanted.admit(ids, clock), m.admit(ids, clock)
        assert_same_bits(tuple(found[:2]), tuple(expected[:2]))
        assert found.n_new == expected.n_new
        assert_same_bits(state_of(m), state_of(wanted))
    assert (expected.evicted != NO_ID).sum() > 5000


@pytest.mark.parametrize("device", ON)
def test_an_id_that_is_there_twice_counts_once(device: str) -> None:
    m = slot_map(device, 32, evict="lfu", seed=0)
    placed = m.admit(ints(5, 6, 5, 5), 1)
    assert (placed.slots.tolist(), placed.n_new) == ([0, 1, 0, 0], 2)
    m.admit(ints(5, 5, 5), 2)
    assert (state_of(m)["uses"][:2] >> 32).tolist() == [2, 1]


@pytest.mark.parametrize("evict", EVICT)
@pytest.mark.parametrize("device", ON)
def test_nothing_is_asked_for(device: str, evict: str) -> None:
    m = slot_map(device, 32, evict=evict, seed=0)
    assert m.find(NONE).size == m.remove(NONE).size == len(m) == m.items()[0].size == 0
    slots, evicted, n_new = m.admit(NONE, 0)
    assert (slots.dtype, slots.size, evicted.size, n_new) == (np.int64, 0, 0, 0)
    m.touch(NONE, 3)
    m.clear()
    assert m.capacity == 32
    assert m.n_bytes == 32 * {"lru": 12, "lfu": 16}[evict]


@pytest.mark.parametrize("device", ON)
def test_a_clock_that_was_is_no_use(device: str) -> None:
    m = slot_map(device, 32, evict="lru", seed=0)
    m.admit(np.arange(32), 9)
    m.touch(ints(0), 11)
    m.touch(ints(0, -1, 0), 4)
    m.admit(ints(0), 10)
    assert state_of(m)["uses"].tolist() == [11, *[9] * 31]


@pytest.mark.parametrize("device", ON)
def test_bad_ids_and_slots_are_refused_in_words(device: str) -> None:
    m = slot_map(device, 64, evict="lru", seed=0)
    m.admit(np.arange(40), 1)
    bad = ints(3, NO_ID, 1000)
    for call in (lambda: m.find(bad), lambda: m.remove(bad), lambda: m.admit(bad, 2)):
        with pytest.raises(ValueError, match=r"is -2\^63, which stands for an empty slot"):
            call()
        assert sorted(np.asarray(m.items()[0]).tolist()) == list(range(40))
    assert state_of(m)["uses"][m.find(ints(3))].tolist() == [2]  # as admit says
    for slot in (64, -2, INT64.max, INT64.min, 2**32, 2**31):
        before = state_of(m)
        with pytest.raises(ValueError, match=r"slot is not of this map|slots\[0\] is .* allowed are 0 <= value < 64"):
            m.touch(ints(slot), 7)
        assert_same_bits(state_of(m), before)


@pytest.mark.parametrize("device", ON)
@pytest.mark.parametrize("name", ["find", "admit", "touch", "remove"])
def test_arrays_that_are_none_are_refused(name: str, device: str) -> None:
    m = slot_map(device, 32, evict="lru", seed=0)
    there = on(device) or kernels.device("emulated")
    rest = (1,) if name in ("admit", "touch") else ()
    for bad in (
        [1, 2], None, np.zeros(2, np.int32), np.zeros(2), np.zeros((2, 2), np.int64), np.arange(6)[::2],
        there.zeros(2, np.int32), there.zeros((2, 2), np.int64), torch.zeros(2, dtype=torch.int64),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"needed is a|of another device"):
            getattr(m, name)(bad, *rest)
    assert len(m) == 0


@pytest.mark.parametrize("device", ON)
def test_bad_clocks_are_refused(device: str) -> None:
    m = slot_map(device, 32, evict="lru", seed=0)
    for clock in (-1, MOST_CLOCK + 1):
        with pytest.raises(ValueError, match="clock is"):
            m.admit(ints(1), clock)
        with pytest.raises(ValueError, match="clock is"):
            m.touch(ints(1), clock)
    for keep_from in (-1, 6):
        with pytest.raises(ValueError, match=f"keep_from is {keep_from}; allowed are 0 to 5"):
            m.admit(ints(1), 5, keep_from=keep_from)
    with pytest.raises(TypeError, match="must be an integer"):
        m.admit(ints(1), 1.5)  # type: ignore[arg-type]
    assert len(m) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": 33}, "multiple of 32"),
        ({"capacity": MOST_SLOTS + 32}, "capacity is"),
        ({"evict": "fifo"}, "allowed are lru, lfu and lfu_aging"),
        ({"evict": None}, "allowed are lru, lfu and lfu_aging"),
        ({"seed": 2**64}, "seed is"),
    ],
)
def test_bad_maps_are_refused(arguments: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SlotMap(**{"capacity": 32, "evict": "lru", "seed": 0, "device": None, **arguments})


@pytest.mark.parametrize("device", ON)
def test_results_are_where_the_arguments_are(device: str) -> None:
    there = on(device)
    m = SlotMap(64, evict="lru", seed=0, device=there)
    kind = np.ndarray if there is None else kernels.DeviceArray
    ids = np.arange(9) if there is None else there.array(np.arange(9))
    slots, evicted, n_new = m.admit(ids, 1)
    for found in (slots, evicted, m.find(ids), m.remove(ids[:2]), *m.items()):
        assert isinstance(found, kind)
    assert (n_new, len(m)) == (9, 7)
    assert isinstance(m.find(np.arange(9)), np.ndarray)


def test_seeds_spread_ids_and_are_taken_modulo_2_64() -> None:
    ids = np.arange(4000)
    found = [SlotMap(8192, evict="lru", seed=s, device=None).admit(ids, 0).slots for s in (0, 1, -1, WORD)]
    assert not np.array_equal(found[0], found[1])
    assert_same_bits(found[2], found[3])
    counts = np.bincount(found[0] // WAYS, minlength=256)
    assert 12 < counts.std() ** 2 < 20  # Poisson's variance is its mean, 15.6
    assert np.unique(found[0]).size == 4000


@pytest.mark.parametrize("device", ON)
def test_hit_rates_on_a_stream_of_hot_ids(device: str) -> None:
    """A set that rare ids sweep through: LFU keeps the hot ones, LRU loses some of them to rare ones."""
    rng, batches, hits = np.random.default_rng(0), 60, {}
    stream = [np.unique(rng.zipf(1.1, 64).clip(max=10**9)) for _ in range(batches)]
    for evict in EVICT:
        m, model, n, found = slot_map(device, 320, evict=evict, seed=2), Model(320, evict, 2), 0, 0
        for clock, ids in enumerate(stream):
            found += int((m.find(ids) >= 0).sum())
            n += ids.size
            slots, evicted, n_new = m.admit(ids, clock)
            assert (slots.tolist(), evicted.tolist(), n_new) == model.admit(ids, clock, clock)
        hits[evict] = found / n
    assert hits["lru"] == pytest.approx(0.29, abs=0.01)
    assert hits["lfu"] == pytest.approx(0.315, abs=0.01)


def test_too_many_ids_for_one_call_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrec.kernels.slots.MOST_IDS", 4)
    m = SlotMap(32, evict="lru", seed=0, device=None)
    with pytest.raises(ValueError, match="number of ids is 5"):
        m.admit(np.arange(5), 0)
    assert m.admit(np.arange(4), 0).n_new == 4


def test_a_map_fills_to_most_of_its_capacity() -> None:
    """Of ids for three quarters of the slots one in two hundred finds no room."""
    m = SlotMap(32 * 512, evict="lru", seed=0, device=None)
    placed = m.admit(np.arange(12288) * 977, 0)
    assert 0.002 < (placed.slots < 0).mean() < 0.01
    assert placed.n_new == len(m) == (placed.slots >= 0).sum()


def test_importing_kernels_imports_no_torch() -> None:
    command = [sys.executable, "-c", "import sys, hpcrec.kernels; print('torch' in sys.modules)"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"
